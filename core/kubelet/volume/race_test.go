// SPDX-License-Identifier: Apache-2.0

package volume_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// TestSubPathsInARace: a container swaps a directory of its volume for links, again and again, while the kubelet mounts
// a subPath of another container through it, or makes one that is missing. To mount needs root.
func TestSubPathsInARace(t *testing.T) {
	if os.Geteuid() != 0 {
		return
	}
	m, root := manager(t, &objects{})
	vol, secret := filepath.Join(root, "volume"), filepath.Join(root, "secret")
	for _, dir := range []string{filepath.Join(vol, "d", "sub"), filepath.Join(secret, "sub")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.WriteFile(filepath.Join(dir, "marker"), []byte(dir), 0o600),
			os.WriteFile(filepath.Join(filepath.Dir(dir), "file"), []byte(dir), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	links := map[string]string{"abs": secret, "up": "../secret", "proc": "/proc/self/root" + secret, "down": "d/../../secret"}
	for name, to := range links {
		if err := os.Symlink(to, filepath.Join(vol, name)); err != nil {
			t.Fatal(err)
		}
	}
	p := aPod(corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: vol}}})
	if err := m.Mount(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var swapping sync.WaitGroup
	swapping.Go(func() {
		for {
			for name := range links {
				select {
				case <-stop:
					return
				default:
				}
				// Twice, so that the names are as they were.
				for range 2 {
					_ = unix.Renameat2(unix.AT_FDCWD, filepath.Join(vol, "d"), unix.AT_FDCWD, filepath.Join(vol, name), unix.RENAME_EXCHANGE)
				}
			}
		}
	})
	defer func() { // before the volume goes
		close(stop)
		swapping.Wait()
		if err := m.Unmount(t.Context(), p.UID); err != nil {
			t.Error(err)
		}
	}()
	mounted, refused := 0, 0
	deadline := time.Now().Add(time.Minute)
	for i := 0; (i < 300 || mounted == 0 || refused == 0) && time.Now().Before(deadline); i++ {
		for _, vm := range []corev1.VolumeMount{
			{SubPath: "d/sub"}, {SubPathExpr: "d/$(SUB)"}, {SubPath: "d/file"}, {SubPath: fmt.Sprintf("d/made%d/a/b", i)}, {SubPath: "d"},
		} {
			vm.Name, vm.MountPath = "v", "/v"
			c := &corev1.Container{Name: "c", VolumeMounts: []corev1.VolumeMount{vm}}
			mounts, err := m.Mounts(t.Context(), p, c, map[string]string{"SUB": "sub"})
			if err != nil {
				refused++
				continue
			}
			mounted++
			for _, file := range []string{"", "marker", "sub/marker", "file"} {
				data, err := os.ReadFile(filepath.Join(mounts[0].HostPath, file))
				if err == nil && string(data) == filepath.Join(secret, "sub") {
					t.Fatalf("%v: the volume of the container shows %s of what is outside", vm, file)
				}
			}
		}
	}
	if mounted == 0 || refused == 0 {
		t.Errorf("mounted %d times, refused %d times: that is no race", mounted, refused)
	}
	entries, err := os.ReadDir(secret)
	if err != nil || len(entries) != 2 {
		t.Errorf("something was made outside: %v, %v", entries, err)
	}
}

// TestContentsCannotBeWritten: who could write to a volume of the API's contents could swap the kubelet's next files for a link.
func TestContentsCannotBeWritten(t *testing.T) {
	if os.Geteuid() != 0 { // who may not mount has Secrets nowhere, and no subPaths
		return
	}
	m, _ := manager(t, &objects{maps: map[string]map[string]string{"conf": {"a": "1"}}})
	conf := corev1.LocalObjectReference{Name: "conf"}
	label := []corev1.DownwardAPIVolumeFile{{Path: "a", FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.name"}}}
	for name, source := range map[string]corev1.VolumeSource{
		"configmap": {ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: conf}},
		"secret":    {Secret: &corev1.SecretVolumeSource{SecretName: "password"}},
		"downward":  {DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: label}},
		"projected": {Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
			{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: conf}},
		}}},
	} {
		key := map[string]string{"secret": "password"}[name]
		if key == "" {
			key = "a"
		}
		p := aPod(corev1.Volume{Name: "v", VolumeSource: source}, corev1.VolumeMount{Name: "v", MountPath: "/v"},
			corev1.VolumeMount{Name: "v", MountPath: "/w", SubPath: key})
		p.UID += "-" + p.UID
		if err := m.Mount(t.Context(), p); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		mounts, err := m.Mounts(t.Context(), p, &p.Spec.Containers[0], nil)
		if err != nil || len(mounts) != 2 {
			t.Fatalf("%s: %v %v", name, mounts, err)
		}
		for _, mount := range mounts {
			if !mount.Readonly {
				t.Errorf("%s: %s can be written", name, mount.ContainerPath)
			}
		}
		if err := m.Unmount(t.Context(), p.UID); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
