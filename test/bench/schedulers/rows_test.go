// SPDX-License-Identifier: Apache-2.0

package schedulers

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/template"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"
)

// row is one workload.
type row struct {
	name   string
	dir    string // from which the paths of templates go
	ops    []op
	nodes  int
	reason string // why it is not run; "" = it is
	// gates of upstream's scheduler that are not as they are by default, as its flag has them, and
	// the version that it has to emulate for them; "" = its own.
	gates   []string
	emulate string
	without string         // plugin of both schedulers; "" = it has all
	params  map[string]any // of templates
}

// claims says whether pods of the row have claims made of templates.
func (r *row) claims() bool {
	return slices.ContainsFunc(r.ops, func(o op) bool { return strings.HasPrefix(filepath.Base(o.TemplatePath), "resourceclaimtemplate") })
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
	// Of createPods in a steady state: each pod that gets its node is replaced by another one, for so long.
	SteadyParam   string `json:"steadyStateParam"`
	DurationParam string `json:"durationParam"`
	steady        time.Duration
	// Of createPods: each pod has a volume, bound to its claim.
	VolumePath     string `json:"persistentVolumeTemplatePath"`
	ClaimPath      string `json:"persistentVolumeClaimTemplatePath"`
	NSTemplatePath string `json:"namespaceTemplatePath"`
	Labels         *struct {
		LabelKey    string   `json:"labelKey"`
		LabelValues []string `json:"labelValues"`
	} `json:"labelNodePrepareStrategy"`
	UniqueLabel *struct {
		LabelKey string `json:"labelKey"`
	} `json:"uniqueNodeLabelStrategy"`
	// Allocatable is what nodes can attach, by the kubelet's and by a driver's word.
	Allocatable *struct {
		Node     map[corev1.ResourceName]string            `json:"nodeAllocatable"`
		Drivers  map[string]*storagev1.VolumeNodeResources `json:"csiNodeAllocatable"`
		Migrated []string                                  `json:"migratedPlugins"`
	} `json:"nodeAllocatableStrategy"`
	TemplateParams map[string]any `json:"templateParams"`
	// Of createAny: one object, or as many as are counted.
	TemplatePath string `json:"templatePath"`
	// Of createPodSets: the same step for each namespace.
	NamespacePrefix string `json:"namespacePrefix"`
	Each            *op    `json:"createPodsOp"`
	// Of churn: the objects of templates are made, or made and removed by turns, so often.
	Mode           string   `json:"mode"`
	Number         int      `json:"number"`
	TemplatePaths  []string `json:"templatePaths"`
	IntervalMillis int      `json:"intervalMilliseconds"`
	// Of deletePods.
	PodsPerSecond int `json:"deletePodsPerSecond"`
	// Of barrier: pods need not have nodes yet.
	Stage string `json:"stageRequirement"`
}

// byDefault are gates of upstream's as they are anyway.
var byDefault = map[string]bool{
	"DRAExtendedResource": true, "DynamicResourceAllocation": true, "NodeDeclaredFeatures": true,
	"NodeInclusionPolicyInPodTopologySpread": true, "SchedulerAsyncAPICalls": false, "SchedulerAsyncPreemption": true,
}

// itsOwn are gates that concern nobody but upstream's scheduler: how it does what it does. Ours has one way.
var itsOwn = map[string]bool{"SchedulerAsyncAPICalls": true, "SchedulerAsyncPreemption": true}

// former are gates that this version has settled: upstream's scheduler is told to be the version before, in which gates that
// need this one are on by default and have to go too; ours leaves out the plugin.
var former = map[string]struct {
	usual   bool
	emulate string
	needing []string
	plugin  string
}{
	"NodeDeclaredFeatures": {true, "1.36", []string{
		"ExtendWebSocketsToKubelet", "InPlacePodLevelResourcesVerticalScaling", "InPlacePodVerticalScalingInitContainers",
		"RestartAllContainersOnContainerExits",
	}, "NodeDeclaredFeatures"},
}

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
			gates := maps.Clone(s.FeatureGates)
			if gates == nil {
				gates = map[string]bool{}
			}
			maps.Copy(gates, w.FeatureGates)
			for gate, on := range gates {
				switch usual, known := byDefault[gate]; {
				case known && usual == on:
				case itsOwn[gate]:
					r.gates = append(r.gates, fmt.Sprintf("%s=%t", gate, on))
				case former[gate].usual && !on:
					f := former[gate]
					r.emulate, r.without = f.emulate, f.plugin
					for _, g := range append([]string{gate}, f.needing...) {
						r.gates = append(r.gates, g+"=false")
					}
				default:
					r.not("it sets the feature gate %s=%t", gate, on)
				}
			}
			slices.Sort(r.gates)
			r.read(s, w.Params)
			all = append(all, r)
		}
	}
	return all
}

// read the steps, with the workload's parameters in them.
func (r *row) read(s suite, params map[string]any) {
	r.params = params
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
		r.step(&o, s.DefaultPodTemplatePath)
		r.ops = append(r.ops, o)
	}
}

// step checks and completes a step.
func (r *row) step(o *op, podTemplate string) {
	counted := o.CountParam != ""
	if counted {
		n, ok := r.params[strings.TrimPrefix(o.CountParam, "$")].(float64)
		if !ok {
			r.not("%s: the parameter %s is no number", o.Opcode, o.CountParam)
		}
		o.Count = int(n)
	}
	switch o.Opcode {
	case "createNodes":
		r.nodes += o.Count
		r.template(o.NodeTemplatePath, o, 0, &corev1.Node{})
		if o.Allocatable != nil {
			for name, amount := range o.Allocatable.Node {
				if _, err := resource.ParseQuantity(amount); err != nil {
					r.not("createNodes: %s: %v", name, err)
				}
			}
		}
	case "createPods":
		r.steadily(o)
		r.template(o.VolumePath, o, 0, &corev1.PersistentVolume{})
		r.template(o.ClaimPath, o, 0, &corev1.PersistentVolumeClaim{})
		if (o.VolumePath == "") != (o.ClaimPath == "") {
			r.not("createPods: a volume needs a claim, and a claim a volume")
		}
		if o.PodTemplatePath == "" {
			o.PodTemplatePath = cmp.Or(podTemplate, "../templates/pod-default.yaml") // upstream's own pod is that one
		}
		r.template(o.PodTemplatePath, o, 0, &corev1.Pod{})
	case "createPodSets":
		if o.Each == nil {
			r.not("createPodSets says nothing of its pods")
			return
		}
		r.step(o.Each, podTemplate)
	case "createNamespaces":
		r.template(o.NSTemplatePath, o, 0, &corev1.Namespace{})
	case "createAny":
		if !counted && o.Count == 0 {
			o.Count = 1
		}
		if _, err := r.object(o.TemplatePath, o, 0); err != nil {
			r.not("%v", err)
		}
	case "churn":
		for _, path := range o.TemplatePaths {
			if _, err := r.object(path, o, 0); err != nil {
				r.not("%v", err)
			}
		}
	case "allocResourceClaims", "barrier", "deletePods":
	default:
		r.not("%s is not done here", o.Opcode)
	}
}

// steadily reads for how long pods are replaced; both parameters are there, or none.
func (r *row) steadily(o *op) {
	if o.SteadyParam == "" {
		return
	}
	on, ok := r.params[strings.TrimPrefix(o.SteadyParam, "$")].(bool)
	if !ok {
		r.not("createPods: the parameter %s is neither true nor false", o.SteadyParam)
	}
	text, _ := r.params[strings.TrimPrefix(o.DurationParam, "$")].(string)
	d, err := time.ParseDuration(text)
	if on && (err != nil || d <= 0) {
		r.not("createPods: the parameter %s is no duration: %q", o.DurationParam, text)
	}
	if on {
		o.steady = d
	}
}

// few objects, such as classes that others are made by turns for, are not scaled.
const few = 100

// scaled is the row with a part of its objects, at least one of each.
func (r row) scaled(by float64) row {
	part := func(n int) int {
		if n < few {
			return n
		}
		return max(int(float64(n)*by), 1)
	}
	ops := slices.Clone(r.ops)
	r.ops, r.nodes = ops, 0
	for i := range ops {
		ops[i].Count = part(ops[i].Count)
		if ops[i].Opcode == "createNodes" {
			r.nodes += ops[i].Count
		}
	}
	return r
}

// not run, for the first reason that is found.
func (r *row) not(format string, args ...any) {
	if r.reason == "" {
		r.reason = fmt.Sprintf(format, args...)
	}
}

// template reads an object that is made many times; "" = nothing.
func (r *row) template(path string, o *op, index int, into any) {
	if path == "" {
		return
	}
	data, err := r.text(path, o, index)
	if err == nil {
		err = yaml.UnmarshalStrict(data, into)
	}
	if err != nil {
		r.not("%s is no template of a %T: %v", filepath.Base(path), into, err)
	}
}

// numbered: each of the objects of a template is another one.
func (r *row) numbered(path string) bool {
	if path == "" {
		return false
	}
	data, err := os.ReadFile(filepath.Join(r.dir, path))
	return err == nil && strings.Contains(string(data), ".Index")
}

// object is the index-th one of any of the kinds that are known here.
func (r *row) object(path string, o *op, index int) (runtime.Object, error) {
	data, err := r.text(path, o, index)
	if err != nil {
		return nil, err
	}
	var kind metav1.TypeMeta
	if err := yaml.Unmarshal(data, &kind); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	var into runtime.Object
	switch kind.Kind {
	case "Pod":
		into = &corev1.Pod{}
	case "Node":
		into = &corev1.Node{}
	case "Service":
		into = &corev1.Service{}
	case "DeviceClass":
		into = &resourcev1.DeviceClass{}
	case "ResourceClaim":
		into = &resourcev1.ResourceClaim{}
	case "ResourceClaimTemplate":
		into = &resourcev1.ResourceClaimTemplate{}
	case "ResourceSlice":
		into = &resourcev1.ResourceSlice{}
	default:
		return nil, fmt.Errorf("%s is a %s, which is not made here", filepath.Base(path), kind.Kind)
	}
	if err := yaml.UnmarshalStrict(data, into); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	into.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{}) // of the client's version
	return into, nil
}

// text of a template with its parameters, which may be those of the row, or "$name|else".
func (r *row) text(path string, o *op, index int) ([]byte, error) {
	data, err := os.ReadFile(filepath.Join(r.dir, path))
	if err != nil || !strings.Contains(string(data), "{{") {
		return data, err
	}
	values := map[string]any{"Index": index, "Count": o.Count}
	for name, v := range o.TemplateParams {
		if text, ok := v.(string); ok && strings.HasPrefix(text, "$") {
			param, otherwise, _ := strings.Cut(text[1:], "|")
			var there bool
			if v, there = r.params[param]; !there {
				v = otherwise
			}
		}
		values[name] = v
	}
	functions := template.FuncMap{
		"Int": integer, "Mod": func(a, b any) int { return integer(a) % max(integer(b), 1) },
		"JSON": func(v any) (string, error) {
			text, err := json.Marshal(v)
			return string(text), err
		},
	}
	t, err := template.New(path).Funcs(functions).Parse(string(data))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	var out bytes.Buffer
	if err := t.Execute(&out, values); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	return out.Bytes(), nil
}

// integer of a parameter.
func integer(v any) int {
	n, err := strconv.ParseFloat(fmt.Sprint(v), 64)
	if err != nil {
		return 0
	}
	return int(n)
}
