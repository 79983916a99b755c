// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	nodeutil "k8s.io/component-helpers/node/util"
)

const (
	scheduling  = "kube-scheduler"
	controlling = "kube-controller-manager"
	// cutFor is how long a machine is cut off.
	cutFor = 10 * time.Second
	// elects is how long nobody may lead the store: its members hold an election.
	elects = 4 * time.Second
	// takesOver is how long a lease of one that is gone runs on.
	takesOver = 20 * time.Second
)

// chooser chooses the machine that a class breaks.
type chooser func(*world) (*machine, error)

// serverClasses are faults of one of three servers, and of more.
func serverClasses() []class {
	// A client behind a balancer asks another server within what one try takes.
	one := bounds{writes: tryFor + elects, goesOn: takesOver}
	lost := bounds{failed: unbounded, writes: 3 * down, goesOn: 3 * down}
	return []class{
		{"follower-killed", "kill -9 of a server that leads nothing", many, false, on(follower, (*machine).again), one},
		{"store-leader-killed", "kill -9 of the server whose store leads", many, false, on(storeLeader, (*machine).again), one},
		{"scheduler-leader-killed", "kill -9 of the server that schedules", many, false, on(leads(scheduling), (*machine).again), one},
		{"controllers-leader-killed", "kill -9 of the server whose controllers act", many, false, on(leads(controlling), (*machine).again), one},
		{"store-leader-away", "kill -9 of the server whose store leads, which is away for 30 s", many, false, on(storeLeader, away(30*time.Second)), one},
		{
			"scheduler-leader-away", "kill -9 of the server that schedules, which is away for 30 s", many, false,
			on(leads(scheduling), away(30*time.Second)), one,
		},
		{
			"controllers-leader-away", "kill -9 of the server whose controllers act, which is away for 30 s", many, false,
			on(leads(controlling), away(30*time.Second)), one,
		},
		{"follower-ended", "a server that leads nothing is ended by Ctrl-C and started again", many, false, on(follower, ended), one},
		{"store-leader-ended", "the server whose store leads is ended by Ctrl-C and started again", many, false, on(storeLeader, ended), one},
		{
			"servers-ended-in-turn", "each server in turn is ended by Ctrl-C and started again, as in an upgrade", many, false,
			func(w *world) error {
				var problems []error
				for _, m := range w.machines[:w.on.servers] {
					problems = append(problems, ended(m))
				}
				return errors.Join(problems...)
			}, one,
		},
		{"follower-stopped", "SIGSTOP of a server that leads nothing, for 8 s", many, false, stops(follower), one},
		{"store-leader-stopped", "SIGSTOP of the server whose store leads, for 8 s", many, false, stops(storeLeader), one},
		{"scheduler-leader-stopped", "SIGSTOP of the server that schedules, for 8 s", many, false, stops(leads(scheduling)), one},
		{"controllers-leader-stopped", "SIGSTOP of the server whose controllers act, for 8 s", many, false, stops(leads(controlling)), one},
		{
			"store-leader-disk-frozen", "the disk of the server whose store leads answers nobody for 8 s", many, false,
			func(w *world) error {
				m, err := storeLeader(w)
				if err != nil {
					return err
				}
				return w.frozen(m, stop)
			},
			bounds{failed: 4 * writers, writes: stop + elects, goesOn: takesOver},
		},
		{
			"follower-disk-frozen", "the disk of a server that leads nothing answers nobody for 8 s", many, false,
			func(w *world) error {
				m, err := follower(w)
				if err != nil {
					return err
				}
				return w.frozen(m, stop)
			}, one,
		},
		{
			"store-leader-disk-full", "no byte is left on the disk of the server whose store leads, for 8 s", many, false,
			func(w *world) error {
				m, err := storeLeader(w)
				if err != nil {
					return err
				}
				return w.full(m, fill)
			}, one,
		},
		{"two-servers-killed", "kill -9 of two of three servers, which are started again after 5 s", many, false, killed(2), lost},
		{"all-servers-killed", "kill -9 of all three servers, which are started again after 5 s", many, false, killed(3), lost},
		{"all-servers-stopped", "SIGSTOP of all three servers for 8 s", many, false, allStopped, lost},
		{"member-lost", "the disk of a server is lost: it joins again by a token, under its name", many, false, memberLost, one},
	}
}

// networkClasses are faults of the network between machines.
func networkClasses() []class {
	one := bounds{writes: tryFor + elects, goesOn: takesOver}
	slow := bounds{failed: 2 * writers, writes: 2*tryFor + elects, goesOn: takesOver}
	both := append(incoming(""), outgoing("")...)
	peers := []string{"input tcp dport 2380 drop", "output tcp dport 2380 drop", "input tcp sport 2380 drop", "output tcp sport 2380 drop"}
	lossy := func(percent int) []string {
		some := fmt.Sprintf("numgen random mod 100 < %d", percent)
		return append(incoming(some), outgoing(some)...)
	}
	return []class{
		{"follower-cut-off", "nothing reaches or leaves a server that leads nothing, for 10 s", many, false, cut(follower, both), one},
		{"store-leader-cut-off", "nothing reaches or leaves the server whose store leads, for 10 s", many, false, cut(storeLeader, both), one},
		{"scheduler-leader-cut-off", "nothing reaches or leaves the server that schedules, for 10 s", many, false, cut(leads(scheduling), both), one},
		{"store-leader-hears-nothing", "nothing reaches the server whose store leads, for 10 s", many, false, cut(storeLeader, incoming("")), one},
		{"store-leader-says-nothing", "nothing leaves the server whose store leads, for 10 s", many, false, cut(storeLeader, outgoing("")), one},
		{"follower-hears-nothing", "nothing reaches a server that leads nothing, for 10 s", many, false, cut(follower, incoming("")), one},
		{"follower-says-nothing", "nothing leaves a server that leads nothing, for 10 s", many, false, cut(follower, outgoing("")), one},
		{"store-leader-lossy", "each fifth packet of the server whose store leads is lost, for 10 s", many, false, cut(storeLeader, lossy(20)), slow},
		{"follower-lossy", "each fifth packet of a server that leads nothing is lost, for 10 s", many, false, cut(follower, lossy(20)), slow},
		{"store-leader-slow", "the link of the server whose store leads carries 1 Mbit/s, for 10 s", many, false, slowed(storeLeader), slow},
		{"store-cut-off", "the store of the server whose store leads is cut off from the others, its API is not, for 10 s", many, false, cut(storeLeader, peers), one},
		{
			"api-cut-off", "nobody reaches the API of a server, its store is reached, for 10 s", many, false,
			func(w *world) error {
				m, err := follower(w)
				if err != nil {
					return err
				}
				return w.ruled(m, []string{"input tcp dport " + m.port + " drop"}, cutFor)
			}, one,
		},
		{"one-pair-cut", "two servers don't reach each other, both reach the third, for 10 s", many, false, pairCut, one},
		{"link-flaps", "the link of the server whose store leads goes down and up five times", many, false, flaps, one},
		{"servers-apart", "no server reaches another for 10 s", many, false, apart, bounds{failed: unbounded, writes: cutFor + 3*elects, goesOn: 2 * takesOver}},
	}
}

// workerClasses are faults of a worker that has pods of the Service.
func workerClasses() []class {
	both := append(incoming(""), outgoing("")...)
	// Endpoints of a worker that is gone stay until its node is not ready any more, as upstream.
	unseen := bounds{calls: unbounded, service: 5 * time.Second}
	return []class{
		{"agent-killed", "kill -9 of a worker's process, which is started again", many, false, on(worker, (*machine).again), bounds{}},
		{"agent-stopped", "SIGSTOP of a worker's process for 8 s", many, false, stops(worker), bounds{}},
		{"agent-away", "kill -9 of a worker's process, which is away for 20 s", many, false, on(worker, away(20*time.Second)), bounds{}},
		{
			"worker-containerd-killed", "kill -9 of a worker's containerd", many, false,
			func(w *world) error {
				m, _ := worker(w)
				return signalAll("containerd", m.processes("containerd"), syscall.SIGKILL)
			},
			bounds{},
		},
		{
			"worker-container-killed", "kill -9 of a container on a worker", many, false,
			func(w *world) error { m, _ := worker(w); return w.containerKilled(m) },
			oneContainer,
		},
		{"worker-cut-off", "nothing reaches or leaves a worker for 10 s", many, false, cut(worker, both), unseen},
		{
			"worker-cut-off-from-servers", "a worker does not reach the servers for 10 s: its pods answer as before", many, false,
			func(w *world) error { m, _ := worker(w); return w.ruled(m, w.noServers(), cutFor) },
			bounds{},
		},
		{
			"workers-without-servers", "no worker reaches a server for a minute: pods and Service go on", many, false,
			func(w *world) error {
				var all sync.WaitGroup
				problems := make([]error, w.on.workers)
				for i, m := range w.machines[w.on.servers:] {
					all.Go(func() { problems[i] = w.ruled(m, w.noServers(), time.Minute) })
				}
				all.Wait()
				return errors.Join(problems...)
			},
			bounds{},
		},
		{
			"workers-server-stopped", "SIGSTOP for a minute of the server that a worker has connected to: its node stays ready", many, false,
			workersServerStopped,
			bounds{writes: tryFor + elects, goesOn: takesOver},
		},
		{
			"worker-rules-flushed", "nft flush ruleset on the machine of the Service's client", many, false,
			func(w *world) error { return w.machines[len(w.machines)-1].do("nft", "flush", "ruleset") },
			bounds{calls: unbounded, service: 60 * time.Second},
		},
		{
			"worker-node-deleted", "kubectl delete node of a worker that runs", many, false,
			func(w *world) error {
				m, _ := worker(w)
				return w.first().kube.CoreV1().Nodes().Delete(w.ctx, m.name, metav1.DeleteOptions{})
			},
			bounds{restarts: replicas, calls: unbounded, service: 5 * time.Second},
		},
	}
}

// on has something done to the machine that is chosen.
func on(choose chooser, do func(*machine) error) func(*world) error {
	return func(w *world) error {
		m, err := choose(w)
		if err != nil {
			return err
		}
		return do(m)
	}
}

func stops(choose chooser) func(*world) error {
	return func(w *world) error {
		m, err := choose(w)
		if err != nil {
			return err
		}
		return w.stopped(m, stop)
	}
}

func cut(choose chooser, rules []string) func(*world) error {
	return func(w *world) error {
		m, err := choose(w)
		if err != nil {
			return err
		}
		return w.ruled(m, rules, cutFor)
	}
}

// ruled has rules for packets on a machine for a while.
func (w *world) ruled(m *machine, rules []string, d time.Duration) error {
	if err := m.rules(rules...); err != nil {
		return err
	}
	w.hold(d)
	return m.mend()
}

func slowed(choose chooser) func(*world) error {
	return func(w *world) error {
		m, err := choose(w)
		if err != nil {
			return err
		}
		if err := m.do("tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "1mbit", "burst", "16kbit", "latency", "300ms"); err != nil {
			return err
		}
		w.hold(cutFor)
		return m.do("tc", "qdisc", "del", "dev", "eth0", "root")
	}
}

func ended(m *machine) error { return errors.Join(m.process.End(os.Interrupt), m.start()) }

func away(d time.Duration) func(*machine) error {
	return func(m *machine) error {
		if err := m.kill(); err != nil {
			return err
		}
		<-time.After(d)
		return m.start()
	}
}

// killed kills the first n servers at once, and starts them together.
func killed(n int) func(*world) error {
	return func(w *world) error {
		var problems []error
		for _, m := range w.machines[:n] {
			problems = append(problems, m.signal(syscall.SIGKILL))
		}
		for _, m := range w.machines[:n] {
			<-m.process.Done()
		}
		w.hold(5 * time.Second)
		for _, m := range w.machines[:n] {
			problems = append(problems, m.launch())
		}
		for _, m := range w.machines[:n] {
			_, err := m.process.AwaitLine(readyLine)
			problems = append(problems, err)
		}
		return errors.Join(problems...)
	}
}

func allStopped(w *world) error {
	var problems []error
	for _, m := range w.machines[:w.on.servers] {
		problems = append(problems, m.signal(syscall.SIGSTOP))
	}
	w.hold(stop)
	for _, m := range w.machines[:w.on.servers] {
		problems = append(problems, m.signal(syscall.SIGCONT))
	}
	return errors.Join(problems...)
}

// memberLost is of the last server: the first gives the token.
func memberLost(w *world) error {
	m := w.machines[w.on.servers-1]
	aside := m.data + "-lost"
	err := errors.Join(m.kill(), m.do(m.binary, "down", "--force", "--data-dir", m.data), os.Rename(m.data, aside))
	if err == nil {
		err = w.join(m)
	}
	if err == nil {
		m.kube, err = w.client(m)
	}
	return errors.Join(err, os.RemoveAll(aside))
}

func pairCut(w *world) error {
	m, err := storeLeader(w)
	if err != nil {
		return err
	}
	other, err := follower(w)
	if err != nil {
		return err
	}
	return w.ruled(m, []string{"input ip saddr " + other.address + " drop", "output ip daddr " + other.address + " drop"}, cutFor)
}

func flaps(w *world) error {
	m, err := storeLeader(w)
	if err != nil {
		return err
	}
	var problems []error
	for range 5 {
		problems = append(problems, m.rules(append(incoming(""), outgoing("")...)...))
		w.hold(700 * time.Millisecond)
		problems = append(problems, m.mend())
		w.hold(700 * time.Millisecond)
	}
	return errors.Join(problems...)
}

func apart(w *world) error {
	var all sync.WaitGroup
	problems := make([]error, w.on.servers)
	for i, m := range w.machines[:w.on.servers] {
		var rules []string
		for _, other := range w.machines[:w.on.servers] {
			if other != m {
				rules = append(rules, "input ip saddr "+other.address+" drop")
			}
		}
		all.Go(func() { problems[i] = w.ruled(m, rules, cutFor) })
	}
	all.Wait()
	return errors.Join(problems...)
}

// workersServerStopped: connections to a process that is stopped live on, and new ones are taken. A worker that does not notice loses
// its node after 40 s, and with it the endpoints of its pods.
func workersServerStopped(w *world) error {
	m, _ := worker(w)
	out, err := m.in("ss", "-Htn", "state", "established", "dport", "=", ":"+w.first().port).Output()
	if err != nil {
		return err
	}
	for _, server := range w.machines[:w.on.servers] {
		if !strings.Contains(string(out), server.address+":"+server.port) {
			continue
		}
		before, err := w.readySince(m)
		if err == nil {
			err = w.stopped(server, time.Minute)
		}
		after, more := w.readySince(m)
		if before != after {
			err = errors.Join(err, fmt.Errorf("the node of %s was not ready meanwhile: it is since %s, and was since %s", m.name, after, before))
		}
		return errors.Join(err, more)
	}
	return fmt.Errorf("worker %s has connected to no server: %q", m.name, out)
}

// readySince is since when a machine's node is ready.
func (w *world) readySince(m *machine) (string, error) {
	for _, server := range w.machines[:w.on.servers] {
		ctx, cancel := context.WithTimeout(w.ctx, tryFor)
		n, err := server.kube.CoreV1().Nodes().Get(ctx, m.name, metav1.GetOptions{})
		cancel()
		if err != nil {
			continue
		}
		_, ready := nodeutil.GetNodeCondition(&n.Status, corev1.NodeReady)
		if ready == nil || ready.Status != corev1.ConditionTrue {
			return "", fmt.Errorf("node %s is not ready", m.name)
		}
		return ready.LastTransitionTime.String(), nil
	}
	return "", errors.New("no server answers")
}

// noServers are the rules by which a worker hears nothing of the servers, and they nothing of it.
func (w *world) noServers() (rules []string) {
	for _, m := range w.machines[:w.on.servers] {
		rules = append(rules, "input ip saddr "+m.address+" drop", "output ip daddr "+m.address+" drop")
	}
	return rules
}

func worker(w *world) (*machine, error) { return w.machines[w.on.servers], nil }

func leads(lease string) chooser { return func(w *world) (*machine, error) { return w.leader(lease) } }

// storeLeader is the server whose store leads, as `status` on the first server that answers says.
func storeLeader(w *world) (*machine, error) {
	for _, m := range w.machines[:w.on.servers] {
		out, _ := m.in(m.binary, "status", "--data-dir", m.data).Output()
		for line := range strings.Lines(string(out)) {
			if f := strings.Fields(line); len(f) > 1 && f[1] == "leads" {
				for _, is := range w.machines[:w.on.servers] {
					if is.name == f[0] {
						return is, nil
					}
				}
			}
		}
	}
	return nil, errors.New("no server says whose store leads")
}

// follower is a server whose store does not lead, and that neither schedules nor controls, if there is one.
func follower(w *world) (*machine, error) {
	first, err := storeLeader(w)
	if err != nil {
		return nil, err
	}
	var found *machine
	for _, m := range w.machines[:w.on.servers] {
		if m == first {
			continue
		}
		schedules, _ := w.leader(scheduling)
		controls, _ := w.leader(controlling)
		if found == nil || m != schedules && m != controls {
			found = m
		}
	}
	return found, nil
}
