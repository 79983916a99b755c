// SPDX-License-Identifier: Apache-2.0

// Package hosttest is the contract of kubelet.Host as a suite: the machine under a real
// node passes it, and the one of a simulated node. It is for tests only.
package hosttest

import (
	"slices"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet"
	"github.com/wasmplane/wasmplane/core/kubelet/spec"
)

// Options say what the host at hand does.
type Options struct {
	// Occupies says that pods have directories on this host.
	Occupies bool
}

// Run runs the suite. Each call of create gives a host of its own without pods.
func Run(t *testing.T, create func(t *testing.T) kubelet.Host, o Options) {
	t.Helper()
	for _, c := range []struct {
		name string
		test func(t *testing.T, h kubelet.Host, o Options)
	}{
		{"a node has something to give", facts},
		{"a pod is claimed, released and erased", life},
		{"every step may be repeated", repeated},
		{"what is not there is no error", unknown},
		{"files are made anew for each start", files},
		{"a container without a message left none", noMessage},
		{"pods come and go side by side", sideBySide},
		{"pods that ask for users of their own have nobody else's", ownUsers},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, create(t), o) })
	}
}

func pod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "c", Image: "i", TerminationMessagePath: corev1.TerminationMessagePathDefault,
		}}},
	}
}

func claim(t *testing.T, h kubelet.Host, p *corev1.Pod) spec.Place {
	t.Helper()
	place, err := h.Claim(t.Context(), p)
	if err != nil {
		t.Fatalf("claim for pod %s: %v", p.Name, err)
	}
	return place
}

func end(t *testing.T, h kubelet.Host, uid types.UID) {
	t.Helper()
	if err := h.Release(t.Context(), uid); err != nil {
		t.Errorf("release %s: %v", uid, err)
	}
	if err := h.Erase(t.Context(), uid); err != nil {
		t.Errorf("erase %s: %v", uid, err)
	}
}

func claimed(t *testing.T, h kubelet.Host) []types.UID {
	t.Helper()
	out, err := h.Claimed(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(out)
	return out
}

func facts(t *testing.T, h kubelet.Host, _ Options) {
	for range 2 { // it is asked again every now and then
		f, err := h.Facts(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, corev1.ResourcePods} {
			has, gives := f.Capacity[r], f.Allocatable[r]
			if has.Sign() <= 0 || gives.Sign() < 0 || gives.Cmp(has) > 0 {
				t.Errorf("%s: capacity %s, of which pods get %s", r, has.String(), gives.String())
			}
		}
		if len(f.Addresses) == 0 || f.Addresses[0].Address == "" {
			t.Errorf("addresses %v", f.Addresses)
		}
		if i := f.Info; i.OperatingSystem == "" || i.Architecture == "" || i.KubeletVersion == "" || i.BootID == "" {
			t.Errorf("system information %+v", i)
		}
	}
}

func life(t *testing.T, h kubelet.Host, o Options) {
	if left := claimed(t, h); len(left) > 0 {
		t.Fatalf("a new host has pods %v", left)
	}
	a, b := pod("a"), pod("b")
	claim(t, h, a)
	claim(t, h, b)
	if got := claimed(t, h); o.Occupies && !slices.Equal(got, []types.UID{a.UID, b.UID}) {
		t.Errorf("claimed by %v", got)
	}
	end(t, h, a.UID)
	if got := claimed(t, h); o.Occupies && !slices.Equal(got, []types.UID{b.UID}) {
		t.Errorf("when a has gone, claimed by %v", got)
	}
	end(t, h, b.UID)
	if got := claimed(t, h); len(got) > 0 {
		t.Errorf("left behind: %v", got)
	}
}

func repeated(t *testing.T, h kubelet.Host, _ Options) {
	p := pod("a")
	first := claim(t, h, p)
	if again := claim(t, h, p); again != first {
		t.Errorf("claimed again it is %+v, before %+v", again, first)
	}
	h.Started(p, "c", "id", "/nowhere/c/0.log")
	h.Started(p, "c", "id", "/nowhere/c/0.log")
	end(t, h, p.UID)
	end(t, h, p.UID)
	claim(t, h, p) // a pod may come back
	end(t, h, p.UID)
}

func unknown(t *testing.T, h kubelet.Host, _ Options) {
	end(t, h, "never-was-here")
	if got := claimed(t, h); len(got) > 0 {
		t.Errorf("claimed by %v", got)
	}
}

func files(t *testing.T, h kubelet.Host, _ Options) {
	p := pod("a")
	claim(t, h, p)
	for restarts := range int32(2) {
		mounts, err := h.Files(t.Context(), spec.FilesRequest{
			Pod: p, Container: &p.Spec.Containers[0], RestartCount: restarts, Hostname: "a", IPs: []string{"192.0.2.1"},
		})
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]bool{}
		for _, m := range mounts {
			if m.ContainerPath == "" || m.HostPath == "" || seen[m.ContainerPath] {
				t.Errorf("mount %v of %v", m, mounts)
			}
			seen[m.ContainerPath] = true
		}
	}
	end(t, h, p.UID)
}

func noMessage(t *testing.T, h kubelet.Host, _ Options) {
	p := pod("a")
	claim(t, h, p)
	for _, st := range []*cri.ContainerStatus{{}, {ExitCode: 1, LogPath: "/nowhere"}} {
		if got := h.LastWords(t.Context(), p, st); got != "" {
			t.Errorf("%+v left %q", st, got)
		}
	}
	end(t, h, p.UID)
}

func sideBySide(t *testing.T, h kubelet.Host, _ Options) {
	var pods sync.WaitGroup
	for _, name := range []string{"a", "b", "c", "d"} {
		pods.Go(func() {
			p := pod(name)
			for range 5 {
				if _, err := h.Claim(t.Context(), p); err != nil {
					t.Errorf("claim for pod %s: %v", name, err)
				}
				if _, err := h.Claimed(t.Context()); err != nil {
					t.Error(err)
				}
				end(t, h, p.UID)
			}
		})
	}
	pods.Wait()
	if left := claimed(t, h); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func ownUsers(t *testing.T, h kubelet.Host, o Options) {
	seen := map[uint32]string{}
	for _, name := range []string{"a", "b", "c"} {
		p := pod(name)
		p.Spec.HostUsers = new(bool)
		users := claim(t, h, p).Users
		if users == nil || users.GetMode() != cri.NamespaceMode_POD {
			t.Fatalf("pod %s has %v", name, users)
		}
		if again := claim(t, h, p).Users; !proto.Equal(users, again) {
			t.Errorf("pod %s had %v, and has %v", name, users, again)
		}
		if !o.Occupies {
			continue
		}
		if len(users.Uids) != 1 || len(users.Gids) != 1 || users.Uids[0].ContainerId != 0 || users.Uids[0].HostId < 1<<16 ||
			!proto.Equal(users.Uids[0], users.Gids[0]) {
			t.Fatalf("pod %s has %v", name, users)
		}
		if other, ok := seen[users.Uids[0].HostId]; ok {
			t.Errorf("pods %s and %s are both %v", name, other, users)
		}
		seen[users.Uids[0].HostId] = name
	}
	for _, name := range seen {
		end(t, h, pod(name).UID)
	}
	if users := claim(t, h, pod("d")).Users; users != nil {
		t.Errorf("a pod that does not ask has %v", users)
	}
	end(t, h, pod("d").UID)
}
