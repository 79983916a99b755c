// SPDX-License-Identifier: Apache-2.0

package volume_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/wasmplane/wasmplane/core/kubelet/linuxhost"
	"github.com/wasmplane/wasmplane/core/kubelet/volume"
)

// catAsNobody reads a file as a user of the machine who has no rights. Only root can.
func catAsNobody(t *testing.T, file string) bool {
	t.Helper()
	cat := exec.CommandContext(t.Context(), "cat", file)
	const nobody = 65534
	cat.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	return cat.Run() == nil
}

// Containers run as any user, so that files of volumes are for any user to read. A
// local user of the machine is kept out by the directories above them, be they open
// from before or not.
func TestLocalUsersReadNoSecrets(t *testing.T) {
	base := t.TempDir()
	root := filepath.Join(base, "kubelet")
	for _, dir := range []string{filepath.Dir(base), base, root, filepath.Join(root, "pods"), filepath.Join(root, "pods/uid")} {
		if err := errors.Join(os.MkdirAll(dir, 0o755), os.Chmod(dir, 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	open := filepath.Join(root, "pods/uid/open")
	if err := os.WriteFile(open, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 && !catAsNobody(t, open) {
		t.Fatal("what is to be closed was not open")
	}
	h, err := linuxhost.New(linuxhost.Config{NodeName: "n", RootDir: root, LogRoot: filepath.Join(base, "logs")})
	if err != nil {
		t.Fatal(err)
	}
	m, err := volume.New(volume.Config{RootDir: root, Client: fake.NewClientset(), Objects: &objects{}})
	if err != nil {
		t.Fatal(err)
	}
	secret := corev1.Volume{Name: "s", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "password"}}}
	if os.Geteuid() != 0 { // who may not mount a tmpfs has Secrets nowhere
		secret.VolumeSource = corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
	}
	p := aPod(secret, corev1.VolumeMount{Name: "s", MountPath: "/s"})
	if _, err := h.Claim(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if err := m.Mount(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	ctx := context.WithoutCancel(t.Context()) // the test is over when it is used
	t.Cleanup(func() { _ = m.Unmount(ctx, p.UID) })
	mounts, err := m.Mounts(t.Context(), p, &p.Spec.Containers[0], nil)
	if err != nil || len(mounts) != 1 {
		t.Fatalf("mounts %v %v", mounts, err)
	}
	for dir := filepath.Dir(mounts[0].HostPath); dir != base; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil || info.Mode().Perm()&0o007 != 0 {
			t.Errorf("%s is open to other users: %v, %v", dir, info, err)
		}
	}
	if os.Geteuid() != 0 {
		return
	}
	file := filepath.Join(mounts[0].HostPath, "password")
	if data, err := os.ReadFile(file); err != nil || string(data) != "hunter2" {
		t.Fatalf("the Secret is %q, %v", data, err)
	}
	if catAsNobody(t, file) || catAsNobody(t, open) {
		t.Error("a local user reads what pods mount")
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm()&fs.FileMode(0o004) == 0 {
		t.Errorf("a container of any user cannot read it: %v, %v", info, err)
	}
}
