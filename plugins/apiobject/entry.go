package apiobject

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/plugins/manifest"
)

// Rules say what objects may ask for.
type Rules struct {
	// Files is the folder below which objects may name modules with file:; "" =
	// nowhere. Relative paths start there.
	Files string
	// Taken says that a name belongs to the configuration file.
	Taken func(name string) bool
}

// Entry makes the entry of an object. What is wrong is said with the field's path.
func (r Rules) Entry(o *unstructured.Unstructured) (manifest.Entry, error) {
	spec, _, err := unstructured.NestedMap(o.Object, "spec")
	if err != nil {
		return manifest.Entry{}, fmt.Errorf("spec: %w", err)
	}
	tree := map[string]any{}
	for k, v := range spec {
		tree[k] = v
	}
	delete(tree, "previous") // it is put back by who may write, and checked then
	tree["name"] = o.GetName()
	text, err := json.Marshal(tree)
	if err != nil {
		return manifest.Entry{}, fmt.Errorf("spec: %w", err)
	}
	var n yaml.Node
	if err := yaml.Unmarshal(text, &n); err != nil {
		return manifest.Entry{}, fmt.Errorf("spec: %w", err)
	}
	e, err := manifest.Parse(&n, "spec")
	if err != nil {
		var fe *config.FieldError
		if errors.As(err, &fe) { // lines of what nobody wrote as lines say nothing
			return e, fmt.Errorf("%s: %s", fe.Path, fe.Problem)
		}
		return e, err
	}
	e.Line, e.FromAPI = 0, true
	if err := r.check(&e); err != nil {
		return e, err
	}
	return e, nil
}

// check refuses what would reach into the machines of the control plane.
func (r Rules) check(e *manifest.Entry) error {
	if r.Taken != nil && r.Taken(e.Name) {
		return fmt.Errorf("metadata.name: a plugin %q stands in the configuration file, and is not touched through the API; choose another name", e.Name)
	}
	if err := r.file("spec.source", &e.Source); err != nil {
		return err
	}
	if err := noFiles("spec", &e.Fetch, e.Signatures); err != nil {
		return err
	}
	for i, g := range e.Grants.HTTP {
		if g.CAFile != "" {
			return fmt.Errorf("spec.grants.http[%d].caFile: only entries of the configuration file may name files", i)
		}
	}
	if e.Group != nil {
		return r.members(e)
	}
	if c := e.Candidate; c != nil {
		if err := r.file("spec.candidate.source", &c.Source); err != nil {
			return err
		}
		fetch := c.Fetch
		if fetch == nil {
			fetch = &manifest.Fetch{}
		}
		return noFiles("spec.candidate", fetch, c.Signatures)
	}
	return nil
}

// members holds a group's members against the same rules.
func (r Rules) members(e *manifest.Entry) error {
	for name, m := range e.Group.Members {
		at := "spec.group.members." + name
		if err := r.file(at+".source", &m.Source); err != nil {
			return err
		}
		if err := noFiles(at, &m.Fetch, m.Signatures); err != nil {
			return err
		}
		for _, g := range m.Grants.HTTP {
			if g.CAFile != "" {
				return fmt.Errorf("%s.grants.http: only entries of the configuration file may name files", at)
			}
		}
		e.Group.Members[name] = m
	}
	return nil
}

// file puts a file source below the folder that is open to objects.
func (r Rules) file(field string, source *string) error {
	path, ok := strings.CutPrefix(*source, "file:")
	if !ok {
		return nil
	}
	if r.Files == "" {
		return fmt.Errorf("%s: objects may not name files of the server; push the module to a registry (`wasmplane plugin push`), or open a folder in the server's configuration (pluginFiles)", field)
	}
	if filepath.IsAbs(path) || !filepath.IsLocal(path) {
		return fmt.Errorf("%s: expected a path below the folder that is open to objects, found %q", field, path)
	}
	*source = "file:" + filepath.Join(r.Files, path)
	return nil
}

func noFiles(at string, f *manifest.Fetch, signatures []manifest.Signature) error {
	if f.CAFile != "" || f.DockerConfig != "" {
		return fmt.Errorf("%s.fetch: only entries of the configuration file may name files; write authorities into ca, and credentials into a Secret (secret)", at)
	}
	for i, s := range signatures {
		for _, k := range s.Keys {
			if !strings.HasPrefix(strings.TrimSpace(k), "-----BEGIN") {
				return fmt.Errorf("%s.signatures[%d].keys: only entries of the configuration file may name files; write the key itself, in PEM", at, i)
			}
		}
	}
	return nil
}
