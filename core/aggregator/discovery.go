// SPDX-License-Identifier: Apache-2.0

package aggregator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	discoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/wasmplane/wasmplane/core/controllers"
)

// maxDocument bounds what another server can make us keep.
const maxDocument = 32 << 20

const acceptDiscovery = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json;q=0.9"

// known is what a server was last heard to say of itself.
type known struct {
	// version is its part of the aggregated discovery document.
	version discoveryv2.APIVersionDiscovery
	etag    string // of the whole document
	// fresh: the last time that it was asked, it answered.
	fresh bool

	specETag string
	spec     *spec.Swagger // OpenAPI v2, of this group version only; nil = it has none
	v3       string        // path and query of the OpenAPI v3 document; "" = it has none
}

// same says whether clients would see no difference.
func (k known) same(o known) bool {
	return k.fresh == o.fresh && k.etag == o.etag && k.etag != "" && k.spec == o.spec && k.v3 == o.v3
}

// Discovery is the server's part of the aggregated discovery document, marked
// as stale if the server did not answer lately.
func (r *Remote) Discovery() discoveryv2.APIVersionDiscovery {
	v := r.known.version
	v.Version = r.gv.Version
	v.Freshness = discoveryv2.DiscoveryFreshnessStale
	if r.known.fresh {
		v.Freshness = discoveryv2.DiscoveryFreshnessCurrent
	}
	return v
}

// OpenAPIV2 describes the server's part of the API; nil = unknown. It is shared.
func (r *Remote) OpenAPIV2() *spec.Swagger { return r.known.spec }

// OpenAPIV3 is where the server has its OpenAPI v3 document; "" = it has none.
func (r *Remote) OpenAPIV3() string { return r.known.v3 }

// fetch learns what the server of an APIService says of itself.
func (a *Aggregator) fetch(ctx context.Context, name string) error {
	r, ok := a.Remote(helper.APIServiceNameToGroupVersion(name))
	if !ok || r.broken != nil {
		return nil //nolint:nilerr // nothing to ask: the condition of the APIService says what is wrong with it
	}
	what := r.known
	err := a.fetchDiscovery(ctx, r, &what)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	what.fresh = err == nil
	if err == nil {
		if specErr := errors.Join(a.fetchSpec(ctx, r, &what), a.fetchIndex(ctx, r, &what)); specErr != nil {
			a.cfg.Logger.DebugContext(ctx, "the OpenAPI documents of another API server are unknown", "apiservice", name, "error", specErr)
		}
	}
	a.learn(r, what)
	if err != nil {
		a.cfg.Logger.DebugContext(ctx, "another API server does not say what it serves", "apiservice", name, "error", err)
		return controllers.ErrNotYet
	}
	return nil
}

func (a *Aggregator) fetchDiscovery(ctx context.Context, r *Remote, what *known) error {
	header := http.Header{"Accept": {acceptDiscovery}}
	if what.etag != "" {
		header.Set("If-None-Match", what.etag)
	}
	got, err := a.document(ctx, r, "/apis", header)
	switch {
	case err != nil:
		return err
	case got.status == http.StatusNotModified:
		return nil
	case got.status == http.StatusOK && strings.Contains(got.header.Get("Content-Type"), "as=APIGroupDiscoveryList"):
		return what.read(r.gv, got.data, got.header.Get("ETag"))
	case got.status == http.StatusServiceUnavailable:
		return got.unexpected()
	}
	return a.fetchPlain(ctx, r, what)
}

func (k *known) read(gv schema.GroupVersion, data []byte, etag string) error {
	var all discoveryv2.APIGroupDiscoveryList
	if err := json.Unmarshal(data, &all); err != nil {
		return fmt.Errorf("read a discovery document: %w", err)
	}
	k.version, k.etag = discoveryv2.APIVersionDiscovery{Version: gv.Version}, etag
	for _, g := range all.Items {
		for _, v := range g.Versions {
			if g.Name == gv.Group && v.Version == gv.Version {
				k.version = v
			}
		}
	}
	for i := range k.version.Resources {
		completeKinds(&k.version.Resources[i])
	}
	return nil
}

// completeKinds: clients of 1.26 dereference the response kind without asking.
func completeKinds(r *discoveryv2.APIResourceDiscovery) {
	if r.ResponseKind == nil {
		r.ResponseKind = &metav1.GroupVersionKind{}
	}
	for i := range r.Subresources {
		if r.Subresources[i].ResponseKind == nil {
			r.Subresources[i].ResponseKind = &metav1.GroupVersionKind{}
		}
	}
}

// fetchPlain is for servers that know no aggregated discovery.
func (a *Aggregator) fetchPlain(ctx context.Context, r *Remote, what *known) error {
	got, err := a.document(ctx, r, r.root(), http.Header{"Accept": {"application/json"}})
	if err != nil {
		return err
	}
	if got.status != http.StatusOK {
		return got.unexpected()
	}
	var list metav1.APIResourceList
	if err := json.Unmarshal(got.data, &list); err != nil {
		return fmt.Errorf("read a discovery document: %w", err)
	}
	what.version, what.etag = discoveryv2.APIVersionDiscovery{
		Version:   r.gv.Version,
		Resources: aggregateResources(r.gv, list.APIResources),
	}, ""
	return nil
}

// aggregateResources brings the resources of one group version into the
// aggregated shape: subresources below what they belong to.
func aggregateResources(gv schema.GroupVersion, list []metav1.APIResource) []discoveryv2.APIResourceDiscovery {
	var out []discoveryv2.APIResourceDiscovery
	place := map[string]int{}
	parent := func(name string) *discoveryv2.APIResourceDiscovery {
		if i, ok := place[name]; ok {
			return &out[i]
		}
		place[name] = len(out)
		out = append(out, discoveryv2.APIResourceDiscovery{
			Resource: name, Scope: discoveryv2.ScopeCluster,
			ResponseKind: &metav1.GroupVersionKind{},
		})
		return &out[len(out)-1]
	}
	for _, one := range list {
		kind := &metav1.GroupVersionKind{Group: one.Group, Version: one.Version, Kind: one.Kind}
		if kind.Group == "" && kind.Version == "" {
			kind.Group, kind.Version = gv.Group, gv.Version
		}
		name, sub, isSub := strings.Cut(one.Name, "/")
		r := parent(name)
		if isSub {
			r.Subresources = append(r.Subresources, discoveryv2.APISubresourceDiscovery{Subresource: sub, Verbs: one.Verbs, ResponseKind: kind})
			continue
		}
		r.SingularResource, r.ResponseKind = one.SingularName, kind
		r.Verbs, r.ShortNames, r.Categories = one.Verbs, one.ShortNames, one.Categories
		if one.Namespaced {
			r.Scope = discoveryv2.ScopeNamespace
		}
	}
	return slices.Clip(out)
}

// answer is what another server said, read to its end.
type answer struct {
	url    string
	status int
	header http.Header
	data   []byte
}

func (a *answer) unexpected() error {
	return fmt.Errorf("%s answers with status %d", a.url, a.status)
}

// document fetches what is small enough to be kept.
func (a *Aggregator) document(ctx context.Context, r *Remote, path string, header http.Header) (*answer, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	resp, err := a.ask(ctx, r, path, header)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxDocument+1))
	if err != nil {
		return nil, fmt.Errorf("read the answer of %s: %w", resp.Request.URL, err)
	}
	if len(data) > maxDocument {
		return nil, fmt.Errorf("the answer of %s is larger than %d bytes", resp.Request.URL, maxDocument)
	}
	return &answer{url: resp.Request.URL.String(), status: resp.StatusCode, header: resp.Header, data: data}, nil
}
