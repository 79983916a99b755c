// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A key that fails comes back later and later; one that panics harms no other; one
// key is never worked on twice at a time.
func TestLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		tries := map[string][]time.Time{}
		busy := map[string]bool{}
		var loop *Loop[string]
		loop = NewLoop(Env{}, "test", 4, func(_ context.Context, key string) error {
			mu.Lock()
			if busy[key] {
				t.Errorf("%s is reconciled twice at a time", key)
			}
			busy[key] = true
			tries[key] = append(tries[key], time.Now())
			n := len(tries[key])
			mu.Unlock()
			loop.Add(key + "") // while it is worked on
			time.Sleep(time.Millisecond)
			mu.Lock()
			busy[key] = false
			mu.Unlock()
			switch {
			case key == "panics" && n == 1:
				panic("one object that we cannot handle")
			case key == "fails" && n < 4:
				return errors.New("not yet")
			case n > 6:
				time.Sleep(time.Hour) // enough of it
			}
			return nil
		})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- loop.Run(ctx) }()
		for _, key := range []string{"works", "panics", "fails"} {
			loop.Add(key)
		}
		time.Sleep(10 * time.Second)
		mu.Lock()
		for _, key := range []string{"works", "panics", "fails"} {
			if len(tries[key]) < 2 {
				t.Errorf("%s was tried %d times", key, len(tries[key]))
			}
		}
		mu.Unlock()
		stop()
		time.Sleep(2 * time.Hour)
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// A reconcile that did something leaves a span with what it was about; one that did
// nothing leaves none.
func TestSpans(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)).Tracer("")
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: "p", Namespace: "n", UID: "u",
		OwnerReferences: []metav1.OwnerReference{{UID: "owner", Controller: ptr.To(true)}},
	}}
	var calls atomic.Int32
	loop := NewLoop(Env{Tracer: tracer}, "test", 1, func(ctx context.Context, key string) error {
		defer calls.Add(1)
		About(ctx, "Pod", pod)
		if key == "acts" {
			Did(ctx, "created", "Pod", pod)
			return errors.New("half done")
		}
		return nil
	})
	loop.once(t.Context(), "idles")
	loop.once(t.Context(), "acts")
	loop.queue.ShutDown()
	ended := spans.Ended()
	if len(ended) != 1 || calls.Load() != 2 {
		t.Fatalf("%d spans of %d reconciles", len(ended), calls.Load())
	}
	attrs := map[string]string{}
	for _, a := range ended[0].Attributes() {
		attrs[string(a.Key)] = a.Value.AsString()
	}
	if ended[0].Name() != "reconcile" || attrs["k8s.object.uid"] != "u" || attrs["k8s.object.owner.uid"] != "owner" ||
		attrs["wasmplane.controller"] != "test" {
		t.Errorf("%s %v", ended[0].Name(), attrs)
	}
	if events := ended[0].Events(); len(events) != 1 || events[0].Name != "created" || ended[0].Status().Description != "half done" {
		t.Errorf("events %v, status %v", events, ended[0].Status())
	}
}

func TestExpectations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, key := NewExpectations(), Key{Namespace: "n", Name: "a"}
		satisfied := func(want bool, when string) {
			t.Helper()
			if e.Satisfied(key) != want {
				t.Errorf("%s: satisfied is %v", when, !want)
			}
		}
		satisfied(true, "nothing expected")
		e.Expect(key, 2)
		e.Created(key, 1)
		satisfied(false, "one of two")
		e.Created(key, 1)
		satisfied(true, "both")
		e.Expect(key, 0, "x", "y")
		e.Deleted(key, "x")
		e.Deleted(key, "x") // the deletion timestamp, then the removal
		satisfied(false, "one of two deletions")
		e.Deleted(key, "y")
		satisfied(true, "both deletions")
		e.Expect(key, 1)
		time.Sleep(4 * time.Minute)
		satisfied(false, "after four minutes")
		if left := e.Left(key); left != time.Minute {
			t.Errorf("after four minutes %v are left", left)
		}
		time.Sleep(2 * time.Minute)
		satisfied(true, "an event that never comes")
		e.Expect(key, 1)
		e.Forget(key)
		satisfied(true, "another object of the same name")
	})
}

func TestClaim(t *testing.T) {
	owner := &corev1.ReplicationController{ObjectMeta: metav1.ObjectMeta{Name: "o", Namespace: "n", UID: "owner"}}
	kind := schema.GroupVersionKind{Version: "v1", Kind: "ReplicationController"}
	ref := func(uid types.UID) []metav1.OwnerReference {
		return []metav1.OwnerReference{{UID: uid, Controller: ptr.To(true)}}
	}
	deleted := metav1.Now()
	match, other := map[string]string{"app": "x"}, map[string]string{"app": "y"}
	pod := func(name string, l map[string]string, refs []metav1.OwnerReference) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "n", UID: types.UID(name), Labels: l, OwnerReferences: refs}}
	}
	leaving := pod("leaving-orphan", match, nil)
	leaving.DeletionTimestamp = &deleted
	pods := []*corev1.Pod{
		pod("mine", match, ref("owner")), pod("strayed", other, ref("owner")), pod("somebody-elses", match, ref("another")),
		pod("orphan", match, nil), pod("other-orphan", other, nil), leaving,
	}
	claim := func(fresh metav1.Object) ([]string, map[string]string, int, error) {
		patches, asked := map[string]string{}, 0
		c := &Claim{
			Owner: owner, Kind: kind, Selector: labels.SelectorFromSet(match), Finalizers: []string{"f"},
			Fresh: func(context.Context) (metav1.Object, error) { asked++; return fresh, nil },
			Patch: func(_ context.Context, obj metav1.Object, patch []byte) error {
				patches[obj.GetName()] = string(patch)
				return nil
			},
		}
		got, err := ClaimAll(t.Context(), c, pods)
		var names []string
		for _, p := range got {
			names = append(names, p.Name)
		}
		return names, patches, asked, err
	}

	names, patches, asked, err := claim(owner)
	if err != nil || !slices.Equal(names, []string{"mine", "orphan"}) || asked != 1 || len(patches) != 2 {
		t.Errorf("claimed %v, asked %d times, patches %v, %v", names, asked, patches, err)
	}
	if !strings.Contains(patches["orphan"], `"uid":"orphan"`) || !strings.Contains(patches["orphan"], `"controller":true`) ||
		!strings.Contains(patches["orphan"], `"finalizers":["f"]`) {
		t.Errorf("adoption: %s", patches["orphan"])
	}
	if !strings.Contains(patches["strayed"], `"$patch":"delete"`) || !json.Valid([]byte(patches["strayed"])) {
		t.Errorf("release: %s", patches["strayed"])
	}

	gone := owner.DeepCopy()
	gone.DeletionTimestamp = &deleted
	if names, _, _, err := claim(gone); err == nil || !slices.Equal(names, []string{"mine"}) {
		t.Errorf("an owner that is being deleted adopts: %v, %v", names, err)
	}
	another := owner.DeepCopy()
	another.UID = "reborn"
	if _, _, _, err := claim(another); err == nil {
		t.Error("an owner that is another one by now adopts")
	}
}

func TestSlowStart(t *testing.T) {
	var calls atomic.Int32
	n, err := SlowStart(20, func(i int) error {
		calls.Add(1)
		if i >= 3 {
			return errors.New("quota")
		}
		return nil
	})
	// 1, then 2, then 4 of which all fail; the other 13 are not tried.
	if n != 3 || err == nil || calls.Load() != 7 {
		t.Errorf("%d succeeded of %d calls, %v", n, calls.Load(), err)
	}
	calls.Store(0)
	if n, err := SlowStart(20, func(int) error { calls.Add(1); return nil }); n != 20 || err != nil || calls.Load() != 20 {
		t.Errorf("%d of %d, %v", n, calls.Load(), err)
	}
}

func TestWritten(t *testing.T) {
	w := NewWritten()
	at := func(version string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u", ResourceVersion: version}}
	}
	w.Record(at("100"))
	if w.Seen(at("99")) {
		t.Error("99 is older than 100")
	}
	if !w.Seen(at("100")) || !w.Seen(at("99")) {
		t.Error("once seen, it is forgotten")
	}
	w.Record(at("9"))
	if !w.Seen(at("10")) {
		t.Error("10 is newer than 9")
	}
}

// A write that was not answered may have been made: the cache must show what the server had
// after it. One that the server refused was not made, and costs no read.
func TestWrittenWithoutAnswer(t *testing.T) {
	pods := corev1.Resource("pods")
	at := func(uid types.UID, version string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "n", UID: uid, ResourceVersion: version}}
	}
	lost, unreachable := errors.New("connection reset by peer"), errors.New("unreachable")
	for _, c := range []struct {
		about  string
		failed error
		live   *corev1.Pod
		fails  error
		want   error
		reads  int
	}{
		{about: "refused: a conflict", failed: apierrors.NewConflict(pods, "p", nil)},
		{about: "refused: forbidden", failed: apierrors.NewForbidden(pods, "p", nil)},
		{about: "answered"},
		{about: "lost, and made", failed: lost, live: at("u", "12"), want: ErrStale, reads: 1},
		{about: "lost, and not made", failed: lost, live: at("u", "10"), reads: 1},
		{about: "timed out in the server, and made", failed: apierrors.NewTimeoutError("t", 1), live: at("u", "12"), want: ErrStale, reads: 1},
		{about: "an error of the store, and made", failed: apierrors.NewInternalError(lost), live: at("u", "12"), want: ErrStale, reads: 1},
		{about: "lost, and deleted since", failed: lost, fails: apierrors.NewNotFound(pods, "p"), want: ErrStale, reads: 1},
		{about: "lost, and made anew since", failed: lost, live: at("v", "12"), want: ErrStale, reads: 1},
		{about: "lost, and nobody answers", failed: lost, fails: unreachable, want: unreachable, reads: 1},
	} {
		w := NewWritten()
		w.Failed(at("u", "10"), c.failed)
		reads := 0
		fresh := func(context.Context) (metav1.Object, error) { reads++; return c.live, c.fails }
		if err := w.Sure(t.Context(), at("u", "10"), fresh); !errors.Is(err, c.want) || reads != c.reads {
			t.Errorf("%s: %v after %d reads, want %v after %d", c.about, err, reads, c.want, c.reads)
		}
		if c.live != nil && c.live.UID == "u" {
			if err := w.Sure(t.Context(), c.live, fresh); err != nil || reads != 1 {
				t.Errorf("%s: %v after %d reads once the cache shows it", c.about, err, reads)
			}
		}
		if w.Forget("u"); len(w.by)+len(w.doubted) != 0 {
			t.Errorf("%s: remembered: %v, %v", c.about, w.by, w.doubted)
		}
	}
}

func TestTemplateHash(t *testing.T) {
	template := &corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "a"}}}
	first := TemplateHash(template, nil)
	if first == "" || first != TemplateHash(template.DeepCopy(), nil) {
		t.Error("the hash of the same template differs")
	}
	if first == TemplateHash(template, ptr.To[int32](1)) {
		t.Error("a collision does not change the hash")
	}
}
