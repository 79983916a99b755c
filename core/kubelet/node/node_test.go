// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/node"
	"github.com/wasmplane/wasmplane/core/kubelet/rounds"
	"github.com/wasmplane/wasmplane/core/kubelet/simulated"
	"github.com/wasmplane/wasmplane/core/run"
)

type machine struct {
	mu    sync.Mutex
	facts node.Facts
}

func (m *machine) Facts(context.Context) (*node.Facts, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.facts
	return &f, nil
}

func (m *machine) press(by map[corev1.NodeConditionType]string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.facts.Pressure = by
}

func registrar(t *testing.T, client *fake.Clientset, m *machine, change ...func(*node.Config)) *node.Registrar {
	t.Helper()
	n, err := simulated.NewNetwork(netip.MustParsePrefix("10.0.0.0/24"))
	if err != nil {
		t.Fatal(err)
	}
	e, err := simulated.New(simulated.Config{Network: n})
	if err != nil {
		t.Fatal(err)
	}
	cfg := node.Config{
		Name: "n1", Client: client, Host: m, Engine: e, Port: 10250,
		Labels: map[string]string{"mine": "yes"}, Taints: []corev1.Taint{{Key: "t", Effect: corev1.TaintEffectNoSchedule}},
	}
	for _, c := range change {
		c(&cfg)
	}
	r, err := node.NewRegistrar(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// register makes the node known in rounds of its own.
func register(t *testing.T, r *node.Registrar) error {
	t.Helper()
	by := rounds.New(1)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = by.Run(ctx) }()
	defer func() { cancel(); <-done }()
	return r.Register(ctx, by)
}

// busy is a machine at which a look takes a second, and the first looks fail.
type busy struct {
	fail              atomic.Int64
	looking, together atomic.Int64
}

// Facts of the machine.
func (b *busy) Facts(context.Context) (*node.Facts, error) {
	b.together.Store(max(b.together.Load(), b.looking.Add(1)))
	defer b.looking.Add(-1)
	time.Sleep(time.Second)
	if b.fail.Add(-1) >= 0 {
		return nil, errors.New("not yet")
	}
	return &node.Facts{}, nil
}

// Nodes that share rounds are registered a few at a time, and tried again where that fails.
func TestManyNodesAreRegisteredInTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const nodes, parallel = 100, 4
		client := fake.NewSimpleClientset()
		host := &busy{}
		host.fail.Store(nodes / 2)
		by := rounds.New(parallel)
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() { _ = by.Run(ctx) })
		var registered atomic.Int64
		for i := range nodes {
			r := registrar(t, client, nil, func(c *node.Config) { c.Name, c.Host = fmt.Sprint("n", i), host })
			all.Go(func() {
				if r.Register(ctx, by) == nil {
					registered.Add(1)
				}
			})
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if registered.Load() != nodes || host.together.Load() != parallel {
			t.Errorf("%d of %d are registered, %d at a time, want %d", registered.Load(), nodes, host.together.Load(), parallel)
		}
		cancel()
		all.Wait()
	})
}

func statusWrites(c *fake.Clientset) int {
	n := 0
	for _, a := range c.Actions() {
		if a.GetSubresource() == "status" {
			n++
		}
	}
	return n
}

func condition(t *testing.T, c *fake.Clientset, kind corev1.NodeConditionType) corev1.NodeCondition {
	t.Helper()
	n, err := c.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range n.Status.Conditions {
		if x.Type == kind {
			return x
		}
	}
	return corev1.NodeCondition{}
}

func TestStatusIsWrittenWhenItChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewSimpleClientset() // managed fields are of no interest here
		m := &machine{facts: node.Facts{
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}},
			Info:      corev1.NodeSystemInfo{OperatingSystem: "linux", Architecture: "amd64"}, Pressure: map[corev1.NodeConditionType]string{},
		}}
		r := registrar(t, client, m)
		if err := register(t, r); err != nil {
			t.Fatal(err)
		}
		n, err := client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
		if err != nil || n.Labels["mine"] != "yes" || n.Labels[corev1.LabelHostname] != "n1" || n.Labels[corev1.LabelArchStable] != "amd64" ||
			len(n.Spec.Taints) != 1 ||
			n.Status.DaemonEndpoints.KubeletEndpoint.Port != 10250 || n.Status.NodeInfo.ContainerRuntimeVersion != "simulated://1.0.0" {
			t.Fatalf("%+v %v", n, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); _ = r.Run(ctx) }()
		time.Sleep(4 * time.Minute)
		if got := statusWrites(client); got != 0 {
			t.Errorf("%d writes though nothing changed", got)
		}
		time.Sleep(2 * time.Minute)
		if got := statusWrites(client); got != 1 {
			t.Errorf("%d writes in 6 minutes, want 1", got)
		}
		m.press(map[corev1.NodeConditionType]string{corev1.NodeMemoryPressure: "it is tight"})
		time.Sleep(11 * time.Second)
		if c := condition(t, client, corev1.NodeMemoryPressure); c.Status != corev1.ConditionTrue || c.Message != "it is tight" {
			t.Errorf("%+v", c)
		}
		before := condition(t, client, corev1.NodeReady)
		r.RuntimeFailed(errors.New("it fell over"))
		synctest.Wait()
		c := condition(t, client, corev1.NodeReady)
		if c.Status != corev1.ConditionFalse || !strings.Contains(c.Message, "it fell over") || before.Status != corev1.ConditionTrue {
			t.Errorf("%+v, before %+v", c, before)
		}
		r.RuntimeFailed(nil)
		synctest.Wait()
		if c := condition(t, client, corev1.NodeReady); c.Status != corev1.ConditionTrue || c.Reason != "KubeletReady" {
			t.Errorf("%+v", c)
		}
		cancel()
		<-done
	})
}

// Nothing of a node's status changes when somebody deletes it, and it is registered again all the same.
func TestANodeThatSomebodyDeletesIsRegisteredAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewSimpleClientset()
		nodes := client.CoreV1().Nodes()
		r := registrar(t, client, &machine{facts: node.Facts{Pressure: map[corev1.NodeConditionType]string{}}}, func(c *node.Config) {
			c.Seen = func(name string) (*corev1.Node, error) { return nodes.Get(t.Context(), name, metav1.GetOptions{}) }
		})
		if err := register(t, r); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := run.Go("node status", func() error { return r.Run(ctx) })
		if err := nodes.Delete(t.Context(), "n1", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(11 * time.Second)
		if _, err := nodes.Get(t.Context(), "n1", metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestANodeThatWasThereKeepsWhatOthersSet(t *testing.T) {
	old := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "u", Labels: map[string]string{"theirs": "yes", "mine": "old"}}}
	old.Spec = corev1.NodeSpec{PodCIDR: "10.1.0.0/24", Unschedulable: true}
	old.Status.Conditions = []corev1.NodeCondition{{Type: "TheirCondition", Status: corev1.ConditionTrue}}
	client := fake.NewSimpleClientset(old)
	r := registrar(t, client, &machine{facts: node.Facts{Info: corev1.NodeSystemInfo{OperatingSystem: "linux"}}})
	if err := register(t, r); err != nil {
		t.Fatal(err)
	}
	n, err := client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
	if err != nil || n.Labels["theirs"] != "yes" || n.Labels["mine"] != "yes" || !n.Spec.Unschedulable || n.Spec.PodCIDR == "" ||
		len(n.Spec.Taints) != 0 || r.UID() != "u" {
		t.Errorf("%+v %v", n, err)
	}
	if condition(t, client, "TheirCondition").Status != corev1.ConditionTrue || condition(t, client,
		corev1.NodeReady).Status != corev1.ConditionTrue {
		t.Errorf("%+v", n.Status.Conditions)
	}
}

// handlers is an engine that tells its runtime handlers, or why it cannot.
type handlers struct {
	*simulated.Engine
	list []*cri.RuntimeHandler
	err  error
}

func (h *handlers) Handlers(context.Context) ([]*cri.RuntimeHandler, error) { return h.list, h.err }

func (h *handlers) Features(context.Context) (*cri.RuntimeFeatures, error) {
	return &cri.RuntimeFeatures{SupplementalGroupsPolicy: true}, h.err
}

// TestHandlersAreReported in the order of their names, whatever the runtime's is, with what else the runtime can, and kept while
// it doesn't answer.
func TestHandlersAreReported(t *testing.T) {
	client := fake.NewSimpleClientset()
	m := &machine{facts: node.Facts{Pressure: map[corev1.NodeConditionType]string{}}}
	n, err := simulated.NewNetwork(netip.MustParsePrefix("10.0.0.0/24"))
	if err != nil {
		t.Fatal(err)
	}
	e, err := simulated.New(simulated.Config{Network: n})
	if err != nil {
		t.Fatal(err)
	}
	runtime := &handlers{Engine: e, list: []*cri.RuntimeHandler{
		{Name: "wasm"}, {Name: ""}, {Name: "runc", Features: &cri.RuntimeHandlerFeatures{RecursiveReadOnlyMounts: true}},
	}}
	for _, err := range []error{nil, errors.New("it is busy")} {
		runtime.err = err
		r, err := node.NewRegistrar(node.Config{Name: "n1", Client: client, Host: m, Engine: runtime})
		if err != nil {
			t.Fatal(err)
		}
		if err := register(t, r); err != nil {
			t.Fatal(err)
		}
		got, err := client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, h := range got.Status.RuntimeHandlers {
			names = append(names, h.Name)
		}
		if !slices.Equal(names, []string{"", "runc", "wasm"}) ||
			!*got.Status.RuntimeHandlers[1].Features.RecursiveReadOnlyMounts || *got.Status.RuntimeHandlers[2].Features.UserNamespaces {
			t.Errorf("with %v the node has %+v", runtime.err, got.Status.RuntimeHandlers)
		}
		if f := got.Status.Features; f == nil || f.SupplementalGroupsPolicy == nil || !*f.SupplementalGroupsPolicy {
			t.Errorf("with %v the node has the features %+v", runtime.err, f)
		}
	}
}

// TestExtendedResourcesOfOthers in the capacity stay and can be allocated; of those that a device plugin has had, and has no
// more, none is left, and so of those that a former machine of the name had.
func TestExtendedResourcesOfOthers(t *testing.T) {
	const plugged, former = "example.com/gadget", "example.com/former"
	amounts := func(l corev1.ResourceList) string {
		var out []string
		for _, name := range slices.Sorted(maps.Keys(l)) {
			q := l[name]
			out = append(out, string(name)+"="+q.String())
		}
		return strings.Join(out, " ")
	}
	synctest.Test(t, func(t *testing.T) {
		old := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", ResourceVersion: "1"}}
		old.Status.Capacity = corev1.ResourceList{former: resource.MustParse("7"), "hugepages-2Mi": resource.MustParse("1Gi")}
		old.Status.Allocatable = old.Status.Capacity
		client := fake.NewSimpleClientset(old)
		get := func() *corev1.Node {
			n, err := client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		devices := corev1.ResourceList{plugged: resource.MustParse("2")}
		own := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")}
		r := registrar(t, client, &machine{facts: node.Facts{Capacity: own, Allocatable: own}}, func(c *node.Config) {
			c.Fresh = true
			c.Resources = func() (capacity, allocatable corev1.ResourceList) { return devices, devices }
			c.Seen = func(string) (*corev1.Node, error) {
				n := get()
				n.ResourceVersion = "2" // the fake counts no versions
				return n, nil
			}
		})
		want := func(when, list string) {
			t.Helper()
			n := get()
			if c, a := amounts(n.Status.Capacity), amounts(n.Status.Allocatable); c != list || a != list {
				t.Errorf("%s: the capacity is %s, and allocatable %s; want %s", when, c, a, list)
			}
		}
		patch := func(path, op string) {
			t.Helper()
			body := `[{"op":"` + op + `","path":"/status/capacity/` + path + `","value":"5"}]`
			if _, err := client.CoreV1().Nodes().Patch(t.Context(), "n1", types.JSONPatchType, []byte(body), metav1.PatchOptions{},
				"status"); err != nil {
				t.Fatal(err)
			}
		}
		if err := register(t, r); err != nil {
			t.Fatal(err)
		}
		want("registered", "cpu=4 example.com/former=0 example.com/gadget=2")
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); _ = r.Run(ctx) }()
		patch("example.com~1foo", "add")
		patch("example.com~1former", "add")
		time.Sleep(11 * time.Second)
		want("others wrote some", "cpu=4 example.com/foo=5 example.com/former=5 example.com/gadget=2")
		devices = nil
		time.Sleep(10 * time.Minute)
		want("the plugin is forgotten", "cpu=4 example.com/foo=5 example.com/former=5 example.com/gadget=0")
		patch("example.com~1foo", "remove")
		time.Sleep(11 * time.Second)
		want("others removed one", "cpu=4 example.com/former=5 example.com/gadget=0")
		writes := statusWrites(client)
		time.Sleep(time.Minute)
		if got := statusWrites(client); got != writes {
			t.Errorf("%d writes though nothing changed", got-writes)
		}
		cancel()
		<-done
		if amounts(own) != "cpu=4" {
			t.Errorf("the machine's own capacity became %s", amounts(own))
		}
	})
}

// A node whose runtime is well may be not ready for another reason; with both it says both.
func TestANodeThatIsNotWell(t *testing.T) {
	client := fake.NewSimpleClientset() // managed fields are of no interest here
	m := &machine{facts: node.Facts{Info: corev1.NodeSystemInfo{OperatingSystem: "linux", Architecture: "amd64"}}}
	var unwell error
	r := registrar(t, client, m, func(c *node.Config) { c.Unwell = func() error { return unwell } })
	for _, c := range []struct {
		unwell, runtime error
		status          corev1.ConditionStatus
		reason, message string
	}{
		{nil, nil, corev1.ConditionTrue, "KubeletReady", "kubelet is posting ready status"},
		{errors.New("node is shutting down"), nil, corev1.ConditionFalse, "KubeletNotReady", "node is shutting down"},
		{
			errors.New("node is shutting down"), errors.New("away"), corev1.ConditionFalse, "KubeletNotReady",
			"[container runtime is not ready: away, node is shutting down]",
		},
		{nil, errors.New("away"), corev1.ConditionFalse, "KubeletNotReady", "container runtime is not ready: away"},
	} {
		unwell = c.unwell
		r.RuntimeFailed(c.runtime)
		if err := register(t, r); err != nil {
			t.Fatal(err)
		}
		got := condition(t, client, corev1.NodeReady)
		if got.Status != c.status || got.Reason != c.reason || got.Message != c.message {
			t.Errorf("ready is %s, %s: %s; want %+v", got.Status, got.Reason, got.Message, c)
		}
	}
}
