// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// down is what a start of the only server may cost: no other answers meanwhile.
	down = 20 * time.Second
	// a stop lasts this long.
	stop = 8 * time.Second
)

// machineClasses are faults of the processes of one machine that is all there is.
func machineClasses() []class {
	outage := bounds{failed: unbounded, writes: down, goesOn: down}
	stopped := bounds{failed: unbounded, writes: stop + 4*time.Second, goesOn: down}
	const shim = "containerd-shim-runc-v2"
	return []class{
		{
			"server-killed", "kill -9 of the only server, which is started again at once", alone, true,
			func(w *world) error { return w.first().again() }, outage,
		},
		{
			"server-stopped", "SIGSTOP of the only server for 8 s", alone, false,
			func(w *world) error { return w.stopped(w.first(), stop) }, stopped,
		},
		{"server-stutters", "the only server runs for 200 ms of every 600, for 8 s", alone, false, stutters, bounds{}},
		{
			"server-ended", "the only server is ended by Ctrl-C and started again", alone, false,
			func(w *world) error {
				return errors.Join(w.first().process.End(os.Interrupt), w.first().start())
			}, outage,
		},
		{
			"server-killed-while-starting", "kill -9 of the only server three times while it starts", alone, false, killedWhileStarting,
			bounds{failed: unbounded, writes: 2 * down, goesOn: 2 * down},
		},
		{
			"containerd-killed", "kill -9 of containerd", alone, true,
			func(w *world) error {
				return signalAll("containerd", w.first().processes("containerd"), syscall.SIGKILL)
			},
			bounds{},
		},
		{
			"containerd-stopped", "SIGSTOP of containerd for 8 s", alone, false,
			func(w *world) error {
				pids := w.first().processes("containerd")
				err := signalAll("containerd", pids, syscall.SIGSTOP)
				w.hold(stop)
				return errors.Join(err, signalAll("containerd", pids, syscall.SIGCONT))
			},
			bounds{},
		},
		{
			"server-and-containerd-killed", "kill -9 of the only server and containerd; pods run on, and are found again", alone, false,
			func(w *world) error {
				err := signalAll("containerd", w.first().processes("containerd"), syscall.SIGKILL)
				return errors.Join(err, w.first().again())
			}, outage,
		},
		{
			"container-killed", "kill -9 of one container's process", alone, true,
			func(w *world) error { return w.containerKilled(w.first()) },
			oneContainer,
		},
		{
			"shim-killed", "kill -9 of one pod's shim, with which its containers are lost", alone, false,
			func(w *world) error {
				pids, err := w.shims(w.first(), shim)
				if err != nil {
					return err
				}
				return signalAll(shim, pids[:1], syscall.SIGKILL)
			},
			bounds{restarts: 1, calls: unbounded, service: 30 * time.Second},
		},
		{
			"shims-killed", "kill -9 of all pods' shims at once", alone, false,
			func(w *world) error {
				pids, err := w.shims(w.first(), shim)
				return errors.Join(err, signalAll(shim, pids, syscall.SIGKILL))
			},
			bounds{restarts: replicas, calls: unbounded, service: 60 * time.Second},
		},
		{
			"shim-stopped", "SIGSTOP of all pods' shims for 8 s", alone, false,
			func(w *world) error {
				pids, err := w.shims(w.first(), shim)
				err = errors.Join(err, signalAll(shim, pids, syscall.SIGSTOP))
				w.hold(stop)
				return errors.Join(err, signalAll(shim, pids, syscall.SIGCONT))
			},
			bounds{},
		},
		{"runc-killed", "kill -9 of runc wherever it appears for 6 s, while a Deployment grows and shrinks", alone, false, runcKilled, bounds{}},
		{
			"rules-flushed", "nft flush ruleset on the machine", alone, false,
			func(w *world) error { return w.first().do("nft", "flush", "ruleset") },
			bounds{calls: unbounded, service: 60 * time.Second},
		},
		{
			"node-deleted", "kubectl delete node", alone, false,
			func(w *world) error {
				return w.first().kube.CoreV1().Nodes().Delete(w.ctx, w.first().name, metav1.DeleteOptions{})
			},
			bounds{restarts: replicas, calls: unbounded, service: 60 * time.Second},
		},
		{
			"lease-taken", "the leases of scheduler and controllers are given to somebody who is not there", alone, false, leaseTaken,
			bounds{goesOn: 30 * time.Second},
		},
		{
			"endpoints-deleted", "the endpoint slices of the Service are deleted", alone, false,
			func(w *world) error {
				return w.first().kube.DiscoveryV1().EndpointSlices(w.names).DeleteCollection(w.ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
			},
			bounds{calls: unbounded, service: 5 * time.Second},
		},
		{
			"sockets-removed", "the sockets of containerd and of the API are removed, and the server is started again", alone, false,
			func(w *world) error {
				m := w.first()
				err := errors.Join(os.Remove(filepath.Join(m.data, "node/run/containerd.sock")), os.Remove(filepath.Join(m.data, "api.sock")))
				return errors.Join(err, m.again())
			}, outage,
		},
		{
			"state-removed", "state.json and ready.json are removed, and the server is killed and started again", alone, false,
			func(w *world) error {
				m := w.first()
				err := errors.Join(m.kill(), os.Remove(filepath.Join(m.data, "state.json")), os.RemoveAll(filepath.Join(m.data, "ready.json")))
				return errors.Join(err, m.start())
			}, outage,
		},
	}
}

func (w *world) first() *machine { return w.machines[0] }

// stopped stops a process for a while.
func (w *world) stopped(m *machine, d time.Duration) error {
	err := m.signal(syscall.SIGSTOP)
	w.hold(d)
	return errors.Join(err, m.signal(syscall.SIGCONT))
}

func stutters(w *world) error {
	var problems []error
	for until := time.Now().Add(stop); time.Now().Before(until); {
		problems = append(problems, w.stopped(w.first(), 400*time.Millisecond))
		w.hold(200 * time.Millisecond)
	}
	return errors.Join(problems...)
}

func killedWhileStarting(w *world) error {
	m := w.first()
	for _, after := range []time.Duration{100 * time.Millisecond, 400 * time.Millisecond, time.Second} {
		if err := errors.Join(m.kill(), m.launch()); err != nil {
			return err
		}
		w.hold(after)
	}
	return m.again()
}

// shims are the shims of the machine's pods.
func (w *world) shims(m *machine, program string) ([]int, error) {
	if found := m.processes(program); len(found) > 0 {
		return found, nil
	}
	return nil, fmt.Errorf("machine %s has no shims", m.name)
}

func (w *world) containerKilled(m *machine) error {
	found := children(m.processes("containerd-shim-runc-v2"), "pause")
	if len(found) == 0 {
		return errors.New("there is no container")
	}
	return signalAll("container", found[:1], syscall.SIGKILL)
}

// runcKilled has runc die again and again while it has something to do.
func runcKilled(w *world) error {
	m, killed := w.first(), 0
	scale := func(n int) error {
		return m.do(m.binary, "kubectl", "--kubeconfig", filepath.Join(m.data, "kubeconfig"), "-n", w.names, "scale", "deployment", web,
			fmt.Sprintf("--replicas=%d", n))
	}
	err := scale(replicas + 2)
	for until := time.Now().Add(6 * time.Second); time.Now().Before(until); w.hold(5 * time.Millisecond) {
		for _, pid := range m.processes("runc") {
			if syscall.Kill(pid, syscall.SIGKILL) == nil {
				killed++
			}
		}
	}
	if killed == 0 {
		err = errors.Join(err, errors.New("runc was never seen"))
	}
	return errors.Join(err, scale(replicas))
}

func leaseTaken(w *world) error {
	leases := w.first().kube.CoordinationV1().Leases("kube-system")
	for _, name := range []string{"kube-scheduler", "kube-controller-manager"} {
		l, err := leases.Get(w.ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		now, nobody := metav1.NewMicroTime(time.Now()), "nobody"
		l.Spec.HolderIdentity, l.Spec.RenewTime, l.Spec.AcquireTime = &nobody, &now, &now
		if _, err := leases.Update(w.ctx, l, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	return nil
}
