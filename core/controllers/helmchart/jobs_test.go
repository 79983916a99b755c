// SPDX-License-Identifier: Apache-2.0

package helmchart

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/wasmplane/wasmplane/core/controllers"
)

// A namespace whose sources are slow holds up its own charts, and not another's; a job that is wanted no more ends.
func TestASlowSourceHoldsUpItsNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		again := make(chan controllers.Key, 100)
		j := newJobs(func(k controllers.Key) { again <- k })
		key := func(namespace, name string) controllers.Key { return controllers.Key{Namespace: namespace, Name: name} }
		quick := func(context.Context) *prepared { return &prepared{digest: "quick"} }
		slow := func(ctx context.Context) *prepared {
			<-ctx.Done()
			return &prepared{err: ctx.Err()}
		}
		if _, full := j.ask(key("a", "1"), "x", quick); !full {
			t.Error("a job begins in a controller that does not run")
		}
		j.begin(ctx)
		for i, name := range []string{"1", "2", "3"} {
			if _, full := j.ask(key("slow", name), "x", slow); full != (i >= jobsInANamespace) {
				t.Errorf("job %s: full %v", name, full)
			}
		}
		if done, full := j.ask(key("other", "1"), "x", quick); done != nil || full {
			t.Error("another namespace has to wait")
		}
		synctest.Wait()
		if k := <-again; k != key("other", "1") {
			t.Error(k)
		}
		if done, _ := j.ask(key("other", "1"), "x", quick); done == nil || done.digest != "quick" {
			t.Errorf("%+v", done)
		}
		j.drop(key("slow", "1"))
		synctest.Wait()
		if done, full := j.ask(key("slow", "3"), "x", quick); done != nil || full {
			t.Error("the room of a job that was dropped is not free")
		}
		if done, full := j.ask(key("slow", "2"), "y", quick); done != nil || !full {
			t.Error("one for something else is not told from the one before")
		}
		synctest.Wait()
		if done, _ := j.ask(key("slow", "2"), "x", slow); done != nil && !errors.Is(done.err, context.Canceled) {
			t.Errorf("%+v", done)
		}
		stop()
		j.end()
	})
}

// Tenants together leave room for the charts of operators.
func TestTenantsHoldUpNoOperator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		j := newJobs(func(controllers.Key) {})
		j.begin(ctx)
		slow := func(ctx context.Context) *prepared {
			<-ctx.Done()
			return &prepared{err: ctx.Err()}
		}
		for i := range jobsInAll {
			key := controllers.Key{Namespace: string(rune('a' + i)), Name: "1"}
			if _, full := j.ask(key, "x", slow); full != (i >= jobsOfTenants) {
				t.Errorf("tenant %d: full %v", i, full)
			}
		}
		if _, full := j.ask(controllers.Key{Namespace: "kube-system", Name: "1"}, "x", slow); full {
			t.Error("an operator's chart waits for those of tenants")
		}
		stop()
		j.end()
		if j.all != 0 || j.theirs != 0 {
			t.Errorf("%d jobs are left, %d of tenants", j.all, j.theirs)
		}
	})
}
