// SPDX-License-Identifier: Apache-2.0

package volume_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/wasmplane/wasmplane/core/kubelet/volume"
)

func files(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "..") {
			continue
		}
		path := filepath.Join(dir, e.Name())
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			fmt.Fprintf(&b, "%s/(%s) ", e.Name(), strings.TrimSpace(files(t, path)))
			continue
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		info, _ := os.Stat(path)
		fmt.Fprintf(&b, "%s=%s:%o ", e.Name(), data, info.Mode().Perm())
	}
	return b.String()
}

type objects struct {
	mu   sync.Mutex
	maps map[string]map[string]string
}

func (o *objects) set(name string, data map[string]string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.maps[name] = data
}

func (o *objects) ConfigMap(_ context.Context, _, name string) (*corev1.ConfigMap, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if d, ok := o.maps[name]; ok {
		return &corev1.ConfigMap{Data: d}, nil
	}
	return nil, apierrors.NewNotFound(corev1.Resource("configmaps"), name)
}

func (o *objects) Secret(_ context.Context, _, name string) (*corev1.Secret, error) {
	if name == "password" {
		return &corev1.Secret{Data: map[string][]byte{"password": []byte("hunter2")}}, nil
	}
	return nil, apierrors.NewNotFound(corev1.Resource("secrets"), name)
}

func manager(t *testing.T, o *objects) (*volume.Manager, string) {
	t.Helper()
	root := t.TempDir()
	m, err := volume.New(volume.Config{RootDir: root, Client: fake.NewClientset(), Objects: o})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = m.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return m, root
}

func aPod(v corev1.Volume, mounts ...corev1.VolumeMount) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "uid", Labels: map[string]string{"a": "1"}}}
	p.Spec.Volumes = []corev1.Volume{v}
	if len(mounts) == 0 {
		mounts = []corev1.VolumeMount{{Name: v.Name, MountPath: "/v"}} // what no container has is not set up
	}
	p.Spec.Containers = []corev1.Container{{Name: "c", VolumeMounts: mounts}}
	return p
}

func confVolume() corev1.Volume {
	return corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "conf"}}}}
}

func TestContentsFollowTheAPI(t *testing.T) {
	o := &objects{maps: map[string]map[string]string{"conf": {"a": "1"}}}
	m, root := manager(t, o)
	p := aPod(confVolume(), corev1.VolumeMount{Name: "v", MountPath: "/v"})
	if err := m.Mount(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	mounts, err := m.Mounts(t.Context(), p, &p.Spec.Containers[0], nil)
	if err != nil || len(mounts) != 1 || !mounts[0].Readonly || mounts[0].ContainerPath != "/v" {
		t.Fatalf("mounts %v %v", mounts, err)
	}
	o.set("conf", map[string]string{"a": "2", "b": "3"})
	m.Changed(p.UID)
	err = wait.PollUntilContextTimeout(t.Context(), time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		return files(t, mounts[0].HostPath) == "a=2:644 b=3:644 ", nil
	})
	if err != nil {
		t.Fatalf("files %q", files(t, mounts[0].HostPath))
	}
	// Another Manager, as after a restart, takes down what it did not set up.
	again, err := volume.New(volume.Config{RootDir: root, Client: fake.NewClientset(), Objects: o})
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Unmount(t.Context(), p.UID); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(root, "pods/uid/volumes/*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestRefusals(t *testing.T) {
	m, _ := manager(t, &objects{maps: map[string]map[string]string{"conf": {"a": "1"}}})
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	host := func(path string, kind corev1.HostPathType) corev1.Volume {
		return corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path, Type: &kind}}}
	}
	missing := confVolume()
	missing.ConfigMap.Name = "none"
	item := confVolume()
	item.ConfigMap.Items = []corev1.KeyToPath{{Key: "none", Path: "x"}}
	for _, c := range []struct {
		v    corev1.Volume
		want string
	}{
		{missing, `MountVolume.SetUp failed for volume "v" : configmap "none" not found`},
		{item, `MountVolume.SetUp failed for volume "v" : references non-existent config key: none`},
		{host(file, corev1.HostPathDirectory), `MountVolume.SetUp failed for volume "v" : hostPath type check failed: ` + file + ` is not a directory`},
		{host(file+"x", corev1.HostPathFile), `MountVolume.SetUp failed for volume "v" : hostPath type check failed: ` + file + `x is not a file`},
		{host(file, corev1.HostPathSocket), `MountVolume.SetUp failed for volume "v" : hostPath type check failed: ` + file + ` is not a socket file`},
		{
			corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}},
			`MountVolume.SetUp failed for volume "v" : error processing PVC ns/c: failed to fetch PVC from API server: persistentvolumeclaims "c" not found`,
		},
	} {
		if err := m.Mount(t.Context(), aPod(c.v)); err == nil || err.Error() != c.want {
			t.Errorf("%v, want %s", err, c.want)
		}
	}
	p := aPod(confVolume())
	if err := m.Mount(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	for want, vm := range map[string]corev1.VolumeMount{
		`cannot find volume "other" to mount into container "c"`:         {Name: "other", MountPath: "/v"},
		"error SubPath `/abs` must not be an absolute path":              {Name: "v", MountPath: "/v", SubPath: "/abs"},
		"unable to provision SubPath `a/../../b`: must not contain '..'": {Name: "v", MountPath: "/v", SubPath: "a/../../b"},
		`missing value for "NONE"`:                                       {Name: "v", MountPath: "/v", SubPathExpr: "$(NONE)"},
	} {
		c := &corev1.Container{Name: "c", VolumeMounts: []corev1.VolumeMount{vm}}
		if _, err := m.Mounts(t.Context(), p, c, map[string]string{}); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if err := m.Unmount(t.Context(), "../etc"); err == nil {
		t.Error("a UID that leads away was taken")
	}
}

// A link that the pod made in its volume must not lead a subPath out of it.
func TestSubPathsStayInside(t *testing.T) {
	m, root := manager(t, &objects{})
	p := aPod(corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: filepath.Join(root, "volume")}}})
	secret := filepath.Join(root, "secret")
	for _, dir := range []string{filepath.Join(root, "volume", "inside"), secret} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, to := range map[string]string{"abs": secret, "up": "../secret", "root": "/", "proc": "/proc/self/root"} {
		if err := os.Symlink(to, filepath.Join(root, "volume", name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.Mount(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	for _, sub := range []string{"abs", "up", "up/new", "root/etc", "proc/etc", "abs/made"} {
		c := &corev1.Container{Name: "c", VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/v", SubPath: sub}}}
		if mounts, err := m.Mounts(t.Context(), p, c, nil); err == nil {
			t.Errorf("subPath %s was mounted: %v", sub, mounts)
		}
	}
	if entries, _ := os.ReadDir(secret); len(entries) > 0 {
		t.Errorf("something was made outside: %v", entries)
	}
}

// TestASubPathThatIsMissing is made with the volume's mode: who may use the volume may use it. To
// mount needs root.
func TestASubPathThatIsMissing(t *testing.T) {
	if os.Geteuid() != 0 {
		return
	}
	m, root := manager(t, &objects{})
	dir := filepath.Join(root, "volume")
	if err := os.MkdirAll(filepath.Join(dir, "closed"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o777|os.ModeSetgid); err != nil {
		t.Fatal(err)
	}
	p := aPod(corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: dir}}})
	if err := m.Mount(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	c := &corev1.Container{Name: "c", VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/v", SubPath: "closed/a/b"}}}
	if _, err := m.Mounts(t.Context(), p, c, nil); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]os.FileMode{
		"closed": os.ModeDir | 0o700, "closed/a": os.ModeDir | os.ModeSetgid | 0o777, "closed/a/b": os.ModeDir | os.ModeSetgid | 0o777,
	} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode() != want {
			t.Errorf("%s is %v (%v), want %v", name, info.Mode(), err, want)
		}
	}
	if err := m.Unmount(t.Context(), p.UID); err != nil {
		t.Error(err)
	}
}

// TestVolumesThatNoContainerHas are not set up, be they there or not, until one is added
// that has them.
func TestVolumesThatNoContainerHas(t *testing.T) {
	m, _ := manager(t, &objects{maps: map[string]map[string]string{"conf": {"a": "1"}}})
	p := aPod(confVolume(), corev1.VolumeMount{Name: "v", MountPath: "/v"})
	for name, conf := range map[string]string{"unused": "conf", "missing": "nowhere"} {
		v := confVolume()
		v.Name, v.ConfigMap = name, &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: conf}}
		p.Spec.Volumes = append(p.Spec.Volumes, v)
	}
	if err := m.Mount(t.Context(), p); err != nil {
		t.Fatalf("a volume that no container has is in the way: %v", err)
	}
	mounts, err := m.Mounts(t.Context(), p, &p.Spec.Containers[0], nil)
	if err != nil || len(mounts) != 1 {
		t.Fatalf("mounts %v %v", mounts, err)
	}
	unused := filepath.Join(filepath.Dir(mounts[0].HostPath), "unused")
	if _, err := os.Stat(unused); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the volume that no container has is set up (%v)", err)
	}
	p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
		Name: "later", VolumeMounts: []corev1.VolumeMount{{Name: "unused", MountPath: "/v"}},
	}}}
	later := corev1.Container(p.Spec.EphemeralContainers[0].EphemeralContainerCommon)
	if mounts, err = m.Mounts(t.Context(), p, &later, nil); err != nil || len(mounts) != 1 || mounts[0].HostPath != unused {
		t.Errorf("the container that was added has %v (%v)", mounts, err)
	}
}
