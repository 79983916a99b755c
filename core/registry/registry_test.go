// SPDX-License-Identifier: Apache-2.0

package registry_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/api"
	"github.com/wasmplane/wasmplane/core/auth/authz"
	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/core/registry"
	"github.com/wasmplane/wasmplane/core/registry/action"
	"github.com/wasmplane/wasmplane/core/registry/view"
	"github.com/wasmplane/wasmplane/core/store"
	"github.com/wasmplane/wasmplane/core/store/etcd"
	"github.com/wasmplane/wasmplane/core/watchcache"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"))
}

// world is a registry on a real store and cache, with an admission chain and a
// store that tests can step into.
type world struct {
	room func(store.Write) error // nil = there is always room
	*registry.Set
	store   *steppedStore
	cache   *watchcache.Cache
	view    *view.View
	actions *action.Actions
	plugins plugins
	allow   func(authz.Attributes) bool
}

func newWorld(t *testing.T) *world {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	e, err := etcd.Start(ctx, etcd.ServerConfig{Dir: t.TempDir(), NoFsync: true})
	if err != nil {
		t.Fatal(err)
	}
	contract, err := api.New()
	if err != nil {
		t.Fatal(err)
	}
	w := &world{store: &steppedStore{Store: e.Store()}, view: view.New(contract), allow: func(authz.Attributes) bool { return true }}
	if w.cache, err = watchcache.New(watchcache.Config{Store: e.Store()}); err != nil {
		t.Fatal(err)
	}
	w.Set, err = registry.New(registry.Config{
		Contract: contract, Store: w.store, Cache: w.cache, Admission: &w.plugins, Authorizer: w,
		Space: w, Administrators: []string{"admins"},
	})
	if err != nil {
		t.Fatal(err)
	}
	w.view.Use(w.Set)
	w.actions = action.New(action.Config{Contract: contract, Registries: w.Set, Authorizer: w, Now: time.Now})
	var running sync.WaitGroup
	running.Go(func() {
		if err := w.cache.Run(ctx); err != nil {
			t.Errorf("the watch cache failed: %v", err)
		}
	})
	t.Cleanup(func() {
		cancel()
		running.Wait()
		_ = e.Close()
	})
	<-w.cache.Ready()
	return w
}

func (w *world) Name() string { return "world" }

func (w *world) Admit(x store.Write) (func(int64), error) {
	if w.room == nil {
		return func(int64) {}, nil
	}
	return func(int64) {}, w.room(x)
}

func (w *world) Authorize(_ context.Context, a authz.Attributes) (authz.Decision, string, error) {
	if w.allow(a) {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

// plugins is an admission chain of two functions.
type plugins struct {
	mutate, validate func(*admission.Request) error
}

func (p *plugins) Mutate(_ context.Context, r *admission.Request) error {
	if p.mutate == nil {
		return nil
	}
	return p.mutate(r)
}

func (p *plugins) Validate(_ context.Context, r *admission.Request) error {
	if p.validate == nil {
		return nil
	}
	return p.validate(r)
}

// steppedStore lets a test act right before a write reaches the store.
type steppedStore struct {
	store.Store
	beforePut func(key string)
	fails     error // of every write; nil = none
	puts      atomic.Int64
}

func (s *steppedStore) Put(ctx context.Context, key string, value []byte, expect int64, ttl time.Duration) (int64, error) {
	return s.PutFenced(ctx, key, value, expect, ttl, store.Fences{})
}

func (s *steppedStore) PutFenced(
	ctx context.Context, key string, value []byte, expect int64, ttl time.Duration, f store.Fences,
) (int64, error) {
	s.puts.Add(1)
	if s.fails != nil {
		return 0, s.fails
	}
	if step := s.beforePut; step != nil {
		s.beforePut = nil
		step(key)
	}
	return store.PutFenced(ctx, s.Store, key, value, expect, ttl, f)
}

func (w *world) registry(t *testing.T, group, resource string) *registry.Registry {
	t.Helper()
	r, ok := w.For(schema.GroupResource{Group: group, Resource: resource})
	if !ok {
		t.Fatalf("%s.%s is not served", resource, group)
	}
	return r
}

func request(namespace, name, body string, options runtime.Object) *registry.Request {
	return &registry.Request{
		Version: "v1", Namespace: namespace, Name: name, User: &user.DefaultInfo{Name: "tester"}, Options: options, Manager: "tester",
		Body: []byte(body), MediaType: object.JSON,
	}
}

func create(t *testing.T, r *registry.Registry, namespace, body string) registry.Result {
	t.Helper()
	result, err := r.Create(t.Context(), request(namespace, "", body, &metav1.CreateOptions{}))
	if err != nil {
		t.Fatalf("create %s: %v", body, err)
	}
	return result
}

func patch(namespace, name string, kind types.PatchType, body string) *registry.Request {
	r := request(namespace, name, body, &metav1.PatchOptions{})
	r.PatchType = kind
	return r
}

func metaOf(t *testing.T, o *object.Object) metav1.Object {
	t.Helper()
	m, err := o.Meta()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// A patch that meets another writer is applied again, with admission, to what
// that one left.
func TestPatchRunsAgainOnConflict(t *testing.T) {
	w := newWorld(t)
	maps := w.registry(t, "", "configmaps")
	create(t, maps, "ns", `{"metadata":{"name":"cm"},"data":{"a":"1"}}`)
	var seen []string
	w.plugins.validate = func(r *admission.Request) error {
		v, err := r.Object.Versioned()
		if err != nil {
			return err
		}
		data, err := json.Marshal(v.(*corev1.ConfigMap).Data)
		seen = append(seen, string(data))
		return err
	}
	w.store.beforePut = func(string) {
		if _, err := maps.Patch(t.Context(), patch("ns", "cm", types.MergePatchType, `{"data":{"b":"2"}}`)); err != nil {
			t.Errorf("the other writer: %v", err)
		}
	}
	result, err := maps.Patch(t.Context(), patch("ns", "cm", types.MergePatchType, `{"data":{"a":"3"}}`))
	if err != nil {
		t.Fatal(err)
	}
	v, err := result.Object.Versioned()
	if err != nil {
		t.Fatal(err)
	}
	if got := v.(*corev1.ConfigMap).Data; got["a"] != "3" || got["b"] != "2" {
		t.Errorf("stored %v", got)
	}
	want := []string{`{"a":"3"}`, `{"a":"1","b":"2"}`, `{"a":"3","b":"2"}`}
	if strings.Join(seen, " ") != strings.Join(want, " ") {
		t.Errorf("admission saw %v, expected %v", seen, want)
	}
}

// An update that meets another writer begins again with what the client sent, not with what admission made of it for the
// attempt before.
func TestUpdateRunsAgainOnConflict(t *testing.T) {
	w := newWorld(t)
	maps := w.registry(t, "", "configmaps")
	create(t, maps, "ns", `{"metadata":{"name":"cm"},"data":{"a":"1"}}`)
	var seen []string
	w.plugins.mutate = func(r *admission.Request) error {
		v, err := r.Object.Versioned()
		if err != nil {
			return err
		}
		m := v.(*corev1.ConfigMap) // in place, as strategies change what they prepare
		m.Data["a"] += "+"
		seen = append(seen, m.Data["a"])
		r.Object.SetVersioned(m)
		return nil
	}
	w.store.beforePut = func(string) {
		if _, err := maps.Patch(t.Context(), patch("ns", "cm", types.MergePatchType, `{"metadata":{"labels":{"b":"2"}}}`)); err != nil {
			t.Errorf("the other writer: %v", err)
		}
	}
	result, err := maps.Update(t.Context(), request("ns", "cm", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"cm"},"data":{"a":"3"}}`,
		&metav1.UpdateOptions{}))
	if err != nil {
		t.Fatal(err)
	}
	v, err := result.Object.Versioned()
	if err != nil {
		t.Fatal(err)
	}
	if got := v.(*corev1.ConfigMap).Data["a"]; got != "3+" {
		t.Errorf("stored %s", got)
	}
	if want := "3+ 1+ 3+"; strings.Join(seen, " ") != want {
		t.Errorf("admission made %v, expected %s", seen, want)
	}
}

// What a mutator leaves is defaulted by nobody but the chain, validated by the
// strategy, and what a validator sees is what is stored.
func TestAdmissionOnCreate(t *testing.T) {
	w := newWorld(t)
	pods := w.registry(t, "", "pods")
	w.plugins.mutate = func(r *admission.Request) error {
		v, err := r.Object.Versioned()
		if err != nil {
			return err
		}
		pod := v.DeepCopyObject().(*corev1.Pod)
		pod.Labels = map[string]string{"by": "plugin"}
		pod.Status.Phase = corev1.PodRunning // nobody may; the strategy takes it away
		r.Object.SetVersioned(pod)
		return nil
	}
	var judged *corev1.Pod
	w.plugins.validate = func(r *admission.Request) error {
		v, err := r.Object.Versioned()
		judged = v.(*corev1.Pod)
		return err
	}
	result := create(t, pods, "ns", `{"metadata":{"generateName":"p-"},"spec":{"containers":[{"name":"c","image":"i"}]}}`)
	v, err := result.Object.Versioned()
	if err != nil {
		t.Fatal(err)
	}
	pod := v.(*corev1.Pod)
	if pod.Labels["by"] != "plugin" || pod.Status.Phase != corev1.PodPending || pod.Spec.RestartPolicy != corev1.RestartPolicyAlways {
		t.Errorf("stored %+v", pod)
	}
	if judged.Name != pod.Name || judged.Status.Phase != corev1.PodPending {
		t.Errorf("validators saw %+v", judged)
	}
	for _, e := range pod.ManagedFields {
		if strings.Contains(e.FieldsV1.GetRawString(), "f:by") {
			t.Errorf("%s owns what the plugin set: %s", e.Manager, e.FieldsV1.GetRawString())
		}
	}
	w.plugins.validate = func(r *admission.Request) error { return admission.Forbidden(r, errors.New("not today")) }
	if _, err := pods.Create(t.Context(), request("ns", "", `{"metadata":{"name":"q"},"spec":{"containers":[{"name":"c","image":"i"}]}}`,
		&metav1.CreateOptions{})); !apierrors.IsForbidden(err) {
		t.Errorf("a refused create: got %v", err)
	}
}

// A generated name that is taken is replaced by another one.
func TestGeneratedNames(t *testing.T) {
	w := newWorld(t)
	maps := w.registry(t, "", "configmaps")
	tries := 0
	w.plugins.validate = func(r *admission.Request) error {
		if tries++; tries > 3 {
			return nil
		}
		// Somebody takes exactly this name first.
		_, err := w.store.Store.Put(t.Context(), "/registry/configmaps/ns/"+r.Name,
			[]byte(`{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"x"}}`), 0, 0)
		return err
	}
	result := create(t, maps, "ns", `{"metadata":{"generateName":"cm-"}}`)
	if tries != 4 {
		t.Errorf("it took %d tries", tries)
	}
	if name := metaOf(t, result.Object).GetName(); !strings.HasPrefix(name, "cm-") || len(name) != len("cm-")+5 {
		t.Errorf("the name is %q", name)
	}
}

// Whoever may update but not create, does not create by updating or applying.
func TestCreateByUpdateNeedsCreate(t *testing.T) {
	w := newWorld(t)
	w.allow = func(a authz.Attributes) bool { return a.GetVerb() != "create" }
	leases, maps := w.registry(t, "coordination.k8s.io", "leases"), w.registry(t, "", "configmaps")
	_, err := leases.Update(t.Context(), request("ns", "l", `{"metadata":{"name":"l"},"spec":{"holderIdentity":"me","leaseDurationSeconds":1}}`, &metav1.UpdateOptions{}))
	if !apierrors.IsForbidden(err) {
		t.Errorf("PUT of a new lease: got %v", err)
	}
	apply := patch("ns", "cm", types.ApplyYAMLPatchType, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"cm"}}`)
	if _, err := maps.Patch(t.Context(), apply); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(),
		`cannot create resource "configmaps"`) {
		t.Errorf("apply of a new object: got %v", err)
	}
	w.allow = func(authz.Attributes) bool { return true }
	result, err := maps.Patch(t.Context(), apply)
	if err != nil || !result.Created {
		t.Errorf("apply: %v, created: %v", err, result.Created)
	}
}

// A write that changes nothing reaches the store never.
func TestUnchangedWritesNothing(t *testing.T) {
	w := newWorld(t)
	maps := w.registry(t, "", "configmaps")
	created := create(t, maps, "ns", `{"metadata":{"name":"cm"},"data":{"a":"1"}}`)
	before := w.store.puts.Load()
	for _, r := range []*registry.Request{
		patch("ns", "cm", types.MergePatchType, `{"data":{"a":"1"}}`),
		patch("ns", "cm", types.JSONPatchType, `[{"op":"replace","path":"/data/a","value":"1"}]`),
		patch("ns", "cm", types.StrategicMergePatchType, `{}`),
	} {
		result, err := maps.Patch(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := metaOf(t, result.Object).GetResourceVersion(), metaOf(t, created.Object).GetResourceVersion(); got != want {
			t.Errorf("%s moved the revision from %s to %s", r.PatchType, want, got)
		}
	}
	if puts := w.store.puts.Load(); puts != before {
		t.Errorf("%d writes reached the store", puts-before)
	}
}

// The life of an object with a finalizer, a grace period and dependents.
func TestDeletion(t *testing.T) {
	w := newWorld(t)
	maps, pods := w.registry(t, "", "configmaps"), w.registry(t, "", "pods")
	background, orphan := metav1.DeletePropagationBackground, metav1.DeletePropagationOrphan
	zero, ten := int64(0), int64(10)
	for _, test := range []struct {
		name     string
		registry *registry.Registry
		body     string
		options  *metav1.DeleteOptions
		gone     bool
		check    func(metav1.Object) bool
	}{
		{"plain", maps, `{"metadata":{"name":"x"}}`, &metav1.DeleteOptions{}, true, nil},
		{
			"finalizer", maps, `{"metadata":{"name":"x","finalizers":["example.com/f"]}}`, &metav1.DeleteOptions{}, false,
			func(m metav1.Object) bool {
				return m.GetDeletionTimestamp() != nil && *m.GetDeletionGracePeriodSeconds() == 0
			},
		},
		{
			"orphan", maps, `{"metadata":{"name":"x"}}`, &metav1.DeleteOptions{PropagationPolicy: &orphan}, false,
			func(m metav1.Object) bool { return m.GetFinalizers()[0] == metav1.FinalizerOrphanDependents },
		},
		{"background takes orphan back", maps, `{"metadata":{"name":"x","finalizers":["orphan"]}}`, &metav1.DeleteOptions{PropagationPolicy: &background}, true, nil},
		{
			"dry run", maps, `{"metadata":{"name":"x"}}`, &metav1.DeleteOptions{DryRun: []string{"All"}}, false,
			func(m metav1.Object) bool { return m.GetDeletionTimestamp() == nil },
		},
		{
			"grace", pods, `{"metadata":{"name":"x"},"spec":{"nodeName":"n","containers":[{"name":"c","image":"i"}]}}`, &metav1.DeleteOptions{GracePeriodSeconds: &ten}, false,
			func(m metav1.Object) bool { return *m.GetDeletionGracePeriodSeconds() == 10 },
		},
		{"no grace", pods, `{"metadata":{"name":"x"},"spec":{"nodeName":"n","containers":[{"name":"c","image":"i"}]}}`, &metav1.DeleteOptions{GracePeriodSeconds: &zero}, true, nil},
		{"on no node", pods, `{"metadata":{"name":"x"},"spec":{"containers":[{"name":"c","image":"i"}]}}`, &metav1.DeleteOptions{}, true, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			namespace := strings.ReplaceAll(test.name, " ", "-")
			create(t, test.registry, namespace, test.body)
			result, err := test.registry.Delete(t.Context(), request(namespace, "x", "", test.options))
			if err != nil {
				t.Fatal(err)
			}
			o, err := test.registry.Get(t.Context(), request(namespace, "x", "", nil), "")
			if test.gone {
				if !apierrors.IsNotFound(err) || !result.Deleted {
					t.Errorf("it is still there: %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if !test.check(metaOf(t, o)) {
				t.Errorf("it is %+v", metaOf(t, o))
			}
		})
	}
	t.Run("last finalizer", func(t *testing.T) {
		result, err := maps.Patch(t.Context(), patch("finalizer", "x", types.MergePatchType, `{"metadata":{"finalizers":null}}`))
		if err != nil || !result.Deleted {
			t.Fatalf("%v, deleted: %v", err, result.Deleted)
		}
		if _, err := maps.Get(t.Context(), request("finalizer", "x", "", nil), ""); !apierrors.IsNotFound(err) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("shorter grace, never longer", func(t *testing.T) {
		for _, seconds := range []int64{5, 20} {
			if _, err := pods.Delete(t.Context(), request("grace", "x", "", &metav1.DeleteOptions{GracePeriodSeconds: &seconds})); err != nil {
				t.Fatal(err)
			}
			o, err := pods.Get(t.Context(), request("grace", "x", "", nil), "")
			if err != nil || *metaOf(t, o).GetDeletionGracePeriodSeconds() != 5 {
				t.Errorf("after asking for %d: %v", seconds, err)
			}
		}
	})
}

// A Service whose write fails gives its address back.
func TestFailedServiceReleasesItsAddress(t *testing.T) {
	w := newWorld(t)
	services, addresses := w.registry(t, "", "services"), w.registry(t, "networking.k8s.io", "ipaddresses")
	w.plugins.validate = func(r *admission.Request) error {
		if r.Name == "refused" {
			return admission.Forbidden(r, errors.New("no"))
		}
		return nil
	}
	body := `{"metadata":{"name":"%s"},"spec":{"ports":[{"port":80}]}}`
	if _, err := services.Create(t.Context(),
		request("ns", "", fmt.Sprintf(body, "refused"), &metav1.CreateOptions{})); !apierrors.IsForbidden(err) {
		t.Fatalf("got %v", err)
	}
	create(t, services, "ns", fmt.Sprintf(body, "fine"))
	if _, err := services.Create(t.Context(),
		request("ns", "", fmt.Sprintf(body, "fine"), &metav1.CreateOptions{})); !apierrors.IsAlreadyExists(err) {
		t.Fatalf("got %v", err)
	}
	dry := request("ns", "", fmt.Sprintf(body, "dry"), &metav1.CreateOptions{DryRun: []string{"All"}})
	if _, err := services.Create(t.Context(), dry); err != nil {
		t.Fatal(err)
	}
	l, err := addresses.List(t.Context(), request("", "", "", nil), registry.ListOptions{})
	if err != nil || len(l.Items) != 1 {
		t.Errorf("%d addresses are in use: %v", len(l.Items), err)
	}
	if _, err := services.Delete(t.Context(), request("ns", "fine", "", &metav1.DeleteOptions{})); err != nil {
		t.Fatal(err)
	}
	if l, err := addresses.List(t.Context(), request("", "", "", nil), registry.ListOptions{}); err != nil || len(l.Items) != 0 {
		t.Errorf("%d addresses are in use after the last Service went: %v", len(l.Items), err)
	}
}

// A watcher with selectors sees objects come into its sight and leave it.
func TestWatchWithSelectors(t *testing.T) {
	w := newWorld(t)
	pods := w.registry(t, "", "pods")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	watch, err := pods.Watch(ctx, request("", "", "", nil), registry.ListOptions{
		Fields: fields.OneTermEqualSelector("spec.nodeName", "n1"),
		Labels: labels.Everything(),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	create(t, pods, "ns", `{"metadata":{"name":"a"},"spec":{"containers":[{"name":"c","image":"i"}]}}`)
	bind := request("ns", "a", `{"kind":"Binding","apiVersion":"v1","metadata":{"name":"a"},"target":{"name":"n1"}}`, &metav1.CreateOptions{})
	bind.Subresource = "binding"
	if _, err := w.actions.Do(ctx, pods, "create", bind); err != nil {
		t.Fatal(err)
	}
	events, err := watch.Next(ctx)
	for err == nil && len(events) == 0 {
		events, err = watch.Next(ctx) // the end of the initial events, which nobody asked for
	}
	if err != nil || len(events) != 1 || events[0].Type != watchcache.Added {
		t.Fatalf("%v, %+v", err, events)
	}
	if _, err := w.actions.Do(ctx, pods, "create", bind); !apierrors.IsConflict(err) || !strings.Contains(err.Error(), `pod a is already assigned to node "n1"`) {
		t.Errorf("a second binding: got %v", err)
	}
}

// Keys cannot be led out of their place by names.
func TestNamesStayInTheirPlace(t *testing.T) {
	w := newWorld(t)
	maps := w.registry(t, "", "configmaps")
	for _, r := range []*registry.Request{
		request("..", "x", "", nil), request("a/b", "x", "", nil), request("ns", "..", "", nil),
		request("ns", "../../secrets/ns/x", "", nil), request("ns", "", "", nil), request("", "x", "", nil),
	} {
		if _, err := maps.Get(t.Context(), r, ""); !apierrors.IsBadRequest(err) {
			t.Errorf("%q %q: got %v", r.Namespace, r.Name, err)
		}
	}
	if _, err := maps.List(t.Context(), request("../secrets", "", "", nil), registry.ListOptions{}); !apierrors.IsBadRequest(err) {
		t.Errorf("list: got %v", err)
	}
}

// Many writers of one object do not lose each other's changes.
func TestManyWritersOfOneObject(t *testing.T) {
	w := newWorld(t)
	maps := w.registry(t, "", "configmaps")
	create(t, maps, "ns", `{"metadata":{"name":"cm"}}`)
	const writers = 40
	var wg sync.WaitGroup
	for i := range writers {
		wg.Go(func() {
			if _, err := maps.Patch(t.Context(), patch("ns", "cm", types.MergePatchType, fmt.Sprintf(`{"data":{"k%d":"v"}}`, i))); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	result, err := maps.Patch(t.Context(), patch("ns", "cm", types.MergePatchType, `{"data":{"last":"v"}}`))
	if err != nil {
		t.Fatal(err)
	}
	v, err := result.Object.Versioned()
	if err != nil {
		t.Fatal(err)
	}
	if got := len(v.(*corev1.ConfigMap).Data); got != writers+1 {
		t.Errorf("%d changes are left of %d", got, writers+1)
	}
}

// TestARequestThatIsOverWorksNoFurther: no step begins after the deadline has passed, or the client has gone.
func TestARequestThatIsOverWorksNoFurther(t *testing.T) {
	w := newWorld(t)
	maps := w.registry(t, "", "configmaps")
	create(t, maps, "ns", `{"metadata":{"name":"a"},"data":{"k":"before"}}`)
	const whole = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"data":{"k":"after"}}`
	patch := func(kind types.PatchType, body string) func(context.Context) error {
		return func(ctx context.Context) error {
			req := request("ns", "a", body, &metav1.PatchOptions{Force: new(true), FieldManager: "tester"})
			req.PatchType = kind
			_, err := maps.Patch(ctx, req)
			return err
		}
	}
	for name, write := range map[string]func(context.Context) error{
		"create": func(ctx context.Context) error {
			_, err := maps.Create(ctx, request("ns", "", `{"metadata":{"name":"b"}}`, &metav1.CreateOptions{}))
			return err
		},
		"update": func(ctx context.Context) error {
			_, err := maps.Update(ctx, request("ns", "a", whole, &metav1.UpdateOptions{}))
			return err
		},
		"merge patch":     patch(types.MergePatchType, `{"data":{"k":"after"}}`),
		"JSON patch":      patch(types.JSONPatchType, `[{"op":"replace","path":"/data/k","value":"after"}]`),
		"strategic merge": patch(types.StrategicMergePatchType, `{"data":{"k":"after"}}`),
		"apply":           patch(types.ApplyYAMLPatchType, whole),
	} {
		t.Run(name, func(t *testing.T) {
			// The step after which the request is over, by the number of the steps that are seen here.
			for last := range 2 {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				steps := 0
				step := func(*admission.Request) error {
					if steps++; steps == last {
						cancel()
					}
					return nil
				}
				w.plugins.mutate, w.plugins.validate = step, step
				if last == 0 {
					cancel()
				}
				if err := write(ctx); !apierrors.IsTimeout(err) || steps != last {
					t.Errorf("over after step %d: went on to step %d: %v", last, steps, err)
				}
			}
		})
	}
	w.plugins = plugins{}
	found, err := maps.Get(t.Context(), request("ns", "a", "", nil), "")
	if err != nil {
		t.Fatal(err)
	}
	if text, err := found.Encoded(object.JSON); err != nil || !strings.Contains(string(text), "before") {
		t.Errorf("%s, %v", text, err)
	}
}
