// SPDX-License-Identifier: Apache-2.0

// Package configfile reads a scheduler's configuration in the form that users of
// kube-scheduler have it, KubeSchedulerConfiguration of kubescheduler.config.k8s.io/v1, and
// makes profiles of it. Plugins in Wasm are named in it like native ones.
//
// It is strict: a field that there is not, and one that means something which this
// scheduler does not do, are errors with file, line and what to do instead.
package configfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/kube-scheduler/config/v1"
	k8sjson "sigs.k8s.io/json"

	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/core/scheduler"
	"github.com/wasmplane/wasmplane/core/scheduler/extender"
	"github.com/wasmplane/wasmplane/core/scheduler/native"
	"github.com/wasmplane/wasmplane/core/scheduler/queue"
	"github.com/wasmplane/wasmplane/core/strictyaml"
)

// APIVersion and Kind of the document.
const (
	APIVersion = "kubescheduler.config.k8s.io/v1"
	Kind       = "KubeSchedulerConfiguration"
)

// File is a configuration that was read.
type File struct {
	name string
	root *yaml.Node
	doc  v1.KubeSchedulerConfiguration
}

// Parse reads a document; name is the file's, for messages.
func Parse(name string, data []byte) (*File, error) {
	f := &File{name: name}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	if err := dec.Decode(&doc); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if len(doc.Content) == 0 {
		return nil, fmt.Errorf("%s: the document is empty; it begins with apiVersion: %s and kind: %s", name, APIVersion, Kind)
	}
	f.root = doc.Content[0]
	if err := dec.Decode(&yaml.Node{}); !errors.Is(err, io.EOF) {
		return nil, f.wrong("", "expected one document, found several")
	}
	tree := map[string]any{}
	if err := f.root.Decode(&tree); err != nil {
		return nil, f.wrong("", "expected a mapping: %v", err)
	}
	if tree["apiVersion"] != APIVersion || tree["kind"] != Kind {
		return nil, f.wrong("apiVersion", "expected apiVersion: %s and kind: %s, found %v and %v", APIVersion, Kind, tree["apiVersion"],
			tree["kind"])
	}
	data, err := json.Marshal(tree)
	if err != nil {
		return nil, f.wrong("", "%v", err)
	}
	if err := f.strictly(data, &f.doc, ""); err != nil {
		return nil, err
	}
	return f, f.check(tree)
}

var quotedField = regexp.MustCompile(`field "([^"]+)"|Go struct field [A-Za-z]+\.([^ ]+) of`)

// strictly decodes JSON; path is where it stands in the document.
func (f *File) strictly(data []byte, into any, path string) error {
	strict, err := k8sjson.UnmarshalStrict(data, into)
	if err == nil && len(strict) == 0 {
		return nil
	}
	if err == nil {
		err = strict[0]
	}
	at := path
	if m := quotedField.FindStringSubmatch(err.Error()); m != nil {
		if at != "" {
			at += "."
		}
		at += m[1] + m[2]
	}
	return f.wrong(at, "%v", err)
}

// wrong is an error about a field; of one that is missing, where its parent stands.
func (f *File) wrong(path, format string, args ...any) error {
	return &strictyaml.FieldError{File: f.name, Line: config.NearestLine(f.root, path), Path: path, Problem: fmt.Sprintf(format, args...)}
}

// elsewhere are fields that mean something which is said otherwise, or not done.
var elsewhere = []struct{ field, instead string }{
	{"clientConnection", "is not read: which cluster is asked, and as whom, says `wasmplane scheduler --kubeconfig`"},
	{"enableProfiling", "is not read: profiles are served where metrics are, to who may get /debug/pprof"},
	{"enableContentionProfiling", "is not read: profiles are served where metrics are, to who may get /debug/pprof"},
	{"delayCacheUntilActive", "is not done: a scheduler that stands by keeps no cache"},
}

func (f *File) check(tree map[string]any) error {
	for _, e := range elsewhere {
		if value, there := tree[e.field]; there && value != false {
			return f.wrong(e.field, "%s", e.instead)
		}
	}
	if leader, ok := tree["leaderElection"].(map[string]any); ok {
		for name, value := range leader {
			if name != "leaderElect" || value != true {
				return f.wrong("leaderElection."+name, "is not read: schedulers always compete for the lease kube-system/kube-scheduler; `wasmplane scheduler --lease` names another one")
			}
		}
	}
	for _, n := range []struct {
		field     string
		value     *int32
		low, high int32
	}{{"parallelism", f.doc.Parallelism, 1, 10000}, {"percentageOfNodesToScore", f.doc.PercentageOfNodesToScore, 0, 100}} {
		if n.value != nil && (*n.value < n.low || *n.value > n.high) {
			return f.wrong(n.field, "expected %d to %d, found %d", n.low, n.high, *n.value)
		}
	}
	if err := extender.Check(f.doc.Extenders); err != nil {
		return f.extenderError(err)
	}
	initial, most := f.Queue().InitialBackoff, f.Queue().MaxBackoff
	if initial < 0 || most < 0 || f.doc.PodInitialBackoffSeconds != nil && initial == 0 {
		return f.wrong("podInitialBackoffSeconds", "expected 1 or more, found %d", *f.doc.PodInitialBackoffSeconds)
	}
	if most > 0 && most < max(initial, time.Second) {
		return f.wrong("podMaxBackoffSeconds", "expected at least podInitialBackoffSeconds, found %s", most)
	}
	seen := map[string]bool{}
	for i := range f.doc.Profiles {
		name := profileName(&f.doc.Profiles[i])
		if seen[name] {
			return f.wrong(fmt.Sprintf("profiles[%d].schedulerName", i), "every profile needs a name of its own, found %q twice", name)
		}
		seen[name] = true
	}
	return nil
}

// extenderError is what is wrong with an extender, with its line.
func (f *File) extenderError(err error) error {
	var field *extender.FieldError
	if errors.As(err, &field) {
		return f.wrong("extenders"+field.Field, "%s", field.Problem)
	}
	return err
}

func profileName(p *v1.KubeSchedulerProfile) string {
	if p.SchedulerName == nil || *p.SchedulerName == "" {
		return corev1.DefaultSchedulerName
	}
	return *p.SchedulerName
}

// Queue is what the configuration says of waiting pods.
func (f *File) Queue() (q queue.Backoff) {
	if s := f.doc.PodInitialBackoffSeconds; s != nil {
		q.InitialBackoff = time.Duration(*s) * time.Second
	}
	if s := f.doc.PodMaxBackoffSeconds; s != nil {
		q.MaxBackoff = time.Duration(*s) * time.Second
	}
	return q
}

// Workers that judge nodes at once; 0 = one per processor.
func (f *File) Workers() int {
	if f.doc.Parallelism == nil {
		return 0
	}
	return int(*f.doc.Parallelism)
}

// Profiles of the configuration. What the native plugins need besides is in with; wasm are
// the plugins that there are: those take part that a profile names. Extenders take part in all of them.
func (f *File) Profiles(wasm []scheduler.Weighted, with native.Config, reach extender.Reach) ([]scheduler.Profile, error) {
	extenders, err := extender.New(f.doc.Extenders, filepath.Dir(f.name), reach)
	if err != nil {
		return nil, f.extenderError(err)
	}
	list := f.doc.Profiles
	if len(list) == 0 {
		list = []v1.KubeSchedulerProfile{{}}
	}
	var out []scheduler.Profile
	for i := range list {
		p := &list[i]
		own := with
		path := fmt.Sprintf("profiles[%d]", i)
		if err := f.arguments(path, p.PluginConfig, &own); err != nil {
			return nil, err
		}
		if ignored := extender.IgnoredResources(f.doc.Extenders); len(ignored) > 0 {
			own.Fit.Ignored = ignored // instead of what the plugin's arguments say, as upstream has it
		}
		plugins, err := f.plugins(path+".plugins", p.Plugins, native.Default(own), wasm)
		if err != nil {
			return nil, err
		}
		for _, x := range extenders {
			plugins = append(slices.Clip(plugins), scheduler.Weighted{Plugin: x})
		}
		profile := scheduler.Profile{Name: profileName(p), Plugins: plugins}
		percent := f.doc.PercentageOfNodesToScore
		if p.PercentageOfNodesToScore != nil {
			if percent = p.PercentageOfNodesToScore; *percent < 0 || *percent > 100 {
				return nil, f.wrong(path+".percentageOfNodesToScore", "expected 0 to 100, found %d", *percent)
			}
		}
		if percent != nil {
			profile.PercentageOfNodes = int(*percent)
		}
		out = append(out, profile)
	}
	return out, nil
}
