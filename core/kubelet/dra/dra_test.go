// SPDX-License-Identifier: Apache-2.0

package dra_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/dra"
	"github.com/wasmplane/wasmplane/core/kubelet/dra/dratest"
	"github.com/wasmplane/wasmplane/core/kubelet/pluginwatch"
	"github.com/wasmplane/wasmplane/core/kubelet/pluginwatch/calltest"
	"github.com/wasmplane/wasmplane/core/run"
)

const driverName = "gpu.example.com"

// patience is generous: the machine may be busy.
const patience = time.Minute

// world is a node on which drivers can register, over a fake API.
type world struct {
	*testing.T
	root   string
	client *fake.Clientset
	node   *dra.Node
	stop   func()
	calls  calltest.Clock
	wiped  chan string // whose slices were deleted; "" = all
}

func newWorld(t *testing.T, objects ...runtime.Object) *world {
	t.Helper()
	root, err := os.MkdirTemp("", "dra") //nolint:usetesting // paths of sockets are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	objects = append(objects, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "node"}})
	w := &world{T: t, root: root, client: fake.NewClientset(objects...), wiped: make(chan string, 100)}
	w.client.PrependReactor("delete-collection", "resourceslices", func(a clienttesting.Action) (bool, runtime.Object, error) {
		fields := a.(clienttesting.DeleteCollectionAction).GetListRestrictions().Fields
		driver, _ := fields.RequiresExactMatch("spec.driver")
		if node, _ := fields.RequiresExactMatch("spec.nodeName"); node != "n1" {
			t.Errorf("slices of node %q are deleted", node)
		}
		w.wiped <- driver
		return true, nil, nil
	})
	w.begin()
	return w
}

// begin runs the node, as after a restart.
func (w *world) begin() {
	w.Helper()
	node, err := dra.New(dra.Config{
		NodeName: "n1", RootDir: w.root, Client: w.client, WithTimeout: w.calls.WithTimeout,
		Absence: 50 * time.Millisecond,
	})
	if err != nil {
		w.Fatal(err)
	}
	watcher, err := pluginwatch.New(pluginwatch.Config{
		RootDir:  w.root,
		Handlers: map[string]pluginwatch.Handler{registration.DRAPlugin: node},
	})
	if err != nil {
		w.Fatal(err)
	}
	ctx, cancel := context.WithCancel(w.Context())
	done := run.Go("node", func() error { return run.Parallel(node.Run, watcher.Run)(ctx) })
	w.node, w.stop = node, func() {
		cancel()
		if err := <-done; err != nil {
			w.Error(err)
		}
	}
	w.Cleanup(func() { w.stop() })
}

func (w *world) eventually(what string, ok func() error) {
	w.Helper()
	deadline, tick := time.After(patience), time.NewTicker(5*time.Millisecond)
	defer tick.Stop()
	for {
		err := ok()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			w.Fatalf("did not come about: %s: %v", what, err)
		}
	}
}

func (w *world) driver(change func(*dratest.Config)) *dratest.Driver {
	w.Helper()
	cfg := dratest.Config{Name: driverName, Node: "n1", Kubelet: w.root, Devices: []string{"0", "1"}, Client: w.client}
	if change != nil {
		change(&cfg)
	}
	if err := os.MkdirAll(filepath.Join(w.root, pluginwatch.Directory), 0o750); err != nil {
		w.Fatal(err)
	}
	d, err := dratest.Start(w.Context(), cfg)
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(d.Stop)
	return d
}

// claim that has devices, for pods.
func claim(name string, devices []string, pods ...string) *resourcev1.ResourceClaim {
	c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("claim-" + name)}}
	c.Status.Allocation = &resourcev1.AllocationResult{}
	for i, d := range devices {
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, resourcev1.DeviceRequestAllocationResult{
			Request: "r" + string(rune('0'+i)), Driver: driverName, Pool: "n1", Device: d,
		})
	}
	for _, p := range pods {
		c.Status.ReservedFor = append(c.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{
			Resource: "pods", Name: p,
			UID: types.UID(p),
		})
	}
	return c
}

func pod(name, claim string, requests ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)}}
	p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &claim}}
	p.Spec.Containers = []corev1.Container{{Name: "main"}, {Name: "without"}}
	for _, r := range requests {
		p.Spec.Containers[0].Resources.Claims = append(p.Spec.Containers[0].Resources.Claims, corev1.ResourceClaim{Name: "gpu", Request: r})
	}
	return p
}

func (w *world) prepared(p *corev1.Pod) {
	w.Helper()
	w.eventually("pod "+p.Name+" has its devices", func() error { return w.node.Prepare(w.Context(), p) })
}

func (w *world) devices(p *corev1.Pod, container int) string {
	w.Helper()
	var cfg cri.ContainerConfig
	if err := w.node.Equip(p.UID, p.Spec.Containers[container].Name, &cfg); err != nil {
		return err.Error()
	}
	var names []string
	for _, d := range cfg.GetCDIDevices() {
		names = append(names, d.GetName())
	}
	return strings.Join(names, " ")
}

// TestClaimsArePreparedAndGivenBack in both versions of the protocol; a container gets what it
// names, and a claim that two pods use is given back with the second.
func TestClaimsArePreparedAndGivenBack(t *testing.T) {
	for version, older := range map[string]bool{"v1": false, "v1beta1": true} {
		t.Run(version, func(t *testing.T) {
			w := newWorld(t, claim("c", []string{"0", "1"}, "one", "two"))
			d := w.driver(func(c *dratest.Config) { c.V1beta1 = older })
			one, two := pod("one", "c", ""), pod("two", "c", "r1")
			w.prepared(one)
			w.prepared(two)
			if got := w.devices(one, 0); got != "gpu.example.com/device=0 gpu.example.com/device=1" {
				t.Errorf("the container that names the claim has %q", got)
			}
			if got := w.devices(two, 0); got != "gpu.example.com/device=1" {
				t.Errorf("the container that names one request has %q", got)
			}
			if got := w.devices(one, 1); got != "" {
				t.Errorf("the container that names nothing has %q", got)
			}
			if err := w.node.Unprepare(t.Context(), "one"); err != nil || !slices.Equal(d.Prepared(), []string{"c"}) {
				t.Errorf("without the first pod: %v, %q", err, d.Prepared())
			}
			if err := w.node.Unprepare(t.Context(), "two"); err != nil || len(d.Prepared()) != 0 {
				t.Errorf("without the second pod: %v, %q", err, d.Prepared())
			}
			if err := w.node.Unprepare(t.Context(), "two"); err != nil {
				t.Errorf("again: %v", err)
			}
		})
	}
}

// TestTwoDriversOfOneClaim prepare what is theirs: the container gets the devices of both, the claim is not ready
// before both have answered, and both give it back.
func TestTwoDriversOfOneClaim(t *testing.T) {
	const other = "nic.example.com"
	c := claim("c", []string{"0", "1"}, "one")
	c.Status.Allocation.Devices.Results[1].Driver = other
	w := newWorld(t, c)
	gpu := w.driver(nil)
	p := pod("one", "c", "")
	w.eventually("the second driver is missed", func() error {
		if err := w.node.Prepare(t.Context(), p); err == nil || !strings.Contains(err.Error(), "DRA driver "+other+" is not registered") {
			return fmt.Errorf("got %w", err)
		}
		return nil
	})
	if got := w.devices(p, 0); !strings.Contains(got, "is not prepared") {
		t.Errorf("with one driver of two: %q", got)
	}
	refuse := atomic.Bool{}
	nic := w.driver(func(c *dratest.Config) {
		c.Name = other
		c.Unprepare = func(context.Context, string) error {
			if refuse.Load() {
				return errors.New("busy")
			}
			return nil
		}
	})
	w.prepared(p)
	if got := w.devices(p, 0); got != "gpu.example.com/device=0 nic.example.com/device=1" {
		t.Errorf("with both: %q", got)
	}
	if got := w.devices(pod("one", "c", "r1"), 0); got != "gpu.example.com/device=0 nic.example.com/device=1" {
		t.Errorf("what was prepared holds: %q", got)
	}
	refuse.Store(true)
	if err := w.node.Unprepare(t.Context(), "one"); err == nil || !strings.Contains(err.Error(), "busy") {
		t.Errorf("one of two refuses: %v", err)
	}
	refuse.Store(false)
	if err := w.node.Unprepare(t.Context(), "one"); err != nil || len(gpu.Prepared())+len(nic.Prepared()) != 0 {
		t.Errorf("given back: %v, left %q and %q", err, gpu.Prepared(), nic.Prepared())
	}
}

// TestDevicesReportTheirHealth in both versions of the service: what a driver says is in the status of the containers
// that have the device, and nothing is known any more once it counts no longer, or the driver is gone.
func TestDevicesReportTheirHealth(t *testing.T) {
	for version, older := range map[string]bool{"v1": false, "v1alpha1": true} {
		t.Run(version, func(t *testing.T) {
			w := newWorld(t, claim("c", []string{"0", "1"}, "one"))
			reports := make(chan kubeletplugin.DeviceHealthReport)
			w.driver(func(c *dratest.Config) { c.Health, c.OlderHealth = reports, older })
			p := pod("one", "c", "r0")
			w.prepared(p)
			expect := func(what, want string) {
				t.Helper()
				w.eventually(what, func() error {
					if got := fmt.Sprint(shown(w.node.Health(p, "main"))); got != want {
						return fmt.Errorf("%s, want %s", got, want)
					}
					return nil
				})
			}
			expect("at first nothing is known", "[claim:gpu/r0 gpu.example.com/device=0 Unknown]")
			say := func(device string, health kubeletplugin.HealthStatus, message string, lasts time.Duration) {
				t.Helper()
				select {
				case reports <- kubeletplugin.DeviceHealthReport{Devices: []kubeletplugin.DeviceHealth{
					{PoolName: "n1", DeviceName: device, Health: health, Message: message, HealthCheckTimeout: lasts},
				}}:
				case <-time.After(patience):
					t.Fatal("nobody listens to the driver")
				}
			}
			say("0", kubeletplugin.HealthStatusHealthy, "", time.Hour)
			expect("it is healthy", "[claim:gpu/r0 gpu.example.com/device=0 Healthy]")
			<-w.node.HealthChanged()
			if got := w.node.Affected(); !slices.Equal(got, []types.UID{"one"}) || len(w.node.Affected()) != 0 {
				t.Errorf("affected: %q", got)
			}
			say("0", kubeletplugin.HealthStatusUnhealthy, "too hot", time.Second)
			expect("it is unhealthy", "[claim:gpu/r0 gpu.example.com/device=0 Unhealthy too hot]")
			expect("that counts no more", "[claim:gpu/r0 gpu.example.com/device=0 Unknown]")
			if got := w.node.Health(p, "without"); got != nil {
				t.Errorf("a container without devices: %+v", got)
			}
			if err := w.node.Unprepare(t.Context(), "one"); err != nil {
				t.Fatal(err)
			}
			if got := w.node.Health(p, "main"); got != nil {
				t.Errorf("after it was given back: %+v", got)
			}
		})
	}
}

func shown(all []corev1.ResourceStatus) (out []string) {
	for _, s := range all {
		for _, r := range s.Resources {
			text := fmt.Sprintf("%s %s %s", s.Name, r.ResourceID, r.Health)
			if r.Message != nil {
				text += " " + *r.Message
			}
			out = append(out, text)
		}
	}
	return out
}

// TestARestartForgetsNothing: what was prepared is known, and can be given back, by the pod's UID alone.
func TestARestartForgetsNothing(t *testing.T) {
	w := newWorld(t, claim("c", []string{"0"}, "one"))
	calls := make(chan string, 100)
	d := w.driver(func(c *dratest.Config) {
		c.Prepare = func(_ context.Context, name string) error { calls <- name; return nil }
	})
	p := pod("one", "c", "")
	w.prepared(p)
	w.stop()
	w.begin()
	w.prepared(p) // as the kubelet does with each pod that it finds
	if got := w.devices(p, 0); got != "gpu.example.com/device=0" {
		t.Errorf("after a restart the container has %q", got)
	}
	if err := w.node.Prepare(t.Context(), p); err != nil || len(calls) != 1 {
		t.Errorf("it was prepared %d times (%v)", len(calls), err)
	}
	w.eventually("it is given back", func() error { return w.node.Unprepare(t.Context(), "one") })
	if left := d.Prepared(); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
}

// TestPodsMayUseWhatIsTheirs alone.
func TestPodsMayUseWhatIsTheirs(t *testing.T) {
	free := claim("free", []string{"0"}, "one")
	free.Status.Allocation = nil
	w := newWorld(t, claim("theirs", []string{"0"}, "other"), free, claim("c", []string{"0"}, "one"))
	for name, want := range map[string]string{
		"theirs": "is not allowed to use ResourceClaim theirs", "free": "not allocated", "none": "not found",
		"c": "DRA driver gpu.example.com is not registered",
	} {
		if err := w.node.Prepare(t.Context(), pod("one", name, "")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("claim %s: %v, want %q", name, err, want)
		}
	}
}

// TestADriverThatFailsKeepsUpItsOwnPods: one that hangs is not waited for beyond the deadline, and
// others go on meanwhile.
func TestADriverThatFailsKeepsUpItsOwnPods(t *testing.T) {
	w := newWorld(t, claim("hangs", []string{"0"}, "one"), claim("fails", []string{"0"}, "two"), claim("works", []string{"1"}, "three"))
	hung := make(chan struct{}, 1)
	w.driver(func(c *dratest.Config) {
		c.Prepare = func(ctx context.Context, name string) error {
			switch name {
			case "hangs":
				select {
				case hung <- struct{}{}:
				default:
				}
				<-ctx.Done()
				return ctx.Err()
			case "fails":
				return errors.New("the device is on fire")
			}
			return nil
		}
	})
	w.prepared(pod("three", "works", ""))
	expire := w.calls.HangOn()
	stuck := run.Go("hanging claim", func() error { return w.node.Prepare(t.Context(), pod("one", "hangs", "")) })
	<-hung
	w.calls.GoOn()
	if err := w.node.Prepare(t.Context(), pod("two", "fails", "")); err == nil ||
		!strings.Contains(err.Error(), "ResourceClaim fails: the device is on fire") {
		t.Errorf("the claim that fails: %v", err)
	}
	if err := w.node.Unprepare(t.Context(), "three"); err != nil {
		t.Errorf("meanwhile another pod's: %v", err)
	}
	expire()
	if err := <-stuck; err == nil || !strings.Contains(err.Error(),
		"NodePrepareResources: driver gpu.example.com has not answered within 45s") {
		t.Errorf("the claim that hangs: %v", err)
	}
	if got := w.devices(pod("two", "fails", ""), 0); !strings.Contains(got, "is not prepared") {
		t.Errorf("the container of the claim that failed has %q", got)
	}
}

// TestSlicesOfDriversThatAreAwayAreDeleted: all at first, and a driver's once it has gone.
func TestSlicesOfDriversThatAreAwayAreDeleted(t *testing.T) {
	w := newWorld(t, claim("c", []string{"0"}, "one"))
	if got := <-w.wiped; got != "" {
		t.Errorf("at first those of %q alone are deleted", got)
	}
	d := w.driver(nil)
	w.prepared(pod("one", "c", ""))
	d.Stop()
	select {
	case got := <-w.wiped:
		if got != driverName {
			t.Errorf("those of %q are deleted", got)
		}
	case <-time.After(patience):
		t.Error("the slices of a driver that has gone stay")
	}
}

// TestAnUnreadableFileSaysWhatToDo: devices that nobody gives back could not be used again.
func TestAnUnreadableFileSaysWhatToDo(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "resource_claims.json")
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := dra.New(dra.Config{NodeName: "n1", RootDir: dir, Client: fake.NewClientset()})
	if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "delete the file") {
		t.Errorf("it says %v", err)
	}
}
