// SPDX-License-Identifier: Apache-2.0

package reconcilehost

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/wasmplane/wasmplane/core/controllers"
	"github.com/wasmplane/wasmplane/core/controllers/controllertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	deployments = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	services    = schema.GroupVersionResource{Version: "v1", Resource: "services"}

	clusterRoles = schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"}
	bindings     = schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterrolebindings"}
)

// exposer makes a Service for each Deployment with an annotation.
type exposer struct {
	name  string
	calls atomic.Int64
	plan  func(controllers.Snapshot) (controllers.Plan, error)
}

func (e *exposer) Name() string { return e.name }

func (e *exposer) Inputs() controllers.Inputs {
	return controllers.Inputs{
		Primary:        controllers.Watched{Resource: deployments, Kind: "Deployment"},
		Owned:          []controllers.Watched{{Resource: services, Kind: "Service"}},
		ServiceAccount: "plugins/exposer",
	}
}

func (e *exposer) Reconcile(_ context.Context, s controllers.Snapshot) (controllers.Plan, error) {
	e.calls.Add(1)
	if e.plan != nil {
		return e.plan(s)
	}
	if s.Primary == nil || s.Primary.GetAnnotations()["expose"] == "" {
		var p controllers.Plan
		for _, o := range s.Owned {
			p.Delete = append(p.Delete, controllers.Deletion{Target: controllers.Target{
				Kind: o.GroupVersionKind(), Namespace: o.GetNamespace(), Name: o.GetName(),
				UID: string(o.GetUID()),
			}})
		}
		return p, nil
	}
	service := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Service", "metadata": map[string]any{"name": s.Name},
		"spec": map[string]any{"port": s.Primary.GetAnnotations()["expose"]},
	}}
	return controllers.Plan{
		Apply:      []*unstructured.Unstructured{service},
		Conditions: []metav1.Condition{{Type: "Exposed", Status: metav1.ConditionTrue}},
		Events:     []controllers.Event{{Type: "Normal", Reason: "Exposed", Message: "made a Service"}},
	}, nil
}

// world is a fake server that knows apply, in a simple form: what is given
// replaces what is there, field by field.
type world struct {
	*dynamicfake.FakeDynamicClient
	mu      sync.Mutex
	version int
	applies atomic.Int64
	forced  sync.Map // name -> bool, of the last apply
	denied  atomic.Bool
	mute    atomic.Bool  // nobody answers who may what
	asked   atomic.Int64 // who may what
}

func newWorld(t *testing.T, objects ...runtime.Object) *world {
	t.Helper()
	kinds := map[schema.GroupVersionResource]string{
		deployments: "DeploymentList", services: "ServiceList", {Version: "v1", Resource: "events"}: "EventList",
		clusterRoles: "ClusterRoleList", bindings: "ClusterRoleBindingList",
	}
	w := &world{version: 100}
	w.FakeDynamicClient = dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds, objects...)
	w.PrependReactor("patch", "*", w.onApply)
	return w
}

func (w *world) onApply(action clienttesting.Action) (bool, runtime.Object, error) {
	patch, ok := action.(clienttesting.PatchActionImpl)
	if !ok || patch.GetPatchType() != types.ApplyPatchType {
		return false, nil, nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.applies.Add(1)
	w.forced.Store(patch.Name, *patch.PatchOptions.Force)
	var given map[string]any
	if err := json.Unmarshal(patch.GetPatch(), &given); err != nil {
		return true, nil, err
	}
	there, err := w.Tracker().Get(patch.Resource, patch.Namespace, patch.Name)
	if apierrors.IsNotFound(err) {
		u := &unstructured.Unstructured{Object: given}
		u.SetNamespace(patch.Namespace)
		w.stamp(u)
		u.SetUID(types.UID("uid-" + u.GetResourceVersion()))
		return true, u, w.Tracker().Create(patch.Resource, u.DeepCopy(), patch.Namespace)
	}
	if err != nil {
		return true, nil, err
	}
	u := there.(*unstructured.Unstructured).DeepCopy()
	before, _ := json.Marshal(u.Object)
	merge(u.Object, given)
	if after, _ := json.Marshal(u.Object); string(before) == string(after) {
		return true, u, nil
	}
	w.stamp(u)
	return true, u, w.Tracker().Update(patch.Resource, u.DeepCopy(), patch.Namespace)
}

func (w *world) stamp(u *unstructured.Unstructured) {
	w.version++
	u.SetResourceVersion(strconv.Itoa(w.version))
}

func merge(into, from map[string]any) {
	for k, v := range from {
		if m, ok := v.(map[string]any); ok {
			if there, ok := into[k].(map[string]any); ok {
				merge(there, m)
				continue
			}
		}
		into[k] = v
	}
}

func deployment(name string, annotations map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apps/v1", "kind": "Deployment",
		"metadata": map[string]any{
			"name": name, "namespace": "default", "uid": "uid-" + name, "resourceVersion": "1",
			"annotations": annotations,
		},
	}}
}

func start(t *testing.T, w *world) *Host {
	t.Helper()
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}, meta.RESTScopeNamespace)
	mapper.Add(schema.GroupVersionKind{Version: "v1", Kind: "Service"}, meta.RESTScopeNamespace)
	h, err := New(Config{
		ClientFor: func(string, string) (dynamic.Interface, error) { return w, nil },
		Reader:    w,
		Mapper:    mapper,
		Permitted: func(context.Context, string, string, schema.GroupVersionResource) error {
			w.asked.Add(1)
			switch {
			case w.mute.Load():
				return errors.New("connection refused")
			case w.denied.Load():
				return apierrors.NewForbidden(deployments.GroupResource(), "", errors.New("service account plugins/exposer may not list deployments"))
			}
			return nil
		},
		Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- h.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return h
}

func service(t *testing.T, w *world, name string) (*unstructured.Unstructured, error) {
	t.Helper()
	return w.Resource(services).Namespace("default").Get(t.Context(), name, metav1.GetOptions{})
}

// A Deployment gets its Service, which follows its annotation, belongs to it, and
// comes back when somebody deletes it. Nothing is written while nothing changes.
func TestPlanIsCarriedOut(t *testing.T) { synctest.Test(t, planIsCarriedOut) }

func planIsCarriedOut(t *testing.T) {
	w := newWorld(t, deployment("web", map[string]any{"expose": "80"}))
	h := start(t, w)
	e := &exposer{name: "exposer"}
	if err := h.Set(e); err != nil {
		t.Fatal(err)
	}
	controllertest.Eventually(t, func() error {
		s, err := service(t, w, "web")
		if err != nil {
			return err
		}
		ref := metav1.GetControllerOf(s)
		if ref == nil || ref.Name != "web" || ref.UID != "uid-web" {
			return fmt.Errorf("owner %+v", ref)
		}
		d, err := w.Resource(deployments).Namespace("default").Get(t.Context(), "web", metav1.GetOptions{})
		if err != nil {
			return err
		}
		conditions, _, _ := unstructured.NestedSlice(d.Object, "status", "conditions")
		if len(conditions) != 1 {
			return fmt.Errorf("conditions %v", conditions)
		}
		events, err := w.Resource(schema.GroupVersionResource{Version: "v1", Resource: "events"}).Namespace("default").List(t.Context(),
			metav1.ListOptions{})
		if err != nil || len(events.Items) != 1 {
			return fmt.Errorf("events %v %w", len(events.Items), err)
		}
		return nil
	})
	// The writes' own events wake it; then it is quiet.
	time.Sleep(time.Second)
	synctest.Wait()
	settled := w.applies.Load()
	time.Sleep(5 * time.Minute)
	synctest.Wait()
	if now := w.applies.Load(); settled > 4 || now != settled {
		t.Errorf("%d applies for one Service and one status, then %d in five minutes", settled, now-settled)
	}

	if err := w.Resource(services).Namespace("default").Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	controllertest.Eventually(t, func() error { _, err := service(t, w, "web"); return err })

	changed := deployment("web", nil)
	changed.SetResourceVersion("50")
	if _, err := w.Resource(deployments).Namespace("default").Update(t.Context(), changed, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	controllertest.Eventually(t, func() error {
		if _, err := service(t, w, "web"); !apierrors.IsNotFound(err) {
			return errors.Join(errors.New("the Service is still there"), err)
		}
		return nil
	})
	if s, ok := h.Status("exposer"); !ok || !s.Serving || s.Problem != "" || s.Reconciles == 0 {
		t.Errorf("status %+v", s)
	}
}

// A Service that somebody else made is not adopted, and its fields are not taken by force.
func TestForeignObjectIsNotAdopted(t *testing.T) {
	theirs := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Service", "metadata": map[string]any{
			"name": "web", "namespace": "default", "uid": "theirs",
			"resourceVersion": "7",
		},
	}}
	w := newWorld(t, deployment("web", map[string]any{"expose": "80"}), theirs)
	h := start(t, w)
	if err := h.Set(&exposer{name: "exposer"}); err != nil {
		t.Fatal(err)
	}
	controllertest.Eventually(t, func() error {
		if w.applies.Load() == 0 {
			return errors.New("nothing applied")
		}
		return nil
	})
	s, err := service(t, w, "web")
	if err != nil {
		t.Fatal(err)
	}
	if metav1.GetControllerOf(s) != nil {
		t.Error("it was adopted: it would go with the Deployment")
	}
}

// Reconcilers come, are replaced and go at run time; a right that is taken away
// stops one, and it goes on when it is given back.
func TestComeGoAndPermission(t *testing.T) { synctest.Test(t, comeGoAndPermission) }

func comeGoAndPermission(t *testing.T) {
	w := newWorld(t, deployment("web", map[string]any{"expose": "80"}))
	h := start(t, w)
	first := &exposer{name: "exposer"}
	if err := h.Set(first); err != nil {
		t.Fatal(err)
	}
	serving := func(want bool) {
		t.Helper()
		controllertest.Eventually(t, func() error {
			if s, _ := h.Status("exposer"); s.Serving != want {
				return fmt.Errorf("status %+v", s)
			}
			return nil
		})
	}
	serving(true)

	second := &exposer{name: "exposer", plan: func(controllers.Snapshot) (controllers.Plan, error) {
		return controllers.Plan{}, errors.New("trap: unreachable")
	}}
	if err := h.Set(second); err != nil {
		t.Fatal(err)
	}
	controllertest.Eventually(t, func() error {
		if s, _ := h.Status("exposer"); s.Failures < 2 || s.Problem == "" {
			return fmt.Errorf("status %+v", s)
		}
		return nil
	})

	if err := h.Set(&exposer{name: "exposer"}); err != nil {
		t.Fatal(err)
	}
	serving(true)
	w.denied.Store(true)
	time.Sleep(3 * time.Second) // an answer is believed no longer
	touch(t, w, "web", 60)
	serving(false)
	w.denied.Store(false)
	serving(true)

	h.Remove("exposer")
	if _, ok := h.Status("exposer"); ok {
		t.Error("it is still there")
	}
	if err := h.Set(&exposer{}); err == nil {
		t.Error("a reconciler without a name was taken")
	}
}
