// SPDX-License-Identifier: Apache-2.0

package deviceplugin_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/wasmplane/wasmplane/core/kubelet/allot"
	"github.com/wasmplane/wasmplane/core/kubelet/deviceplugin"
	"github.com/wasmplane/wasmplane/core/kubelet/pluginwatch"
	"github.com/wasmplane/wasmplane/core/kubelet/pluginwatch/calltest"
	"github.com/wasmplane/wasmplane/core/run"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	patience = time.Minute
	res      = "example.com/device"
)

// fake is a device plugin that serves at a socket of the node's folder.
type fake struct {
	api.UnimplementedDevicePluginServer
	options *api.DevicePluginOptions
	broken  error // what it says when it is asked for its options
	lists   chan []*api.Device

	mu       sync.Mutex
	asked    []string // of Allocate, PreStartContainer
	prefer   []string
	allocate func(ids []string) (*api.AllocateResponse, error)
}

func (f *fake) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return f.options, f.broken
}

func (f *fake) ListAndWatch(_ *api.Empty, s grpc.ServerStreamingServer[api.ListAndWatchResponse]) error {
	for {
		select {
		case <-s.Context().Done():
			return nil
		case list := <-f.lists:
			if err := s.Send(&api.ListAndWatchResponse{Devices: list}); err != nil {
				return err
			}
		}
	}
}

func (f *fake) GetPreferredAllocation(_ context.Context, _ *api.PreferredAllocationRequest) (*api.PreferredAllocationResponse, error) {
	return &api.PreferredAllocationResponse{ContainerResponses: []*api.ContainerPreferredAllocationResponse{{DeviceIDs: f.prefer}}}, nil
}

func (f *fake) Allocate(_ context.Context, r *api.AllocateRequest) (*api.AllocateResponse, error) {
	ids := r.GetContainerRequests()[0].GetDevicesIds()
	f.mu.Lock()
	f.asked = append(f.asked, "allocate "+strings.Join(ids, ","))
	answer := f.allocate
	f.mu.Unlock()
	if answer != nil {
		return answer(ids)
	}
	return &api.AllocateResponse{ContainerResponses: []*api.ContainerAllocateResponse{{
		Envs:        map[string]string{"DEVICES": strings.Join(ids, ","), "OWN": "plugin's"},
		Mounts:      []*api.Mount{{ContainerPath: "/lib/x", HostPath: "/usr/lib/x", ReadOnly: true}},
		Devices:     []*api.DeviceSpec{{ContainerPath: "/dev/x", HostPath: "/dev/null", Permissions: "rw"}},
		Annotations: map[string]string{"example.com/note": "yes"},
		CdiDevices:  []*api.CDIDevice{{Name: "example.com/device=x"}},
	}}}, nil
}

func (f *fake) PreStartContainer(_ context.Context, r *api.PreStartContainerRequest) (*api.PreStartContainerResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, "start "+strings.Join(r.GetDevicesIds(), ","))
	return &api.PreStartContainerResponse{}, nil
}

func (f *fake) calls() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.asked)
}

func newFake() *fake {
	return &fake{options: &api.DevicePluginOptions{}, lists: make(chan []*api.Device, 10)}
}

func devices(health string, ids ...string) (out []*api.Device) {
	for _, id := range ids {
		out = append(out, &api.Device{ID: id, Health: health})
	}
	return out
}

// world is a node's Manager over a folder.
type world struct {
	t    *testing.T
	root string
	m    *deviceplugin.Manager
	stop func()
}

func newWorld(t *testing.T) *world {
	t.Helper()
	root, err := os.MkdirTemp("", "devices") //nolint:usetesting // paths of sockets are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(root); err != nil {
			t.Error(err)
		}
	})
	w := &world{t: t, root: root}
	w.start()
	return w
}

// start starts a Manager; again after w.stop, as a kubelet that was killed.
func (w *world) start(change ...func(*deviceplugin.Config)) {
	w.t.Helper()
	cfg := deviceplugin.Config{RootDir: w.root, Logger: slog.New(slog.NewTextHandler(w.t.Output(), nil)), Timeout: patience}
	for _, c := range change {
		c(&cfg)
	}
	m, err := deviceplugin.New(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	w.m = m
	ctx, cancel := context.WithCancel(w.t.Context())
	done := run.Go("manager", func() error { return m.Run(ctx) })
	w.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Error(err)
		}
	})
	w.t.Cleanup(w.stop)
}

// serve serves a plugin, and registers it at the kubelet's socket.
func (w *world) serve(f *fake, name, resource string) (stop func()) {
	w.t.Helper()
	stop = w.listen(f, name)
	if err := w.register(name, resource, api.Version); err != nil {
		w.t.Fatal(err)
	}
	return stop
}

// listen serves a plugin of which the kubelet does not know yet.
func (w *world) listen(f *fake, name string) (stop func()) {
	w.t.Helper()
	dir := filepath.Join(w.root, deviceplugin.Directory)
	w.until("the kubelet's socket is there", func() bool {
		_, err := os.Stat(filepath.Join(dir, "kubelet.sock"))
		return err == nil
	})
	var lc net.ListenConfig
	l, err := lc.Listen(w.t.Context(), "unix", filepath.Join(dir, name))
	if err != nil {
		w.t.Fatal(err)
	}
	s := grpc.NewServer()
	api.RegisterDevicePluginServer(s, f)
	done := run.Go("plugin", func() error { return s.Serve(l) })
	stop = sync.OnceFunc(func() {
		s.Stop()
		if err := <-done; err != nil {
			w.t.Error(err)
		}
	})
	w.t.Cleanup(stop)
	return stop
}

func (w *world) register(endpoint, resource, version string) error {
	w.t.Helper()
	conn, err := grpc.NewClient("unix://"+filepath.Join(w.root, deviceplugin.Directory, "kubelet.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		w.t.Fatal(err)
	}
	defer conn.Close()
	_, err = api.NewRegistrationClient(conn).Register(w.t.Context(),
		&api.RegisterRequest{Version: version, Endpoint: endpoint, ResourceName: resource}, grpc.WaitForReady(true))
	return err
}

func (w *world) until(what string, ok func() bool) {
	w.t.Helper()
	for end := time.After(patience); !ok(); {
		select {
		case <-end:
			w.t.Fatal("never: " + what)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// have waits until a resource has so many devices, of which so many are healthy.
func (w *world) have(resource string, capacity, allocatable int64) {
	w.t.Helper()
	w.until(fmt.Sprintf("%s has %d devices, %d healthy", resource, capacity, allocatable), func() bool {
		c, a := w.m.Resources()
		x, y := c[corev1.ResourceName(resource)], a[corev1.ResourceName(resource)]
		return x.Value() == capacity && y.Value() == allocatable
	})
}

func container(name string, n int64, resource string) corev1.Container {
	return corev1.Container{Name: name, Resources: corev1.ResourceRequirements{Limits: limits(n, resource)}}
}

func limits(n int64, name string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceName(name): *resource.NewQuantity(n, resource.DecimalSI)}
}

func aPod(uid types.UID, containers ...corev1.Container) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: string(uid), UID: uid}, Spec: corev1.PodSpec{Containers: containers},
	}
}

func (w *world) refused(p *corev1.Pod, words string) {
	w.t.Helper()
	err := w.m.Allocate(w.t.Context(), p)
	if _, ok := errors.AsType[*deviceplugin.Refusal](err); !ok || !strings.Contains(err.Error(), words) {
		w.t.Errorf("the pod got %v, want a refusal with %q", err, words)
	}
}

func (w *world) given(p *corev1.Pod) {
	w.t.Helper()
	if err := w.m.Allocate(w.t.Context(), p); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) equipped(uid types.UID, name string) *cri.ContainerConfig {
	w.t.Helper()
	cfg := &cri.ContainerConfig{Envs: []*cri.KeyValue{{Key: "OWN", Value: []byte("pod's")}}}
	if err := w.m.Equip(w.t.Context(), uid, name, cfg); err != nil {
		w.t.Fatal(err)
	}
	return cfg
}

// TestDevicesReachTheirContainers: with all that the plugin says, each for one pod, and
// back when that has ended.
func TestDevicesReachTheirContainers(t *testing.T) {
	w := newWorld(t)
	f := newFake()
	f.options.PreStartRequired = true
	w.serve(f, "x.sock", res)
	f.lists <- append(devices(api.Healthy, "a", "b", "c"), devices(api.Unhealthy, "d")...)
	w.have(res, 4, 3)
	p := aPod("one", container("main", 2, res), container("other", 1, "example.com/unknown"))
	w.given(p)
	w.given(p) // once
	if got := f.calls(); !slices.Equal(got, []string{"allocate a,b"}) {
		t.Errorf("the plugin was asked %q", got)
	}
	cfg := w.equipped("one", "main")
	if got := f.calls(); got[len(got)-1] != "start a,b" {
		t.Errorf("the plugin was asked %q", got)
	}
	if len(cfg.Envs) != 3 || cfg.Envs[0].Key != "DEVICES" || string(cfg.Envs[0].Value) != "a,b" || string(cfg.Envs[2].Value) != "pod's" ||
		cfg.Mounts[0].HostPath != "/usr/lib/x" || !cfg.Mounts[0].Readonly || cfg.Devices[0].Permissions != "rw" ||
		cfg.Annotations["example.com/note"] != "yes" || cfg.CDIDevices[0].Name != "example.com/device=x" {
		t.Errorf("the container gets %v", cfg)
	}
	if cfg := w.equipped("one", "other"); len(cfg.Devices)+len(cfg.Mounts)+len(cfg.CDIDevices) != 0 {
		t.Errorf("the other container gets %v", cfg)
	}
	w.refused(aPod("two", container("main", 2, res)), "Requested: 2, Available: 1")
	w.given(aPod("three", container("main", 1, res)))
	w.refused(aPod("four", container("main", 1, res)), "Requested: 1, Available: 0")
	w.m.Release("one")
	w.given(aPod("four", container("main", 2, res)))
	// Health changes.
	f.lists <- devices(api.Unhealthy, "a")
	w.have(res, 1, 0)
}

// TestInitContainersLeaveTheirDevices to those that come after, sidecars do not.
func TestInitContainersLeaveTheirDevices(t *testing.T) {
	w := newWorld(t)
	f := newFake()
	w.serve(f, "x.sock", res)
	f.lists <- devices(api.Healthy, "a", "b", "c")
	w.have(res, 3, 3)
	always := corev1.ContainerRestartPolicyAlways
	p := aPod("one", container("main", 2, res))
	side := container("side", 1, res)
	side.RestartPolicy = &always
	p.Spec.InitContainers = []corev1.Container{container("init", 2, res), side}
	w.given(p)
	if got := f.calls(); !slices.Equal(got, []string{"allocate a,b", "allocate a", "allocate b,c"}) {
		t.Errorf("the plugin was asked %q", got)
	}
}

// TestPreferences are followed as far as they are true.
func TestPreferences(t *testing.T) {
	w := newWorld(t)
	f := newFake()
	f.options.GetPreferredAllocationAvailable = true
	f.prefer = []string{"c", "no such device", "c"}
	w.serve(f, "x.sock", res)
	f.lists <- devices(api.Healthy, "a", "b", "c")
	w.have(res, 3, 3)
	w.given(aPod("one", container("main", 2, res)))
	if got := f.calls(); !slices.Equal(got, []string{"allocate a,c"}) {
		t.Errorf("the plugin was asked %q", got)
	}
}

// TestDevicesNearby are given before those that the plugin prefers: no others where they are
// enough, all of them where they are not.
func TestDevicesNearby(t *testing.T) {
	w := newWorld(t)
	f := newFake()
	f.options.GetPreferredAllocationAvailable = true
	f.prefer = []string{"a", "b"}
	w.serve(f, "x.sock", res)
	list := devices(api.Healthy, "a", "b", "c", "d", "e", "f")
	for _, d := range list[3:] {
		d.Topology = &api.TopologyInfo{Nodes: []*api.NUMANode{{ID: 1}}}
	}
	f.lists <- list
	w.have(res, 6, 6)
	near := func(*corev1.Container, []allot.Hints, []allot.Hints) (allot.Nodes, error) {
		return allot.NodesOf(1), nil
	}
	for _, p := range []*corev1.Pod{aPod("one", container("main", 1, res)), aPod("two", container("main", 3, res))} {
		if err := w.m.AllocateNear(t.Context(), p, near); err != nil {
			t.Fatal(err)
		}
	}
	if got := f.calls(); !slices.Equal(got, []string{"allocate d", "allocate a,e,f"}) {
		t.Errorf("the plugin was asked %q", got)
	}
}

// TestAWholePodThatHasItsDevices, or some, finds its others where these are: none of its own is
// in its way.
func TestAWholePodThatHasItsDevices(t *testing.T) {
	w := newWorld(t)
	f := newFake()
	w.serve(f, "x.sock", res)
	list := devices(api.Healthy, "a", "b", "c", "d")
	for i, d := range list {
		d.Topology = &api.TopologyInfo{Nodes: []*api.NUMANode{{ID: int64(i / 2)}}}
	}
	f.lists <- list
	w.have(res, 4, 4)
	second := allot.NodesOf(1)
	if err := w.m.AllocateNear(t.Context(), aPod("one", container("first", 1, res)),
		func(*corev1.Container, []allot.Hints, []allot.Hints) (allot.Nodes, error) { return second, nil }); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time with both
		p := aPod("one", container("first", 1, res), container("second", 1, res))
		if err := w.m.AllocateNear(t.Context(), p, func(_ *corev1.Container, _, ofPod []allot.Hints) (allot.Nodes, error) {
			best, admit := allot.Merge(allot.SingleNUMANode, second|allot.NodesOf(0), ofPod)
			if !admit || best.Nodes != second {
				t.Errorf("of %v the pod goes to %v (%t)", ofPod, best.Nodes, admit)
			}
			return best.Nodes, nil
		}); err != nil {
			t.Fatal(err)
		}
		w.given(aPod("two", container("main", 2, res)))
	}
	if got := f.calls(); !slices.Equal(got, []string{"allocate c", "allocate d", "allocate a,b"}) {
		t.Errorf("the plugin was asked %q", got)
	}
	if !w.m.Has("one") || w.m.Has("three") {
		t.Error("who has devices is not known")
	}
}

// TestARestartKnowsWhoHasWhat: nothing is asked for twice or given twice; and a plugin that
// is gone, or the kubelet, has its resource stay, with no device to give, for a while.
func TestARestartKnowsWhoHasWhat(t *testing.T) {
	w := newWorld(t)
	f := newFake()
	stop := w.serve(f, "x.sock", res)
	f.lists <- devices(api.Healthy, "a", "b")
	w.have(res, 2, 2)
	one := aPod("one", container("main", 1, res))
	w.given(one)
	w.stop()
	stop()
	w.start()
	w.have(res, 2, 0)
	w.given(one)
	if cfg := w.equipped("one", "main"); string(cfg.Envs[0].Value) != "a" {
		t.Errorf("the container gets %v", cfg)
	}
	w.refused(aPod("two", container("main", 1, res)), "Available: 0")
	f = newFake()
	stop = w.serve(f, "x.sock", res)
	f.lists <- devices(api.Healthy, "a", "b")
	w.have(res, 2, 2)
	w.given(aPod("two", container("main", 1, res)))
	if got := f.calls(); !slices.Equal(got, []string{"allocate b"}) {
		t.Errorf("the plugin was asked %q", got)
	}
	stop()
	w.have(res, 2, 0)
	w.m.Retain(func(uid types.UID) bool { return uid == "two" })
	w.stop()
	w.start(func(c *deviceplugin.Config) { c.Forget = 10 * time.Millisecond })
	w.until("the resource is forgotten", func() bool {
		c, _ := w.m.Resources()
		return len(c) == 0
	})
}

// TestTheFirstManagerIsFresh of a folder, and no other.
func TestTheFirstManagerIsFresh(t *testing.T) {
	w := newWorld(t)
	first := w.m.Fresh()
	w.stop()
	w.start()
	if !first || w.m.Fresh() {
		t.Errorf("the first one is fresh: %t; the second one: %t", first, w.m.Fresh())
	}
}

// TestAPluginThatFailsKeepsUpItsOwnPods, and no others.
func TestAPluginThatFailsKeepsUpItsOwnPods(t *testing.T) {
	w := newWorld(t)
	w.stop()
	var calls calltest.Clock
	w.start(func(c *deviceplugin.Config) { c.WithTimeout = calls.WithTimeout })
	bad, good := newFake(), newFake()
	w.serve(bad, "bad.sock", "example.com/bad")
	w.serve(good, "good.sock", res)
	bad.lists <- devices(api.Healthy, "a", "b")
	good.lists <- devices(api.Healthy, "a", "b")
	w.have("example.com/bad", 2, 2)
	w.have(res, 2, 2)
	answers := func(f func([]string) (*api.AllocateResponse, error)) {
		bad.mu.Lock()
		defer bad.mu.Unlock()
		bad.allocate = f
	}
	user := aPod("one", container("main", 1, "example.com/bad"))
	answers(func([]string) (*api.AllocateResponse, error) { return nil, errors.New("no power") })
	w.refused(user, "Allocate failed due to the plugin of example.com/bad: rpc error: code = Unknown desc = no power, which is unexpected")
	answers(func([]string) (*api.AllocateResponse, error) { return &api.AllocateResponse{}, nil })
	w.refused(user, "answered for 0 containers")
	answers(func([]string) (*api.AllocateResponse, error) {
		return &api.AllocateResponse{ContainerResponses: []*api.ContainerAllocateResponse{
			{Mounts: []*api.Mount{{HostPath: "../x", ContainerPath: "/x"}}},
		}}, nil
	})
	w.refused(user, "expected absolute paths")
	began, release := make(chan struct{}), make(chan struct{})
	answers(func([]string) (*api.AllocateResponse, error) {
		close(began)
		<-release
		return nil, errors.New("too late")
	})
	expire := calls.HangOn()
	failed := run.Go("pod", func() error { return w.m.Allocate(t.Context(), user) })
	<-began
	calls.GoOn()
	w.given(aPod("two", container("main", 1, res)))
	expire()
	if err := <-failed; err == nil || !strings.Contains(err.Error(), "DeadlineExceeded") {
		t.Errorf("the pod got %v", err)
	}
	close(release)
	answers(nil)
	w.given(aPod("three", container("main", 2, "example.com/bad"))) // what failed holds nothing
	// A list that is too long ends the plugin's part.
	var many []string
	for i := range 4097 {
		many = append(many, fmt.Sprint(i))
	}
	bad.lists <- devices(api.Healthy, many...)
	w.have("example.com/bad", 2, 0)
	w.have(res, 2, 2)
}

// TestAPluginThatDoesNotSayHowItWorks is told that it is not taken, and the one before it stays.
func TestAPluginThatDoesNotSayHowItWorks(t *testing.T) {
	w := newWorld(t)
	f, broken := newFake(), newFake()
	broken.broken = errors.New("no driver")
	w.serve(f, "x.sock", res)
	f.lists <- devices(api.Healthy, "a")
	w.have(res, 1, 1)
	w.listen(broken, "broken.sock")
	for _, resource := range []string{res, "example.com/other"} {
		err := w.register("broken.sock", resource, api.Version)
		if err == nil || !strings.Contains(err.Error(), "failed to get device plugin options") || !strings.Contains(err.Error(), "no driver") {
			t.Errorf("%s: %v", resource, err)
		}
	}
	if c, _ := w.m.Resources(); len(c) != 1 {
		t.Errorf("there are %v", c)
	}
	w.given(aPod("one", container("main", 1, res)))
	if got := f.calls(); !slices.Equal(got, []string{"allocate a"}) {
		t.Errorf("the plugin was asked %q", got)
	}
}

// TestWhoMayNotRegister is told why.
func TestWhoMayNotRegister(t *testing.T) {
	w := newWorld(t)
	w.until("the kubelet's socket is there", func() bool {
		_, err := os.Stat(filepath.Join(w.root, deviceplugin.Directory, "kubelet.sock"))
		return err == nil
	})
	for _, c := range []struct{ endpoint, resource, version, want string }{
		{"x.sock", res, "v1alpha", "and this node v1beta1"},
		{"x.sock", "cpu", api.Version, "no name of an extended resource"},
		{"x.sock", "kubernetes.io/x", api.Version, "no name of an extended resource"},
		{"x.sock", "requests.example.com/x", api.Version, "no name of an extended resource"},
		{"../x.sock", res, api.Version, "expected the name of a socket in this folder"},
		{"..", res, api.Version, "expected the name of a socket in this folder"},
	} {
		if err := w.register(c.endpoint, c.resource, c.version); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	err := w.m.Register(t.Context(), pluginwatch.Plugin{Name: res, Endpoint: "x.sock", Versions: []string{api.Version}})
	if err == nil || !strings.Contains(err.Error(), "no absolute path") {
		t.Error(err)
	}
}
