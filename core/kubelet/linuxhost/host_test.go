// SPDX-License-Identifier: Apache-2.0

package linuxhost_test

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/linuxhost"
	"github.com/wasmplane/wasmplane/core/kubelet/node"
	"github.com/wasmplane/wasmplane/core/kubelet/pod"
	"github.com/wasmplane/wasmplane/core/kubelet/reservation"
	"github.com/wasmplane/wasmplane/core/kubelet/spec"
	"github.com/wasmplane/wasmplane/core/kubelet/swap"
	"github.com/wasmplane/wasmplane/core/kubelet/threshold"
)

func newHost(tb testing.TB) (*linuxhost.Host, string) {
	tb.Helper()
	dir := tb.TempDir()
	g, err := linuxhost.New(linuxhost.Config{
		NodeName: "n1", RootDir: filepath.Join(dir, "root"), LogRoot: filepath.Join(dir, "logs"), LinkRoot: filepath.Join(dir, "links"),
		NodeIPs: []string{"192.0.2.7"}, Reserve: reservation.Settings{Kube: map[string]string{"memory": "1Mi"}},
	})
	if err != nil {
		tb.Fatal(err)
	}
	return g, dir
}

func aPod() *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "uid"}}
}

func TestFacts(t *testing.T) {
	g, _ := newHost(t)
	f, err := g.Facts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if f.Capacity.Cpu().IsZero() || f.Capacity.Memory().Cmp(*f.Allocatable.Memory()) <= 0 || f.Capacity.Pods().Value() != 110 ||
		f.Addresses[0].Address != "192.0.2.7" || f.Info.OperatingSystem != "linux" || f.Info.KernelVersion == "" || f.Info.BootID == "" {
		t.Errorf("%+v", f)
	}
	if used, total, err := g.Disk(t.Context()); err != nil || used == 0 || used > total {
		t.Errorf("disk %d of %d, %v", used, total, err)
	}
}

func TestAPodLeavesNothing(t *testing.T) {
	g, dir := newHost(t)
	p := aPod()
	place, err := g.Claim(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if place.LogDir != filepath.Join(dir, "logs/ns_p_uid") || place.CgroupParent != "" {
		t.Errorf("%+v", place)
	}
	if _, err := g.Claim(t.Context(), p); err != nil {
		t.Errorf("a second time: %v", err)
	}
	g.Started(p, "c", "id", filepath.Join(place.LogDir, "c/0.log"))
	if to, err := os.Readlink(filepath.Join(dir, "links/p_ns_c-id.log")); err != nil || to != filepath.Join(place.LogDir, "c/0.log") {
		t.Errorf("%s %v", to, err)
	}
	if left, err := g.Claimed(t.Context()); err != nil || len(left) != 1 || left[0] != "uid" {
		t.Errorf("%v %v", left, err)
	}
	if err := g.Release(t.Context(), "uid"); err != nil {
		t.Error(err)
	}
	for range 2 {
		if err := g.Erase(t.Context(), "uid"); err != nil {
			t.Error(err)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*/*/*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	for _, uid := range []string{"", "..", "../x", "a/b"} {
		if err := g.Erase(t.Context(), types.UID(uid)); err == nil {
			t.Errorf("%q was erased", uid)
		}
	}
}

// Whatever the API let pass, an alias is one line of the hosts file.
func TestAliasesAreOneLineEach(t *testing.T) {
	g, dir := newHost(t)
	c := &corev1.Container{Name: "c"}
	for _, a := range []corev1.HostAlias{
		{IP: "1.2.3.4\n6.6.6.6", Hostnames: []string{"bank"}}, {IP: "1.2.3.4", Hostnames: []string{"a", "b\n6.6.6.6\tbank"}}, {IP: "1.2.3.4", Hostnames: []string{"b\r6.6.6.6"}},
	} {
		p := aPod()
		p.Spec.HostAliases = []corev1.HostAlias{a}
		if _, err := g.Claim(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		_, err := g.Files(t.Context(), spec.FilesRequest{Pod: p, Container: c, Hostname: "h", IPs: []string{"10.0.0.1"}})
		if err == nil || !strings.Contains(err.Error(), "spec.hostAliases") {
			t.Errorf("%+v: %v", a, err)
		}
	}
	if _, err := g.Files(t.Context(), spec.FilesRequest{
		Pod: aPod(), Container: c, Hostname: "h\n6.6.6.6\tbank",
		IPs: []string{"10.0.0.1"},
	}); err == nil {
		t.Error("a host name began a line of its own")
	}
	if _, err := os.Stat(filepath.Join(dir, "root/pods/uid/etc-hosts")); err == nil {
		t.Error("the file was written all the same")
	}
}

func TestFiles(t *testing.T) {
	g, dir := newHost(t)
	p := aPod()
	p.Spec.HostAliases = []corev1.HostAlias{{IP: "1.2.3.4", Hostnames: []string{"a", "b"}}}
	if _, err := g.Claim(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	c := &corev1.Container{Name: "c", TerminationMessagePath: "/dev/termination-log"}
	mounts, err := g.Files(t.Context(), spec.FilesRequest{
		Pod: p, Container: c, Hostname: "h", Domain: "s.ns.svc.cluster.local",
		IPs: []string{"10.0.0.1", "fd00::1"},
	})
	if err != nil || len(mounts) != 2 {
		t.Fatalf("%v %v", mounts, err)
	}
	want := "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\nfe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n" +
		"10.0.0.1\th.s.ns.svc.cluster.local\th\nfd00::1\th.s.ns.svc.cluster.local\th\n\n# Entries added by HostAliases.\n1.2.3.4\ta\tb\n"
	if got, _ := os.ReadFile(mounts[0].HostPath); string(got) != want {
		t.Errorf("hosts file\n%s", got)
	}
	if info, err := os.Stat(mounts[1].HostPath); err != nil || info.Mode().Perm() != 0o666 ||
		mounts[1].ContainerPath != "/dev/termination-log" {
		t.Errorf("%v %v", info, err)
	}
	c.VolumeMounts = []corev1.VolumeMount{{MountPath: "/etc/hosts"}}
	if mounts, err := g.Files(t.Context(), spec.FilesRequest{Pod: p, Container: c, IPs: []string{"10.0.0.1"}}); err != nil ||
		len(mounts) != 1 {
		t.Errorf("a container with a hosts file of its own: %v %v", mounts, err)
	}

	// Last words: what the container wrote, its end if it is long, and never what a link points to.
	st := &cri.ContainerStatus{
		Annotations: map[string]string{pod.TerminationMessagePathAnnotation: "/dev/termination-log"}, Mounts: mounts,
		ExitCode: 1,
	}
	file := mounts[1].HostPath
	if err := os.WriteFile(file, []byte(strings.Repeat("x", 5000)+"end"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := g.LastWords(t.Context(), p, st); len(got) != 4096 || !strings.HasSuffix(got, "end") {
		t.Errorf("%d bytes", len(got))
	}
	secret := filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(secret, file); err != nil {
		t.Fatal(err)
	}
	if got := g.LastWords(t.Context(), p, st); got != "" {
		t.Errorf("a link was followed: %q", got)
	}
	for name, replace := range map[string]func(string) error{
		"a pipe":      func(file string) error { return unix.Mkfifo(file, 0o666) }, // which nobody writes to
		"a directory": func(file string) error { return os.Mkdir(file, 0o755) },
	} {
		if err := errors.Join(os.Remove(file), replace(file)); err != nil {
			t.Fatal(err)
		}
		if got := g.LastWords(t.Context(), p, st); got != "" {
			t.Errorf("%s: %q", name, got)
		}
	}
	st.Annotations[pod.TerminationMessagePolicyAnnotation] = string(corev1.TerminationMessageFallbackToLogsOnError)
	st.LogPath = filepath.Join(dir, "log")
	if err := os.WriteFile(st.LogPath, []byte("2026-01-02T03:04:05Z stderr F it broke\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := g.LastWords(t.Context(), p, st); got != "it broke\n" {
		t.Errorf("%q", got)
	}
}

func TestWeights(t *testing.T) {
	for shares, want := range map[int64]int64{0: 1, 2: 1, 1024: 39, 262144: 10000} {
		if got := linuxhost.Weight(shares); got != want {
			t.Errorf("%d shares weigh %d, want %d", shares, got, want)
		}
	}
}

// What the machine is short of is told with the condition, so that pods can be evicted for it.
func TestShortages(t *testing.T) {
	none := threshold.Defaults()
	for signal := range none {
		none[signal] = "0"
	}
	for signal, want := range map[string]struct {
		condition corev1.NodeConditionType
		resource  corev1.ResourceName
	}{
		threshold.MemoryAvailable: {corev1.NodeMemoryPressure, corev1.ResourceMemory},
		threshold.DiskAvailable:   {corev1.NodeDiskPressure, corev1.ResourceEphemeralStorage},
		threshold.InodesFree:      {corev1.NodeDiskPressure, node.Inodes},
		threshold.PIDsAvailable:   {corev1.NodePIDPressure, node.PIDs},
		"":                        {},
	} {
		limits := maps.Clone(none)
		if signal != "" {
			limits[signal] = "99.9999%"
		}
		g, err := linuxhost.New(linuxhost.Config{
			NodeName: "n1", RootDir: t.TempDir(), LogRoot: t.TempDir(), NodeIPs: []string{"192.0.2.7"}, Evict: threshold.Settings{Hard: limits},
		})
		if err != nil {
			t.Fatal(err)
		}
		f, err := g.Facts(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if signal == "" {
			if len(f.Pressure) > 0 || len(f.Short) > 0 {
				t.Errorf("nothing is to be left, and the machine is short of %v", f.Short)
			}
			continue
		}
		if len(f.Short) != 1 || f.Short[0].Resource != want.resource || f.Short[0].Available.Cmp(f.Short[0].Threshold) >= 0 {
			t.Errorf("%s: the machine is short of %+v, want %s", signal, f.Short, want.resource)
		}
		if len(f.Pressure) != 1 || f.Pressure[want.condition] == "" {
			t.Errorf("%s: conditions %v, want %s", signal, f.Pressure, want.condition)
		}
	}
	if _, err := linuxhost.New(linuxhost.Config{
		NodeName: "n1", RootDir: t.TempDir(), LogRoot: t.TempDir(),
		Evict: threshold.Settings{Soft: map[string]string{"disk": "1"}},
	}); err == nil {
		t.Error("an unknown signal was taken")
	}
}

// What was short a moment ago keeps the node under pressure, and a soft limit does so before pods go for it.
func TestPressureIsOfThePastToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := map[string]string{}
		for signal := range threshold.Defaults() {
			all[signal] = "0"
		}
		g, err := linuxhost.New(linuxhost.Config{
			NodeName: "n1", RootDir: t.TempDir(), LogRoot: t.TempDir(), NodeIPs: []string{"192.0.2.7"}, Evict: threshold.Settings{
				Hard: all, Soft: map[string]string{threshold.MemoryAvailable: "99.9999%"},
				SoftGracePeriod: map[string]time.Duration{threshold.MemoryAvailable: time.Minute}, MaxPodGracePeriod: 20 * time.Second,
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []int{0, 0, 1} {
			f, err := g.Facts(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if len(f.Short) != want || f.Pressure[corev1.NodeMemoryPressure] == "" {
				t.Errorf("short of %v, conditions %v, want %d", f.Short, f.Pressure, want)
			}
			if want == 1 && f.Short[0].Grace != 20*time.Second {
				t.Errorf("pods have %v", f.Short[0].Grace)
			}
			time.Sleep(30 * time.Second)
		}
	})
}

// What people read at /configz is what the node was told.
func TestConfigurationIsShown(t *testing.T) {
	dir := t.TempDir()
	soft := map[string]string{threshold.DiskAvailable: "1%"}
	h, err := linuxhost.New(linuxhost.Config{
		NodeName: "n1", RootDir: dir, LogRoot: filepath.Join(dir, "logs"), CgroupRoot: "/a-cluster/pods",
		Evict: threshold.Settings{
			Hard: map[string]string{threshold.MemoryAvailable: "1Mi"}, Soft: soft, MinimumReclaim: soft,
			SoftGracePeriod:   map[string]time.Duration{threshold.DiskAvailable: 90 * time.Second},
			MaxPodGracePeriod: time.Minute, PressureTransitionPeriod: 5 * time.Minute,
		},
		Reserve: reservation.Settings{
			Kube: map[string]string{"cpu": "10m"}, System: map[string]string{"memory": "1Mi"}, Enforce: []string{reservation.Pods},
		},
		Swap: swap.Config{Behavior: swap.NoSwap},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"podLogsDir": filepath.Join(dir, "logs"), "cgroupRoot": "/a-cluster/pods", "maxPods": int64(110), "podPidsLimit": int64(-1),
		"enableSystemLogHandler": true, "enableSystemLogQuery": false,
		"kubeReserved": map[string]string{"cpu": "10m"}, "systemReserved": map[string]string{"memory": "1Mi"},
		"enforceNodeAllocatable": []string{"pods"},
		"evictionHard": map[string]string{
			threshold.MemoryAvailable: "1Mi", threshold.DiskAvailable: "10%,4Gi", threshold.InodesFree: "5%", threshold.PIDsAvailable: "5%",
		},
		"evictionSoft": soft, "evictionMinimumReclaim": soft, "evictionSoftGracePeriod": map[string]string{threshold.DiskAvailable: "1m30s"},
		"evictionMaxPodGracePeriod": int64(60), "evictionPressureTransitionPeriod": "5m0s",
		"failSwapOn": false, "memorySwap": map[string]string{"swapBehavior": "NoSwap"},
	}
	if got := h.Configuration(); !reflect.DeepEqual(got, want) {
		t.Errorf("configuration %v, want %v", got, want)
	}
}

// The users of a pod are its own for as long as its directory is there, whichever process looks after it.
func TestUsersOutliveTheProcess(t *testing.T) {
	dir := t.TempDir()
	start := func() *linuxhost.Host {
		h, err := linuxhost.New(linuxhost.Config{NodeName: "n1", RootDir: dir, LogRoot: filepath.Join(dir, "logs")})
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	a := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a", UID: "uid-a"}, Spec: corev1.PodSpec{HostUsers: new(bool)}}
	b := a.DeepCopy()
	b.Name, b.UID = "b", "uid-b"
	users := func(h *linuxhost.Host, p *corev1.Pod) uint32 {
		place, err := h.Claim(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		return place.Users.Uids[0].HostId
	}
	before := users(start(), a)
	h := start()
	if got := users(h, b); got == before {
		t.Errorf("another pod has the users of one that runs: %d", got)
	}
	if got := users(h, a); got != before {
		t.Errorf("the pod was %d, and is %d", before, got)
	}
	if err := h.Release(t.Context(), a.UID); err != nil {
		t.Fatal(err)
	}
	if got := users(h, a); got != before {
		t.Errorf("the pod, whose files are still there, was %d, and is %d", before, got)
	}
}

// Checkpoints are for root alone, and a machine without the program that makes them says so.
func TestCheckpoints(t *testing.T) {
	dir, programs := t.TempDir(), t.TempDir()
	for _, on := range []bool{false, true} {
		h, err := linuxhost.New(linuxhost.Config{NodeName: "n1", RootDir: dir, LogRoot: filepath.Join(dir, "logs"), Checkpoints: on})
		if err != nil {
			t.Fatal(err)
		}
		t.Setenv("PATH", programs)
		folder, err := h.Checkpoints()
		if on && (err == nil || !strings.Contains(err.Error(), "install the package criu")) || !on && (err != nil || folder != "") {
			t.Errorf("without criu, on: %v: %q, %v", on, folder, err)
		}
	}
	if err := os.WriteFile(filepath.Join(programs, "criu"), nil, 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	h, err := linuxhost.New(linuxhost.Config{NodeName: "n1", RootDir: dir, LogRoot: filepath.Join(dir, "logs"), Checkpoints: true})
	if err != nil {
		t.Fatal(err)
	}
	folder, err := h.Checkpoints()
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(folder); err != nil || info.Mode().Perm() != 0o700 || filepath.Dir(folder) != dir {
		t.Errorf("the folder %q: %v, %v", folder, info, err)
	}
}
