// SPDX-License-Identifier: Apache-2.0

package apiobject

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/wasmplane/wasmplane/core/strictyaml"
	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/host"
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
		var fe *strictyaml.FieldError
		if errors.As(err, &fe) { // lines of what nobody wrote as lines say nothing
			return e, fmt.Errorf("%s: %s", fe.Path, fe.Problem)
		}
		return e, err
	}
	e.Line, e.FromAPI, e.Writer = 0, true, writerOf(o)
	if o.GetNamespace() != "" {
		return r.tenant(e, o.GetNamespace())
	}
	if err := r.check(&e); err != nil {
		return e, err
	}
	return e, nil
}

// tenant confines an entry to its namespace. What reaches beyond it is refused: other
// points than admission, the network, and more than the limits that every plugin has by default.
func (r Rules) tenant(e manifest.Entry, namespace string) (manifest.Entry, error) {
	r.Files, r.Taken = "", nil
	if err := r.check(&e); err != nil {
		return e, err
	}
	e.Namespace, e.Name = namespace, TenantName(namespace, e.Name)
	for _, p := range e.Points {
		if p != string(abi.AdmissionMutate) && p != string(abi.AdmissionValidate) {
			return e, fmt.Errorf("spec.points: a plugin of a namespace takes part in admission only, not in %s", p)
		}
	}
	if len(e.Points) == 0 {
		return e, errors.New("spec.points: name the points, admission.validate or admission.mutate or both")
	}
	grants := []manifest.Grants{e.Grants}
	if e.Group != nil {
		grants = nil
		for _, m := range e.Group.Members {
			grants = append(grants, m.Grants)
		}
	}
	for _, g := range grants {
		for i, read := range g.Read {
			for _, n := range read.Namespaces {
				if n != namespace {
					return e, fmt.Errorf("spec.grants.read[%d].namespaces: a plugin of a namespace reads its own only, %s, not %s", i, namespace, n)
				}
			}
		}
		if len(g.HTTP)+len(g.DNS)+len(g.Images.Registries)+len(g.Images.PlainHTTP)+len(g.Capabilities) > 0 {
			return e, errors.New("spec.grants: a plugin of a namespace has no network; ask for a Plugin of the cluster")
		}
	}
	for at, f := range fetches(&e) {
		if s := f.Secret; s != "" && !strings.HasPrefix(s, namespace+"/") {
			return e, fmt.Errorf("%s.secret: expected a Secret of namespace %s, found %s", at, namespace, s)
		}
		if f.PlainHTTP || f.MaxSize > 32<<20 {
			return e, fmt.Errorf("%s: a plugin of a namespace is fetched over TLS, and has at most 32Mi", at)
		}
	}
	for name, m := range e.MemberEntries() {
		if err := withinDefaults("spec.group.members."+name+".limits", m.HostLimits()); err != nil {
			return e, err
		}
	}
	return e, withinDefaults("spec.limits", e.HostLimits())
}

// fetches are all the ways in which an entry has modules fetched, by where they
// stand: a candidate's and a group's members' reach as far as the entry's own.
func fetches(e *manifest.Entry) map[string]*manifest.Fetch {
	all := map[string]*manifest.Fetch{"spec.fetch": &e.Fetch}
	if e.Candidate != nil && e.Candidate.Fetch != nil {
		all["spec.candidate.fetch"] = e.Candidate.Fetch
	}
	if e.Group != nil {
		for name, m := range e.Group.Members {
			all["spec.group.members."+name+".fetch"] = &m.Fetch
		}
	}
	return all
}

// withinDefaults refuses more than a plugin has by default. at is where the limits stand.
func withinDefaults(at string, l host.Limits) error {
	most := host.Limits{}.WithDefaults()
	for field, over := range map[string]bool{
		"fuel": l.Fuel > most.Fuel, "deadline": l.Deadline > most.Deadline, "memory": l.Memory > most.Memory, "output": l.Output > most.Output,
		"hostCalls": l.HostCalls > most.HostCalls, "instances": l.Instances > most.Instances, "startFuel": l.StartFuel > most.StartFuel,
		"startDeadline": l.StartDeadline > most.StartDeadline, "stack": l.Stack > most.Stack, "log": l.Log > most.Log,
		"input": l.Input > most.Input, "hostReply": l.HostReply > most.HostReply,
	} {
		if over {
			return fmt.Errorf("%s.%s: a plugin of a namespace has at most what every plugin has by default", at, field)
		}
	}
	return nil
}

// TenantName is what a namespace's plugin is called in logs and metrics. No other
// plugin's name has a colon.
func TenantName(namespace, name string) string { return namespace + ":" + name }

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
	if e.Bundle != nil {
		for i, k := range e.Bundle.Keys {
			if !strings.HasPrefix(strings.TrimSpace(k.Key), "-----BEGIN") {
				return fmt.Errorf("spec.bundle.keys[%d].key: only entries of the configuration file may name files; write the key itself, in PEM", i)
			}
		}
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
