// SPDX-License-Identifier: Apache-2.0

package realtest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/cri"
	"github.com/wasmplane/wasmplane/core/kubelet/linuxhost"
	"github.com/wasmplane/wasmplane/core/kubelet/realnode/nodetest"
)

// A kubelet that is stopped again and again, in the middle of whatever it does,
// ends up with each pod running once, and with nothing that belongs to no pod.
func TestAKubeletIsStoppedInTheMiddle(t *testing.T) {
	inTheMiddle(t, func(w *world) (stop func()) { return w.kubelet() })
}

// One that is killed does not even wait for the runtime's answers: what the
// runtime sees is that the connection is gone.
func TestAKubeletIsKilledInTheMiddle(t *testing.T) {
	inTheMiddle(t, func(w *world) (stop func()) {
		e, err := cri.New(cri.Config{Endpoint: "unix://" + w.node.Socket()})
		if err != nil {
			w.t.Fatal(err)
		}
		stopped := w.kubeletOn(e)
		return func() {
			_ = e.Close()
			stopped()
		}
	})
}

// some waits until so many things have happened to pods.
func (w *world) some(changes watch.Interface, n int) {
	w.t.Helper()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	for range n {
		select {
		case <-changes.ResultChan():
		case <-limit.C:
			w.t.Fatalf("fewer than %d things happen to pods", n)
		}
	}
}

func inTheMiddle(t *testing.T, start func(*world) (stop func())) {
	t.Helper()
	w := newWorld(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	dice := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // chaos needs no secrets
	const rounds, perRound = 6, 2
	for i := range rounds {
		stop := start(w)
		changes := w.changes()
		for j := range perRound {
			w.create(fmt.Sprintf("p%d-%d", i, j), func(p *corev1.Pod) {
				p.Spec.InitContainers = []corev1.Container{{Name: "init", Image: nodetest.Image, Command: []string{"/testprogram", "sh", "true"}}}
			})
		}
		// Two pods begin with two changes, and have four more until they are ready.
		w.some(changes, 2+dice.IntN(5))
		changes.Stop()
		stop()
	}
	w.kubelet()
	for i := range rounds {
		for j := range perRound {
			w.until(fmt.Sprintf("p%d-%d", i, j), "ready", ready)
		}
	}
	running, boxes := map[types.UID]int{}, map[types.UID]int{}
	containers, err := w.node.Engine().ListContainers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range containers {
		if c.State == runtimev1.ContainerState_CONTAINER_RUNNING {
			running[types.UID(c.Labels["io.kubernetes.pod.uid"])]++
		}
	}
	sandboxes, err := w.node.Engine().ListSandboxes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range sandboxes {
		if s.State == runtimev1.PodSandboxState_SANDBOX_READY {
			boxes[types.UID(s.Labels["io.kubernetes.pod.uid"])]++
		}
	}
	if len(running) != rounds*perRound || len(boxes) != rounds*perRound {
		t.Errorf("%d pods run in %d sandboxes", len(running), len(boxes))
	}
	for uid, n := range running {
		if n != 1 || boxes[uid] != 1 {
			t.Errorf("pod %s runs %d times in %d sandboxes", uid, n, boxes[uid])
		}
	}
	w.processes(rounds * perRound)
	for i := range rounds {
		for j := range perRound {
			w.remove(fmt.Sprintf("p%d-%d", i, j))
		}
	}
	w.nothingLeft("uid-p0-0")
}

// processes waits until what really runs is a pause and a program for each pod, whatever the runtime believes.
// It ends by itself what was cut off, and may still be at it.
func (w *world) processes(pods int) {
	w.t.Helper()
	var pids []int
	defer func() {
		for _, pid := range pids {
			if w.t.Failed() {
				line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
				group, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
				w.t.Logf("process %d runs %q in\n%s", pid, line, group)
			}
		}
		if w.t.Failed() {
			containers, _ := w.node.Engine().ListContainers(w.t.Context())
			for _, c := range containers {
				w.t.Logf("the runtime says that container %s of %s is %s", c.Id, c.Labels["io.kubernetes.pod.uid"], c.State)
			}
			sandboxes, _ := w.node.Engine().ListSandboxes(w.t.Context())
			for _, s := range sandboxes {
				w.t.Logf("the runtime says that sandbox %s of %s is %s", s.Id, s.Labels["io.kubernetes.pod.uid"], s.State)
			}
		}
	}()
	nodetest.Eventually(w.t, fmt.Sprintf("%d processes run in %d pods", 2*pods, pods), func() (done bool) {
		var err error
		pids, err = linuxhost.CgroupProcesses(w.node.Names().PodsCgroup())
		return err == nil && len(pids) == 2*pods
	})
}
