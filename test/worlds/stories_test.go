// SPDX-License-Identifier: Apache-2.0

package worlds

import (
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wasmplane/wasmplane/core/api"
)

// stories are worlds in which what happens is written down, not chosen by a seed.
func stories(t *testing.T, name string, story func(*world)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		contract, err := api.New()
		if err != nil {
			t.Fatal(err)
		}
		o := live(t, contract, plan{seed: 1, calm: true, story: story})
		if len(o.wrong) > 0 {
			t.Errorf("%s\nthe last of what happened:\n  %s", strings.Join(o.wrong, "\n"), strings.Join(o.last(40), "\n  "))
		}
	})
}

// TestWritesStayBounded deletes a workload and makes it anew while the controllers do not
// hear of it. They go on with the old one, and the garbage collector deletes what they make
// for it: that must end after the first round.
func TestWritesStayBounded(t *testing.T) {
	for kind, resource := range map[string]string{
		"DaemonSet": "daemonsets", "Deployment": "deployments", "StatefulSet": "statefulsets", "Job": "jobs",
	} {
		stories(t, kind, func(w *world) {
			w.gate.opened(true)
			w.asked.create(kind, "again", 3)
			time.Sleep(30 * time.Second)
			synctest.Wait()
			w.gate.stick(func(key string) bool {
				return strings.HasPrefix(key, "controllers ") && strings.Contains(key, "/"+resource+"?") && !strings.Contains(key, "metadata of ")
			})
			w.asked.remove(w.asked.want[kind+"/again"])
			w.asked.create(kind, "again", 3)
			before := w.disk.count()
			time.Sleep(time.Minute)
			synctest.Wait()
			writes := w.disk.count() - before
			w.say("%d writes in a minute in which the watch stood still", writes)
			if writes > 150 { // leases and status of three nodes are some 60 of them
				w.fail("%d writes in a minute", writes)
			}
			w.heal()
			w.check()
		})
	}
}

// TestALeaderFallsSilent has requests of the controllers and of the scheduler that lead hang:
// they are neither answered nor refused. They must have stopped before others lead, and what
// the user asks for comes about by those.
func TestALeaderFallsSilent(t *testing.T) {
	stories(t, "controllers and scheduler", func(w *world) {
		w.gate.opened(true)
		w.asked.create("Deployment", "web", 3)
		time.Sleep(30 * time.Second)
		synctest.Wait()
		silent := map[string]*life{}
		w.mu.Lock()
		maps.Copy(silent, w.leading)
		w.mu.Unlock()
		if len(silent) != 2 {
			w.fail("%d roles have a leader, want 2", len(silent))
		}
		w.gate.stick(func(key string) bool {
			for _, l := range silent {
				if strings.HasPrefix(key, l.part.name+" ") {
					return true
				}
			}
			return false
		})
		w.asked.change(w.asked.want["Deployment/web"], 4, "2")
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		w.mu.Lock()
		leading := maps.Clone(w.leading)
		w.mu.Unlock()
		for role, was := range silent {
			if leading[role] == nil || leading[role] == was {
				w.fail("%s: %s fell silent, and after five minutes nobody else leads", role, was.id)
			}
		}
		for _, text := range w.asked.missing() {
			w.fail("while the former leaders are silent: %s", text)
		}
		w.heal()
		w.check()
	})
}

// TestALeaderBeginsWithTheNewest has controllers die whose successors begin at a server that lags behind, where their first
// watches fail: they list, and must not be told of the past, in which a Deployment has no pods yet.
func TestALeaderBeginsWithTheNewest(t *testing.T) {
	stories(t, "a server lags", func(w *world) {
		w.gate.opened(true)
		w.gate.stick(func(key string) bool {
			return strings.HasPrefix(key, "controllers ") && strings.HasSuffix(key, "POST /api/v1/namespaces/default/pods")
		})
		w.asked.create("Deployment", "web", 3)
		time.Sleep(30 * time.Second)
		synctest.Wait()
		late := w.servers[1]
		late.lag.hold(true)
		w.gate.stick(nil)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		first := func(key string) bool {
			return strings.HasPrefix(key, "controllers ") && strings.Contains(key, "sendInitialEvents") && !strings.HasSuffix(key, " delivers")
		}
		w.gate.stick(first)
		for _, p := range w.parts {
			if p.role == "kube-controller-manager" {
				w.kill(p)
				w.start(p, late)
			}
		}
		time.Sleep(time.Minute) // the lease of the one that led is over
		synctest.Wait()
		refused := 0
		for _, c := range w.gate.calls() {
			if first(c.key) {
				w.gate.choose(c, refuse)
				refused++
			}
		}
		if refused == 0 {
			w.fail("nobody began to watch")
		}
		w.gate.stick(nil)
		time.Sleep(20 * time.Second)
		synctest.Wait()
		late.lag.hold(false)
		w.heal()
		w.check()
	})
}

// TestASilentNodeComesBack has a node silent for so long that its pods are said to be not ready,
// and not so long that they are evicted. Nothing about them has changed when it comes back, and
// only its kubelet can say so.
func TestASilentNodeComesBack(t *testing.T) {
	stories(t, "node-1", func(w *world) {
		w.gate.opened(true)
		w.asked.create("DaemonSet", "each", 0)
		time.Sleep(30 * time.Second)
		synctest.Wait()
		w.gate.stick(func(key string) bool { return strings.HasPrefix(key, "kubelet node-1 ") })
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		unready := 0
		for _, p := range w.asked.pods("each") {
			if p.Spec.NodeName == "node-1" && strings.Contains(describe(p), "ready false, deleted false") {
				unready++
			}
		}
		if unready != 1 {
			w.fail("%d pods of the silent node are not ready, want 1", unready)
		}
		w.heal()
		w.check()
	})
}
