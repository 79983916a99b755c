// SPDX-License-Identifier: Apache-2.0

package apiserver_test

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/kubernetes"

	"github.com/wasmplane/wasmplane/core/apiserver"
	"github.com/wasmplane/wasmplane/core/apiserver/apiservertest"
	"github.com/wasmplane/wasmplane/core/client"
)

// notMallory lets everybody do everything, but for one.
type notMallory struct{ apiservertest.Everybody }

func (n notMallory) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.GetUser().GetName() == "mallory" {
		return authorizer.DecisionDeny, "mallory may not", nil
	}
	return n.Everybody.Authorize(ctx, a)
}

// ways are how a component of the process, and one of another, reach the server.
func ways(t *testing.T, s *apiservertest.Server, who string) (outside, inside kubernetes.Interface) {
	t.Helper()
	for _, way := range []struct {
		kube *kubernetes.Interface
		set  func() (*client.Set, error)
	}{
		{&outside, func() (*client.Set, error) { return client.New(s.Config(who)) }},
		{&inside, func() (*client.Set, error) {
			return client.New(client.InMemory(s.LocalHandler(), &user.DefaultInfo{Name: who}, "test"))
		}},
	} {
		set, err := way.set()
		if err != nil {
			t.Fatal(err)
		}
		*way.kube = set.Kube
	}
	return outside, inside
}

// next is the next event of a watch; ok is false where the watch has ended.
func next(t *testing.T, w watch.Interface) (watch.Event, bool) {
	t.Helper()
	select {
	case e, ok := <-w.ResultChan():
		return e, ok
	case <-time.After(20 * time.Second):
		t.Fatal("no event for 20 s")
		return watch.Event{}, false
	}
}

// same takes events of both watches until one of them satisfies last, and fails where they differ.
func same(t *testing.T, outside, inside watch.Interface, last func(watch.Event) bool) []watch.Event {
	t.Helper()
	var all []watch.Event
	for {
		want, ok := next(t, outside)
		got, too := next(t, inside)
		if ok != too {
			t.Fatalf("after %d events one watch has ended, and the other has not", len(all))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("event %d differs:\n%s", len(all), diff)
		}
		if !ok {
			return all
		}
		if all = append(all, got); last(got) {
			return all
		}
	}
}

func isBookmark(e watch.Event) bool { return e.Type == watch.Bookmark }

func named(kind watch.EventType, name string) func(watch.Event) bool {
	return func(e watch.Event) bool {
		o, ok := e.Object.(metav1.Object)
		return ok && e.Type == kind && o.GetName() == name
	}
}

func never(watch.Event) bool { return false }

// A watch in the process, which is lent its objects, is what a watch over the network is.
func TestWatchesInTheProcessSeeWhatOthersSee(t *testing.T) {
	s := apiservertest.Start(t, apiservertest.Options{Authorizer: notMallory{}})
	outside, inside := ways(t, s, "ann")
	ns := namespace(t, outside, "lent")
	pods := outside.CoreV1().Pods(ns)
	create := func(name, color string) *corev1.Pod {
		p, err := pods.Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"color": color}, Annotations: map[string]string{"a": "b"}},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "x", Args: []string{}}}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	paint := func(name, color string) {
		patch := fmt.Appendf(nil, `{"metadata":{"labels":{"color":%q}}}`, color)
		if _, err := pods.Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	remove := func(name string) {
		if err := pods.Delete(t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
			t.Fatal(err)
		}
	}
	both := func(t *testing.T, o metav1.ListOptions) (a, b watch.Interface) {
		t.Helper()
		for _, one := range []struct {
			kube kubernetes.Interface
			to   *watch.Interface
		}{{outside, &a}, {inside, &b}} {
			w, err := one.kube.CoreV1().Pods(ns).Watch(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(w.Stop)
			*one.to = w
		}
		return a, b
	}
	first := create("a", "red")
	create("b", "blue")

	t.Run("initial events, a selector of labels, what begins and ends to match", func(t *testing.T) {
		yes := true
		a, b := both(t, metav1.ListOptions{
			LabelSelector: "color=red", SendInitialEvents: &yes, AllowWatchBookmarks: true,
			ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
		})
		if seen := same(t, a, b, isBookmark); len(seen) != 2 ||
			seen[1].Object.(*corev1.Pod).Annotations[metav1.InitialEventsAnnotationKey] != "true" {
			t.Fatalf("initial events: %v", seen)
		}
		paint("b", "red")
		paint("b", "green")
		remove("a")
		seen := same(t, a, b, named(watch.Deleted, "a"))
		if len(seen) < 3 || !named(watch.Added, "b")(seen[0]) || !named(watch.Deleted, "b")(seen[1]) {
			t.Errorf("saw %v", seen)
		}
	})
	t.Run("from a revision, a selector of fields", func(t *testing.T) {
		a, b := both(t, metav1.ListOptions{ResourceVersion: first.ResourceVersion, FieldSelector: "metadata.name=b"})
		if seen := same(t, a, b, named(watch.Modified, "b")); len(seen) != 2 {
			t.Errorf("saw %v", seen)
		}
	})
	t.Run("more than a stream holds", func(t *testing.T) {
		const many, size = 150, 120 << 10 // and more than the cache remembers: see below
		create("before", "red")
		var from string
		for i := range many {
			patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"n":"%d","big":%q}}}`, i, strings.Repeat("x", size))
			p, err := pods.Patch(t.Context(), "before", types.MergePatchType, patch, metav1.PatchOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if i == many/2 {
				from = p.ResourceVersion
			}
		}
		a, b := both(t, metav1.ListOptions{ResourceVersion: from})
		remove("before")
		if seen := same(t, a, b, named(watch.Deleted, "before")); len(seen) < many/2 {
			t.Errorf("saw %d events", len(seen))
		}
	})
	t.Run("a version too old", func(t *testing.T) {
		a, b := both(t, metav1.ListOptions{ResourceVersion: first.ResourceVersion})
		seen := same(t, a, b, never)
		if len(seen) != 1 || seen[0].Type != watch.Error || !apierrors.IsResourceExpired(apierrors.FromObject(seen[0].Object)) {
			t.Errorf("saw %v", seen)
		}
	})
	t.Run("a time that is up", func(t *testing.T) {
		second := int64(1)
		a, b := both(t, metav1.ListOptions{LabelSelector: "color=none", TimeoutSeconds: &second})
		if seen := same(t, a, b, never); len(seen) != 0 {
			t.Errorf("saw %v", seen)
		}
	})
	t.Run("somebody who may not", func(t *testing.T) {
		outside, inside := ways(t, s, "mallory")
		var texts []string
		for _, kube := range []kubernetes.Interface{outside, inside} {
			_, err := kube.CoreV1().Pods(ns).Watch(t.Context(), metav1.ListOptions{})
			if !apierrors.IsForbidden(err) {
				t.Fatalf("mallory's watch: %v", err)
			}
			texts = append(texts, err.Error())
		}
		if texts[0] != texts[1] {
			t.Errorf("refused with %q and %q", texts[0], texts[1])
		}
	})
	t.Run("a selector that is none", func(t *testing.T) {
		var texts []string
		for _, kube := range []kubernetes.Interface{outside, inside} {
			_, err := kube.CoreV1().Pods(ns).Watch(t.Context(), metav1.ListOptions{FieldSelector: "spec.nothing=1"})
			if !apierrors.IsBadRequest(err) {
				t.Fatalf("a watch with a wrong selector: %v", err)
			}
			texts = append(texts, err.Error())
		}
		if texts[0] != texts[1] {
			t.Errorf("refused with %q and %q", texts[0], texts[1])
		}
	})
}

// Objects are decoded once for the watches of the process, and each has a struct of its own. What one
// does to its objects against the rule, neither the server nor clients outside of it see.
func TestObjectsAreLentToWatchesOfTheProcess(t *testing.T) {
	s := apiservertest.Start(t, apiservertest.Options{})
	outside, inside := ways(t, s, "ann")
	_, other := ways(t, s, "bob")
	ns := namespace(t, outside, "lent")
	follow := func(kube kubernetes.Interface) watch.Interface {
		w, err := kube.CoreV1().ConfigMaps(ns).Watch(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(w.Stop)
		return w
	}
	far, a, b := follow(outside), follow(inside), follow(other)
	if _, err := outside.CoreV1().ConfigMaps(ns).Create(t.Context(), configMap("one", "1"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	get := func(w watch.Interface) *corev1.ConfigMap {
		e, _ := next(t, w)
		c, ok := e.Object.(*corev1.ConfigMap)
		if !ok || e.Type != watch.Added {
			t.Fatalf("expected a ConfigMap that was added, got %v", e)
		}
		return c
	}
	first, second := get(a), get(b)
	if first == second || reflect.ValueOf(first.Data).Pointer() != reflect.ValueOf(second.Data).Pointer() {
		t.Errorf("the objects of two watches are one: %t; they share their data: %t", first == second,
			reflect.ValueOf(first.Data).Pointer() == reflect.ValueOf(second.Data).Pointer())
	}
	first.ManagedFields = nil
	if len(second.ManagedFields) == 0 {
		t.Error("what one watch took out of its struct, another has lost")
	}
	first.Data["v"] = "spoiled"
	if c := get(far); c.Data["v"] != "1" {
		t.Error("a client outside of the process sees what one within has spoiled")
	}
	c, err := outside.CoreV1().ConfigMaps(ns).Get(t.Context(), "one", metav1.GetOptions{})
	if err != nil || c.Data["v"] != "1" {
		t.Errorf("the server has lost %v of what it stores, %v", c.Data, err)
	}
}

// Nobody is lent anything who asks from outside, whatever he says that he accepts.
func TestNothingIsLentOverTheNetwork(t *testing.T) {
	s := apiservertest.Start(t, apiservertest.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+"/api/v1/namespaces?watch=1", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer ann")
	req.Header.Set("Accept", "application/vnd.wasmplane.lent,application/vnd.kubernetes.protobuf")
	resp, err := httpClient(t, s).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if got := resp.Header.Get("Content-Type"); resp.StatusCode != http.StatusOK || got != "application/vnd.kubernetes.protobuf;stream=watch" {
		t.Errorf("%s, %s", resp.Status, got)
	}
}

// A watch in the process whose client takes nothing is held up as one over the network would be, and goes on when it does.
func TestALentWatchWaitsForItsClient(t *testing.T) {
	s := apiservertest.Start(t, apiservertest.Options{Server: func(c *apiserver.Config) { c.WatchStall = time.Minute }})
	outside, inside := ways(t, s, "ann")
	ns := namespace(t, outside, "lent")
	const many, size = 64, 128 << 10
	for i := range many {
		if _, err := outside.CoreV1().ConfigMaps(ns).Create(t.Context(), configMap(fmt.Sprintf("cm%02d", i), strings.Repeat("x", size)),
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	w, err := inside.CoreV1().ConfigMaps(ns).Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for range many {
		e, ok := next(t, w)
		if !ok {
			t.Fatal("the watch ended")
		}
		names = append(names, e.Object.(*corev1.ConfigMap).Name)
	}
	w.Stop()
	if !slices.IsSorted(names) || names[many-1] != fmt.Sprintf("cm%02d", many-1) {
		t.Errorf("saw %v", names)
	}
}
