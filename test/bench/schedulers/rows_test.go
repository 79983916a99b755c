// SPDX-License-Identifier: Apache-2.0

package schedulers

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// row is one workload.
type row struct {
	name   string
	dir    string // from which the paths of templates go
	ops    []op
	nodes  int
	reason string // why it is not run; "" = it is
}

// suite is a test case of a performance-config.yaml; what has no place here is named as the
// reason why its workloads are not run.
type suite struct {
	Name                   string           `json:"name"`
	DefaultPodTemplatePath string           `json:"defaultPodTemplatePath"`
	FeatureGates           map[string]bool  `json:"featureGates"`
	WorkloadTemplate       []map[string]any `json:"workloadTemplate"`
	Workloads              []struct {
		Name         string          `json:"name"`
		Threshold    any             `json:"threshold"`
		FeatureGates map[string]bool `json:"featureGates"`
		Params       map[string]any  `json:"params"`
	} `json:"workloads"`
}

// op is a step of a workload.
type op struct {
	Opcode           string `json:"opcode"`
	Count            int    `json:"count"`
	CountParam       string `json:"countParam"`
	Prefix           string `json:"prefix"`
	Namespace        string `json:"namespace"`
	PodTemplatePath  string `json:"podTemplatePath"`
	NodeTemplatePath string `json:"nodeTemplatePath"`
	CollectMetrics   bool   `json:"collectMetrics"`
	SkipWait         bool   `json:"skipWaitToCompletion"`
	NSTemplatePath   string `json:"namespaceTemplatePath"`
	Labels           *struct {
		LabelKey    string   `json:"labelKey"`
		LabelValues []string `json:"labelValues"`
	} `json:"labelNodePrepareStrategy"`
	UniqueLabel *struct {
		LabelKey string `json:"labelKey"`
	} `json:"uniqueNodeLabelStrategy"`
}

// byDefault are gates of upstream's that are on anyway.
var byDefault = map[string]bool{"NodeInclusionPolicyInPodTopologySpread": true}

// rows reads ours and upstream's, those that have a threshold.
func rows(tb testing.TB) (all []row) {
	tb.Helper()
	module, err := exec.CommandContext(tb.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes").Output()
	if err != nil {
		tb.Fatalf("find the module k8s.io/kubernetes: %v", err)
	}
	perf := filepath.Join(strings.TrimSpace(string(module)), "test", "integration", "scheduler_perf")
	all = read(tb, filepath.Join("testdata", "rows.yaml"), filepath.Join(perf, "misc"), "")
	var files []string
	for _, depth := range []string{"*", "*/*", "*/*/*"} {
		found, err := filepath.Glob(filepath.Join(perf, depth, "performance-config.yaml"))
		if err != nil {
			tb.Fatal(err)
		}
		files = append(files, found...)
	}
	for _, f := range files {
		part, err := filepath.Rel(perf, filepath.Dir(f))
		if err != nil {
			tb.Fatal(err)
		}
		all = append(all, read(tb, f, filepath.Dir(f), filepath.ToSlash(part)+"/")...)
	}
	return all
}

// read the workloads of a file.
func read(tb testing.TB, file, dir, prefix string) (all []row) {
	tb.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		tb.Fatal(err)
	}
	var suites []suite
	if err := yaml.Unmarshal(data, &suites); err != nil {
		tb.Fatalf("%s: %v", file, err)
	}
	for _, s := range suites {
		for _, w := range s.Workloads {
			if w.Threshold == nil {
				continue
			}
			r := row{name: prefix + s.Name + "/" + w.Name, dir: dir}
			for gates, on := range map[string]map[string]bool{"feature gates": s.FeatureGates, "feature gates of its own": w.FeatureGates} {
				if maps.DeleteFunc(on, func(gate string, on bool) bool { return byDefault[gate] && on }); len(on) > 0 {
					r.reason = fmt.Sprintf("it sets %s: %v", gates, on)
				}
			}
			r.read(s, w.Params)
			all = append(all, r)
		}
	}
	return all
}

// read the steps, with the workload's parameters in them.
func (r *row) read(s suite, params map[string]any) {
	for _, raw := range s.WorkloadTemplate {
		text, err := yaml.Marshal(raw)
		if err != nil {
			r.not("%v", err)
			return
		}
		var o op
		if err := yaml.UnmarshalStrict(text, &o); err != nil {
			r.not("%s asks for what is not done here: %v", raw["opcode"], err)
			continue
		}
		if o.CountParam != "" {
			n, ok := params[strings.TrimPrefix(o.CountParam, "$")].(float64)
			if !ok {
				r.not("%s: the parameter %s is no number", o.Opcode, o.CountParam)
			}
			o.Count = int(n)
		}
		switch o.Opcode {
		case "createNodes":
			r.nodes += o.Count
			r.template(o.NodeTemplatePath, &corev1.Node{})
		case "createPods":
			if o.PodTemplatePath == "" {
				o.PodTemplatePath = s.DefaultPodTemplatePath
			}
			r.template(o.PodTemplatePath, &corev1.Pod{})
		case "createNamespaces":
			r.template(o.NSTemplatePath, &corev1.Namespace{})
		case "barrier":
		default:
			r.not("%s is not done here", o.Opcode)
		}
		r.ops = append(r.ops, o)
	}
}

// not run, for the first reason that is found.
func (r *row) not(format string, args ...any) {
	if r.reason == "" {
		r.reason = fmt.Sprintf(format, args...)
	}
}

// template reads an object that is made many times; "" = nothing.
func (r *row) template(path string, into any) {
	if path == "" {
		return
	}
	data, err := os.ReadFile(filepath.Join(r.dir, path))
	if err == nil {
		err = yaml.UnmarshalStrict(data, into)
	}
	if err != nil {
		r.not("%s is no plain template: %v", filepath.Base(path), err)
	}
}
