// SPDX-License-Identifier: Apache-2.0

package registry_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math/rand"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/core/registry"
	"github.com/wasmplane/wasmplane/core/store"
	"github.com/wasmplane/wasmplane/core/watchcache"
)

// HISTORY_WRITES is how many writes each client does (CI: 150), and HISTORY_SEED
// begins again what a failed run has printed.
var (
	historyWrites = flag.Int("history.writes", fromEnvironment("HISTORY_WRITES", 150),
		"writes of each client of TestConcurrentWritesAreAHistory")
	historySeed = flag.Int64("history.seed", int64(fromEnvironment("HISTORY_SEED", 0)), "its seed; 0: by the clock")
)

func fromEnvironment(name string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return otherwise
}

const (
	historyClients = 8
	historyPrefix  = "/registry/deployments/ns/"
)

var historyNames = []string{"a", "b", "c"}

// Clients that create, update, patch in all four ways, delete, hold and let go of
// finalizers, and report status, all on a few names at once, leave a history that
// one after the other could have written: each write that was answered is one
// revision and did what it says to the state just before it, none was lost, and
// who was refused had to be, at some moment between asking and the answer. Watches
// see exactly this history.
func TestConcurrentWritesAreAHistory(t *testing.T) {
	seed := *historySeed
	if seed == 0 {
		seed = time.Now().UnixNano()
	}
	t.Logf("again: go test -run %s ./core/registry -history.seed=%d -history.writes=%d", t.Name(), seed, *historyWrites)
	w := newWorld(t)
	w.plugins.mutate = admitted
	h := &recording{t: t, w: w, r: w.registry(t, "apps", "deployments")}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	start, err := w.store.Revision(ctx)
	if err != nil {
		t.Fatal(err)
	}
	raw := h.followStore(ctx, start)
	watches := []*followed{h.follow(ctx, start)}
	var clients, middle sync.WaitGroup
	middle.Add(historyClients)
	for i := range historyClients {
		clients.Go(func() {
			c := &client{recording: h, name: fmt.Sprint("client-", i), id: i, random: rand.New(rand.NewSource(seed + int64(i)))} //nolint:gosec // a test
			for n := range *historyWrites {
				if n == *historyWrites/2 {
					middle.Done()
				}
				c.act(ctx, n)
			}
		})
	}
	middle.Wait()
	watches = append(watches, h.follow(ctx, h.acked.Load())) // one that begins in the midst of it
	clients.Wait()
	end, err := w.store.Revision(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range append(watches, raw) {
		f.wait(t, end)
	}
	cancel()
	for i, f := range watches {
		sameHistory(t, fmt.Sprintf("watch %d", i), f, raw)
	}
	check(t, watches[0].events, h.done)
	t.Logf("%d operations, %d changes", len(h.done), len(watches[0].events))
}

// admitted is the mutation that every write of a deployment itself goes through.
func admitted(r *admission.Request) error {
	if r.Object == nil || r.Subresource != "" {
		return nil
	}
	v, err := r.Object.Versioned()
	if err != nil {
		return err
	}
	d, ok := v.DeepCopyObject().(*appsv1.Deployment)
	if !ok || d.Labels["admitted"] == "yes" {
		return nil
	}
	if d.Labels == nil {
		d.Labels = map[string]string{}
	}
	d.Labels["admitted"] = "yes"
	r.Object.SetVersioned(d)
	return nil
}

// change is one revision of one object, as a watch tells of it.
type change struct {
	name     string
	revision int64
	deleted  bool
	data     string // JSON
	state    *state // nil: deleted
	uid      types.UID
}

// followed collects what a watch delivers.
type followed struct {
	from   int64
	events []change
	seen   chan int64 // how far it has come
	failed chan error
}

func newFollowed(from int64) *followed {
	return &followed{from: from, seen: make(chan int64, 1<<16), failed: make(chan error, 1)}
}

func (f *followed) wait(t *testing.T, revision int64) {
	t.Helper()
	limit := time.NewTimer(time.Minute)
	defer limit.Stop()
	for {
		select {
		case at := <-f.seen:
			if at >= revision {
				return
			}
		case err := <-f.failed:
			t.Fatalf("a watch failed: %v", err)
		case <-limit.C:
			t.Fatalf("a watch did not come to revision %d within a minute", revision)
		}
	}
}

// follow watches through the registry, as a client does.
func (h *recording) follow(ctx context.Context, from int64) *followed {
	h.t.Helper()
	f := newFollowed(from)
	watch, err := h.r.Watch(ctx, request("ns", "", "", nil), registry.ListOptions{ResourceVersion: fmt.Sprint(from), Bookmarks: true})
	if err != nil {
		h.t.Fatal(err)
	}
	done := make(chan struct{})
	h.t.Cleanup(func() { <-done })
	go func() {
		defer close(done)
		defer watch.Stop()
		for {
			events, err := watch.Next(ctx)
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				f.failed <- err
				return
			}
			for _, e := range events {
				if e.Type == watchcache.Bookmark {
					continue
				}
				c, err := changeOf(e)
				if err != nil {
					f.failed <- err
					return
				}
				f.events = append(f.events, c)
				f.seen <- e.Revision
			}
		}
	}()
	return f
}

func changeOf(e watchcache.Event) (change, error) {
	c := change{revision: e.Revision, deleted: e.Type == watchcache.Deleted, name: e.Item.Key[strings.LastIndexByte(e.Item.Key, '/')+1:]}
	data, d, err := read(e.Item.Object)
	if err != nil {
		return c, err
	}
	c.data, c.uid = data, d.UID
	if d.ResourceVersion != fmt.Sprint(e.Revision) {
		return c, fmt.Errorf("the event of revision %d has an object of %s", e.Revision, d.ResourceVersion)
	}
	if !c.deleted {
		c.state = stateOf(d)
	}
	return c, nil
}

func read(o *object.Object) (string, *appsv1.Deployment, error) {
	data, err := o.Encoded(object.JSON)
	if err != nil {
		return "", nil, err
	}
	d := &appsv1.Deployment{}
	return string(data), d, json.Unmarshal(data, d)
}

// followStore is what etcd itself tells of.
func (h *recording) followStore(ctx context.Context, from int64) *followed {
	h.t.Helper()
	f := newFollowed(from)
	watcher, err := h.w.store.Watch(ctx, historyPrefix, from)
	if err != nil {
		h.t.Fatal(err)
	}
	done := make(chan struct{})
	h.t.Cleanup(func() { <-done })
	go func() {
		defer close(done)
		for b := range watcher.Batches() {
			for _, e := range b.Events {
				f.events = append(f.events, change{
					name: strings.TrimPrefix(e.KV.Key, historyPrefix), revision: e.KV.ModRevision,
					deleted: e.Type == store.Delete,
				})
				f.seen <- e.KV.ModRevision
			}
		}
	}()
	return f
}

// sameHistory holds what a watch saw against what happened in the store.
func sameHistory(t *testing.T, what string, got, want *followed) {
	t.Helper()
	expected := slices.DeleteFunc(slices.Clone(want.events), func(c change) bool { return c.revision <= got.from })
	if len(got.events) != len(expected) {
		t.Errorf("%s saw %d changes of %d", what, len(got.events), len(expected))
		return
	}
	for i, c := range got.events {
		if e := expected[i]; c.name != e.name || c.revision != e.revision || c.deleted != e.deleted {
			t.Errorf("%s saw %s at %d (deleted: %t) where the store has %s at %d (deleted: %t)", what, c.name, c.revision, c.deleted, e.name,
				e.revision, e.deleted)
			return
		}
	}
}

// recording is what the clients share.
type recording struct {
	t     *testing.T
	w     *world
	r     *registry.Registry
	acked atomic.Int64 // the newest revision that anybody was told of

	mu   sync.Mutex
	done []operation
}

// operation is what a client did, and what it was told.
type operation struct {
	ask
	client string
	from   int64 // what anybody had been told of before it began
	to     int64 // the newest revision after it ended

	err      metav1.StatusReason // "" = it was done
	message  string
	revision int64 // of the answer; 0: a status, for a deletion
	uid      types.UID
	deleted  bool
	data     string
	listed   map[string]string // of a list: the objects by their names
}

func (o operation) String() string {
	return fmt.Sprintf("%s %s of %s %+v (asked at %d, answered by %d: %s %s at %d)", o.client, o.kind, o.name, o.ask, o.from, o.to, o.err,
		o.message, o.revision)
}

func (h *recording) tell(revision int64) {
	for {
		known := h.acked.Load()
		if revision <= known || h.acked.CompareAndSwap(known, revision) {
			return
		}
	}
}

// client does one thing after the other.
type client struct {
	*recording
	name   string
	id     int
	random *rand.Rand
	last   map[string]*appsv1.Deployment // that it has seen, by name
}

func (c *client) act(ctx context.Context, n int) {
	a := c.think(n)
	o := operation{ask: a, client: c.name, from: c.acked.Load()}
	if err := c.do(ctx, &o); err != nil {
		o.err, o.message = apierrors.ReasonForError(err), err.Error()
		if o.err == metav1.StatusReasonUnknown {
			c.t.Errorf("%s: %v", o, err)
		}
	}
	to, err := c.w.store.Revision(ctx)
	if err != nil {
		c.t.Error(err)
		return
	}
	o.to = to
	c.tell(o.revision)
	c.mu.Lock()
	c.done = append(c.done, o)
	c.mu.Unlock()
}

func (c *client) do(ctx context.Context, o *operation) error {
	req := o.request(c.name, c.id)
	var result registry.Result
	var err error
	switch o.kind {
	case "create":
		req.Name = ""
		result, err = c.r.Create(ctx, req)
	case "put", "putStatus":
		result, err = c.r.Update(ctx, req)
	case "delete":
		result, err = c.r.Delete(ctx, req)
	case "get":
		result.Object, err = c.r.Get(ctx, req, "")
	case "list":
		return c.list(ctx, o)
	default:
		result, err = c.r.Patch(ctx, req)
	}
	if err != nil {
		return err
	}
	o.deleted = result.Deleted
	if result.Status != nil {
		o.uid = result.Status.Details.UID
		return nil
	}
	data, d, err := read(result.Object)
	if err != nil {
		return err
	}
	o.data, o.uid = data, d.UID
	if !o.deleted {
		if o.revision, err = strconv.ParseInt(d.ResourceVersion, 10, 64); err != nil {
			return err
		}
		if c.last == nil {
			c.last = map[string]*appsv1.Deployment{}
		}
		c.last[o.name] = d
	}
	return nil
}

func (c *client) list(ctx context.Context, o *operation) error {
	l, err := c.r.List(ctx, request("ns", "", "", nil), registry.ListOptions{})
	if err != nil {
		return err
	}
	o.revision, o.listed = l.Revision, map[string]string{}
	for _, item := range l.Items {
		data, d, err := read(item.Object)
		if err != nil {
			return err
		}
		o.listed[d.Name] = data
	}
	return nil
}

// think makes up what to do next. Values that are written are nobody else's.
func (c *client) think(n int) ask {
	a := ask{
		kind: kinds[c.random.Intn(len(kinds))], name: historyNames[c.random.Intn(len(historyNames))],
		value: fmt.Sprintf("v%d-%d", c.id, n), client: c.id,
	}
	seen := c.last[a.name]
	if seen == nil && (a.kind == "put" || a.kind == "putStatus") {
		a.kind = "get"
	}
	a.replicas = ptr.To(int32(c.random.Intn(4))) //nolint:gosec // small
	switch a.kind {
	case "create":
		if c.random.Intn(3) == 0 {
			a.finalizers = []string{"example.com/f"}
		}
	case "put", "putStatus":
		a.body = seen.DeepCopy()
		if c.random.Intn(2) == 0 {
			a.expected = seen.ResourceVersion
		}
		if c.random.Intn(2) == 0 {
			a.body.UID = ""
		}
	case "merge", "strategic":
		switch c.random.Intn(8) {
		case 0:
			a.finalizers = []string{"example.com/f"}
		case 1, 2:
			a.letGo = true
		case 3:
			a.owner = fmt.Sprint("owner-", c.random.Intn(3))
		case 4:
			if seen != nil {
				a.expected = seen.ResourceVersion
			}
		}
		if c.random.Intn(2) == 0 {
			a.replicas = nil
		}
	case "apply":
		a.omit = c.random.Intn(3) == 0
		a.replicas = nil
	case "delete":
		a.policy = []metav1.DeletionPropagation{"", "", metav1.DeletePropagationBackground, metav1.DeletePropagationOrphan}[c.random.Intn(4)]
		if seen != nil && c.random.Intn(3) == 0 {
			a.expected = seen.ResourceVersion
		}
	}
	return a
}

// kinds of operations, by how often they are wanted.
var kinds = []string{
	"create", "create", "create", "put", "put", "putStatus", "merge", "merge", "merge", "strategic", "strategic", "json",
	"apply", "apply", "status", "status", "delete", "delete", "get", "list",
}

// ask is what is asked for.
type ask struct {
	kind, name, value string
	client            int
	replicas          *int32
	finalizers        []string
	letGo             bool   // of all finalizers
	owner             string // uid
	expected          string // resourceVersion
	omit              bool   // an apply without its label
	body              *appsv1.Deployment
	policy            metav1.DeletionPropagation
}

func (a *ask) label() string { return fmt.Sprint("l", a.client) }

const template = `"selector":{"matchLabels":{"app":"x"}},"template":{"metadata":{"labels":{"app":"x"}},"spec":{"containers":[{"name":"c","image":"i"}]}}`

func (a *ask) request(manager string, id int) *registry.Request {
	var r *registry.Request
	switch a.kind {
	case "create":
		finalizers, _ := json.Marshal(a.finalizers)
		r = request("ns", a.name, fmt.Sprintf(`{"metadata":{"name":%q,"labels":{%q:%q},"finalizers":%s},"spec":{"replicas":%d,%s}}`, a.name, a.label(), a.value, finalizers, *a.replicas, template), &metav1.CreateOptions{})
	case "put", "putStatus":
		d := a.body
		d.ResourceVersion, d.ManagedFields = a.expected, nil
		if d.Labels = maps.Clone(d.Labels); d.Labels == nil {
			d.Labels = map[string]string{}
		}
		d.Labels[a.label()] = a.value
		d.Spec.Replicas = a.replicas
		d.Status.ObservedGeneration = observed(a.value)
		data, _ := json.Marshal(d)
		r = request("ns", a.name, string(data), &metav1.UpdateOptions{})
	case "status":
		r = patch("ns", a.name, types.MergePatchType, fmt.Sprintf(`{"metadata":{"labels":{"ignored":"yes"}},"spec":{"replicas":77},"status":{"observedGeneration":%d}}`, observed(a.value)))
	case "json":
		r = patch("ns", a.name, types.JSONPatchType, fmt.Sprintf(`[{"op":"add","path":"/metadata/labels/%s","value":%q},{"op":"replace","path":"/spec/replicas","value":%d}]`, a.label(), a.value, *a.replicas))
	case "apply":
		label := fmt.Sprintf(`%q:%q`, fmt.Sprint("a", id), a.value)
		if a.omit {
			label = ""
		}
		r = patch("ns", a.name, types.ApplyYAMLPatchType, fmt.Sprintf(`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":%q,"labels":{%s}},"spec":{%s}}`, a.name, label, template))
		r.Options = &metav1.PatchOptions{Force: ptr.To(true)}
		manager = fmt.Sprint("applier-", id)
	case "delete":
		options := &metav1.DeleteOptions{}
		if a.policy != "" {
			options.PropagationPolicy = &a.policy
		}
		if a.expected != "" {
			options.Preconditions = &metav1.Preconditions{ResourceVersion: &a.expected}
		}
		r = request("ns", a.name, "", options)
	case "merge", "strategic":
		kind := types.MergePatchType
		if a.kind == "strategic" {
			kind = types.StrategicMergePatchType
		}
		r = patch("ns", a.name, kind, a.mergePatch())
	default:
		r = request("ns", a.name, "", nil)
	}
	r.Manager = manager
	if a.kind == "status" || a.kind == "putStatus" {
		r.Subresource = "status"
	}
	return r
}

func (a *ask) mergePatch() string {
	m := map[string]any{"labels": map[string]any{a.label(): a.value}}
	switch {
	case a.letGo && a.kind == "strategic": // where lists of values are merged, and this one takes all away
		m["finalizers"] = nil
	case a.letGo:
		m["finalizers"] = []string{}
	case a.finalizers != nil:
		m["finalizers"] = a.finalizers
	case a.owner != "":
		m["ownerReferences"] = []any{map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": a.owner}}
	}
	if a.expected != "" {
		m["resourceVersion"] = a.expected
	}
	p := map[string]any{"metadata": m}
	if a.replicas != nil {
		p["spec"] = map[string]any{"replicas": *a.replicas}
	}
	data, _ := json.Marshal(p)
	return string(data)
}

// observed makes a number of a value that nobody else has.
func observed(value string) int64 {
	client, n, _ := strings.Cut(strings.TrimPrefix(value, "v"), "-")
	a, _ := strconv.ParseInt(client, 10, 64)
	b, _ := strconv.ParseInt(n, 10, 64)
	return b*100 + a + 1
}
