// SPDX-License-Identifier: Apache-2.0

package kyvernotest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/wasmplane/wasmplane/plugins/policies/kyverno/beyond"
	"github.com/wasmplane/wasmplane/plugins/policies/kyverno/imagepolicy"
	"github.com/wasmplane/wasmplane/plugins/sign/evidence"
)

// contextKind is the kind of the file that says what there is beside the requests.
const contextKind = "Context"

// surroundings are what expressions find beyond the requests: what the files of a test say. Images that none of them names are
// looked up, as the user of the command reaches their registries; nothing else is.
type surroundings struct {
	resources []map[string]any
	images    map[string]map[string]any // by their full names
	globals   map[string]globalEntry
	calls     []apiCall
	store     *evidence.Store
}

// globalEntry is what a GlobalContextEntry holds.
type globalEntry struct {
	Name          string           `yaml:"name"`
	Data          any              `yaml:"data"`
	Resources     []map[string]any `yaml:"resources"`
	ResourceFiles []string         `yaml:"resourceFiles"`
	Projections   []map[string]any `yaml:"projections"`
	FieldPath     string           `yaml:"fieldPath"`
}

// apiCall is the answer of a server.
type apiCall struct {
	URLPath  string `yaml:"urlPath"`
	URL      string `yaml:"url"`
	Method   string `yaml:"method"`
	Response struct {
		StatusCode int `yaml:"statusCode"`
		Body       any `yaml:"body"`
	} `yaml:"response"`
}

// contextFile is a file of the kind Context.
type contextFile struct {
	APIVersion string         `yaml:"apiVersion"`
	Kind       string         `yaml:"kind"`
	Metadata   map[string]any `yaml:"metadata"`
	Spec       struct {
		Resources []map[string]any `yaml:"resources"`
		Images    []map[string]any `yaml:"images"`
	} `yaml:"spec"`
}

// readSurroundings reads the files that say what there is beside the requests.
func readSurroundings(dir string, t *given) (*surroundings, error) {
	s := &surroundings{
		images: map[string]map[string]any{}, globals: map[string]globalEntry{}, calls: t.APICallResponses, store: evidence.New(),
	}
	for _, g := range t.GlobalContextEntries {
		if len(g.Projections) > 0 || g.FieldPath != "" {
			return nil, fmt.Errorf("globalContextEntries: %s: projections and fieldPath are in JMESPath, which is not evaluated here", g.Name)
		}
		w := world{dir: dir}
		for _, file := range g.ResourceFiles {
			documents, err := w.documents(file)
			if err != nil {
				return nil, fmt.Errorf("globalContextEntries: %s: %w", g.Name, err)
			}
			g.Resources = append(g.Resources, documents...)
		}
		s.globals[g.Name] = g
	}
	if t.Context == "" {
		return s, nil
	}
	b, err := os.ReadFile(filepath.Join(dir, t.Context))
	if err != nil {
		return nil, fmt.Errorf("context: %w", err)
	}
	var c contextFile
	d := yaml.NewDecoder(bytes.NewReader(b))
	d.KnownFields(true)
	if err := d.Decode(&c); err != nil {
		return nil, fmt.Errorf("context: %s: %w", t.Context, err)
	}
	if c.Kind != contextKind {
		return nil, fmt.Errorf("context: %s: expected a %s, found a %q", t.Context, contextKind, c.Kind)
	}
	for _, r := range c.Spec.Resources {
		o, err := plainJSON(r)
		if err != nil {
			return nil, fmt.Errorf("context: %s: %w", t.Context, err)
		}
		s.resources = append(s.resources, o)
	}
	for _, given := range c.Spec.Images {
		image, err := plainJSON(given)
		if err != nil {
			return nil, fmt.Errorf("context: %s: %w", t.Context, err)
		}
		text, _ := image["image"].(string)
		ref, err := name.ParseReference(text)
		if err != nil {
			return nil, fmt.Errorf("context: %s: image: %w", t.Context, err)
		}
		s.images[ref.Name()] = image
	}
	return s, nil
}

// plainJSON is a document of YAML as JSON has it.
func plainJSON[T any](in T) (out T, err error) {
	text, err := json.Marshal(in)
	if err != nil {
		return out, err
	}
	return out, utiljson.Unmarshal(text, &out)
}

// matching are the objects of a resource in a namespace; "" = in all.
func (s *surroundings) matching(apiVersion, resource, namespace string) (out []map[string]any) {
	for _, r := range s.resources {
		o := unstructured.Unstructured{Object: r}
		plural, singular := meta.UnsafeGuessKindToResource(schema.FromAPIVersionAndKind(o.GetAPIVersion(), o.GetKind()))
		if o.GetAPIVersion() == apiVersion && (plural.Resource == resource || singular.Resource == resource) &&
			(namespace == "" || o.GetNamespace() == "" || o.GetNamespace() == namespace) {
			out = append(out, r)
		}
	}
	return out
}

// Get implements beyond.Reach.
func (s *surroundings) Get(_ context.Context, apiVersion, resource, namespace, name string) (map[string]any, error) {
	for _, o := range s.matching(apiVersion, resource, namespace) {
		if (&unstructured.Unstructured{Object: o}).GetName() == name {
			return o, nil
		}
	}
	return nil, nil
}

// List implements beyond.Reach.
func (s *surroundings) List(_ context.Context, apiVersion, resource, namespace string, wanted map[string]string) (map[string]any, error) {
	items := []any{}
	for _, o := range s.matching(apiVersion, resource, namespace) {
		if labels.SelectorFromSet(wanted).Matches(labels.Set((&unstructured.Unstructured{Object: o}).GetLabels())) {
			items = append(items, o)
		}
	}
	return map[string]any{"apiVersion": apiVersion, "kind": "List", "items": items}, nil
}

// Post implements beyond.Reach: what it is given comes back, as nobody answers it.
func (s *surroundings) Post(_ context.Context, _, _, _ string, object map[string]any) (map[string]any, error) {
	return object, nil
}

// Resource implements beyond.Reach.
func (s *surroundings) Resource(_ context.Context, apiVersion, kind string) (string, error) {
	plural, _ := meta.UnsafeGuessKindToResource(schema.FromAPIVersionAndKind(apiVersion, kind))
	return plural.Resource, nil
}

// Global implements beyond.Reach.
func (s *surroundings) Global(_ context.Context, name, projection string) (any, error) {
	g, ok := s.globals[name]
	if !ok {
		return nil, fmt.Errorf("no GlobalContextEntry %s is among globalContextEntries", name)
	}
	if projection != "" {
		return nil, fmt.Errorf("the projection %s is in JMESPath, which is not evaluated here", projection)
	}
	if g.Resources != nil {
		return plainJSON(any(g.Resources))
	}
	return plainJSON(g.Data)
}

// Send implements beyond.Reach.
func (s *surroundings) Send(_ context.Context, r beyond.Request) (any, error) {
	for _, c := range s.calls {
		method := c.Method
		if method == "" {
			method = "GET"
		}
		if !strings.EqualFold(method, r.Method) || c.URL != r.URL && (c.URLPath == "" || !strings.HasSuffix(r.URL, c.URLPath)) {
			continue
		}
		code := c.Response.StatusCode
		if code == 0 {
			code = 200
		}
		body, err := plainJSON(c.Response.Body)
		return beyond.Answer(code, body), err
	}
	return nil, errors.New("no answer to " + r.Method + " " + r.URL + " is among apiCallResponses")
}

// Image implements beyond.Reach.
func (s *surroundings) Image(ctx context.Context, image string) (map[string]any, error) {
	ref, err := name.ParseReference(image)
	if err != nil {
		return nil, err
	}
	if known := s.images[ref.Name()]; known != nil {
		return known, nil
	}
	r, err := registries{}.Registry(ctx, &imagepolicy.Policy{}, ref.Context(), false)
	if err != nil {
		return nil, err
	}
	return imagepolicy.Data(ctx, s.store, image, r)
}
