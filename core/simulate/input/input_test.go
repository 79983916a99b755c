// SPDX-License-Identifier: Apache-2.0

package input_test

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/wasmplane/wasmplane/core/simulate"
	"github.com/wasmplane/wasmplane/core/simulate/input"
)

func write(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const manifests = `# a comment
apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
  annotations: {simulate.wasmplane.dev/arrives: 1h, simulate.wasmplane.dev/every: 10m}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata:
      labels: {app: web}
      annotations: {simulate.wasmplane.dev/lasts: 2h}
    spec:
      priorityClassName: high
      containers: [{name: c, image: i, resources: {limits: {cpu: 500m}}}]
---
apiVersion: batch/v1
kind: Job
metadata: {name: sum, annotations: {simulate.wasmplane.dev/lasts: 30m}}
spec:
  completions: 3
  parallelism: 2
  template:
    spec:
      restartPolicy: Never
      containers: [{name: c, image: i}]
---
apiVersion: v1
kind: List
items:
- apiVersion: scheduling.k8s.io/v1
  kind: PriorityClass
  metadata: {name: high}
  value: 1000
- {apiVersion: v1, kind: ConfigMap, metadata: {name: left-out}}
- apiVersion: v1
  kind: Pod
  metadata: {name: alone}
  spec:
    containers: [{name: c, image: i}]
    volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
- apiVersion: apps/v1
  kind: DaemonSet
  metadata: {name: agent}
  spec:
    selector: {matchLabels: {app: agent}}
    template:
      metadata: {labels: {app: agent}}
      spec: {containers: [{name: c, image: i}]}
`

func TestManifestsBecomePodsThatCome(t *testing.T) {
	in, err := input.Read(t.Context(), input.Request{Nodes: 2, Files: []string{write(t, t.TempDir(), "all.yaml", manifests)}, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, a := range in.Arrivals {
		got = append(got, fmt.Sprintf("%s %s %s %d", a.Pod.Name, a.At, a.Lasts, a.Comeback))
	}
	want := []string{
		"sum-0 0s 30m0s 2", "sum-1 0s 30m0s 2", "alone 0s 0s 0", "agent-0 0s 0s 1", "agent-1 0s 0s 1", "sum-2 30m0s 30m0s 2",
		"web-simulated-0 1h0m0s 2h0m0s 1", "web-simulated-1 1h10m0s 2h0m0s 1", "web-simulated-2 1h20m0s 2h0m0s 1",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("come\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	web := in.Arrivals[6].Pod
	if cpu := web.Spec.Containers[0].Resources.Requests["cpu"]; *web.Spec.Priority != 1000 || cpu.String() != "500m" ||
		web.Spec.SchedulerName != "default-scheduler" {
		t.Errorf("priority %d, cpu %s, scheduler %q", *web.Spec.Priority, cpu.String(), web.Spec.SchedulerName)
	}
	notes := []string{"1 of kind ConfigMap left out: the scheduler does not look at them", "1 pods have claims: volumes are not simulated, and where they are does not matter"}
	if !reflect.DeepEqual(in.Notes, notes) || len(in.Arrivals[2].Pod.Spec.Volumes) != 0 {
		t.Errorf("notes %q", in.Notes)
	}
}

const shapes = `apiVersion: simulate.wasmplane.dev/v1alpha1
kind: Shapes
shapes:
- {name: small, share: 3, allocatable: {cpu: 4, memory: 16Gi}, zones: [x, y], price: 0.2}
- name: gpu
  allocatable: {cpu: 32, memory: 256Gi, nvidia.com/gpu: 8}
  taints: [{key: gpu, effect: NoSchedule}]
  price: 9.5
`

func TestShapesAreMixedByTheirShares(t *testing.T) {
	dir := t.TempDir()
	in, err := input.Read(t.Context(),
		input.Request{Nodes: 8, Shapes: write(t, dir, "s.yaml", shapes), Files: []string{write(t, dir, "m.yaml", manifests)}})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, n := range in.Cluster.Nodes {
		names = append(names, n.Name)
	}
	want := "small-0001 small-0002 gpu-0001 small-0003 small-0004 small-0005 gpu-0002 small-0006"
	if strings.Join(names, " ") != want || in.Cluster.Prices["gpu-0002"] != 9.5 || len(in.Cluster.Nodes[2].Spec.Taints) != 1 {
		t.Errorf("nodes %v, prices %v", names, in.Cluster.Prices)
	}
}

// A cluster as kubectl writes it: its pods run, and those that wait come at once.
func TestAClusterIsReadAsKubectlWritesIt(t *testing.T) {
	dir := t.TempDir()
	now := write(t, dir, "now.yaml", `apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Node
  metadata: {name: a, labels: {node.kubernetes.io/instance-type: m5.large}}
  status: {allocatable: {cpu: "4", memory: 8Gi, pods: "20"}}
- apiVersion: v1
  kind: Pod
  metadata: {name: runs, namespace: shop, uid: "1"}
  spec: {nodeName: a, containers: [{name: c, image: i}], fieldOfTheFuture: 1}
  status: {phase: Running}
- apiVersion: v1
  kind: Pod
  metadata: {name: done, namespace: shop, uid: "2"}
  spec: {nodeName: a, containers: [{name: c, image: i}]}
  status: {phase: Succeeded}
- apiVersion: v1
  kind: Pod
  metadata: {name: waits, namespace: shop, uid: "3"}
  spec: {containers: [{name: c, image: i}]}
  status: {phase: Pending}
`)
	prices := write(t, dir, "prices.yaml", "apiVersion: simulate.wasmplane.dev/v1alpha1\nkind: Prices\nprices: {m5.large: 0.1}\n")
	in, err := input.Read(t.Context(), input.Request{NodesFrom: []string{now}, Prices: prices})
	if err != nil {
		t.Fatal(err)
	}
	if len(in.Cluster.Running) != 1 || in.Cluster.Running[0].Name != "runs" || len(in.Arrivals) != 1 || in.Arrivals[0].Pod.Name != "waits" ||
		in.Cluster.Prices["a"] != 0.1 {
		t.Errorf("%d running, %d come, prices %v", len(in.Cluster.Running), len(in.Arrivals), in.Cluster.Prices)
	}
}

const crowds = `apiVersion: simulate.wasmplane.dev/v1alpha1
kind: Workload
pods:
- {name: web, count: 100, arrives: {from: 1h, to: 3h}, lasts: {from: 10m}, requests: {cpu: 500m}, priority: 5}
- {name: batch, count: 1, comesBack: restart, spec: {nodeSelector: {disk: ssd}, containers: [{name: c, image: i}]}}
`

func TestACrowdComesBetweenTwoTimesBySeed(t *testing.T) {
	file := write(t, t.TempDir(), "w.yaml", crowds)
	read := func(seed uint64) []simulate.Arrival {
		in, err := input.Read(t.Context(), input.Request{Nodes: 1, Files: []string{file}, Seed: seed})
		if err != nil {
			t.Fatal(err)
		}
		return in.Arrivals
	}
	all := read(1)
	if len(all) != 101 || !reflect.DeepEqual(all, read(1)) || reflect.DeepEqual(all, read(2)) {
		t.Fatalf("%d come, or the seed does not decide when", len(all))
	}
	if p := all[0]; p.Pod.Spec.NodeSelector["disk"] != "ssd" || p.Comeback != simulate.Restart || p.At != 0 {
		t.Errorf("the first one: %+v", p)
	}
	for i, a := range all[1:] {
		if a.At < time.Hour || a.At >= 3*time.Hour || a.Lasts != 10*time.Minute || *a.Pod.Spec.Priority != 5 || a.At < all[i].At {
			t.Fatalf("comes at %s for %s", a.At, a.Lasts)
		}
	}
}

func TestWhatIsWrongIsSaidWithFileAndLine(t *testing.T) {
	const workload = "apiVersion: simulate.wasmplane.dev/v1alpha1\nkind: Workload\npods:\n"
	const list = "apiVersion: simulate.wasmplane.dev/v1alpha1\nkind: Shapes\nshapes:\n"
	pod := func(spec string) string {
		return "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  " + spec + "\n"
	}
	for _, c := range []struct{ text, want string }{
		{"a: [", "f.yaml: yaml: line 1"},
		{"- 1", "f.yaml:1: expected an object"},
		{"kind: Pod", `f.yaml:1: expected an object with apiVersion and kind, found apiVersion "" and kind "Pod"`},
		{"apiVersion: apps/v1beta1\nkind: Deployment", "f.yaml:1: apiVersion: Deployment is served in v1, not in v1beta1"},
		{pod("containers: [{name: c, image: i}]\n  replicas: 3"), `f.yaml:6: spec.replicas: unknown field "spec.replicas"`},
		{pod("containers: [{name: c, image: i, resources: {requests: {cpu: -1}}}]"), "f.yaml:5: spec.containers[0].resources.requests[cpu]: Invalid value"},
		{pod("containers: [{name: c, image: i, resources: {requests: {cpu: much}}}]"), "f.yaml:1: "},
		{pod("priorityClassName: none\n  containers: [{name: c, image: i}]"), `f.yaml:5: spec.priorityClassName: there is no PriorityClass "none" among the manifests`},
		{pod("nodeName: other\n  containers: [{name: c, image: i}]"), `f.yaml:5: spec.nodeName: there is no node "other"`},
		{pod("containers: [{name: c, image: i}]") + "---\n" + pod("containers: [{name: c, image: i}]"), "f.yaml:9: metadata.name: Pod p stands in"},
		{strings.Replace(pod("containers: [{name: c, image: i}]"), "name: p", "name: p, annotations: {simulate.wasmplane.dev/lasts: long}", 1), `f.yaml:3: metadata.annotations: simulate.wasmplane.dev/lasts: expected a duration such as 90s or 2h30m, found "long"`},
		{workload + "- {name: a}", "f.yaml:4: pods[0].count: expected 1 to 1000000, found 0"},
		{workload + "- {count: 1}", `f.yaml:4: pods[0].name: every entry needs a name of its own, found ""`},
		{workload + "- name: a\n  count: 1\n  cpu: 1", "f.yaml:6: pods[0].cpu: unknown field; known here: arrives"},
		{workload + "- name: a\n  count: 1\n  lasts: {from: 2h, to: 1h}", "f.yaml:6: pods[0].lasts: expected from: 0s or later, and to: not before it, found 2h0m0s and 1h0m0s"},
		{workload + "- name: a\n  count: 1\n  comesBack: maybe", `f.yaml:6: pods[0].comesBack: expected goesOn, restart or never, found "maybe"`},
		{workload + "- name: a\n  count: 1\n  requests: {cpu: lots}", `f.yaml:6: pods[0].requests.cpu: expected an amount such as 500m or 2Gi, found "lots"`},
		{workload + "- name: a\n  count: 1\n  spec: {nodeSelectr: {}}", `f.yaml:6: pods[0].spec.nodeSelectr: unknown field "nodeSelectr"`},
		{workload + "- name: a_b\n  count: 1\n  spec: {restartPolicy: Sometimes}", `f.yaml:6: pods[0].spec.restartPolicy: Unsupported value: "Sometimes"`},
		{list + "- {name: a}", "f.yaml:2: kind: shapes are given to --shapes"},
	} {
		file := write(t, t.TempDir(), "f.yaml", c.text)
		_, err := input.Read(t.Context(), input.Request{Nodes: 1, Files: []string{file}})
		if err == nil || !strings.Contains(err.Error(), strings.Replace(c.want, "f.yaml", file, 1)) {
			t.Errorf("%s\ngave %v\nwant %s", c.text, err, c.want)
		}
	}
	for _, c := range []struct{ text, want string }{
		{list, "shapes: expected at least one shape"},
		{list + "- {name: a, allocatable: {cpu: 1}}", "f.yaml:4: shapes[0].allocatable: a node needs cpu and memory"},
		{list + "- {name: a, share: -1}", "f.yaml:4: shapes[0].share: expected a number above 0, found -1"},
		{list + "- name: a\n  allocatable: {cpu: 1, memory: 1Gi}\n  taints: [{key: a, effect: Never}]", `f.yaml:6: shapes[0].taints[0]: expected a key, and NoSchedule, PreferNoSchedule or NoExecute as effect, found "a" and "Never"`},
		{workload + "- {name: a, count: 1}", "expected one document with apiVersion: simulate.wasmplane.dev/v1alpha1 and kind: Shapes"},
	} {
		file := write(t, t.TempDir(), "f.yaml", c.text)
		_, err := input.Read(t.Context(), input.Request{Nodes: 1, Shapes: file})
		if err == nil || !strings.Contains(err.Error(), strings.Replace(c.want, "f.yaml", file, 1)) {
			t.Errorf("%s\ngave %v\nwant %s", c.text, err, c.want)
		}
	}
	if _, err := input.Read(t.Context(), input.Request{}); err == nil || !strings.Contains(err.Error(),
		"there are no nodes: give --nodes NUMBER") {
		t.Errorf("without nodes: %v", err)
	}
}
