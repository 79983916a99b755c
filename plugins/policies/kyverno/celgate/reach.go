// SPDX-License-Identifier: Apache-2.0

package celgate

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/fence"
	"github.com/wasmplane/wasmplane/core/dial"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/policies/kyverno/beyond"
)

// Bounds of one question.
const (
	mostItems   = 5000 // of a list
	answerLimit = 1 << 20
	bodyLimit   = 256 << 10
	sendTime    = 30 * time.Second // the policy's own timeout is shorter
)

// reach is what one policy may look at beyond one request.
type reach struct {
	gate      *Gate
	policy    *standing
	namespace string // of the request
}

func (g *Gate) reach(p *standing, r *admission.Request) beyond.Reach {
	return &reach{g, p, r.Namespace}
}

// resource finds what serves a resource of an apiVersion.
func (g *Gate) resource(apiVersion, resource string) (schema.GroupVersionKind, schema.GroupVersion, error) {
	gv, err := schema.ParseGroupVersion(apiVersion)
	if err != nil {
		return schema.GroupVersionKind{}, gv, err
	}
	kind, _, err := g.cfg.World.Served(gv, "", resource)
	if err != nil {
		return schema.GroupVersionKind{}, gv, fmt.Errorf("%s of %s are not served here", resource, apiVersion)
	}
	return gv.WithKind(kind), gv, nil
}

// Get implements beyond.Reach.
func (r *reach) Get(ctx context.Context, apiVersion, resource, namespace, name string) (map[string]any, error) {
	return r.gate.get(ctx, r.policy.writer, apiVersion, resource, namespace, name)
}

// get reads an object on behalf of somebody: where a request is judged by it, as it is stored now, and so that the
// request is judged again if it changes before the request is stored (package fence).
func (g *Gate) get(ctx context.Context, writer *manifest.Entry, apiVersion, resource, namespace, name string) (map[string]any, error) {
	kind, gv, err := g.resource(apiVersion, resource)
	if err != nil {
		return nil, err
	}
	if err := g.cfg.Rights.Act(ctx, writer, authorizationv1.ResourceAttributes{
		Verb: "get", Group: gv.Group, Version: gv.Version, Resource: resource, Namespace: namespace, Name: name,
	}); err != nil {
		return nil, err
	}
	if err := fence.Raise(ctx, kind.Group); err != nil {
		return nil, err
	}
	read := g.cfg.World.Get
	if fence.Judging(ctx) {
		read = g.cfg.World.GetNewest
	}
	o, err := read(ctx, kind, namespace, name)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return treeOf(o)
}

func treeOf(o runtime.Object) (map[string]any, error) {
	return runtime.DefaultUnstructuredConverter.ToUnstructured(o)
}

// List implements beyond.Reach.
func (r *reach) List(ctx context.Context, apiVersion, resource, namespace string, wanted map[string]string) (map[string]any, error) {
	return r.gate.list(ctx, r.policy.writer, apiVersion, resource, namespace, wanted)
}

// list reads objects on behalf of somebody, as get does.
func (g *Gate) list(ctx context.Context, writer *manifest.Entry, apiVersion, resource, namespace string, wanted map[string]string,
) (map[string]any, error) {
	kind, gv, err := g.resource(apiVersion, resource)
	if err != nil {
		return nil, err
	}
	if err := g.cfg.Rights.Act(ctx, writer, authorizationv1.ResourceAttributes{
		Verb: "list", Group: gv.Group, Version: gv.Version, Resource: resource, Namespace: namespace,
	}); err != nil {
		return nil, err
	}
	if err := fence.Raise(ctx, kind.Group); err != nil {
		return nil, err
	}
	read := g.cfg.World.List
	if fence.Judging(ctx) {
		read = g.cfg.World.ListNewest
	}
	list, err := read(ctx, kind, namespace, labels.SelectorFromSet(wanted))
	if err != nil {
		return nil, err
	}
	if len(list) > mostItems {
		return nil, fmt.Errorf("there are %d %s, and a policy looks at %d at most: name a namespace, or labels", len(list), resource, mostItems)
	}
	items := make([]any, len(list))
	for i, o := range list {
		if items[i], err = treeOf(o); err != nil {
			return nil, err
		}
	}
	return map[string]any{"apiVersion": apiVersion, "kind": kind.Kind + "List", "metadata": map[string]any{}, "items": items}, nil
}

// reviews are what may be posted: the API answers them and stores nothing.
var reviews = []string{"subjectaccessreviews", "localsubjectaccessreviews"}

// Post implements beyond.Reach.
func (r *reach) Post(ctx context.Context, apiVersion, resource, namespace string, object map[string]any) (map[string]any, error) {
	if apiVersion != authorizationv1.SchemeGroupVersion.String() || !slices.Contains(reviews, resource) {
		return nil, fmt.Errorf("a policy creates nothing: only %q of %s can be posted", reviews, authorizationv1.SchemeGroupVersion)
	}
	attributes := authorizationv1.ResourceAttributes{
		Verb: "create", Group: authorizationv1.GroupName, Version: "v1", Resource: resource, Namespace: namespace,
	}
	if err := r.gate.cfg.Rights.Act(ctx, r.policy.writer, attributes); err != nil {
		return nil, err
	}
	var review authorizationv1.SubjectAccessReview
	text, err := json.Marshal(object)
	if err == nil {
		err = json.Unmarshal(text, &review)
	}
	if err != nil {
		return nil, fmt.Errorf("expected a SubjectAccessReview: %w", err)
	}
	if resource == reviews[1] && (review.Spec.ResourceAttributes == nil || review.Spec.ResourceAttributes.Namespace != namespace) {
		return nil, fmt.Errorf("spec.resourceAttributes.namespace: expected %q, as the review's own", namespace)
	}
	if review.Status, err = r.gate.cfg.Review(ctx, review.Spec); err != nil {
		return nil, err
	}
	return treeOf(&review)
}

// Resource implements beyond.Reach.
func (r *reach) Resource(_ context.Context, apiVersion, kind string) (string, error) {
	gv, err := schema.ParseGroupVersion(apiVersion)
	if err != nil {
		return "", err
	}
	_, resource, err := r.gate.cfg.World.Served(gv, kind, "")
	if err != nil {
		return "", fmt.Errorf("the kind %s of %s is not served here", kind, apiVersion)
	}
	return resource, nil
}

// Image implements beyond.Reach.
func (r *reach) Image(ctx context.Context, image string) (map[string]any, error) {
	ref, err := name.ParseReference(image)
	if err != nil {
		return nil, err
	}
	registry := ref.Context().RegistryStr()
	named := r.policy.namespace == "" && slices.ContainsFunc(r.policy.texts, func(t string) bool {
		return t == registry || strings.HasPrefix(t, registry+"/")
	})
	if named {
		if err := r.maySend(ctx); err != nil {
			return nil, err
		}
	}
	return r.gate.cfg.Images.Data(ctx, r.namespace, named, image)
}

func (r *reach) maySend(ctx context.Context) error {
	return r.gate.cfg.Rights.Grants(ctx, r.policy.writer, "spec", "send from the control plane's machines")
}

// Send implements beyond.Reach.
func (r *reach) Send(ctx context.Context, q beyond.Request) (any, error) {
	if err := r.maySend(ctx); err != nil {
		return nil, err
	}
	u, err := url.Parse(q.URL)
	if err != nil || u.Host == "" || u.User != nil || u.Scheme != "https" && u.Scheme != "http" {
		return nil, fmt.Errorf("%q: expected https:// or http:// and a host, without credentials", q.URL)
	}
	named := slices.ContainsFunc(r.policy.texts, func(t string) bool {
		own, err := url.Parse(t)
		return err == nil && own.Scheme == u.Scheme && own.Host == u.Host
	})
	if u.Scheme == "http" && !named {
		return nil, fmt.Errorf("%s: a server whose name does not stand in the policy is asked by https only", u.Host)
	}
	return r.gate.send(ctx, q, named)
}

// client asks by a policy of addresses. Redirects are not followed.
func client(p dial.Policy, roots *x509.CertPool) *http.Client {
	var trust *tls.Config
	if roots != nil {
		trust = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	}
	return p.DirectClient(trust, sendTime, answerLimit)
}

// send asks a server. named: the policy, or the entry, names it itself.
func (g *Gate) send(ctx context.Context, q beyond.Request, named bool) (any, error) {
	by, dialing := g.clients[1], g.cfg.Tenants
	if named {
		by, dialing = g.clients[0], g.cfg.Operators
	}
	if q.Authorities != "" {
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM([]byte(q.Authorities)) {
			return nil, errors.New("expected authorities as certificates in PEM")
		}
		by = client(dialing, roots)
		defer by.CloseIdleConnections()
	}
	var body []byte
	if q.Method == http.MethodPost {
		var err error
		if body, err = json.Marshal(q.Body); err != nil {
			return nil, err
		}
		if len(body) > bodyLimit {
			return nil, fmt.Errorf("at most %d bytes are sent", bodyLimit)
		}
	}
	request, err := http.NewRequestWithContext(ctx, q.Method, q.URL, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	for key, value := range q.Headers {
		request.Header.Set(key, value)
	}
	response, err := by.Do(request)
	if err != nil {
		return nil, told(request.URL.Host, err)
	}
	defer func() { _ = response.Body.Close() }()
	var text bytes.Buffer
	if _, err := text.ReadFrom(response.Body); err != nil {
		return nil, told(request.URL.Host, err)
	}
	var answer any
	if utiljson.Unmarshal(text.Bytes(), &answer) != nil {
		answer = nil // as at Kyverno
	}
	return beyond.Answer(response.StatusCode, answer), nil
}

// told leaves of an error what whoever is refused may know: not what answers where.
func told(host string, err error) error {
	var refused *dial.RefusedError
	var large *dial.TooLargeError
	switch {
	case errors.As(err, &refused):
		return fmt.Errorf("%s may not be connected to: it is at a private address, and its name does not stand in the policy (or egress forbids it)", host)
	case errors.As(err, &large):
		return fmt.Errorf("%s answered with more than %d bytes", host, large.Limit)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s did not answer in time", host)
	}
	return fmt.Errorf("%s cannot be reached", host)
}
