// SPDX-License-Identifier: Apache-2.0

// Package input reads what a simulation is about: manifests as kubectl takes them and as
// it writes them (`kubectl get -o yaml`), shapes of nodes, prices, and workloads that are
// described by numbers. Manifests are defaulted and validated as an API server would.
// Whatever is wrong is an error with file, line and field.
package input

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/wasmplane/wasmplane/core/api"
	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/core/simulate"
	"github.com/wasmplane/wasmplane/core/strictyaml"
)

// APIVersion of the documents that are a simulation's own.
const APIVersion = "simulate.wasmplane.dev/v1alpha1"

// Input is what was read.
type Input struct {
	Cluster  simulate.Cluster
	Arrivals []simulate.Arrival
	// Notes say what is left out of the simulation.
	Notes []string
}

// Request says what is to be read.
type Request struct {
	// Nodes to make, of the Shapes in a file ("" = one usual shape).
	Nodes  int
	Shapes string
	// NodesFrom are files with nodes, and with the pods that run on them.
	NodesFrom []string
	// Cluster has the objects of a cluster that were read otherwise, each as a server gives it out, and From says
	// where: "the cluster".
	Cluster []runtime.Object
	From    string
	// Prices is a file with prices of instance types.
	Prices string
	// Files of the workload; folders are read whole.
	Files []string
	// Seed of what is drawn: times of arrival, and how long pods run.
	Seed uint64
}

// Read reads and checks everything.
func Read(ctx context.Context, q Request) (*Input, error) {
	// What the manifests may have is for whoever writes them to say: gangs are placed as gangs.
	if err := api.EnableFeatures(map[string]bool{"GenericWorkload": true, "TopologyAwareWorkloadScheduling": true}); err != nil {
		return nil, err
	}
	contract, err := api.New()
	if err != nil {
		return nil, err
	}
	r := &reader{contract: contract, classes: map[string]int32{}, names: map[string]*document{}, ignored: map[string]int{}}
	for name, value := range map[string]int32{"system-cluster-critical": 2000000000, "system-node-critical": 2000001000} {
		r.classes[name] = value
	}
	for _, o := range q.Cluster {
		if err := r.given(o, q.From); err != nil {
			return nil, err
		}
	}
	for _, list := range [][]string{q.NodesFrom, q.Files} {
		for _, f := range list {
			if err := r.file(f, slices.Contains(q.NodesFrom, f)); err != nil {
				return nil, err
			}
		}
	}
	for _, d := range r.all {
		if d.cluster { // a server has taken it already
			continue
		}
		if bad := r.validate(ctx, d.row, d.version, d.object); bad != nil {
			return nil, d.wrong(bad.Field, "%s", bad.ErrorBody())
		}
	}
	return r.put(ctx, q)
}

// reader reads documents.
type reader struct {
	contract *api.Contract
	all      []*document
	own      []*document // of our kinds
	classes  map[string]int32
	standard *int32 // priority of pods that name no class
	names    map[string]*document
	ignored  map[string]int
}

// document is one object of a file.
type document struct {
	file    string
	node    *yaml.Node
	cluster bool // it says what is there, not what comes
	object  runtime.Object
	meta    metav1.Object
	row     *api.Resource // of its kind
	version string
}

// wrong is an error about a field of a document.
func (d *document) wrong(path, format string, args ...any) error {
	return &strictyaml.FieldError{File: d.file, Line: config.NearestLine(d.node, path), Path: path, Problem: fmt.Sprintf(format, args...)}
}

func (r *reader) file(path string, cluster bool) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("read manifests: %w", err)
	}
	if !info.IsDir() {
		data, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("read manifests: %w", err)
		}
		return r.documents(path, data, cluster)
	}
	found := 0
	for _, pattern := range []string{"*.yaml", "*.yml", "*.json"} {
		files, err := filepath.Glob(filepath.Join(path, pattern))
		if err != nil {
			return err
		}
		for _, f := range files {
			found++
			if err := r.file(f, cluster); err != nil {
				return err
			}
		}
	}
	if found == 0 {
		return fmt.Errorf("%s: expected .yaml, .yml or .json files in the folder, found none", path)
	}
	return nil
}

func (r *reader) documents(file string, data []byte, cluster bool) error {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	for {
		var doc yaml.Node
		if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		if len(doc.Content) == 0 || doc.Content[0].Tag == "!!null" {
			continue
		}
		if err := r.add(&document{file: file, node: doc.Content[0], cluster: cluster}); err != nil {
			return err
		}
	}
}

// taken are the kinds that mean something to the scheduler.
var taken = map[string]bool{
	"Node": true, "Pod": true, "Deployment": true, "ReplicaSet": true, "StatefulSet": true, "Job": true, "DaemonSet": true,
	"Service": true, "ReplicationController": true, "PodDisruptionBudget": true, "Namespace": true, "PriorityClass": true,
	"PodGroup": true,
}

func (r *reader) add(d *document) error {
	var head struct {
		APIVersion string      `yaml:"apiVersion"`
		Kind       string      `yaml:"kind"`
		Items      []yaml.Node `yaml:"items"`
	}
	if err := d.node.Decode(&head); err != nil {
		return d.wrong("", "expected an object: %v", err)
	}
	switch {
	case head.Kind == "" || head.APIVersion == "":
		return d.wrong("", "expected an object with apiVersion and kind, found apiVersion %q and kind %q", head.APIVersion, head.Kind)
	case head.APIVersion == APIVersion:
		r.own = append(r.own, d)
		return nil
	case strings.HasPrefix(head.APIVersion, "simulate.wasmplane.dev/"):
		return d.wrong("apiVersion", "expected %s, found %s", APIVersion, head.APIVersion)
	case strings.HasSuffix(head.Kind, "List") && head.Items != nil:
		for i := range head.Items {
			if err := r.add(&document{file: d.file, node: &head.Items[i], cluster: d.cluster}); err != nil {
				return err
			}
		}
		return nil
	}
	gv, err := schema.ParseGroupVersion(head.APIVersion)
	if err != nil {
		return d.wrong("apiVersion", "%v", err)
	}
	row, ok := r.contract.ByKind(gv.WithKind(head.Kind).GroupKind())
	if !ok || !taken[head.Kind] {
		r.ignored[head.Kind]++
		return nil
	}
	if !row.Serves(gv.Version) {
		return d.wrong("apiVersion", "%s is served in %s, not in %s", head.Kind, strings.Join(row.Versions, ", "), gv.Version)
	}
	if err := r.decode(d, row, gv.Version); err != nil {
		return err
	}
	return r.keep(d, head.Kind)
}

// given takes an object that a server has given out.
func (r *reader) given(o runtime.Object, from string) error {
	kinds, _, err := scheme.Scheme.ObjectKinds(o)
	if err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	d := &document{file: from, node: &yaml.Node{}, cluster: true, object: o, version: kinds[0].Version}
	row, ok := r.contract.ByKind(kinds[0].GroupKind())
	m, named := o.(metav1.Object)
	if !ok || !named || !taken[kinds[0].Kind] {
		return fmt.Errorf("%s: a simulation has no use for %s", from, kinds[0])
	}
	d.row, d.meta = row, m
	return r.keep(d, kinds[0].Kind)
}

// decode makes the object, with defaults.
func (r *reader) decode(d *document, row *api.Resource, version string) error {
	var tree map[string]any
	if err := d.node.Decode(&tree); err != nil {
		return d.wrong("", "%v", err)
	}
	data, err := json.Marshal(tree)
	if err != nil {
		return d.wrong("", "%v", err)
	}
	o, strict, err := r.contract.DecodeStrict(row, version, data, object.JSON)
	if err != nil {
		return d.wrong(pathIn(err), "%v", err)
	}
	if len(strict) > 0 && !d.cluster { // a server of another version may know more fields
		return d.wrong(pathIn(strict[0]), "%v", strict[0])
	}
	m, ok := o.(metav1.Object)
	if !ok {
		return d.wrong("kind", "expected a single object")
	}
	if row.Namespaced && m.GetNamespace() == "" {
		m.SetNamespace(metav1.NamespaceDefault)
	}
	row.Codec(version).Default(o)
	d.object, d.meta, d.row, d.version = o, m, row, version
	return nil
}

// validate has the object judged as a server judges a new one.
func (r *reader) validate(ctx context.Context, row *api.Resource, version string, o runtime.Object) *field.Error {
	tried := o.DeepCopyObject()
	m := tried.(metav1.Object) //nolint:errcheck // so is the original
	if m.GetName() == "" && m.GetGenerateName() != "" {
		m.SetName(m.GetGenerateName() + "x")
	}
	m.SetUID("simulated")
	internal, err := row.Codec(version).Internal(tried)
	if err != nil {
		return field.InternalError(nil, err)
	}
	ctx = api.StrategyContext(ctx, api.StrategyInfo{Resource: row, Version: version, Namespace: m.GetNamespace()})
	row.Strategy.PrepareForCreate(ctx, internal)
	if list := row.Strategy.Validate(ctx, internal); len(list) > 0 {
		return list[0]
	}
	if m.GetName() == "" {
		return field.Required(field.NewPath("metadata", "name"), "name or generateName is required")
	}
	return nil
}

var quotedField = regexp.MustCompile(`field "([^"]+)"`)

// pathIn is the field that an error of the decoder names; "" where it names none.
func pathIn(err error) string {
	if m := quotedField.FindStringSubmatch(err.Error()); m != nil {
		return m[1]
	}
	return ""
}

// keep an object; names are unique.
func (r *reader) keep(d *document, kind string) error {
	if d.meta.GetName() != "" {
		key := kind + " " + d.meta.GetNamespace() + "/" + d.meta.GetName()
		if first := r.names[key]; first != nil {
			return d.wrong("metadata.name", "%s %s stands in %s:%d too", kind, d.meta.GetName(), first.file, first.node.Line)
		}
		r.names[key] = d
	}
	if class, ok := d.object.(*schedulingv1.PriorityClass); ok {
		r.classes[class.Name] = class.Value
		if class.GlobalDefault {
			r.standard = &class.Value
		}
		return nil
	}
	r.all = append(r.all, d)
	return nil
}

// notes say what was left out.
func (r *reader) remarks() (out []string) {
	for _, kind := range slices.Sorted(maps.Keys(r.ignored)) {
		out = append(out, fmt.Sprintf("%d of kind %s left out: the scheduler does not look at them", r.ignored[kind], kind))
	}
	return out
}

// priority of a pod by its class, as admission sets it.
func (r *reader) priority(d *document, path string, spec *corev1.PodSpec) error {
	if spec.Priority != nil {
		return nil
	}
	if spec.PriorityClassName == "" {
		spec.Priority = r.standard
		return nil
	}
	value, ok := r.classes[spec.PriorityClassName]
	if !ok {
		return d.wrong(path+"priorityClassName", "there is no PriorityClass %q among the manifests", spec.PriorityClassName)
	}
	spec.Priority = &value
	return nil
}
