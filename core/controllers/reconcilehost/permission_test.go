// SPDX-License-Identifier: Apache-2.0

package reconcilehost

import (
	"fmt"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/wasmplane/wasmplane/core/controllers"
)

// touch writes an object again.
func touch(t *testing.T, w *world, name string, version int) {
	t.Helper()
	d := deployment(name, nil)
	d.SetResourceVersion(strconv.Itoa(version))
	if _, err := w.Resource(deployments).Namespace("default").Update(t.Context(), d, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// grant writes RBAC: what it says doesn't matter here.
func grant(t *testing.T, w *world, name string) {
	t.Helper()
	b := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": map[string]any{"name": name, "resourceVersion": "1"},
	}}
	if _, err := w.Resource(bindings).Create(t.Context(), b, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// watcher plans nothing, and counts.
func watcher(name string, calls *atomic.Int64) *exposer {
	return &exposer{name: name, plan: func(controllers.Snapshot) (controllers.Plan, error) {
		calls.Add(1)
		return controllers.Plan{}, nil
	}}
}

func status(t *testing.T, h *Host, name string) Status {
	t.Helper()
	s, ok := h.Status(name)
	if !ok {
		t.Fatalf("no reconciler %s", name)
	}
	return s
}

// Reconcilers for whom nothing happens ask nothing and have no goroutines of their own, and all
// of them share one watch of each kind.
func TestIdleReconcilersAreData(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, deployment("web", nil))
		h := start(t, w)
		var calls atomic.Int64
		have := 0
		settled := func(n int) int {
			t.Helper()
			for i := have; i < n; i++ {
				if err := h.Set(watcher(fmt.Sprint("r", i), &calls)); err != nil {
					t.Fatal(err)
				}
			}
			have = n
			time.Sleep(time.Minute)
			synctest.Wait()
			return runtime.NumGoroutine()
		}
		one := settled(1)
		all := settled(100)
		if all > one+10 { // the process has some others
			t.Errorf("%d goroutines with one reconciler, %d with a hundred", one, all)
		}
		if n := calls.Load(); n != 100 {
			t.Errorf("%d calls for one object and 100 reconcilers", n)
		}
		asked, requests := w.asked.Load(), len(w.Actions())
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		if n := w.asked.Load() - asked; n != 0 {
			t.Errorf("a day of rest, and permission was asked for %d times", n)
		}
		if n := len(w.Actions()) - requests; n != 0 {
			t.Errorf("a day of rest, and %d requests: %v", n, w.Actions()[requests:])
		}
		watches := 0
		for _, a := range w.Actions() {
			if a.GetVerb() == "watch" {
				watches++
			}
		}
		if watches != 4 {
			t.Errorf("%d watches; want one of Deployments, of Services and of two kinds of RBAC", watches)
		}
		before := calls.Load()
		touch(t, w, "web", 50)
		synctest.Wait()
		if n := calls.Load() - before; n != 100 {
			t.Errorf("%d of 100 were called when their object changed", n)
		}
	})
}

// A reconciler whose right is gone sees nothing any more: at once where RBAC changed, and
// after Review whatever authorizer took it. It comes back the same way.
func TestARightThatIsTakenEndsWhatIsSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, deployment("web", nil))
		h := start(t, w)
		var calls atomic.Int64
		if err := h.Set(watcher("r", &calls)); err != nil {
			t.Fatal(err)
		}
		version := 50
		seen := func() bool {
			t.Helper()
			before := calls.Load()
			version++
			touch(t, w, "web", version)
			synctest.Wait()
			return calls.Load() > before
		}
		synctest.Wait()
		if !seen() {
			t.Fatal("it is not called")
		}
		// Another authorizer takes the right. The answer of just now is believed for Review.
		w.denied.Store(true)
		for range 30 {
			seen()
			time.Sleep(100 * time.Millisecond)
		}
		if seen() {
			t.Error("3 s after its right was taken it is still called")
		}
		if s := status(t, h, "r"); s.Serving || s.Problem == "" {
			t.Errorf("status %+v", s)
		}
		// The right comes back. Without a sign of it, a refused reconciler asks each minute.
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		w.denied.Store(false)
		time.Sleep(67 * time.Second)
		synctest.Wait()
		if !seen() || !status(t, h, "r").Serving {
			t.Error("it has its right again, and is not called")
		}
		// RBAC takes it: the believed answer is worth nothing from then on.
		w.denied.Store(true)
		grant(t, w, "other")
		synctest.Wait()
		if seen() {
			t.Error("it is called after RBAC changed")
		}
		time.Sleep(10 * time.Minute)
		w.denied.Store(false)
		grant(t, w, "again")
		time.Sleep(time.Second)
		synctest.Wait()
		if !seen() {
			t.Error("a second after RBAC gave it the right, it is not called")
		}
	})
}

// Where nobody can say what it may, a reconciler sees nothing, and sees what it missed as soon as
// somebody can. It is no reason to show it everything again.
func TestNoAnswerIsNoPermission(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, deployment("web", nil), deployment("shop", nil))
		h := start(t, w)
		var calls atomic.Int64
		if err := h.Set(watcher("r", &calls)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		before := calls.Load()
		w.mute.Store(true)
		touch(t, w, "web", 50)
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := calls.Load() - before; n != 0 {
			t.Errorf("called %d times while nobody said that it may", n)
		}
		if s := status(t, h, "r"); s.Problem == "" {
			t.Errorf("status %+v", s)
		}
		w.mute.Store(false)
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if n := calls.Load() - before; n != 1 {
			t.Errorf("called %d times for the one change that it missed", n)
		}
	})
}

// selective looks at Deployments of one label.
type selective struct {
	*exposer
	selector string
}

func (s selective) Inputs() controllers.Inputs {
	in := s.exposer.Inputs()
	in.Primary.Selector = s.selector
	return in
}

// Reconcilers with many different selectors share an informer, and each sees its own objects:
// also when a label comes or goes.
func TestSelectorsShareAnInformer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		labelled := func(name, team string, version int) *unstructured.Unstructured {
			d := deployment(name, nil)
			d.SetLabels(map[string]string{"team": team})
			d.SetResourceVersion(strconv.Itoa(version))
			return d
		}
		const teams = 20
		w := newWorld(t)
		h := start(t, w)
		var calls [teams]atomic.Int64
		var gone [teams]atomic.Int64
		for i := range teams {
			team := fmt.Sprint("t", i)
			r := &exposer{name: team, plan: func(s controllers.Snapshot) (controllers.Plan, error) {
				calls[i].Add(1)
				if s.Primary == nil {
					gone[i].Add(1)
				} else if s.Primary.GetLabels()["team"] != team {
					t.Errorf("team %s sees %v", team, s.Primary.GetLabels())
				}
				return controllers.Plan{}, nil
			}}
			if err := h.Set(selective{r, "team=" + team}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Minute)
		create := func(d *unstructured.Unstructured) {
			t.Helper()
			if _, err := w.Resource(deployments).Namespace("default").Create(t.Context(), d, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		create(labelled("a", "t7", 10))
		create(labelled("b", "t19", 11))
		if _, err := w.Resource(deployments).Namespace("default").Update(t.Context(), labelled("a", "t19", 12),
			metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		for i := range teams {
			want, wantGone := int64(0), int64(0)
			switch i {
			case 7:
				want, wantGone = 2, 1 // it came and went
			case 19:
				want = 2 // its own, and what came
			}
			if c, g := calls[i].Load(), gone[i].Load(); c != want || g != wantGone {
				t.Errorf("team %d: %d calls, %d of them for what is gone; want %d and %d", i, c, g, want, wantGone)
			}
		}
		watches := 0
		for _, a := range w.Actions() {
			if a.GetVerb() == "watch" && a.GetResource() == deployments {
				watches++
			}
		}
		if watches != mostSelected+1 {
			t.Errorf("%d watches of Deployments for %d selectors", watches, teams)
		}
	})
}
