// SPDX-License-Identifier: Apache-2.0

package pinning_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/cpuset"
	"pgregory.net/rapid"

	"github.com/wasmplane/wasmplane/core/kubelet/allot"
	"github.com/wasmplane/wasmplane/core/kubelet/deviceplugin"
	"github.com/wasmplane/wasmplane/core/kubelet/engine"
	"github.com/wasmplane/wasmplane/core/kubelet/pinning"
	kubeletpod "github.com/wasmplane/wasmplane/core/kubelet/pod"
	"github.com/wasmplane/wasmplane/core/run"
)

// runtime has containers that run.
type runtime struct {
	engine.Engine
	mu   sync.Mutex
	runs []*cri.Container
	cpus map[string]string
}

func (r *runtime) ListContainers(context.Context) ([]*cri.Container, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.runs, nil
}

func (r *runtime) UpdateResources(_ context.Context, id string, to *cri.LinuxContainerResources) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cpus[id] = to.GetCpusetCpus()
	return nil
}

// placed are devices that are on some nodes, for every container alike.
type placed struct {
	*deviceplugin.Manager
	hints []allot.Hints
}

func (d placed) AllocateNear(ctx context.Context, p *corev1.Pod, near deviceplugin.Near) error {
	return d.Manager.AllocateNear(ctx, p, func(c *corev1.Container, _, _ []allot.Hints) (allot.Nodes,
		error,
	) {
		return near(c, d.hints, d.hints)
	})
}

// machine has two nodes of four CPUs.
func machine() *allot.Machine {
	m := &allot.Machine{Memory: map[int]map[string]int64{0: {"memory": 8 << 30}, 1: {"memory": 8 << 30}}}
	for i := range 8 {
		m.CPUs = append(m.CPUs, allot.CPU{ID: i, Core: i, Node: i / 4, Socket: i / 4, Cache: i / 4})
	}
	return m
}

func manager(tb testing.TB, dir string, change func(*pinning.Config)) (*pinning.Manager, *runtime, error) {
	tb.Helper()
	devices, err := deviceplugin.New(deviceplugin.Config{RootDir: dir})
	if err != nil {
		tb.Fatal(err)
	}
	r := &runtime{cpus: map[string]string{}}
	cfg := pinning.Config{
		Devices: devices, Engine: r, Machine: machine(), RootDir: dir, CPUs: true, Reserved: cpuset.New(0), Shared: true, Policy: allot.AnyNodes,
	}
	if change != nil {
		change(&cfg)
	}
	m, err := pinning.New(cfg)
	return m, r, err
}

func must(tb testing.TB, dir string, change func(*pinning.Config)) (*pinning.Manager, *runtime) {
	tb.Helper()
	m, r, err := manager(tb, dir, change)
	if err != nil {
		tb.Fatal(err)
	}
	return m, r
}

func pod(name string, cpus ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)}}
	for i, q := range cpus {
		list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(q), corev1.ResourceMemory: resource.MustParse("1Gi")}
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{
			Name: fmt.Sprint("c", i), Resources: corev1.ResourceRequirements{Requests: list, Limits: list},
		})
	}
	return p
}

func set(tb testing.TB, m *pinning.Manager, p *corev1.Pod, container string) string {
	tb.Helper()
	cfg := &cri.ContainerConfig{Linux: &cri.LinuxContainerConfig{Resources: &cri.LinuxContainerResources{}}}
	if err := m.Equip(tb.Context(), p.UID, container, cfg); err != nil {
		tb.Fatal(err)
	}
	return strings.TrimSpace(cfg.GetLinux().GetResources().GetCpusetCpus() + " " + cfg.GetLinux().GetResources().GetCpusetMems())
}

func refused(t *testing.T, m *pinning.Manager, p *corev1.Pod, reason, words string) {
	t.Helper()
	err := m.Allocate(t.Context(), p)
	r, ok := errors.AsType[*deviceplugin.Refusal](err)
	if !ok || r.Reason != reason || !strings.Contains(r.Message, words) {
		t.Errorf("the pod got %v, want %s with %q", err, reason, words)
	}
}

func given(tb testing.TB, m *pinning.Manager, p *corev1.Pod) {
	tb.Helper()
	if err := m.Allocate(tb.Context(), p); err != nil {
		tb.Fatal(err)
	}
}

// TestWholeCPUsAreForOneContainerAlone, those of guaranteed pods; the others share what is left;
// a kubelet that starts anew knows.
func TestWholeCPUsAreForOneContainerAlone(t *testing.T) {
	dir := t.TempDir()
	m, _ := must(t, dir, nil)
	alone, parts := pod("alone", "2", "1500m"), pod("parts", "1500m")
	burst := pod("burst", "2")
	burst.Spec.Containers[0].Resources.Limits = nil
	for _, p := range []*corev1.Pod{alone, alone, parts, burst} {
		given(t, m, p)
	}
	for range 2 {
		for p, want := range map[*corev1.Pod]string{alone: "1-2", parts: "0,3-7", burst: "0,3-7"} {
			if got := set(t, m, p, "c0"); got != want {
				t.Errorf("%s has %q, want %q", p.Name, got, want)
			}
		}
		if got := set(t, m, alone, "c1"); got != "0,3-7" {
			t.Errorf("the container with one and a half has %q", got)
		}
		m, _ = must(t, dir, nil)
	}
	refused(t, m, pod("more", "3", "3"), "UnexpectedAdmissionError", "not enough cpus available to satisfy request: requested=3, available=2, which is unexpected")
	given(t, m, pod("rest", "5")) // what was refused holds nothing
	m.Retain(func(uid types.UID) bool { return uid != "alone" })
	m.Release("rest")
	given(t, m, pod("all", "7"))
	if got := set(t, m, burst, "c0"); got != "0" {
		t.Errorf("what is left is %q", got)
	}
}

// TestInitContainersLeaveTheirCPUs to those that come after.
func TestInitContainersLeaveTheirCPUs(t *testing.T) {
	m, _ := must(t, t.TempDir(), nil)
	p := pod("one", "7")
	p.Spec.InitContainers = []corev1.Container{{Name: "init", Resources: pod("", "4").Spec.Containers[0].Resources}}
	given(t, m, p)
	if a, b := set(t, m, p, "init"), set(t, m, p, "c0"); a != "4-7" || b != "1-7" {
		t.Errorf("%q, then %q", a, b)
	}
}

// TestAPodThatWasGivenToBefore: a kubelet that ended between two containers' turns, or before the first
// of them started, has the next one carry on where it was.
func TestAPodThatWasGivenToBefore(t *testing.T) {
	before := func(t *testing.T, given string, change func(*pinning.Config)) *pinning.Manager {
		t.Helper()
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "pinned.json"),
			[]byte(`{"Format":1,"CPUs":true,"Memory":false,"Reserved":"0","Given":[`+given+`]}`), 0o600); err != nil {
			t.Fatal(err)
		}
		m, _ := must(t, dir, change)
		return m
	}
	t.Run("init", func(t *testing.T) {
		m := before(t, `{"Pod":"one","Container":"init","CPUs":"4-7"}`, nil)
		p := pod("one", "7")
		p.Spec.InitContainers = []corev1.Container{{Name: "init", Resources: pod("", "4").Spec.Containers[0].Resources}}
		given(t, m, p)
		if a, b := set(t, m, p, "init"), set(t, m, p, "c0"); a != "4-7" || b != "1-7" {
			t.Errorf("%q, then %q", a, b)
		}
	})
	t.Run("whole pod", func(t *testing.T) {
		m := before(t, `{"Pod":"one","Container":"c1","CPUs":"4-6"}`, func(c *pinning.Config) {
			c.Policy, c.PodScope = allot.SingleNUMANode, true
		})
		p := pod("one", "1500m", "3", "1")
		given(t, m, p)
		if a, b := set(t, m, p, "c1"), set(t, m, p, "c2"); a != "4-6" || b != "7" {
			t.Errorf("%q and %q", a, b)
		}
	})
}

// slow devices: a pod waits between its containers until it may go on.
type slow struct {
	*deviceplugin.Manager
	began, goOn chan struct{}
}

func (d slow) AllocateNear(ctx context.Context, p *corev1.Pod, near deviceplugin.Near) error {
	first := true
	return d.Manager.AllocateNear(ctx, p, func(c *corev1.Container, a, b []allot.Hints) (allot.Nodes, error) {
		if !first && p.Name == "first" {
			close(d.began)
			<-d.goOn
		}
		first = false
		return near(c, a, b)
	})
}

// TestPodsAreAdmittedOneAfterTheOther: what was found free for a whole pod is not given to another
// before the pod has it.
func TestPodsAreAdmittedOneAfterTheOther(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		d := slow{began: make(chan struct{}), goOn: make(chan struct{})}
		m, _ := must(t, dir, func(c *pinning.Config) {
			d.Manager = c.Devices.(*deviceplugin.Manager)
			c.Policy, c.PodScope, c.Devices = allot.SingleNUMANode, true, d
		})
		given(t, m, pod("fill", "2")) // one CPU is left on the first node
		firstDone, secondDone := make(chan error, 1), make(chan error, 1)
		go func() { firstDone <- m.Allocate(t.Context(), pod("first", "2", "1")) }()
		<-d.began
		go func() { secondDone <- m.Allocate(t.Context(), pod("second", "2")) }()
		synctest.Wait()
		tired, cancel := context.WithCancel(t.Context())
		cancel()
		if err := m.Allocate(tired, pod("third", "1")); !errors.Is(err, context.Canceled) {
			t.Errorf("who does not wait any more got %v", err)
		}
		close(d.goOn)
		if err := <-firstDone; err != nil {
			t.Errorf("the first pod: %v", err)
		}
		if r, ok := errors.AsType[*deviceplugin.Refusal](<-secondDone); !ok || r.Reason != "TopologyAffinityError" {
			t.Errorf("the second pod got %v", r)
		}
		if a, b := set(t, m, pod("first"), "c0"), set(t, m, pod("first"), "c1"); a != "4-5" || b != "6" {
			t.Errorf("%q and %q", a, b)
		}
	})
}

// TestContainersAreMovedAway from CPUs that another has for itself, and back.
func TestContainersAreMovedAway(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		m, r := must(t, dir, nil)
		for _, name := range []string{"alone", "other"} {
			r.runs = append(r.runs, &cri.Container{
				Id: name, State: cri.ContainerState_CONTAINER_RUNNING,
				Labels: map[string]string{kubeletpod.UIDLabel: name, kubeletpod.ContainerNameLabel: "c0"},
			})
		}
		check := func(want map[string]string) {
			t.Helper()
			synctest.Wait()
			r.mu.Lock()
			defer r.mu.Unlock()
			for id, cpus := range want {
				if r.cpus[id] != cpus {
					t.Errorf("%s runs on %q, want %q", id, r.cpus[id], cpus)
				}
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := run.Go("pinning", func() error { return m.Run(ctx) })
		check(map[string]string{"other": "0-7"})
		given(t, m, pod("alone", "4"))
		check(map[string]string{"alone": "4-7", "other": "0-3"})
		m.Release("alone")
		check(map[string]string{"other": "0-7"})
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestTopology: CPUs, memory and devices are of the same nodes, or the pod is refused.
func TestTopology(t *testing.T) {
	single := func(c *pinning.Config) { c.Policy, c.Memory = allot.SingleNUMANode, true }
	m, _ := must(t, t.TempDir(), single)
	refused(t, m, pod("wide", "5"), "TopologyAffinityError", "Resources cannot be allocated with Topology locality")
	p := pod("a", "3", "3")
	given(t, m, p)
	if a, b := set(t, m, p, "c0"), set(t, m, p, "c1"); a != "1-3 0" || b != "4-6 1" {
		t.Errorf("%q and %q", a, b)
	}
	large := pod("large", "1")
	large.Spec.Containers[0].Resources.Limits[corev1.ResourceMemory] = resource.MustParse("9Gi")
	large.Spec.Containers[0].Resources.Requests = large.Spec.Containers[0].Resources.Limits
	refused(t, m, large, "TopologyAffinityError", "")
	// A whole pod.
	m, _ = must(t, t.TempDir(), func(c *pinning.Config) { single(c); c.PodScope = true })
	refused(t, m, p, "TopologyAffinityError", "")
	given(t, m, pod("b", "2", "2"))
	if got := set(t, m, pod("b"), "c0"); got != "4-5 1" {
		t.Errorf("%q", got)
	}
	// A device that is on the second node.
	m, _ = must(t, t.TempDir(), func(c *pinning.Config) {
		single(c)
		c.Devices = placed{c.Devices.(*deviceplugin.Manager), []allot.Hints{{{Nodes: allot.NodesOf(1), Preferred: true}}}}
	})
	given(t, m, pod("c", "2"))
	if got := set(t, m, pod("c"), "c0"); got != "4-5 1" {
		t.Errorf("%q", got)
	}
	refused(t, m, pod("d", "3"), "TopologyAffinityError", "")
}

// TestWholeCores: a request for half a core is refused by the option.
func TestWholeCores(t *testing.T) {
	m, _ := must(t, t.TempDir(), func(c *pinning.Config) {
		c.Options.FullCores = true
		for i := range c.Machine.CPUs {
			c.Machine.CPUs[i].Core = i / 2
		}
	})
	refused(t, m, pod("odd", "3"), "SMTAlignmentError", "SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2")
	given(t, m, pod("even", "6"))
	if got := set(t, m, pod("even"), "c0"); got != "2-7" {
		t.Errorf("%q", got)
	}
}

// TestWhatDoesNotFitIsTold: a file of other policies, and reserved CPUs that there are not.
func TestWhatDoesNotFitIsTold(t *testing.T) {
	dir := t.TempDir()
	m, _ := must(t, dir, nil)
	given(t, m, pod("a", "1"))
	for what, c := range map[string]struct {
		change func(*pinning.Config)
		want   string
	}{
		"another policy": {func(c *pinning.Config) { c.CPUs = false }, "drain the node, and delete the file"},
		"other reserved": {func(c *pinning.Config) { c.Reserved = cpuset.New(1) }, `other reserved CPUs ("0")`},
		"none reserved":  {func(c *pinning.Config) { c.Reserved = cpuset.New() }, "node.reservedSystemCPUs: the CPU manager's policy static needs some"},
		"not there":      {func(c *pinning.Config) { c.Reserved = cpuset.New(8) }, "expected some of this machine's CPUs 0-7, found 8"},
	} {
		if _, _, err := manager(t, dir, c.change); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", what, err, c.want)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "pinned.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := manager(t, dir, nil); err == nil || !strings.Contains(err.Error(), "it is damaged") {
		t.Error(err)
	}
}

// TestNothingIsGivenTwice, whatever comes and goes, and the reserved CPUs never.
func TestNothingIsGivenTwice(t *testing.T) {
	base := t.TempDir()
	runs := 0
	rapid.Check(t, func(rt *rapid.T) {
		runs++
		dir := filepath.Join(base, fmt.Sprint(runs))
		if err := os.Mkdir(dir, 0o750); err != nil {
			rt.Fatal(err)
		}
		m, _ := must(t, dir, func(c *pinning.Config) { c.Policy = allot.BestEffort })
		there := map[string]*corev1.Pod{}
		for i := range rapid.IntRange(1, 12).Draw(rt, "steps") {
			name := fmt.Sprint("p", rapid.IntRange(0, 4).Draw(rt, "pod"))
			if there[name] != nil {
				m.Release(types.UID(name))
				delete(there, name)
				continue
			}
			p := pod(name, fmt.Sprint(rapid.IntRange(1, 4).Draw(rt, "cpus")))
			if m.Allocate(t.Context(), p) == nil {
				there[name] = p
			}
			if i == 3 {
				m, _ = must(t, dir, func(c *pinning.Config) { c.Policy = allot.BestEffort })
			}
		}
		taken := cpuset.New(0)
		for name, p := range there {
			got, err := cpuset.Parse(set(t, m, p, "c0"))
			if err != nil || got.Size() != int(p.Spec.Containers[0].Resources.Requests.Cpu().Value()) || !got.Intersection(taken).IsEmpty() {
				rt.Fatalf("%s has %s of %s (%v)", name, got, taken, err)
			}
			taken = taken.Union(got)
		}
	})
}
