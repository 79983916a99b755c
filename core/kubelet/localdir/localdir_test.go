// SPDX-License-Identifier: Apache-2.0

package localdir_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/wasmplane/wasmplane/core/kubelet/localdir"
	"github.com/wasmplane/wasmplane/core/localvolume"
)

var class = &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "local"}}

// volume is one with its directory, which has a file.
func volume(t *testing.T, root, name string, change func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: "n", Labels: map[string]string{"kubernetes.io/hostname": "n"},
		Annotations: map[string]string{localvolume.DirectoryAnnotation: root},
	}}
	pv, err := localvolume.New(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: name, UID: types.UID(name)}},
		node, class, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(localvolume.Make(root, pv), os.WriteFile(filepath.Join(pv.Spec.Local.Path, "file"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	pv.DeletionTimestamp, pv.Status.Phase = &metav1.Time{Time: time.Unix(1, 0)}, corev1.VolumeReleased
	if change != nil {
		change(pv)
	}
	return pv
}

// driver remembers what it has made.
type driver struct {
	mu    sync.Mutex
	has   map[string]localvolume.Wanted
	never string // cannot be made
	large string // volumes whose IDs begin so are copied without an end
	begun int    // of those; others are made once there are as many as workers
}

func (d *driver) Provide(ctx context.Context, want *localvolume.Wanted) error {
	d.mu.Lock()
	if d.large != "" && strings.HasPrefix(want.ID, d.large) {
		d.begun++
		d.mu.Unlock()
		<-ctx.Done()
		return ctx.Err()
	}
	defer d.mu.Unlock()
	if d.large != "" && d.begun < 4 {
		return errors.New("not yet")
	}
	if want.ID == d.never {
		return errors.New("no room for it")
	}
	if d.has == nil {
		d.has = map[string]localvolume.Wanted{}
	}
	d.has[want.ID] = *want
	return nil
}

func (d *driver) Has(id string) (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, there := d.has[id]
	return there, nil
}

func (d *driver) Remove(_ context.Context, id string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.has, id)
	return nil
}

// byDriver is a volume that the node's driver makes.
func byDriver(t *testing.T, name, source string, change func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	t.Helper()
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: name, UID: types.UID(name)}}
	claim.Spec.Resources.Requests = corev1.ResourceList{"storage": resource.MustParse("1Gi")}
	pv, err := localvolume.New(claim, &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: "n", Labels: map[string]string{"kubernetes.io/hostname": "n"}, Annotations: map[string]string{localvolume.DriverAnnotation: "true"},
	}}, class, source)
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(pv)
	}
	return pv
}

func deleted(pv *corev1.PersistentVolume) {
	pv.DeletionTimestamp, pv.Status.Phase = &metav1.Time{Time: time.Unix(1, 0)}, corev1.VolumeReleased
}

// TestTheDriverMakesWhatIsToBeHere: and removes what is being deleted, but not what a copy
// is still to be made of.
func TestTheDriverMakesWhatIsToBeHere(t *testing.T) {
	d := &driver{never: "pvc-copy", has: map[string]localvolume.Wanted{"pvc-goes": {}, "pvc-source": {}, "pvc-kept": {}}}
	w := start(t, func(c *localdir.Config) { c.Driver = d }, func(string) []runtime.Object {
		return []runtime.Object{
			byDriver(t, "new", "snapshots/s", nil), byDriver(t, "copy", "volumes/pvc-source", nil),
			byDriver(t, "goes", "", deleted), byDriver(t, "source", "", deleted),
			byDriver(t, "kept", "", func(pv *corev1.PersistentVolume) {
				deleted(pv)
				pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
			}),
			byDriver(t, "foreign", "", func(pv *corev1.PersistentVolume) { pv.Labels[localvolume.NodeLabel] = "other" }),
			byDriver(t, "another's", "", func(pv *corev1.PersistentVolume) { pv.Spec.CSI.VolumeHandle = "pvc-kept" }),
		}
	})
	w.eventually(w.finalizers("goes", 0))
	w.eventually(w.finalizers("kept", 0))
	w.eventually(func() error { return w.event("ProvisioningFailed", "no room for it") })
	w.eventually(func() error { return w.event("ProvisioningFailed", "which is another's") })
	w.eventually(func() error { return w.event("VolumeFailedDelete", "volume pvc-copy is to be a copy of it") })
	w.eventually(func() error {
		d.mu.Lock()
		defer d.mu.Unlock()
		if want := (localvolume.Wanted{ID: "pvc-new", Bytes: 1 << 30, Source: "snapshots/s"}); d.has["pvc-new"] != want {
			return fmt.Errorf("made is %+v", d.has)
		}
		return nil
	})
	d.mu.Lock()
	for id, want := range map[string]bool{
		"pvc-goes": false, "pvc-source": true, "pvc-kept": true, "pvc-foreign": false,
		"pvc-another's": false,
	} {
		if _, there := d.has[id]; there != want {
			t.Errorf("%s is there: %v", id, there)
		}
	}
	d.never = ""
	d.mu.Unlock()
	w.eventually(w.finalizers("source", 0)) // the copy was made
}

type world struct {
	*testing.T
	client *fake.Clientset
	root   string
}

// start runs a keeper; objects are made with the root in which it keeps volumes.
func start(t *testing.T, change func(*localdir.Config), objects func(root string) []runtime.Object) *world {
	t.Helper()
	root := filepath.Join(t.TempDir(), "volumes")
	if err := localvolume.Root(root); err != nil {
		t.Fatal(err)
	}
	client := fake.NewClientset(append(objects(root),
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"own": "label"}}})...)
	cfg := localdir.Config{
		NodeName: "n", Root: root, Client: client, Driver: &driver{}, Offer: true,
		Free: func() (float64, error) { return 0.5, nil },
	}
	if change != nil {
		change(&cfg)
	}
	k, err := localdir.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return &world{t, client, root}
}

func (w *world) eventually(ok func() error) {
	w.Helper()
	deadline, tick := time.After(30*time.Second), time.NewTicker(5*time.Millisecond)
	defer tick.Stop()
	for {
		err := ok()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			w.Fatalf("did not come about: %v", err)
		}
	}
}

func (w *world) finalizers(name string, want int) func() error {
	return func() error {
		pv, err := w.client.CoreV1().PersistentVolumes().Get(w.Context(), "pvc-"+name, metav1.GetOptions{})
		if err == nil && len(pv.Finalizers) != want {
			err = fmt.Errorf("%s has finalizers %v", name, pv.Finalizers)
		}
		return err
	}
}

func (w *world) has(name string) bool {
	_, err := os.Lstat(filepath.Join(w.root, "pvc-"+name, "file"))
	return err == nil
}

// TestLargeCopiesKeepNoOtherVolumeUp: however many of them are made.
func TestLargeCopiesKeepNoOtherVolumeUp(t *testing.T) {
	d := &driver{large: "pvc-large"}
	w := start(t, func(c *localdir.Config) { c.Driver = d }, func(string) []runtime.Object {
		objects := []runtime.Object{byDriver(t, "new", "", nil)}
		for i := range 8 {
			objects = append(objects, byDriver(t, fmt.Sprint("large", i), "snapshots/s", nil))
		}
		return objects
	})
	w.eventually(func() error {
		if there, err := d.Has("pvc-new"); err != nil || !there {
			return fmt.Errorf("the new volume: %w", cmp.Or(err, errors.New("it waits")))
		}
		return nil
	})
	if err := w.event("ProvisioningFailed", "deadline"); err == nil {
		t.Error("it is said of a copy that goes on that it failed")
	}
}

// TestDirectoriesOfDeletedVolumesAreRemoved: and of no others.
func TestDirectoriesOfDeletedVolumesAreRemoved(t *testing.T) {
	w := start(t, nil, func(root string) []runtime.Object {
		half := volume(t, root, "half-removed", nil)
		if err := os.RemoveAll(half.Spec.Local.Path); err != nil { // the crash was between directory and finalizer
			t.Fatal(err)
		}
		return []runtime.Object{
			half, volume(t, root, "goes", nil),
			volume(t, root, "retained", func(pv *corev1.PersistentVolume) {
				pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
			}),
			volume(t, root, "lives", func(pv *corev1.PersistentVolume) { pv.DeletionTimestamp = nil }),
			volume(t, root, "bound", func(pv *corev1.PersistentVolume) { pv.Status.Phase = corev1.VolumeBound }),
			volume(t, root, "protected", func(pv *corev1.PersistentVolume) {
				pv.Finalizers = append(pv.Finalizers, "kubernetes.io/pv-protection")
			}),
			volume(t, root, "foreign", func(pv *corev1.PersistentVolume) { pv.Labels[localvolume.NodeLabel] = "other" }),
			volume(t, root, "odd", func(pv *corev1.PersistentVolume) { pv.Spec.Local.Path = "/etc" }),
		}
	})
	w.eventually(w.finalizers("goes", 0))
	w.eventually(w.finalizers("half-removed", 0))
	w.eventually(w.finalizers("retained", 0))
	w.eventually(func() error { return w.event("VolumeFailedDelete", "the data directory was another") })
	for name, want := range map[string]bool{
		"goes": false, "retained": true, "lives": true, "bound": true, "protected": true, "foreign": true,
		"odd": true,
	} {
		if w.has(name) != want {
			t.Errorf("the directory of %s is there: %t", name, !want)
		}
	}
	for name, want := range map[string]int{"lives": 1, "bound": 1, "protected": 2, "foreign": 1, "odd": 1} {
		if err := w.finalizers(name, want)(); err != nil {
			t.Error(err)
		}
	}
}

func (w *world) event(reason, message string) error {
	all, err := w.client.CoreV1().Events("").List(w.Context(), metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range all.Items {
		if e := &all.Items[i]; e.Reason == reason && strings.Contains(e.Message, message) {
			return nil
		}
	}
	return fmt.Errorf("no event %s that says %q", reason, message)
}

// TestTheNodeSaysWhatItOffers: and takes it back when it is switched off.
func TestTheNodeSaysWhatItOffers(t *testing.T) {
	for _, offer := range []bool{true, false} {
		w := start(t, func(c *localdir.Config) { c.Offer = offer }, func(string) []runtime.Object { return nil })
		w.eventually(func() error {
			n, err := w.client.CoreV1().Nodes().Get(t.Context(), "n", metav1.GetOptions{})
			if err != nil {
				return err
			}
			patched := false
			for _, a := range w.client.Actions() {
				patched = patched || a.Matches("patch", "nodes")
			}
			if !patched || n.Labels["own"] != "label" || (n.Labels[localvolume.Offered] == "true") != offer ||
				(n.Annotations[localvolume.DirectoryAnnotation] == w.root) != offer || localvolume.ByDriver(n) != offer {
				return fmt.Errorf("offer %t: labels %v, annotations %v", offer, n.Labels, n.Annotations)
			}
			return nil
		})
	}
}

// TestClaimsAreWarnedWhenTheDiskIsNearlyFull: on the claim, where its owner looks.
func TestClaimsAreWarnedWhenTheDiskIsNearlyFull(t *testing.T) {
	w := start(t, func(c *localdir.Config) { c.Free = func() (float64, error) { return 0.07, nil } }, func(root string) []runtime.Object {
		return []runtime.Object{volume(t, root, "lives", func(pv *corev1.PersistentVolume) {
			pv.DeletionTimestamp, pv.Status.Phase = nil, corev1.VolumeBound
		})}
	})
	w.eventually(func() error {
		all, err := w.client.CoreV1().Events("d").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for i := range all.Items {
			if e := &all.Items[i]; e.Reason == "VolumeDiskNearlyFull" && e.InvolvedObject.Kind == "PersistentVolumeClaim" &&
				e.InvolvedObject.Name == "lives" && strings.Contains(e.Message, "7 %") {
				return nil
			}
		}
		return fmt.Errorf("%d events", len(all.Items))
	})
}
