// SPDX-License-Identifier: Apache-2.0

package volume_test

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/volume"
	"github.com/wasmplane/wasmplane/core/localvolume"
)

func withClaim(readOnly bool) corev1.Volume {
	return corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c", ReadOnly: readOnly}}}
}

func boundClaim(name string) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: "claim"}}
	c.Spec.VolumeName, c.Status.Phase = "pv", corev1.ClaimBound
	return c
}

func boundVolume(source corev1.PersistentVolumeSource) *corev1.PersistentVolume {
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv", Labels: map[string]string{}, Annotations: map[string]string{}}}
	pv.Spec.PersistentVolumeSource = source
	pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: "c", UID: "claim"}
	return pv
}

func localAt(path string) corev1.PersistentVolumeSource {
	return corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: path}}
}

func managerOf(t *testing.T, local string, objs ...runtime.Object) (*volume.Manager, string) {
	t.Helper()
	root := t.TempDir()
	m, err := volume.New(volume.Config{
		RootDir: root, Objects: &objects{}, Local: local, NodeName: "n",
		Client: fake.NewClientset(append(objs,
			&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"kubernetes.io/hostname": "here"}}})...),
	})
	if err != nil {
		t.Fatal(err)
	}
	return m, root
}

// TestClaimsLeadToVolumes: the pod mounts what its claim is bound to, and taking the
// pod down leaves it there.
func TestClaimsLeadToVolumes(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "data"), []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, source := range map[string]corev1.PersistentVolumeSource{
		"local": localAt(dir), "hostPath": {HostPath: &corev1.HostPathVolumeSource{Path: dir}},
	} {
		for _, readOnly := range []bool{false, true} {
			m, _ := managerOf(t, "", boundClaim("c"), boundVolume(source))
			p := aPod(withClaim(readOnly), corev1.VolumeMount{Name: "v", MountPath: "/data"})
			if err := m.Mount(t.Context(), p); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			mounts, err := m.Mounts(t.Context(), p, &p.Spec.Containers[0], nil)
			if err != nil || len(mounts) != 1 || mounts[0].HostPath != dir || mounts[0].Readonly != readOnly {
				t.Errorf("%s: mounts %v %v", name, mounts, err)
			}
			m.Changed(p.UID) // nothing of it is to be brought up to date
			if err := m.Unmount(t.Context(), p.UID); err != nil {
				t.Error(err)
			}
			if got, err := os.ReadFile(filepath.Join(dir, "data")); err != nil || string(got) != "kept" {
				t.Errorf("%s: the data became %q (%v)", name, got, err)
			}
		}
	}
}

// TestADeviceOfTheNode: a volume that is one, for a container that asks for it. Making
// the node of a device needs root.
func TestADeviceOfTheNode(t *testing.T) {
	if os.Geteuid() != 0 {
		return
	}
	path := filepath.Join(t.TempDir(), "disk")
	if err := syscall.Mknod(path, syscall.S_IFBLK|0o600, 7<<8|200); err != nil {
		t.Fatal(err)
	}
	for _, readOnly := range []bool{false, true} {
		pv, mode := boundVolume(localAt(path)), corev1.PersistentVolumeBlock
		pv.Spec.VolumeMode = &mode
		m, _ := managerOf(t, "", boundClaim("c"), pv)
		p := aPod(withClaim(readOnly))
		p.Spec.Containers[0].VolumeDevices = []corev1.VolumeDevice{{Name: "v", DevicePath: "/dev/disk"}}
		if err := m.Mount(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		want := map[bool]string{false: "mrw", true: "r"}[readOnly]
		got, err := m.Devices(p, &p.Spec.Containers[0])
		if err != nil || len(got) != 1 || got[0].GetHostPath() != path || got[0].GetContainerPath() != "/dev/disk" ||
			got[0].GetPermissions() != want {
			t.Errorf("devices %v (%v)", got, err)
		}
		if err := m.Unmount(t.Context(), p.UID); err != nil {
			t.Error(err)
		}
	}
}

// loopDevice of 16 MiB, and the file that it is of.
func loopDevice(t *testing.T) (device, file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, 16<<20); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "losetup", "--find", "--show", file).Output()
	if err != nil {
		t.Fatalf("losetup: %v", err)
	}
	device = strings.TrimSpace(string(out))
	t.Cleanup(func() {
		if out, err := exec.CommandContext(context.WithoutCancel(t.Context()), "losetup", "--detach", device).CombinedOutput(); err != nil {
			t.Errorf("losetup: %v: %s", err, out)
		}
	})
	return device, file
}

// TestTheFileSystemOfADevice is made with the first pod, and kept for the next; two pods have the
// same. Loop devices need root.
func TestTheFileSystemOfADevice(t *testing.T) {
	if os.Geteuid() != 0 {
		return
	}
	device, _ := loopDevice(t)
	m, _ := managerOf(t, "", boundClaim("c"), boundVolume(localAt(device)))
	mounted := func(p *corev1.Pod) *cri.Mount {
		t.Helper()
		if err := m.Mount(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		mounts, err := m.Mounts(t.Context(), p, &p.Spec.Containers[0], nil)
		if err != nil || len(mounts) != 1 {
			t.Fatalf("mounts %v %v", mounts, err)
		}
		return mounts[0]
	}
	for i, want := range []string{"", "kept"} {
		readOnly := i > 0
		p := aPod(withClaim(readOnly), corev1.VolumeMount{Name: "v", MountPath: "/data"})
		group := int64(2000)
		p.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: &group}
		q := p.DeepCopy()
		q.UID, q.Name = "another", "another"
		a, b := mounted(p), mounted(q)
		if a.Readonly != readOnly || a.HostPath == b.HostPath {
			t.Errorf("mounts %v and %v", a, b)
		}
		at := filepath.Join(b.HostPath, "data")
		if got, err := os.ReadFile(at); string(got) != want || (err != nil) != (want == "") {
			t.Errorf("the volume has %q (%v), want %q", got, err, want)
		}
		if err := os.WriteFile(filepath.Join(a.HostPath, "data"), []byte("kept"), 0o600); err != nil {
			t.Error(err)
		}
		if got, err := os.ReadFile(at); string(got) != "kept" {
			t.Errorf("the other pod reads %q (%v)", got, err)
		}
		if info, err := os.Stat(a.HostPath); err != nil || info.Sys().(*syscall.Stat_t).Gid != 2000 {
			t.Errorf("the volume is of %v (%v)", info, err)
		}
		for _, uid := range []types.UID{p.UID, q.UID} {
			if err := m.Unmount(t.Context(), uid); err != nil {
				t.Error(err)
			}
		}
		if _, err := os.Stat(a.HostPath); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the place of the volume is there still: %v", err)
		}
	}
}

// TestWhatIsNotThePodsIsRefused: each with what is wrong.
func TestWhatIsNotThePodsIsRefused(t *testing.T) {
	dir := t.TempDir()
	block := corev1.PersistentVolumeBlock
	for want, c := range map[string]struct {
		claim  func(*corev1.PersistentVolumeClaim)
		volume func(*corev1.PersistentVolume)
		pod    func(*corev1.Pod)
	}{
		`has non-bound phase ("Pending")`:      {claim: func(c *corev1.PersistentVolumeClaim) { c.Status.Phase = corev1.ClaimPending }},
		`empty pvc.Spec.VolumeName ("")`:       {claim: func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "" }},
		"its claimRef is another's":            {volume: func(pv *corev1.PersistentVolume) { pv.Spec.ClaimRef.UID = "before" }},
		"PV pv is not bound to PVC ns/c":       {volume: func(pv *corev1.PersistentVolume) { pv.Spec.ClaimRef = nil }},
		"failed to fetch PV gone":              {claim: func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "gone" }},
		"volumeMode Block, is no block device": {volume: func(pv *corev1.PersistentVolume) { pv.Spec.VolumeMode = &block }},
		"volumeMode Block, and volumes of kind kubernetes.io/host-path are file systems": {volume: func(pv *corev1.PersistentVolume) {
			pv.Spec.VolumeMode, pv.Spec.Local, pv.Spec.HostPath = &block, nil, &corev1.HostPathVolumeSource{Path: dir}
		}},
		"takes csi disk.example.com of PV pv": {volume: func(pv *corev1.PersistentVolume) {
			pv.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "disk.example.com"}}
		}},
		"PV pv is of another node": {volume: func(pv *corev1.PersistentVolume) {
			pv.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{
					Key: "kubernetes.io/hostname", Operator: corev1.NodeSelectorOpIn,
					Values: []string{"there"},
				}},
			}}}}
		}},
		"does not exist on this node": {volume: func(pv *corev1.PersistentVolume) { pv.Spec.Local.Path = filepath.Join(dir, "none") }},
		"pod is not owner": {pod: func(p *corev1.Pod) {
			p.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}
		}, claim: func(c *corev1.PersistentVolumeClaim) { c.Name = "p-v" }},
		"it offers no local volumes": {volume: func(pv *corev1.PersistentVolume) {
			pv.Annotations["pv.kubernetes.io/provisioned-by"] = localvolume.Provisioner
		}},
	} {
		claim, pv, p := boundClaim("c"), boundVolume(localAt(dir)), aPod(withClaim(false))
		if c.claim != nil {
			c.claim(claim)
		}
		if c.volume != nil {
			c.volume(pv)
		}
		if c.pod != nil {
			c.pod(p)
		}
		m, _ := managerOf(t, "", claim, pv)
		if err := m.Mount(t.Context(), p); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// TestADirectoryOfTheNodesClassIsMadeOnce: for any user of a pod, and only where this
// node's are.
func TestADirectoryOfTheNodesClassIsMadeOnce(t *testing.T) {
	root := filepath.Join(t.TempDir(), "volumes")
	if err := localvolume.Root(root); err != nil {
		t.Fatal(err)
	}
	pv := boundVolume(localAt(filepath.Join(root, "pv")))
	pv.Annotations["pv.kubernetes.io/provisioned-by"] = localvolume.Provisioner
	m, _ := managerOf(t, root, boundClaim("c"), pv)
	p := aPod(withClaim(false), corev1.VolumeMount{Name: "v", MountPath: "/data"})
	for range 2 {
		if err := m.Mount(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(pv.Spec.Local.Path)
		if err != nil || info.Mode().Perm() != 0o777 {
			t.Fatalf("the directory: %v %v", info, err)
		}
		if err := os.WriteFile(filepath.Join(pv.Spec.Local.Path, "data"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	elsewhere := boundVolume(localAt(filepath.Join(t.TempDir(), "pv")))
	elsewhere.Annotations["pv.kubernetes.io/provisioned-by"] = localvolume.Provisioner
	m, _ = managerOf(t, root, boundClaim("c"), elsewhere)
	if err := m.Mount(t.Context(), p); err == nil || !strings.Contains(err.Error(), "this node's volumes are in") {
		t.Errorf("a volume elsewhere: %v", err)
	}
}

// TestAVolumeIsGivenToItsPodsGroup: all of it, whatever its names are, and nothing
// that a link in it leads to. Only root can give files away.
func TestAVolumeIsGivenToItsPodsGroup(t *testing.T) {
	if os.Geteuid() != 0 {
		return
	}
	base := t.TempDir()
	dir, outside := filepath.Join(base, "volume"), filepath.Join(base, "outside")
	odd := filepath.Join(dir, "sub\xff")
	if err := errors.Join(
		os.MkdirAll(odd, 0o700), os.WriteFile(outside, nil, 0o600), os.WriteFile(filepath.Join(odd, "file"), nil, 0o600),
		os.Symlink(outside, filepath.Join(dir, "link")), os.Symlink("/", filepath.Join(odd, "up")),
	); err != nil {
		t.Fatal(err)
	}
	m, _ := managerOf(t, "", boundClaim("c"), boundVolume(localAt(dir)))
	p := aPod(withClaim(false))
	group, onRootMismatch := int64(4711), corev1.FSGroupChangeOnRootMismatch
	p.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: &group}
	look := func(path string) (uint32, os.FileMode) {
		t.Helper()
		info, err := os.Lstat(path)
		if err != nil {
			t.Fatal(err)
		}
		return info.Sys().(*syscall.Stat_t).Gid, info.Mode()
	}
	if err := m.Mount(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]os.FileMode{dir: os.ModeSetgid | 0o770, odd: os.ModeSetgid | 0o770, filepath.Join(odd, "file"): 0o660} {
		if gid, mode := look(path); gid != 4711 || mode&(os.ModeSetgid|0o660) != want&(os.ModeSetgid|0o660) {
			t.Errorf("%q: group %d, mode %v", path, gid, mode)
		}
	}
	if gid, mode := look(outside); gid != 0 || mode.Perm() != 0o600 {
		t.Errorf("what a link leads to: group %d, mode %v", gid, mode)
	}
	// The root is right: with OnRootMismatch nobody looks further.
	if err := os.Chown(filepath.Join(odd, "file"), 0, 0); err != nil {
		t.Fatal(err)
	}
	p.Spec.SecurityContext.FSGroupChangePolicy = &onRootMismatch
	if err := m.Mount(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if gid, _ := look(filepath.Join(odd, "file")); gid != 0 {
		t.Error("OnRootMismatch: the volume was given to the group again")
	}
}

// TestTheFileSystemOfADeviceGrows while the pod is at work in it, and the claim is told;
// what the pod has made of its files stays. Loop devices need root.
func TestTheFileSystemOfADeviceGrows(t *testing.T) {
	if os.Geteuid() != 0 {
		return
	}
	device, file := loopDevice(t)
	claim, pv := boundClaim("c"), boundVolume(localAt(device))
	size := func(text string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(text)}
	}
	claim.Status.Capacity, pv.Spec.Capacity = size("16Mi"), size("16Mi")
	client := fake.NewClientset(claim, pv, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
	m, err := volume.New(volume.Config{RootDir: t.TempDir(), Objects: &objects{}, NodeName: "n", Client: client, Logger: slog.Default()})
	if err != nil {
		t.Fatal(err)
	}
	p := aPod(withClaim(false), corev1.VolumeMount{Name: "v", MountPath: "/data"})
	group := int64(2000)
	p.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: &group}
	t.Cleanup(func() {
		if err := m.Unmount(context.WithoutCancel(t.Context()), p.UID); err != nil {
			t.Error(err)
		}
	})
	mounted := func() (string, uint64) {
		t.Helper()
		if err := m.Mount(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		mounts, err := m.Mounts(t.Context(), p, &p.Spec.Containers[0], nil)
		if err != nil || len(mounts) != 1 {
			t.Fatalf("mounts %v %v", mounts, err)
		}
		var st unix.Statfs_t
		if err := unix.Statfs(mounts[0].HostPath, &st); err != nil {
			t.Fatal(err)
		}
		return mounts[0].HostPath, st.Blocks * uint64(st.Bsize)
	}
	at, before := mounted()
	private := filepath.Join(at, "private")
	if err := os.WriteFile(private, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, 64<<20); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "losetup", "--set-capacity", device).CombinedOutput(); err != nil {
		t.Fatalf("losetup: %v: %s", err, out)
	}
	pv.Spec.Capacity = size("64Mi")
	if _, err := client.CoreV1().PersistentVolumes().Update(t.Context(), pv, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	claim.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{
		corev1.ResourceStorage: corev1.PersistentVolumeClaimNodeResizePending,
	}
	if _, err := client.CoreV1().PersistentVolumeClaims("ns").Update(t.Context(), claim, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, after := mounted()
	told, err := client.CoreV1().PersistentVolumeClaims("ns").Get(t.Context(), "c", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	size64, state := told.Status.Capacity[corev1.ResourceStorage], told.Status.AllocatedResourceStatuses[corev1.ResourceStorage]
	if mayGrowExt4(t) {
		if after < before*2 || size64.String() != "64Mi" || state != "" {
			t.Errorf("the file system had %d bytes and has %d; the claim is told %+v", before, after, told.Status)
		}
	} else if after != before || size64.String() != "16Mi" || state != corev1.PersistentVolumeClaimNodeResizeInProgress {
		t.Errorf("the kernel refuses to grow file systems, which has %d bytes; the claim is told %+v", after, told.Status)
	}
	if info, err := os.Stat(private); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the pod's file has become %v (%v)", info, err)
	}
}

// TestTheClaimOfADirectoryGrows with its volume, while the pod is at work in it: what its files belong to stays.
func TestTheClaimOfADirectoryGrows(t *testing.T) {
	size := func(text string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(text)}
	}
	dir := t.TempDir()
	claim, pv := boundClaim("c"), boundVolume(localAt(dir))
	claim.Status.Capacity, pv.Spec.Capacity = size("1Gi"), size("1Gi")
	client := fake.NewClientset(claim, pv, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
	m, err := volume.New(volume.Config{RootDir: t.TempDir(), Objects: &objects{}, NodeName: "n", Client: client, Logger: slog.Default()})
	if err != nil {
		t.Fatal(err)
	}
	p := aPod(withClaim(false))
	group := int64(os.Getgid())
	p.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: &group}
	if err := m.Mount(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	private := filepath.Join(dir, "private")
	if err := os.WriteFile(private, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	pv.Spec.Capacity = size("2Gi")
	if _, err := client.CoreV1().PersistentVolumes().Update(t.Context(), pv, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	claim.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{
		corev1.ResourceStorage: corev1.PersistentVolumeClaimNodeResizePending,
	}
	if _, err := client.CoreV1().PersistentVolumeClaims("ns").Update(t.Context(), claim, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := m.Mount(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	told, err := client.CoreV1().PersistentVolumeClaims("ns").Get(t.Context(), "c", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := told.Status.Capacity[corev1.ResourceStorage]; got.String() != "2Gi" || len(told.Status.AllocatedResourceStatuses) > 0 {
		t.Errorf("the claim is told %+v", told.Status)
	}
	if info, err := os.Stat(private); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the pod's file has become %v (%v)", info, err)
	}
}

// mayGrowExt4 tells whether the kernel lets this process make a file system in use larger,
// which is more than to be root: some machines take the capability away.
func mayGrowExt4(t *testing.T) bool {
	t.Helper()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		t.Fatal(err)
	}
	return sets[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}

// TestAVolumeOfASinglePod is not set up for another one on the node, also after the
// kubelet has begun anew, until the first has gone.
func TestAVolumeOfASinglePod(t *testing.T) {
	pv := boundVolume(localAt(t.TempDir()))
	pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
	m, root := managerOf(t, "", boundClaim("c"), pv)
	first := aPod(withClaim(false), corev1.VolumeMount{Name: "v", MountPath: "/data"})
	second := first.DeepCopy()
	second.UID, second.Name = "another", "another"
	for range 2 { // again is no other pod
		if err := m.Mount(t.Context(), first); err != nil {
			t.Fatal(err)
		}
	}
	refused := func(m *volume.Manager) {
		t.Helper()
		const want = `MountVolume.SetUp failed for volume "v" : volume uses the ReadWriteOncePod access mode and is already in use by another pod`
		if err := m.Mount(t.Context(), second); err == nil || err.Error() != want {
			t.Errorf("the second pod: %v", err)
		}
	}
	refused(m)
	if err := m.Unmount(t.Context(), first.UID); err != nil {
		t.Fatal(err)
	}
	if err := m.Mount(t.Context(), second); err != nil {
		t.Errorf("the first has gone: %v", err)
	}
	if err := m.Unmount(t.Context(), second.UID); err != nil {
		t.Fatal(err)
	}
	// What a kubelet before this one has set up.
	if err := os.MkdirAll(filepath.Join(root, "pods", "before", "volumes", "kubernetes.io~local-volume", "pv"), 0o750); err != nil {
		t.Fatal(err)
	}
	refused(m)
}
