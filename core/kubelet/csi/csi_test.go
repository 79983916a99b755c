// SPDX-License-Identifier: Apache-2.0

package csi_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/attachment"
	"github.com/wasmplane/wasmplane/core/kubelet/csi"
	"github.com/wasmplane/wasmplane/core/kubelet/csi/csitest"
	"github.com/wasmplane/wasmplane/core/kubelet/linuxhost"
	"github.com/wasmplane/wasmplane/core/kubelet/pluginwatch"
	"github.com/wasmplane/wasmplane/core/kubelet/volume"
	"github.com/wasmplane/wasmplane/core/run"
)

const driverName = "test.csi.example"

// patience is generous: the machine may be busy.
const patience = time.Minute

// world is a node with one driver, over a fake API.
type world struct {
	t       *testing.T
	root    string
	client  *fake.Clientset
	driver  *csitest.Driver
	cfg     csi.Config
	node    *csi.Node
	manager *volume.Manager
	stop    func()
}

// newWorld has a driver "test.csi.example" that has registered with a node "n1", whose
// CSIDriver is as change makes it. Mounts need root: without it, false.
func newWorld(t *testing.T, config func(*csitest.Config), change func(*storagev1.CSIDriver), objs ...runtime.Object) (*world, bool) {
	t.Helper()
	if os.Geteuid() != 0 {
		return nil, false
	}
	root, err := os.MkdirTemp("", "csi") //nolint:usetesting // paths of sockets are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := linuxhost.UnmountBelow(root); err != nil {
			t.Error(err)
		}
		if err := os.RemoveAll(root); err != nil {
			t.Error(err)
		}
	})
	object := &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: driverName},
		Spec:       storagev1.CSIDriverSpec{AttachRequired: ptr.To(false)},
	}
	if change != nil {
		change(object)
	}
	objs = append(objs, object, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "node"}})
	w := &world{t: t, root: root, client: fake.NewClientset(objs...)}
	w.client.PrependReactor("create", "serviceaccounts", tokens)
	dc := csitest.Config{
		Name: driverName, Dir: filepath.Join(root, "volumes"), Socket: filepath.Join(root, "plugins", driverName, "csi.sock"),
		Registry: filepath.Join(root, "plugins_registry"), NodeID: "id-of-n1",
	}
	if config != nil {
		config(&dc)
	}
	w.driver = csitest.New(dc)
	w.cfg = csi.Config{
		NodeName: "n1", RootDir: root, Client: w.client, Timeout: patience, Look: 20 * time.Millisecond,
		Again: 20 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	w.start()
	w.run(w.driver.Run)
	w.registered(true)
	return w, true
}

func tokens(a clienttesting.Action) (bool, runtime.Object, error) {
	create, ok := a.(clienttesting.CreateActionImpl)
	if !ok || a.GetSubresource() != "token" {
		return false, nil, nil
	}
	asked, ok := create.GetObject().(*authenticationv1.TokenRequest)
	if !ok {
		return false, nil, nil
	}
	return true, &authenticationv1.TokenRequest{Status: authenticationv1.TokenRequestStatus{
		Token: fmt.Sprintf("for %v", asked.Spec.Audiences), ExpirationTimestamp: metav1.NewTime(time.Now().Add(time.Hour)),
	}}, nil
}

// run runs something until the test ends, or the answered function is called.
func (w *world) run(f func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	ended := false
	stop = func() {
		if ended {
			return
		}
		ended = true
		cancel()
		if err := <-done; err != nil {
			w.t.Error(err)
		}
	}
	w.t.Cleanup(stop)
	return stop
}

// start starts the node's side; again after w.stop, as a kubelet that was killed.
func (w *world) start() {
	w.t.Helper()
	n, err := csi.New(w.cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	w.node = n
	w.manager, err = volume.New(volume.Config{
		RootDir: w.root, Client: w.client, Objects: objects{}, NodeName: "n1",
		Plugins: []volume.Plugin{n},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	plugins, err := pluginwatch.New(pluginwatch.Config{
		RootDir: w.root, Handlers: map[string]pluginwatch.Handler{registration.CSIPlugin: n}, Logger: w.cfg.Logger,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	stopNode, stopManager := w.run(run.Parallel(plugins.Run, n.Run)), w.run(w.manager.Run)
	w.stop = func() { stopManager(); stopNode() }
}

type objects struct{}

func (objects) ConfigMap(context.Context, string, string) (*corev1.ConfigMap, error) {
	return nil, os.ErrNotExist
}

func (objects) Secret(context.Context, string, string) (*corev1.Secret, error) {
	return nil, os.ErrNotExist
}

// registered waits for what the node says to a registration, and answers its error.
func (w *world) registered(want bool) string {
	w.t.Helper()
	timeout := time.After(patience)
	for {
		select {
		case s := <-w.driver.Registered():
			if s.PluginRegistered == want {
				return s.Error
			}
		case <-timeout:
			w.t.Fatalf("the driver was not told that registered is %v", want)
		}
	}
}

// eventually waits for a condition.
func (w *world) eventually(what string, ok func() bool) {
	w.t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline:
			w.t.Fatalf("did not come about: %s", what)
		case <-tick.C:
		}
	}
}

// claim makes a volume, with its claim.
func (w *world) claim(name string, change ...func(*corev1.PersistentVolume)) {
	w.t.Helper()
	if _, err := w.driver.CreateVolume(w.t.Context(), &spec.CreateVolumeRequest{Name: "handle-" + name}); err != nil {
		w.t.Fatal(err)
	}
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-" + name}}
	pv.Spec = corev1.PersistentVolumeSpec{
		Capacity: size, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		ClaimRef: &corev1.ObjectReference{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)},
	}
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{
		Driver: driverName, VolumeHandle: "handle-" + name,
		VolumeAttributes: map[string]string{"kind": "fast"},
	}
	for _, c := range change {
		c(pv)
	}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)}}
	claim.Spec.VolumeName, claim.Status.Phase, claim.Status.Capacity = pv.Name, corev1.ClaimBound, size
	if _, err := w.client.CoreV1().PersistentVolumes().Create(w.t.Context(), pv, metav1.CreateOptions{}); err != nil {
		w.t.Fatal(err)
	}
	if _, err := w.client.CoreV1().PersistentVolumeClaims("ns").Create(w.t.Context(), claim, metav1.CreateOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

// aPod uses claims, each as a volume of its name.
func aPod(name string, claims ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)}}
	p.Spec.ServiceAccountName = "builder"
	c := corev1.Container{Name: "main"}
	for _, claim := range claims {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: claim, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}})
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: claim, MountPath: "/" + claim})
	}
	p.Spec.Containers = []corev1.Container{c}
	return p
}

func (w *world) mount(p *corev1.Pod) {
	w.t.Helper()
	if err := w.manager.Mount(w.t.Context(), p); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) unmount(p *corev1.Pod) {
	w.t.Helper()
	if err := w.manager.Unmount(w.t.Context(), p.UID); err != nil {
		w.t.Fatal(err)
	}
}

// inside is a file in the first volume of a pod, as its container sees it.
func (w *world) inside(p *corev1.Pod, file string) string {
	w.t.Helper()
	mounts, err := w.manager.Mounts(w.t.Context(), p, &p.Spec.Containers[0], nil)
	if err != nil || len(mounts) == 0 {
		w.t.Fatalf("mounts: %v %v", mounts, err)
	}
	return filepath.Join(mounts[0].HostPath, file)
}

func (w *world) mounts() []string {
	w.t.Helper()
	left, err := linuxhost.MountsBelow(w.root)
	if err != nil {
		w.t.Fatal(err)
	}
	return left
}

// nothingLeft waits until neither mounts nor places are left.
func (w *world) nothingLeft() {
	w.t.Helper()
	w.eventually("all is taken down", func() bool {
		staged, err := filepath.Glob(filepath.Join(w.root, "plugins/kubernetes.io/csi/*/*"))
		return err == nil && len(staged) == 0 && len(w.mounts()) == 0
	})
	if left, err := filepath.Glob(filepath.Join(w.root, "pods/*/volumes/*/*")); err != nil || len(left) > 0 {
		w.t.Errorf("left behind: %v %v", left, err)
	}
}

func (w *world) csiNode() []storagev1.CSINodeDriver {
	n, err := w.client.StorageV1().CSINodes().Get(w.t.Context(), "n1", metav1.GetOptions{})
	if err != nil {
		return nil
	}
	return n.Spec.Drivers
}

// TestAVolumeComesAndGoes: staged once for two pods, published for each, and gone when
// the last has gone; the data are the volume's.
func TestAVolumeComesAndGoes(t *testing.T) {
	w, root := newWorld(t, nil, nil)
	if !root {
		return
	}
	w.claim("data")
	a, b := aPod("a", "data"), aPod("b", "data")
	w.mount(a)
	if err := os.WriteFile(w.inside(a, "file"), []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.mount(b)
	if got, err := os.ReadFile(w.inside(b, "file")); err != nil || string(got) != "kept" {
		t.Errorf("the other pod reads %q %v", got, err)
	}
	// Metrics tell drivers apart.
	if err := testutil.GatherAndCompare(w.manager.Metrics(), strings.NewReader(`
# HELP volume_manager_total_volumes Volumes that pods of the node want (desired) and that are set up (actual).
# TYPE volume_manager_total_volumes gauge
volume_manager_total_volumes{plugin_name="kubernetes.io/csi:`+driverName+`",state="actual_state_of_world"} 2
volume_manager_total_volumes{plugin_name="kubernetes.io/csi:`+driverName+`",state="desired_state_of_world"} 2
`), "volume_manager_total_volumes"); err != nil {
		t.Error(err)
	}
	if n, err := testutil.GatherAndCount(w.node.Metrics(), "csi_operations_seconds"); err != nil || n < 2 {
		t.Errorf("%d kinds of calls are measured (%v)", n, err)
	}
	if n := len(w.driver.Calls("NodeStageVolume")); n != 1 {
		t.Errorf("staged %d times", n)
	}
	staged, ok := w.driver.Calls("NodeStageVolume")[0].Request.(*spec.NodeStageVolumeRequest)
	if !ok || staged.GetVolumeCapability().GetAccessMode().GetMode() != spec.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER ||
		staged.GetVolumeContext()["kind"] != "fast" {
		t.Errorf("staged by %v", staged)
	}
	w.unmount(a)
	if got, err := os.ReadFile(w.inside(b, "file")); err != nil || string(got) != "kept" {
		t.Errorf("with the first pod gone, the other reads %q %v", got, err)
	}
	w.unmount(b)
	w.nothingLeft()
	if got, err := os.ReadFile(filepath.Join(w.driver.Path("handle-data"), "file")); err != nil || string(got) != "kept" {
		t.Errorf("the volume's data are %q %v", got, err)
	}
	w.mount(a)
	if n := len(w.driver.Calls("NodeStageVolume")); n != 2 {
		t.Errorf("used again, staged %d times", n)
	}
}

// TestADriverRegisters: the CSINode and the Node say what it is; when its socket goes, it
// is taken off, and a pod is told that it is missing.
func TestADriverRegisters(t *testing.T) {
	topology := map[string]string{"topology.test.csi.example/node": "n1"}
	w, root := newWorld(t, func(c *csitest.Config) { c.Topology, c.MaxVolumes = topology, 7 }, nil)
	if !root {
		return
	}
	other := csitest.New(csitest.Config{
		Name: "other.csi.example", Dir: filepath.Join(w.root, "other"),
		Socket: filepath.Join(w.root, "other.sock"), Registry: w.driver.Registry, NodeID: "other-id",
	})
	stop := w.run(other.Run)
	w.eventually("both are in the CSINode", func() bool { return len(w.csiNode()) == 2 })
	i := slices.IndexFunc(w.csiNode(), func(d storagev1.CSINodeDriver) bool { return d.Name == driverName })
	got := w.csiNode()[i]
	if got.NodeID != "id-of-n1" || !slices.Equal(got.TopologyKeys, []string{"topology.test.csi.example/node"}) || got.Allocatable == nil ||
		*got.Allocatable.Count != 7 {
		t.Errorf("the CSINode says %+v", got)
	}
	node, err := w.client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
	if err != nil || node.Labels["topology.test.csi.example/node"] != "n1" ||
		!strings.Contains(node.Annotations["csi.volume.kubernetes.io/nodeid"], `"test.csi.example":"id-of-n1"`) {
		t.Errorf("the Node says %v %v %v", node.Labels, node.Annotations, err)
	}
	owned, err := w.client.StorageV1().CSINodes().Get(t.Context(), "n1", metav1.GetOptions{})
	if err != nil || len(owned.OwnerReferences) != 1 || owned.OwnerReferences[0].UID != "node" {
		t.Errorf("the CSINode belongs to %v %v", owned.OwnerReferences, err)
	}
	stop()
	w.eventually("the other is taken off", func() bool { return len(w.csiNode()) == 1 })
	w.claim("data", func(pv *corev1.PersistentVolume) { pv.Spec.CSI.Driver = other.Name })
	err = w.manager.Mount(t.Context(), aPod("a", "data"))
	if err == nil || !strings.Contains(err.Error(), "driver name other.csi.example not found in the list of registered CSI drivers") {
		t.Errorf("a pod of a missing driver: %v", err)
	}
	if err := w.manager.Unmount(t.Context(), "uid-a"); err != nil {
		t.Errorf("a pod that never got its volume cannot go: %v", err)
	}
}

// TestWhoMayNotRegister: the plugin is told why, and the driver is not used.
func TestWhoMayNotRegister(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*csitest.Config)
		want   string
	}{
		"versions": {func(c *csitest.Config) { c.Name, c.Versions = "old.example", []string{"0.3.0"} }, "supports the versions [0.3.0], and this node versions 1.x"},
		"name":     {func(c *csitest.Config) { c.Name = "-x" }, "is no name of a CSI driver"},
		"endpoint": {func(c *csitest.Config) { c.Name, c.Socket = "odd.example", "csi.sock" }, "no absolute path of a socket"},
		"node":     {func(c *csitest.Config) { c.Name, c.NodeID = "nowhere.example", "" }, "node_id is empty"},
	} {
		t.Run(name, func(t *testing.T) {
			w, root := newWorld(t, nil, nil)
			if !root {
				return
			}
			cfg := csitest.Config{
				Dir: filepath.Join(w.root, "o"), Socket: filepath.Join(w.root, "o.sock"), Registry: w.driver.Registry,
				NodeID: "id",
			}
			c.change(&cfg)
			if !filepath.IsAbs(cfg.Socket) {
				t.Chdir(w.root)
			}
			other := csitest.New(cfg)
			w.run(other.Run)
			timeout := time.After(patience)
			for told := ""; !strings.Contains(told, c.want); {
				select {
				case got := <-other.Registered(): // its other socket may not have been there yet
					if told = got.Error; got.PluginRegistered {
						t.Fatal("the plugin is registered")
					}
				case <-timeout:
					t.Fatalf("told %q, want %q", told, c.want)
				}
			}
			if all := w.csiNode(); len(all) != 1 {
				t.Errorf("the CSINode has %v", all)
			}
		})
	}
}

// TestARestartAdoptsWhatIsMounted: neither staged nor published again, and taken down by
// a process that knows nothing but what is on disk.
func TestARestartAdoptsWhatIsMounted(t *testing.T) {
	w, root := newWorld(t, nil, nil)
	if !root {
		return
	}
	w.claim("data")
	w.claim("more")
	a, b := aPod("a", "data"), aPod("b", "more")
	w.mount(a)
	w.mount(b)
	w.stop()
	w.start()
	w.registered(true)
	w.mount(a)
	if n := len(w.driver.Calls("NodePublishVolume")); n != 2 {
		t.Errorf("published %d times", n)
	}
	// A pod of which only the UID is known.
	w.unmount(b)
	w.unmount(a)
	w.nothingLeft()
}

// TestWhatAKillLeftIsTakenDown: a volume that is staged for no pod, a place with nothing
// in it, a volume that was being published.
func TestWhatAKillLeftIsTakenDown(t *testing.T) {
	w, root := newWorld(t, nil, nil)
	if !root {
		return
	}
	w.claim("data")
	p := aPod("a", "data")
	w.mount(p)
	w.stop()
	dir := filepath.Join(w.root, "pods/uid-a/volumes/kubernetes.io~csi/pv-data")
	// Killed when the pod's part had been taken down.
	if err := unix.Unmount(filepath.Join(dir, "mount"), 0); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	// Killed before anything was asked for.
	if err := os.MkdirAll(filepath.Join(w.root, "pods/uid-b/volumes/kubernetes.io~csi/pv-x"), 0o750); err != nil {
		t.Fatal(err)
	}
	w.start()
	w.registered(true)
	w.unmount(aPod("b"))
	w.unmount(p)
	w.nothingLeft()
}

// TestADriverThatHangs keeps up its own volume alone, within its deadline, and says so.
func TestADriverThatHangs(t *testing.T) {
	w, root := newWorld(t, nil, nil)
	if !root {
		return
	}
	w.claim("stuck")
	w.claim("fine")
	hanging := make(chan struct{}, 100)
	w.driver.Before(func(ctx context.Context, _ string, req any) error {
		if r, ok := req.(*spec.NodePublishVolumeRequest); ok && r.GetVolumeId() == "handle-stuck" {
			hanging <- struct{}{}
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	got := make(chan error, 1)
	go func() { got <- w.manager.Mount(ctx, aPod("a", "stuck")) }()
	<-hanging
	w.mount(aPod("b", "fine"))
	// Another pod with the volume waits for its turn, and gives up with its context.
	short, end := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer end()
	if err := w.manager.Mount(short, aPod("c", "stuck")); err == nil {
		t.Error("two calls about one volume at once")
	}
	cancel()
	if err := <-got; err == nil {
		t.Error("a driver that hangs has published")
	}
	w.driver.Before(nil)
	w.unmount(aPod("a"))
	w.unmount(aPod("b"))
	w.unmount(aPod("c"))
	w.nothingLeft()
}

// TestADeadlineIsSaid: the error names the driver, the call and the time.
func TestADeadlineIsSaid(t *testing.T) {
	w, root := newWorld(t, nil, nil)
	if !root {
		return
	}
	w.claim("data")
	w.stop()
	w.cfg.Timeout = 50 * time.Millisecond
	w.start()
	w.eventually("the driver is known", func() bool {
		err := w.manager.Mount(t.Context(), aPod("warm", "data"))
		return err == nil
	})
	w.claim("stuck")
	w.driver.Before(func(ctx context.Context, method string, _ any) error {
		if method == "NodePublishVolume" {
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	})
	err := w.manager.Mount(t.Context(), aPod("a", "stuck"))
	for _, want := range []string{
		`MountVolume.SetUp failed for volume "stuck"`, "driver test.csi.example has not answered Node",
		"within 50ms",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the pod is told %v, want %q", err, want)
		}
	}
}

// TestADriverThatLies: what it says it has unmounted has to be unmounted, and is left
// alone as long as it isn't; what it says it has mounted is doubted.
func TestADriverThatLies(t *testing.T) {
	w, root := newWorld(t, nil, nil)
	if !root {
		return
	}
	w.claim("data")
	p := aPod("a", "data")
	w.mount(p)
	if err := os.WriteFile(w.inside(p, "file"), []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.driver.Before(func(_ context.Context, method string, _ any) error {
		if strings.HasSuffix(method, "publishVolume") || method == "NodePublishVolume" || method == "NodeUnstageVolume" {
			return csitest.ErrLie
		}
		return nil
	})
	err := w.manager.Unmount(t.Context(), p.UID)
	if err == nil || !strings.Contains(err.Error(), "answered that it has unmounted the volume, and") {
		t.Errorf("taken down by a liar: %v", err)
	}
	if got, err := os.ReadFile(filepath.Join(w.driver.Path("handle-data"), "file")); err != nil || string(got) != "kept" {
		t.Fatalf("the data are %q %v", got, err)
	}
	w.claim("never")
	never := aPod("b", "never")
	w.mount(never)
	w.eventually("the pod is warned", func() bool {
		list, err := w.client.CoreV1().Events("ns").List(t.Context(), metav1.ListOptions{})
		return err == nil && slices.ContainsFunc(list.Items, func(e corev1.Event) bool {
			return e.Reason == "VolumeNotMounted" && e.InvolvedObject.Name == "b"
		})
	})
	w.driver.Before(nil)
	w.unmount(p)
	w.unmount(never)
	w.nothingLeft()
	if got, err := os.ReadFile(filepath.Join(w.driver.Path("handle-data"), "file")); err != nil || string(got) != "kept" {
		t.Errorf("the data are %q %v", got, err)
	}
}

// TestADriverThatIsAway: its pods cannot go without it, and go when it is back.
func TestADriverThatIsAway(t *testing.T) {
	w, root := newWorld(t, nil, nil)
	if !root {
		return
	}
	w.claim("data")
	p := aPod("a", "data")
	w.mount(p)
	w.stop() // a kubelet starts with the driver gone
	if err := os.Remove(filepath.Join(w.driver.Registry, driverName+"-reg.sock")); err != nil {
		t.Fatal(err)
	}
	w.start()
	err := w.manager.Unmount(t.Context(), p.UID)
	if err == nil || !strings.Contains(err.Error(), "stays mounted until its driver takes it down") {
		t.Errorf("taken down without the driver: %v", err)
	}
	if len(w.mounts()) == 0 {
		t.Fatal("the volume was unmounted behind the driver's back")
	}
	again := csitest.New(w.driver.Config)
	w.run(again.Run)
	w.driver = again
	w.registered(true)
	w.unmount(p)
	w.nothingLeft()
}

// TestAttachedVolumesWait: until the attachment says so, with what the attacher says; the
// node's status names the volume from before until it is unstaged.
func TestAttachedVolumesWait(t *testing.T) {
	w, root := newWorld(t, nil, func(d *storagev1.CSIDriver) { d.Spec.AttachRequired = nil })
	if !root {
		return
	}
	w.claim("data")
	p := aPod("a", "data")
	mounted := make(chan error, 1)
	go func() { mounted <- w.manager.Mount(t.Context(), p) }()
	inUse := func() []corev1.UniqueVolumeName {
		n, err := w.client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return n.Status.VolumesInUse
	}
	w.eventually("the volume is in use", func() bool { return len(inUse()) == 1 })
	if got := inUse()[0]; got != attachment.Volume(driverName, "handle-data") {
		t.Errorf("in use is %s", got)
	}
	a := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: attachment.Name(driverName, "handle-data", "n1")}}
	a.Status.AttachError = &storagev1.VolumeError{Message: "the shelf is locked"}
	a, err := w.client.StorageV1().VolumeAttachments().Create(t.Context(), a, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-mounted:
		t.Fatalf("mounted before it was attached: %v", err)
	default:
	}
	a.Status = storagev1.VolumeAttachmentStatus{Attached: true, AttachmentMetadata: map[string]string{"device": "sdx"}}
	if _, err := w.client.StorageV1().VolumeAttachments().Update(t.Context(), a, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := <-mounted; err != nil {
		t.Fatal(err)
	}
	r, ok := w.driver.Calls("NodeStageVolume")[0].Request.(*spec.NodeStageVolumeRequest)
	if !ok || r.GetPublishContext()["device"] != "sdx" {
		t.Errorf("staged with %v", r.GetPublishContext())
	}
	w.unmount(p)
	w.nothingLeft()
	w.eventually("nothing is in use", func() bool { return len(inUse()) == 0 })
}

// TestPodsOwnVolumes: made for the pod, with what it may know, and gone with it.
func TestPodsOwnVolumes(t *testing.T) {
	w, root := newWorld(t, nil, func(d *storagev1.CSIDriver) {
		d.Spec.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecycleEphemeral}
		d.Spec.PodInfoOnMount, d.Spec.RequiresRepublish = ptr.To(true), ptr.To(true)
		d.Spec.TokenRequests = []storagev1.TokenRequest{{Audience: "vault"}}
	}, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "key"}, Data: map[string][]byte{"user": []byte("u")}})
	if !root {
		return
	}
	p := aPod("a")
	p.Spec.Volumes = []corev1.Volume{{Name: "own", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{
		Driver: driverName, VolumeAttributes: map[string]string{"k": "v"}, NodePublishSecretRef: &corev1.LocalObjectReference{Name: "key"},
	}}}}
	p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "own", MountPath: "/own"}}
	w.mount(p)
	if n := len(w.driver.Calls("NodeStageVolume")); n != 0 {
		t.Errorf("a pod's own volume was staged")
	}
	r, ok := w.driver.Calls("NodePublishVolume")[0].Request.(*spec.NodePublishVolumeRequest)
	if !ok {
		t.Fatal("not published")
	}
	for k, want := range map[string]string{
		"k": "v", "csi.storage.k8s.io/pod.name": "a", "csi.storage.k8s.io/pod.namespace": "ns", "csi.storage.k8s.io/pod.uid": "uid-a",
		"csi.storage.k8s.io/serviceAccount.name": "builder", "csi.storage.k8s.io/ephemeral": "true",
	} {
		if r.GetVolumeContext()[k] != want {
			t.Errorf("%s is %q, want %q", k, r.GetVolumeContext()[k], want)
		}
	}
	if got := r.GetVolumeContext()["csi.storage.k8s.io/serviceAccount.tokens"]; !strings.Contains(got,
		`"vault":{"token":"for [vault]","expirationTimestamp":"`) {
		t.Errorf("the tokens are %s", got)
	}
	if r.GetSecrets()["user"] != "u" {
		t.Errorf("the secrets are %v", r.GetSecrets())
	}
	w.eventually("the driver publishes again, as it wants to", func() bool { return len(w.driver.Calls("NodePublishVolume")) > 2 })
	w.unmount(p)
	w.nothingLeft()
	if _, err := os.Stat(w.driver.Path(r.GetVolumeId())); !os.IsNotExist(err) {
		t.Errorf("the pod's volume outlived it: %v", err)
	}
	w.claim("data")
	if err := w.manager.Mount(t.Context(), aPod("b", "data")); err == nil || !strings.Contains(err.Error(),
		"lists no volumeLifecycleModes: Persistent") {
		t.Errorf("a claim of a driver of pods' own volumes: %v", err)
	}
}

// TestVolumesGrow: the driver is asked with the pod at work, and the claim's status says
// what came of it.
func TestVolumesGrow(t *testing.T) {
	w, root := newWorld(t, nil, nil)
	if !root {
		return
	}
	w.claim("data")
	p := aPod("a", "data")
	w.mount(p)
	// As external-resizer does.
	grow := func(size string) {
		t.Helper()
		pv, err := w.client.CoreV1().PersistentVolumes().Get(t.Context(), "pv-data", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		claim, err := w.client.CoreV1().PersistentVolumeClaims("ns").Get(t.Context(), "data", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		claim.Status.Conditions = []corev1.PersistentVolumeClaimCondition{{
			Type:   corev1.PersistentVolumeClaimFileSystemResizePending,
			Status: corev1.ConditionTrue,
		}}
		claim.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{
			corev1.ResourceStorage: corev1.PersistentVolumeClaimNodeResizePending,
		}
		if _, err := w.client.CoreV1().PersistentVolumeClaims("ns").UpdateStatus(t.Context(), claim, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		pv.Spec.Capacity[corev1.ResourceStorage] = resource.MustParse(size)
		if _, err := w.client.CoreV1().PersistentVolumes().Update(t.Context(), pv, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	claim := func() corev1.PersistentVolumeClaimStatus {
		c, err := w.client.CoreV1().PersistentVolumeClaims("ns").Get(t.Context(), "data", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return c.Status
	}
	grow("2Gi")
	w.eventually("the claim has grown", func() bool {
		s := claim()
		return s.Capacity.Storage().String() == "2Gi" && len(s.Conditions) == 0 && len(s.AllocatedResourceStatuses) == 0
	})
	r, ok := w.driver.Calls("NodeExpandVolume")[0].Request.(*spec.NodeExpandVolumeRequest)
	if !ok || r.GetCapacityRange().GetRequiredBytes() != 2<<30 || !strings.HasSuffix(r.GetVolumePath(), "/mount") ||
		!strings.HasSuffix(r.GetStagingTargetPath(), "/globalmount") {
		t.Errorf("asked for %v", r)
	}
	refuses := func(code codes.Code, why string) {
		w.driver.Before(func(_ context.Context, method string, _ any) error {
			if method == "NodeExpandVolume" {
				return status.Error(code, why)
			}
			return nil
		})
	}
	ask := func(size string) {
		t.Helper()
		c, err := w.client.CoreV1().PersistentVolumeClaims("ns").Get(t.Context(), "data", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		c.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
		if _, err := w.client.CoreV1().PersistentVolumeClaims("ns").Update(t.Context(), c, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	told := func(why string, state corev1.ClaimResourceStatus) func() bool {
		return func() bool {
			s := claim()
			return s.AllocatedResourceStatuses[corev1.ResourceStorage] == state &&
				slices.ContainsFunc(s.Conditions, func(c corev1.PersistentVolumeClaimCondition) bool {
					return c.Type == corev1.PersistentVolumeClaimNodeResizeError && strings.Contains(c.Message, why)
				})
		}
	}
	// A final answer that may be another one tomorrow: the size is out of reach once another is asked for.
	refuses(codes.PermissionDenied, "ask the administrator")
	ask("3Gi")
	grow("3Gi")
	w.eventually("the claim says that it is refused", told("ask the administrator", corev1.PersistentVolumeClaimNodeResizeInProgress))
	ask("2560Mi")
	w.eventually("the claim gives the size up", told("ask the administrator", corev1.PersistentVolumeClaimNodeResizeInfeasible))
	ask("3Gi")
	refuses(codes.OutOfRange, "the disk is full")
	grow("3Gi")
	w.eventually("the claim says that it cannot grow", told("the disk is full", corev1.PersistentVolumeClaimNodeResizeInfeasible))
	w.unmount(p)
	w.nothingLeft()
}

// TestGroups: the volume is the pod's group's by the driver's policy, or by the driver.
func TestGroups(t *testing.T) {
	const gid = 4711
	for name, c := range map[string]struct {
		policy *storagev1.FSGroupPolicy
		fsType string
		driver bool
		want   bool
	}{
		"no file system named": {nil, "", false, false},
		"file system named":    {nil, "ext4", false, true},
		"always":               {ptr.To(storagev1.FileFSGroupPolicy), "", false, true},
		"never":                {ptr.To(storagev1.NoneFSGroupPolicy), "ext4", false, false},
		"by the driver":        {ptr.To(storagev1.FileFSGroupPolicy), "ext4", true, false},
	} {
		t.Run(name, func(t *testing.T) {
			w, root := newWorld(t, func(cfg *csitest.Config) { cfg.MountGroup = c.driver },
				func(d *storagev1.CSIDriver) { d.Spec.FSGroupPolicy = c.policy })
			if !root {
				return
			}
			w.claim("data", func(pv *corev1.PersistentVolume) { pv.Spec.CSI.FSType = c.fsType })
			p := aPod("a", "data")
			p.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: ptr.To(int64(gid))}
			w.mount(p)
			var st unix.Stat_t
			if err := unix.Stat(w.inside(p, "."), &st); err != nil {
				t.Fatal(err)
			}
			if (st.Gid == gid) != c.want {
				t.Errorf("the volume is group %d's", st.Gid)
			}
			r, ok := w.driver.Calls("NodePublishVolume")[0].Request.(*spec.NodePublishVolumeRequest)
			if got := r.GetVolumeCapability().GetMount().GetVolumeMountGroup(); !ok || (got == "4711") != c.driver {
				t.Errorf("the driver is told group %q", got)
			}
		})
	}
}

// TestUsage: what the driver says, and not asked again at once.
func TestUsage(t *testing.T) {
	w, root := newWorld(t, nil, nil)
	if !root {
		return
	}
	w.claim("data")
	p := aPod("a", "data")
	w.mount(p)
	for range 3 {
		got := w.manager.Measure(t.Context(), p.UID)
		if len(got) != 1 || got[0].Name != "data" || got[0].Claim != "data" || got[0].Bytes == 0 || got[0].Inodes == 0 {
			t.Fatalf("measured %+v", got)
		}
	}
	if n := len(w.driver.Calls("NodeGetVolumeStats")); n != 1 {
		t.Errorf("asked %d times", n)
	}
	w.unmount(p)
	if got := w.manager.Measure(t.Context(), p.UID); len(got) != 0 {
		t.Errorf("measured %+v of a pod that is gone", got)
	}
}

// TestDriversSeeAnotherPath: where the kubelet's directory is linked to from elsewhere,
// drivers get paths there.
func TestDriversSeeAnotherPath(t *testing.T) {
	w, root := newWorld(t, nil, nil)
	if !root {
		return
	}
	w.stop()
	link := filepath.Join(w.t.TempDir(), "kubelet")
	if err := os.Symlink(w.root, link); err != nil {
		t.Fatal(err)
	}
	w.cfg.SeenAs = link
	w.start()
	w.registered(true)
	w.claim("data")
	p := aPod("a", "data")
	w.mount(p)
	r, ok := w.driver.Calls("NodePublishVolume")[0].Request.(*spec.NodePublishVolumeRequest)
	if !ok || !strings.HasPrefix(r.GetTargetPath(), link+"/pods/") || !strings.HasPrefix(r.GetStagingTargetPath(), link+"/plugins/") {
		t.Errorf("published at %s from %s", r.GetTargetPath(), r.GetStagingTargetPath())
	}
	if len(w.mounts()) != 2 {
		t.Errorf("mounted are %v", w.mounts())
	}
	w.unmount(p)
	w.nothingLeft()
}
