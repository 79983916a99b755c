// SPDX-License-Identifier: Apache-2.0

package apiobject

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/core/run/presence"
	"github.com/wasmplane/wasmplane/plugins/apiobject/plugindefinition"
	"github.com/wasmplane/wasmplane/plugins/loader"
	"github.com/wasmplane/wasmplane/plugins/manifest"
)

// loads is a loader in which every entry is in force as soon as it was given.
type loads struct {
	mu      sync.Mutex
	origin  loader.Origin
	entries map[string]manifest.Entry
	calls   int64
}

func (l *loads) Expect(loader.Origin, []manifest.Entry) {}

func (l *loads) Begin(_ context.Context, from loader.Origin, entries []manifest.Entry) *loader.Pending {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.origin, l.entries = from, map[string]manifest.Entry{}
	for _, e := range entries {
		l.entries[e.Name] = e
	}
	return &loader.Pending{}
}

func (l *loads) Status() (out []loader.Status) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name := range l.entries {
		out = append(out, loader.Status{Name: name, Origin: l.origin, Ready: true, Digest: "sha256:a", Mode: manifest.Enforce, Calls: l.calls})
	}
	return out
}

func (l *loads) Entry(name string) (manifest.Entry, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, ok := l.entries[name]
	return e, ok
}

// cluster is one API, without a server, of servers in virtual time.
type cluster struct {
	t       *testing.T
	objects *dynamicfake.FakeDynamicClient
	kube    *kubefake.Clientset
	tenants bool
	version int // of the object that was written last; the client's lock guards it
}

func inCluster(t *testing.T, plugins int, tenants bool, story func(*cluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := &cluster{
			t,
			dynamicfake.NewSimpleDynamicClientWithCustomListKinds(
				runtime.NewScheme(),
				map[schema.GroupVersionResource]string{
					plugindefinition.Resource():       "PluginList",
					plugindefinition.TenantResource(): "TenantPluginList",
				},
			),
			kubefake.NewClientset(),
			tenants,
			0,
		}
		c.compareAndSwap()
		for i := range plugins {
			c.create(fmt.Sprintf("p%03d", i))
		}
		story(c)
	})
}

// compareAndSwap has writes of statuses fail that are about an object that has changed.
func (c *cluster) compareAndSwap() {
	c.objects.PrependReactor("update", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		u := a.(clienttesting.UpdateAction) // it is one
		next, _ := u.GetObject().(*unstructured.Unstructured)
		is, err := c.objects.Tracker().Get(a.GetResource(), a.GetNamespace(), next.GetName())
		if err != nil {
			return true, nil, err
		}
		version := is.(*unstructured.Unstructured).GetResourceVersion() // as it was created
		if version != next.GetResourceVersion() {
			return true, nil, apierrors.NewConflict(a.GetResource().GroupResource(), next.GetName(), errors.New("it has changed"))
		}
		c.version++
		next.SetResourceVersion(strconv.Itoa(c.version))
		return true, next, c.objects.Tracker().Update(a.GetResource(), next, a.GetNamespace())
	})
}

func (c *cluster) resource() schema.GroupVersionResource {
	return (&Config{Tenants: c.tenants}).resource()
}

func (c *cluster) namespace() string {
	if c.tenants {
		return "red"
	}
	return ""
}

func (c *cluster) create(name string) {
	c.t.Helper()
	kind := plugindefinition.Kind
	if c.tenants {
		kind = plugindefinition.TenantKind
	}
	o := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": plugindefinition.Group + "/" + plugindefinition.Version, "kind": kind, "metadata": map[string]any{"name": name, "generation": int64(1)},
		"spec": map[string]any{
			"source": "oci://a.example/b:1", "digest": "sha256:" + strings.Repeat("0", 64), "points": []any{"admission.validate"},
		},
	}}
	o.SetUID(types.UID(name))
	o.SetNamespace(c.namespace())
	if _, err := c.objects.Resource(c.resource()).Namespace(c.namespace()).Create(c.t.Context(), o, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

// server is a process that reports. alive is its lease.
type server struct {
	*loads
	alive       *presence.Keeper
	stop, crash func()
}

// start begins a server. An old one is of the version before there were leases.
func (c *cluster) start(identity string, old bool) *server {
	c.t.Helper()
	s := &server{loads: &loads{}}
	cfg := Config{Client: c.objects, Loader: s.loads, Tenants: c.tenants, Identity: identity, Reports: true, Answers: true}
	if !old {
		s.alive = presence.New(presence.Config{Client: c.kube, Namespace: "x", Group: "plugins", Identity: identity, Collect: true})
		cfg.Presence = s.alive
	}
	controller, err := New(cfg)
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(c.t.Context())
	parts := []func(context.Context) error{controller.Run}
	if !old {
		parts = append(parts, s.alive.Run)
	}
	done := run.Go(identity, func() error { return run.Together(ctx, parts...) })
	s.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			c.t.Error(err)
		}
	})
	s.crash = func() { // nothing of it is heard any more
		c.kube.PrependReactor("update", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
			return ctx.Err() != nil, nil, errors.New("it is dead")
		})
		s.stop()
		c.kube.ReactionChain = c.kube.ReactionChain[1:]
	}
	c.t.Cleanup(s.stop)
	return s
}

func (c *cluster) status(name string) Status {
	c.t.Helper()
	o, err := c.objects.Resource(c.resource()).Namespace(c.namespace()).Get(c.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return readStatus(o)
}

// expect holds the reports of a plugin against those that should be there.
func (c *cluster) expect(when string, identities ...string) {
	c.t.Helper()
	s := c.status("p000")
	var names []string
	for _, i := range s.Instances {
		names = append(names, i.Name)
	}
	if got, want := strings.Join(names, " "), strings.Join(identities, " "); got != want {
		c.t.Errorf("%s: reports of %q, want %q", when, got, want)
	}
	if ready := meta.IsStatusConditionTrue(s.Conditions, Ready); ready != (len(identities) > 0) {
		c.t.Errorf("%s: ready is %v", when, ready)
	}
}

// writes counts the writes of statuses within a time.
func (c *cluster) writes(d time.Duration) (n int) {
	synctest.Wait()
	c.objects.ClearActions()
	pass(d)
	for _, a := range c.objects.Actions() {
		if a.GetVerb() == "update" && a.GetSubresource() == "status" {
			n++
		}
	}
	return n
}

func pass(d time.Duration) {
	time.Sleep(d) // of the bubble
	synctest.Wait()
}

// TestNothingIsWrittenAtRest but a lease for each server, and a status when it changes.
func TestNothingIsWrittenAtRest(t *testing.T) {
	for _, tenants := range []bool{false, true} {
		inCluster(t, 10, tenants, func(c *cluster) {
			a, b := c.start("a", false), c.start("b", false)
			pass(time.Minute)
			c.expect("at first", "a", "b")
			if n := c.writes(time.Hour); n != 0 {
				t.Errorf("%d writes in an hour at rest", n)
			}
			c.expect("after an hour", "a", "b")
			b.mu.Lock()
			b.calls = 7
			b.mu.Unlock()
			if n := c.writes(time.Minute); n < 10 || n > 20 || c.status("p007").Calls != 7 {
				t.Errorf("%d writes when 10 plugins have been called, %d calls", n, c.status("p007").Calls)
			}
			_ = a
		})
	}
}

// TestWhoeverLivesCollectsTheDead: one that ends in order, one that crashes, one that comes back, and one
// under a new name.
func TestWhoeverLivesCollectsTheDead(t *testing.T) {
	for _, tenants := range []bool{false, true} {
		inCluster(t, 2, tenants, func(c *cluster) {
			a, b := c.start("a", false), c.start("b", false)
			pass(20 * time.Minute)
			c.expect("at first", "a", "b")
			b.crash()
			pass(45 * time.Second)
			c.expect("soon after a crash", "a", "b")
			pass(90 * time.Second)
			c.expect("two minutes after a crash", "a")
			b = c.start("b2", false)
			pass(10 * time.Second)
			c.expect("after it came back under another name", "a", "b2")
			b.stop()
			pass(35 * time.Second)
			c.expect("after it ended in order", "a")
			b = c.start("b2", false)
			pass(time.Hour)
			c.expect("after it came back", "a", "b2")
			// The only other one goes, and nobody is there for a while.
			b.crash()
			a.crash()
			pass(time.Hour)
			c.expect("with nobody there", "a", "b2")
			a = c.start("a", false)
			pass(time.Minute)
			c.expect("not known yet", "a", "b2")
			pass(time.Minute)
			c.expect("known to be dead", "a")
			if n := c.writes(time.Hour); n != 0 {
				t.Errorf("%d writes in an hour at rest", n)
			}
			_ = a
		})
	}
}

// TestServersOfTheVersionBefore write once a minute, and remove what is older than five: beside one
// every server does the same, and nobody removes what another writes.
func TestServersOfTheVersionBefore(t *testing.T) {
	inCluster(t, 1, false, func(c *cluster) {
		older, a, b := c.start("older", true), c.start("a", false), c.start("b", false)
		pass(time.Minute)
		for range 60 * 20 {
			pass(time.Second)
			c.expect("beside an old one", "a", "b", "older")
		}
		// One each minute and server, and once more where two write at the same moment.
		if n := c.writes(10 * time.Minute); n < 27 || n > 60 {
			t.Errorf("%d writes of three servers in ten minutes", n)
		}
		// It is upgraded in place: the same name, with a lease.
		older.stop()
		c.start("older", false)
		pass(10 * time.Minute)
		c.expect("upgraded", "a", "b", "older")
		if n := c.writes(time.Hour); n != 0 {
			t.Errorf("%d writes in an hour, when all have leases", n)
		}
		// One that never comes back is collected as before: after five minutes.
		gone := c.start("gone", true)
		pass(3 * time.Minute)
		gone.stop()
		pass(4 * time.Minute)
		c.expect("four minutes after the last heartbeat", "a", "b", "gone", "older")
		pass(2 * time.Minute)
		c.expect("six minutes after the last heartbeat", "a", "b", "older")
		_, _ = a, b
	})
}

// TestOldCollectorsThatReportNothing of a plugin take away what seems old to them: after the first time
// every server shows that it lives.
func TestOldCollectorsThatReportNothing(t *testing.T) {
	inCluster(t, 3, false, func(c *cluster) {
		c.start("a", false)
		pass(time.Minute)
		removed := 0
		for range 60 * 25 {
			pass(time.Second)
			for i := range 3 {
				removed += c.removeOld(fmt.Sprintf("p%03d", i))
			}
		}
		if removed != 3 {
			t.Errorf("%d reports were removed in 25 minutes, want each once", removed)
		}
		c.expect("in the end", "a")
	})
}

// removeOld does what a process of the version before does.
func (c *cluster) removeOld(name string) int {
	c.t.Helper()
	s := c.status(name)
	left := (&beats{}).current(s, time.Now())
	if len(left.Instances) == len(s.Instances) {
		return 0
	}
	api := c.objects.Resource(c.resource())
	o, err := api.Get(c.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	status, err := tree(merge(left, "old", nil, 1))
	o.Object["status"] = status
	if err == nil {
		_, err = api.UpdateStatus(c.t.Context(), o, metav1.UpdateOptions{})
	}
	if err != nil {
		c.t.Fatal(err)
	}
	return 1
}

// TestWithoutALeaseStatusesAreSignsOfLife: where a process may not keep one, as beside an older server.
func TestWithoutALeaseStatusesAreSignsOfLife(t *testing.T) {
	inCluster(t, 4, false, func(c *cluster) {
		c.kube.PrependReactor("*", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, errors.New("forbidden")
		})
		c.start("a", false)
		pass(time.Minute)
		if n := c.writes(10 * time.Minute); n < 36 || n > 44 {
			t.Errorf("%d writes for 4 plugins in ten minutes", n)
		}
		c.expect("in the end", "a")
	})
}
