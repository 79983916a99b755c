// SPDX-License-Identifier: Apache-2.0

package aggregator

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"k8s.io/kube-openapi/pkg/aggregator"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// fetchSpec learns the server's OpenAPI v2 document, of which only its own group
// version counts: no server describes another one's.
func (a *Aggregator) fetchSpec(ctx context.Context, r *Remote, what *known) error {
	header := http.Header{"Accept": {"application/json"}}
	if what.specETag != "" {
		header.Set("If-None-Match", what.specETag)
	}
	got, err := a.document(ctx, r, "/openapi/v2", header)
	switch {
	case err != nil:
		return err
	case got.status == http.StatusNotModified:
		return nil
	case got.status != http.StatusOK:
		what.spec, what.specETag = nil, ""
		return got.unexpected()
	}
	etag := got.header.Get("ETag")
	if etag != "" && etag == what.specETag {
		return nil
	}
	var s spec.Swagger
	if err := json.Unmarshal(got.data, &s); err != nil {
		return fmt.Errorf("read an OpenAPI v2 document: %w", err)
	}
	what.spec, what.specETag = aggregator.FilterSpecByPathsWithoutSideEffects(&s, []string{r.root() + "/"}), etag
	return nil
}

// fetchIndex learns whether the server has an OpenAPI v3 document of the group version.
func (a *Aggregator) fetchIndex(ctx context.Context, r *Remote, what *known) error {
	got, err := a.document(ctx, r, "/openapi/v3", http.Header{"Accept": {"application/json"}})
	if err != nil {
		return err
	}
	if got.status != http.StatusOK {
		what.v3 = ""
		return nil // servers before 1.24 have none
	}
	var index struct {
		Paths map[string]struct {
			URL string `json:"serverRelativeURL"`
		} `json:"paths"`
	}
	if err := json.Unmarshal(got.data, &index); err != nil {
		return fmt.Errorf("read the index of OpenAPI v3: %w", err)
	}
	what.v3 = ""
	// The path leads back to this server: one that is not below its place could
	// make clients believe what another group version's document says.
	place := "/openapi/v3" + r.root()
	if u := index.Paths[strings.TrimPrefix(r.root(), "/")].URL; u == place || strings.HasPrefix(u, place+"?") {
		what.v3 = u
	}
	return nil
}

// MergeV2 adds what other servers describe to our own OpenAPI v2 document. Where
// two describe the same path, ours counts; definitions that differ under one
// name are renamed.
func MergeV2(own []byte, remotes []*Remote) ([]byte, error) {
	var all spec.Swagger
	if err := json.Unmarshal(own, &all); err != nil {
		return nil, fmt.Errorf("read our own OpenAPI v2 document: %w", err)
	}
	for _, r := range remotes {
		s := r.OpenAPIV2()
		if s == nil {
			continue
		}
		// Merging renames inside what it merges.
		data, err := json.Marshal(s)
		if err != nil {
			return nil, fmt.Errorf("copy the OpenAPI v2 document of %s: %w", r.gv, err)
		}
		var one spec.Swagger
		if err := json.Unmarshal(data, &one); err != nil {
			return nil, fmt.Errorf("copy the OpenAPI v2 document of %s: %w", r.gv, err)
		}
		if err := aggregator.MergeSpecsIgnorePathConflictRenamingDefinitionsAndParameters(&all, &one); err != nil {
			return nil, fmt.Errorf("merge the OpenAPI v2 document of %s: %w", r.gv, err)
		}
	}
	return json.Marshal(&all)
}
