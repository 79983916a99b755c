// SPDX-License-Identifier: Apache-2.0

package poolstatus

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	resourcev1alpha3 "k8s.io/api/resource/v1alpha3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"

	"github.com/wasmplane/wasmplane/core/controllers"
	"github.com/wasmplane/wasmplane/core/controllers/controllertest"
)

func request(name string) *resourcev1alpha3.ResourcePoolStatusRequest {
	return &resourcev1alpha3.ResourcePoolStatusRequest{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.Now()},
		Spec:       resourcev1alpha3.ResourcePoolStatusRequestSpec{Driver: driver},
	}
}

// world is a cluster with the controller, in a bubble of time.
type world struct {
	*controllertest.Cluster
	t *testing.T
	c *Controller
}

func start(t *testing.T, objects ...runtime.Object) *world {
	t.Helper()
	w := &world{Cluster: controllertest.New(objects...), t: t}
	w.run()
	return w
}

func (w *world) run() {
	w.t.Helper()
	var err error
	if w.c, err = New(w.Env(w.t), 1); err != nil {
		w.t.Fatal(err)
	}
	w.Start(w.t, w.c)
	synctest.Wait()
}

func (w *world) after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (w *world) get(name string) *resourcev1alpha3.ResourcePoolStatusRequest {
	w.t.Helper()
	r, err := w.Client.ResourceV1alpha3().ResourcePoolStatusRequests().Get(w.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

// answers is how often a status was written.
func (w *world) answers() (n int) {
	for _, a := range w.Client.Actions() {
		if a.GetSubresource() == "status" {
			n++
		}
	}
	return n
}

func (w *world) names() (out []string) {
	w.t.Helper()
	list, err := w.Client.ResourceV1alpha3().ResourcePoolStatusRequests().List(w.t.Context(), metav1.ListOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	for i := range list.Items {
		out = append(out, list.Items[i].Name)
	}
	slices.Sort(out)
	return out
}

func (w *world) create(objects ...runtime.Object) {
	w.t.Helper()
	for _, o := range objects {
		kinds, _, err := scheme.Scheme.ObjectKinds(o)
		if err != nil {
			w.t.Fatal(err)
		}
		plural := map[string]string{"ResourceSlice": "resourceslices", "ResourcePoolStatusRequest": "resourcepoolstatusrequests"}[kinds[0].Kind]
		action := clienttesting.NewRootCreateAction(kinds[0].GroupVersion().WithResource(plural), o)
		if _, err := w.Client.Invokes(action, nil); err != nil {
			w.t.Fatal(err)
		}
		synctest.Wait() // a request that comes later is answered with what was there
	}
}

// TestARequestIsAnsweredOnce, with what was true then, whatever comes afterwards and however often.
func TestARequestIsAnsweredOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, slice("s", "a", 1, 1, plain("0", "1")...), claim("x", "a", "0"), request("ask"))
		w.after(time.Second)
		r := w.get("ask")
		if r.Status == nil || len(r.Status.Pools) != 1 || *r.Status.PoolCount != 1 || told(&r.Status.Pools[0]) != "a@1 2=1+0+1" {
			t.Fatalf("%+v", r.Status)
		}
		if c := r.Status.Conditions; len(c) != 1 || c[0].Type != "Complete" || c[0].Message != "Calculated status for 1 pools" {
			t.Errorf("%+v", c)
		}
		r.Labels = map[string]string{"seen": "yes"}
		if _, err := w.Client.ResourceV1alpha3().ResourcePoolStatusRequests().Update(t.Context(), r, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		w.create(slice("t", "b", 1, 1), slice("u", "a", 2, 1))
		w.after(time.Minute)
		if n := w.answers(); n != 1 {
			t.Errorf("answered %d times", n)
		}
	})
}

// TestAStaleCacheChangesNoAnswer: who has not seen the answer yet does not overwrite it.
func TestAStaleCacheChangesNoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old := request("ask")
		w := start(t, slice("s", "a", 1, 1), old)
		w.after(time.Second)
		first := w.get("ask")
		stale := first.DeepCopy()
		stale.Status, stale.ResourceVersion = nil, "1"
		if err := w.c.answer(t.Context(), controllers.Key{Name: "ask"}, stale); !apierrors.IsConflict(err) {
			t.Errorf("error %v", err)
		}
		if is := w.get("ask"); is.ResourceVersion != first.ResourceVersion || len(is.Status.Pools) != 1 {
			t.Errorf("it is now %+v", is.Status)
		}
	})
}

// TestDriversHaveTimeToPublish: the slice that is missing brings the answer, and 10 seconds without it do.
func TestDriversHaveTimeToPublish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, slice("s", "a", 1, 2, plain("0")...), slice("t", "b", 1, 1, plain("0")...), request("early"))
		w.after(5 * time.Second)
		if w.get("early").Status != nil {
			t.Fatal("answered, though a slice is missing")
		}
		w.create(slice("u", "a", 1, 2, plain("1")...))
		w.after(time.Millisecond)
		if r := w.get("early"); r.Status == nil || told(&r.Status.Pools[0]) != "a@1 2=0+0+2" {
			t.Fatalf("%+v", r.Status)
		}
		w.create(slice("v", "b", 2, 3, plain("0")...), request("late"))
		w.after(patience - time.Second)
		if w.get("late").Status != nil {
			t.Fatal("answered too soon")
		}
		w.after(2 * time.Second)
		r := w.get("late")
		if r.Status == nil || told(&r.Status.Pools[0]) != "a@1 2=0+0+2" ||
			told(&r.Status.Pools[1]) != "b@2 PoolIncomplete: pool gpu.example.com/b is incomplete: observed 1/3 slices at generation 2" {
			t.Fatalf("%+v", r.Status)
		}
		if m := r.Status.Conditions[0].Message; m != "Calculated status for 2 pools (1 incomplete)" {
			t.Error(m)
		}
	})
}

// TestRequestsGoInTheirTime: an hour after their answer, a day without one, and never under another one's name.
func TestRequestsGoInTheirTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused := request("refused")
		w := &world{Cluster: controllertest.New(slice("s", "a", 1, 1), request("answered"), refused), t: t}
		w.Client.PrependReactor("update", "resourcepoolstatusrequests", func(a clienttesting.Action) (bool, runtime.Object, error) {
			if o, ok := a.(clienttesting.UpdateAction).GetObject().(metav1.Object); ok && o.GetName() == "refused" {
				return true, nil, apierrors.NewServiceUnavailable("no")
			}
			return false, nil, nil
		})
		w.run()
		for _, step := range []struct {
			wait time.Duration
			want []string
		}{
			{59 * time.Minute, []string{"answered", "refused"}},
			{2 * time.Minute, []string{"refused"}},
			{22 * time.Hour, []string{"refused"}},
			{2 * time.Hour, nil},
		} {
			if w.after(step.wait); !slices.Equal(w.names(), step.want) {
				t.Errorf("%v are there, want %v", w.names(), step.want)
			}
		}
		for _, a := range w.Client.Actions() {
			d, ok := a.(clienttesting.DeleteActionImpl)
			if ok && (d.DeleteOptions.Preconditions == nil || d.DeleteOptions.Preconditions.UID == nil) {
				t.Errorf("%s is deleted by its name alone", d.Name)
			}
		}
	})
}

// TestAnAnswerThatCannotBeStored is a condition of the request, and is not tried without end.
func TestAnAnswerThatCannotBeStored(t *testing.T) {
	for what, refusal := range map[string]error{
		"too large": apierrors.NewRequestEntityTooLargeError("limit is 3145728"),
		"invalid":   apierrors.NewInvalid(schema.GroupKind{Kind: "ResourcePoolStatusRequest"}, strings.Repeat("long", 1000), nil),
	} {
		synctest.Test(t, func(t *testing.T) {
			w := &world{Cluster: controllertest.New(slice("s", "a", 1, 1), request("ask")), t: t}
			w.Client.PrependReactor("update", "resourcepoolstatusrequests", func(a clienttesting.Action) (bool, runtime.Object, error) {
				r, ok := a.(clienttesting.UpdateAction).GetObject().(*resourcev1alpha3.ResourcePoolStatusRequest)
				if ok && len(r.Status.Pools) > 0 {
					return true, nil, refusal
				}
				return false, nil, nil
			})
			w.run()
			w.after(time.Minute)
			r := w.get("ask")
			if r.Status == nil || len(r.Status.Conditions) != 1 || r.Status.Conditions[0].Type != "Failed" ||
				!strings.HasPrefix(r.Status.Conditions[0].Message, "The answer cannot be stored; name a pool, or a lower limit: ") ||
				len(r.Status.Conditions[0].Message) > maxReason || *r.Status.PoolCount != 0 {
				t.Errorf("%s: %+v", what, r.Status)
			}
			if n := w.answers(); n != 2 {
				t.Errorf("%s: %d writes", what, n)
			}
		})
	}
}
