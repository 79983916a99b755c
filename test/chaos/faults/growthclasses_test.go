// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/wasmplane/wasmplane/core/run"
)

// readEvery is how often a reader reads: after each write that it hears of, as a rule.
const readEvery = writeEvery / 2

// growthClasses are clusters that become larger and smaller while they are used.
func growthClasses() []class {
	return []class{{
		"grown-to-five-and-back",
		"one server becomes three, five, and three again: four join by tokens, the one whose store leads leaves, and the one whose store leads then",
		growing, false, grownToFiveAndBack,
		bounds{goesOn: takesOver}, // a busy machine may renew a lease late
	}}
}

// grownToFiveAndBack has servers join one after the other, and two leave, while clients write, read and watch. A server that leaves
// is known to clients until it is gone.
func grownToFiveAndBack(w *world) error {
	reads := &reader{}
	ctx, stop := context.WithCancel(w.ctx)
	var reading sync.WaitGroup
	reading.Go(func() { reads.run(ctx, w.clients(1), w) })
	err := w.grow()
	if err == nil {
		err = w.shrink(3)
	}
	stop()
	reading.Wait()
	return errors.Join(err, reads.judge())
}

// grow has all spares join.
func (w *world) grow() (err error) {
	for _, m := range w.spares {
		if err := w.join(m); err != nil { // it is ready once its store votes
			return err
		}
		if m.kube, err = w.client(m); err != nil {
			return err
		}
		w.machines, w.on.servers = slices.Insert(w.machines, w.on.servers, m), w.on.servers+1
		w.servers.set(w.machines[:w.on.servers])
		w.t.Logf("%d servers", w.on.servers)
	}
	w.spares = nil
	return nil
}

// shrink has the server leave whose store leads, until n are left.
func (w *world) shrink(n int) error {
	for w.on.servers > n {
		leaves, err := storeLeader(w)
		if err != nil {
			return err
		}
		if err := leaves.do(leaves.binary, "down", "--purge", "--data-dir", leaves.data); err != nil {
			return err
		}
		<-leaves.process.Done() // down has waited for it
		leaves.process = nil
		w.machines = slices.DeleteFunc(w.machines, func(m *machine) bool { return m == leaves })
		w.on.servers--
		w.servers.set(w.machines[:w.on.servers])
		w.t.Logf("%s has left, %d servers", leaves.name, w.on.servers)
	}
	return nil
}

// reader reads what was acknowledged to writers. A read that does not find it is of the past.
type reader struct {
	done, retried int
	failed, stale []string
}

func (r *reader) run(ctx context.Context, s servers, w *world) {
	for run.Sleep(ctx, readEvery) {
		name := w.written.newest()
		if name == "" {
			continue
		}
		missing := false
		retried, err := s.do(ctx, func(ctx context.Context, c *kubernetes.Clientset, _ bool) error {
			// A list is as consistent as a get, and says of many objects at once whether they are there.
			l, err := c.CoreV1().ConfigMaps(w.names).List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
			missing = err == nil && len(l.Items) == 0
			return err
		})
		if ctx.Err() != nil {
			return
		}
		r.done++
		if retried {
			r.retried++
		}
		if err != nil {
			r.failed = append(r.failed, err.Error())
		}
		if missing && w.written.is(name, there) { // nobody has deleted it since
			r.stale = append(r.stale, name)
		}
	}
}

// judge is an error for what no reader should see.
func (r *reader) judge() error {
	if r.done == 0 {
		return errors.New("nobody has read")
	}
	if len(r.failed)+len(r.stale) == 0 {
		return nil
	}
	return fmt.Errorf("of %d reads, %d of them tried twice, %d failed (%s), and %d did not see what was acknowledged before (%s)",
		r.done, r.retried, len(r.failed), strings.Join(r.failed, "; "), len(r.stale), strings.Join(r.stale, ", "))
}

// newest is the object whose creation was acknowledged last, unless it was deleted since; "" = there is none.
func (w *written) newest() (name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	newest := int64(0)
	for n, revision := range w.created {
		if revision > newest && w.fates[n] == there {
			name, newest = n, revision
		}
	}
	return name
}

// is tells whether an object has that fate.
func (w *written) is(name string, f fate) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.fates[name] == f
}
