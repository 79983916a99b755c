// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/wasmplane/wasmplane/plugins/apiobject/plugindefinition"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/policies"
	"github.com/wasmplane/wasmplane/plugins/policies/tree"
	"github.com/wasmplane/wasmplane/plugins/rego/bundle"
	"github.com/wasmplane/wasmplane/plugins/source"
)

// The forms in which plugins are printed.
const (
	asEntries = "entries"
	asObjects = "objects"
)

func (a commands) importPolicies() *cobra.Command {
	form := asEntries
	c := &cobra.Command{
		Use:   "import FILE|FOLDER...",
		Short: "Make plugins of policies that were written for Gatekeeper, Kubewarden, Kyverno or Open Policy Agent",
		Long: `Make plugins of policies from the files in which they were written, and print them:
  Gatekeeper   ConstraintTemplate (in Rego or CEL) and its constraints; Assign, AssignMetadata,
               AssignImage, ModifySet and ExpansionTemplate are checked and, with
               --as objects, printed as they are
  Kubewarden   ClusterAdmissionPolicy, AdmissionPolicy and the groups of both
  Kyverno      ValidatingPolicy, MutatingPolicy and those of a namespace (in CEL): of these
               are made, with --as objects, ValidatingAdmissionPolicies,
               MutatingAdmissionPolicies and bindings
  OPA          bundles (FILE.tar.gz); a signature is not verified here: the entry pins the
               bundle's digest

Files are YAML or JSON, of one or more objects; of a folder all files in it and below
are read; - is the standard input. Objects of other kinds are left alone and named.
A field that cannot be kept is an error, and nothing is printed then: no policy is
made to guard less than it says.

--as entries prints what stands under plugins in the configuration file, --as objects
what kubectl applies to a running cluster.`,
		Example: `  wasmplane plugin import policies/ > plugins.yaml
  wasmplane plugin import template.yaml constraint.yaml --as objects | wasmplane kubectl apply -f -`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if form != asEntries && form != asObjects {
				return fmt.Errorf("--as: expected %s or %s, found %q", asEntries, asObjects, form)
			}
			bundles, args, err := readBundles(args)
			if err != nil {
				return err
			}
			objects, err := a.readObjects(args)
			if err != nil {
				return err
			}
			plugins, rest, err := policies.Translate(objects, policies.Offline{})
			plugins = append(plugins, bundles...)
			inCEL, rest, kyvernoErr := policiesInCEL(rest, form)
			kept, rest, keptErr := readByServers(rest, form)
			inCEL = append(inCEL, kept...)
			for _, o := range rest {
				fmt.Fprintf(a.Err, "left alone: %s %s\n", o.GetKind(), o.GetName())
			}
			if err := errors.Join(err, kyvernoErr, keptErr, checkImported(plugins)); err != nil {
				return err
			}
			if len(plugins)+len(inCEL) == 0 {
				return errors.New("there is no policy among them")
			}
			if len(plugins) > 0 {
				if err := a.printImported(plugins, form); err != nil {
					return err
				}
			}
			return a.printObjects(inCEL)
		},
	}
	c.Flags().StringVar(&form, "as", form, "`FORM` in which plugins are printed: entries or objects")
	return c
}

// readBundles makes plugins of the bundles among some files, and returns the other files.
func readBundles(paths []string) (plugins []policies.Plugin, others []string, err error) {
	for _, path := range paths {
		name, ok := strings.CutSuffix(filepath.Base(path), ".tar.gz")
		if !ok {
			others = append(others, path)
			continue
		}
		archive, err := os.ReadFile(path)
		if err != nil {
			return nil, nil, fmt.Errorf("read the bundle: %w", err)
		}
		if _, err := bundle.Read(archive, bundle.Options{Pinned: true}); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", path, err)
		}
		policy := &unstructured.Unstructured{Object: map[string]any{"kind": "Bundle", "metadata": map[string]any{"name": path}}}
		plugins = append(plugins, policies.Plugin{Name: name, Policy: policy, Entry: map[string]any{
			"source": "file:" + path, "digest": source.Digest(archive), "bundle": map[string]any{},
		}})
	}
	return plugins, others, nil
}

// readObjects reads the objects of files, of folders and of the standard input.
func (a commands) readObjects(paths []string) ([]*unstructured.Unstructured, error) {
	var out []*unstructured.Unstructured
	add := func(name string, r io.Reader) error {
		documents, err := tree.Documents(name, r)
		for _, d := range documents {
			if o := (&unstructured.Unstructured{Object: d}); o.GetKind() != "" && o.GetAPIVersion() != "" {
				out = append(out, o) // others are no objects: a kustomization, the values of a chart
			}
		}
		return err
	}
	file := func(path string) error {
		f, err := os.Open(path)
		if err != nil {
			return fmt.Errorf("read the policies: %w", err)
		}
		defer func() { _ = f.Close() }()
		return add(path, f)
	}
	for _, p := range paths {
		if p == "-" {
			if err := add("standard input", os.Stdin); err != nil {
				return nil, err
			}
			continue
		}
		err := filepath.WalkDir(p, func(path string, e fs.DirEntry, err error) error {
			if err != nil {
				return fmt.Errorf("read the policies: %w", err)
			}
			if e.IsDir() || path != p && !slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(path)) {
				return nil
			}
			return file(path)
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// checkImported has the plugins read as they will be.
func checkImported(plugins []policies.Plugin) error {
	var errs []error
	for _, p := range plugins {
		if _, err := manifest.ParseTree(named(&p)); err != nil {
			errs = append(errs, &policies.Error{Policy: p.Policy, Err: err})
		}
	}
	return errors.Join(errs...)
}

// named is the entry of a plugin in a configuration file, where nothing else confines one of
// a namespace.
func named(p *policies.Plugin) map[string]any {
	entry := map[string]any{"name": p.Name}
	for k, v := range p.Entry {
		entry[k] = v
	}
	if p.Namespace == "" {
		return entry
	}
	entry["name"] = p.Namespace + "." + p.Name
	match := map[string]any{}
	if m, ok := p.Entry["match"].(map[string]any); ok {
		for k, v := range m {
			match[k] = v
		}
	}
	match["namespaceSelector"] = map[string]any{"matchLabels": map[string]any{"kubernetes.io/metadata.name": p.Namespace}}
	entry["match"] = match
	return entry
}

// nameFirst is an entry for people, which begins with its name.
func nameFirst(entry map[string]any) (*yaml.Node, error) {
	var head, rest yaml.Node
	name := entry["name"]
	delete(entry, "name")
	if err := errors.Join(head.Encode(map[string]any{"name": name}), rest.Encode(entry)); err != nil {
		return nil, err
	}
	head.Content = append(head.Content, rest.Content...)
	return &head, nil
}

func (a commands) printImported(plugins []policies.Plugin, form string) error {
	e := yaml.NewEncoder(a.Out)
	e.SetIndent(2)
	if form == asEntries {
		var list []*yaml.Node
		for i := range plugins {
			n, err := nameFirst(named(&plugins[i]))
			if err != nil {
				return err
			}
			list = append(list, n)
		}
		return errors.Join(e.Encode(map[string]any{"plugins": list}), e.Close())
	}
	for _, p := range plugins {
		kind, meta := plugindefinition.Kind, map[string]any{"name": p.Name}
		if p.Namespace != "" {
			kind, meta["namespace"] = plugindefinition.TenantKind, p.Namespace
		}
		version := plugindefinition.Group + "/" + plugindefinition.Version
		err := e.Encode(map[string]any{"apiVersion": version, "kind": kind, "metadata": meta, "spec": p.Entry})
		if err != nil {
			return err
		}
	}
	return e.Close()
}
