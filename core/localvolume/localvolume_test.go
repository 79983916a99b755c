// SPDX-License-Identifier: Apache-2.0

package localvolume_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/localvolume"
)

func node(name, dir string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, Labels: map[string]string{"kubernetes.io/hostname": name},
		Annotations: map[string]string{localvolume.DirectoryAnnotation: dir},
	}}
}

var class = &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "local"}}

func newVolume(t *testing.T, n *corev1.Node) *corev1.PersistentVolume {
	t.Helper()
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "1234"}}
	claim.Spec.Resources.Requests = corev1.ResourceList{"storage": resource.MustParse("1Gi")}
	pv, err := localvolume.New(claim, n, class, "")
	if err != nil {
		t.Fatal(err)
	}
	return pv
}

// TestRemoveFollowsNoLinks: what a pod left behind leads nowhere.
func TestRemoveFollowsNoLinks(t *testing.T) {
	base := t.TempDir()
	root, outside := filepath.Join(base, "volumes"), filepath.Join(base, "outside")
	pv := newVolume(t, node("a", root))
	if err := errors.Join(localvolume.Root(root), localvolume.Make(root, pv), os.Mkdir(outside, 0o755),
		os.WriteFile(filepath.Join(outside, "file"), nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	dir := pv.Spec.Local.Path
	if err := errors.Join(os.Symlink(outside, filepath.Join(dir, "link")), os.Symlink("../..", filepath.Join(dir, "up")),
		os.Mkdir(filepath.Join(dir, "sub"), 0o000)); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time, it is gone
		if err := localvolume.Remove(root, pv); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory is there: %v", err)
	}
	if _, err := os.Stat(filepath.Join(outside, "file")); err != nil {
		t.Errorf("what a link led to: %v", err)
	}
	// The whole directory is a link that somebody put there: it goes, and nothing else.
	if err := os.Symlink(outside, dir); err != nil {
		t.Fatal(err)
	}
	if err := localvolume.Make(root, pv); err == nil || !strings.Contains(err.Error(), "no directory") {
		t.Errorf("a link was taken for the volume: %v", err)
	}
	if err := localvolume.Remove(root, pv); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(outside, "file")); err != nil {
		t.Errorf("what a link led to: %v", err)
	}
}

// TestOnlyTheVolumesOwnDirectory: neither made nor removed where the volume is not this root's.
func TestOnlyTheVolumesOwnDirectory(t *testing.T) {
	root := t.TempDir()
	for want, change := range map[string]func(*corev1.PersistentVolume){
		"the data directory was another": func(pv *corev1.PersistentVolume) { pv.Spec.Local.Path = "/etc" },
		"is no name of a directory":      func(pv *corev1.PersistentVolume) { pv.Name, pv.Spec.Local.Path = "..", filepath.Dir(root) },
		"name of a directory": func(pv *corev1.PersistentVolume) {
			pv.Name, pv.Spec.Local.Path = "a/../../b", filepath.Join(root, "../b")
		},
	} {
		pv := newVolume(t, node("a", root))
		change(pv)
		for what, do := range map[string]func(string, *corev1.PersistentVolume) error{"made": localvolume.Make, "removed": localvolume.Remove} {
			if err := do(root, pv); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s at %s: %v, want %s", what, pv.Spec.Local.Path, err, want)
			}
		}
	}
	for _, bad := range []string{"", "relative", "/", "/a/../b"} {
		if _, err := localvolume.New(&corev1.PersistentVolumeClaim{}, node("a", bad), class, ""); err == nil {
			t.Errorf("a volume was made in %q", bad)
		}
	}
}

// TestAHalfMadeDirectoryIsMadeAgain: after a crash in the middle.
func TestAHalfMadeDirectoryIsMadeAgain(t *testing.T) {
	root := t.TempDir()
	pv := newVolume(t, node("a", root))
	if err := os.MkdirAll(filepath.Join(root, "."+pv.Name, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := localvolume.Make(root, pv); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(root); err != nil || len(entries) != 1 || entries[0].Name() != pv.Name {
		t.Errorf("there is %v (%v)", entries, err)
	}
}

// TestWhatANodeMayWrite: that the directory is gone, of volumes on itself, once they are being deleted.
func TestWhatANodeMayWrite(t *testing.T) {
	deleted := newVolume(t, node("a", "/v"))
	deleted.DeletionTimestamp = &metav1.Time{}
	deleted.Finalizers = append(deleted.Finalizers, "kubernetes.io/pv-protection")
	done := deleted.DeepCopy()
	done.Finalizers = []string{"kubernetes.io/pv-protection"}
	if err := localvolume.MayUpdate("a", deleted, done); err != nil {
		t.Errorf("what it is for: %v", err)
	}
	for what, c := range map[string]struct {
		node   string
		before func(*corev1.PersistentVolume)
		change func(*corev1.PersistentVolume)
	}{
		"another node's":       {node: "b"},
		"nobody's":             {node: ""},
		"not deleted":          {node: "a", before: func(pv *corev1.PersistentVolume) { pv.DeletionTimestamp = nil }},
		"not of the class":     {node: "a", before: func(pv *corev1.PersistentVolume) { pv.Annotations = nil }},
		"all finalizers":       {node: "a", change: func(pv *corev1.PersistentVolume) { pv.Finalizers = nil }},
		"another finalizer":    {node: "a", change: func(pv *corev1.PersistentVolume) { pv.Finalizers = []string{localvolume.Finalizer} }},
		"its path":             {node: "a", change: func(pv *corev1.PersistentVolume) { pv.Spec.Local.Path = "/etc" }},
		"its claim":            {node: "a", change: func(pv *corev1.PersistentVolume) { pv.Spec.ClaimRef = nil }},
		"its label":            {node: "a", change: func(pv *corev1.PersistentVolume) { pv.Labels = map[string]string{localvolume.NodeLabel: "b"} }},
		"its phase":            {node: "a", change: func(pv *corev1.PersistentVolume) { pv.Status.Phase = corev1.VolumeAvailable }},
		"another's annotation": {node: "a", change: func(pv *corev1.PersistentVolume) { pv.Annotations["x"] = "y" }},
	} {
		old, now := deleted.DeepCopy(), done.DeepCopy()
		if c.before != nil {
			c.before(old)
			c.before(now)
		}
		if c.change != nil {
			c.change(now)
		}
		if err := localvolume.MayUpdate(c.node, old, now); err == nil {
			t.Errorf("%s: allowed", what)
		}
	}
}

// TestLabelsOfLongNames: a name longer than labels may be has a label of its own.
func TestLabelsOfLongNames(t *testing.T) {
	long := strings.Repeat("a", 100)
	if a, b := localvolume.LabelOf(long), localvolume.LabelOf(long+"b"); a == b || len(a) > 63 || localvolume.LabelOf("n") != "n" {
		t.Errorf("labels %q and %q", a, b)
	}
}

// TestWhatADriverIsToMake: by the node's word, and of the volume's own name alone.
func TestWhatADriverIsToMake(t *testing.T) {
	n := node("a", "/v")
	n.Annotations[localvolume.DriverAnnotation] = "true"
	pv := newVolume(t, n)
	if want, err := localvolume.WantedOf(pv); err != nil || *want != (localvolume.Wanted{ID: "pvc-1234", Bytes: 1 << 30}) ||
		pv.Spec.Local != nil {
		t.Errorf("wanted is %+v (%v), the volume %+v", want, err, pv.Spec)
	}
	for what, change := range map[string]func(*corev1.PersistentVolume){
		"another's handle": func(pv *corev1.PersistentVolume) { pv.Spec.CSI.VolumeHandle = "pvc-other" },
		"another's driver": func(pv *corev1.PersistentVolume) { pv.Spec.CSI.Driver = "other" },
		"no size":          func(pv *corev1.PersistentVolume) { pv.Spec.CSI.VolumeAttributes = nil },
		"an odd size":      func(pv *corev1.PersistentVolume) { pv.Spec.CSI.VolumeAttributes["size"] = "-1" },
		"made by hand":     func(pv *corev1.PersistentVolume) { pv.Annotations = nil },
	} {
		odd := pv.DeepCopy()
		change(odd)
		if want, err := localvolume.WantedOf(odd); err == nil {
			t.Errorf("%s: %+v", what, want)
		}
	}
	// Nor is a directory made or removed for it.
	root := t.TempDir()
	if err := localvolume.Make(root, pv); err == nil {
		t.Error("a directory was made for a volume of the driver")
	}
	if err := localvolume.Remove(root, pv); err == nil {
		t.Error("a directory was removed for a volume of the driver")
	}
}
