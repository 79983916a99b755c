// SPDX-License-Identifier: Apache-2.0

package worlds

import (
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
