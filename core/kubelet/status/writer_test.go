// SPDX-License-Identifier: Apache-2.0

package status_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/wasmplane/wasmplane/core/kubelet/status"
)

// Of many statuses that come while one is written only the last is written; a
// failure is tried again; and the pod is deleted only when its last status is there.
func TestWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u"}}
		client := fake.NewSimpleClientset(p) // the other one knows managed fields, which are of no interest here
		var mu sync.Mutex
		var story []string
		client.PrependReactor("*", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
			time.Sleep(time.Second)
			mu.Lock()
			defer mu.Unlock()
			switch a := a.(type) {
			case clienttesting.PatchAction:
				_, msg, _ := strings.Cut(string(a.GetPatch()), `"message":"`)
				msg, _, _ = strings.Cut(msg, `"`)
				story = append(story, msg)
				if msg == "first" {
					return true, nil, errors.New("the API is away")
				}
			case clienttesting.DeleteActionImpl:
				story = append(story, "delete")
				if *a.DeleteOptions.GracePeriodSeconds != 0 || *a.DeleteOptions.Preconditions.UID != "u" {
					t.Errorf("%+v", a.DeleteOptions)
				}
			}
			return false, nil, nil
		})
		w := status.NewWriter(client, slog.New(slog.DiscardHandler), 0)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); _ = w.Run(ctx) }()
		set := func(msg string) { w.Set(p, &corev1.PodStatus{Message: msg}) }
		set("first")
		synctest.Wait()
		for _, m := range []string{"a", "b", "c", "d"} {
			set(m)
		}
		time.Sleep(10 * time.Second)
		set("d") // nothing new
		time.Sleep(10 * time.Second)
		set("last")
		if err := w.Delete(ctx, p); err != nil {
			t.Error(err)
		}
		cancel()
		<-done
		if got := strings.Join(story, " "); got != "first d last delete" {
			t.Errorf("story: %s", got)
		}
	})
}

// A pod that is being deleted has one status written of two that come one right after the other, and both where time
// passes between them; its deletion waits for no time.
func TestTheEndOfAPodIsOneWrite(t *testing.T) {
	for name, c := range map[string]struct {
		between time.Duration
		want    string
	}{"at once": {time.Millisecond, "Failed delete"}, "later": {time.Second, "Running Failed delete"}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u", DeletionTimestamp: &metav1.Time{Time: time.Now()}}}
				client := fake.NewSimpleClientset(p)
				var story []string // of one write at a time
				client.PrependReactor("*", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
					if patch, ok := a.(clienttesting.PatchAction); ok {
						_, phase, _ := strings.Cut(string(patch.GetPatch()), `"phase":"`)
						phase, _, _ = strings.Cut(phase, `"`)
						story = append(story, phase)
						return false, nil, nil
					}
					story = append(story, a.GetVerb())
					return false, nil, nil
				})
				w := status.NewWriter(client, slog.New(slog.DiscardHandler), 0)
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan struct{})
				go func() { defer close(done); _ = w.Run(ctx) }()
				w.Set(p, &corev1.PodStatus{Phase: corev1.PodRunning})
				time.Sleep(c.between)
				w.Set(p, &corev1.PodStatus{Phase: corev1.PodFailed})
				before := time.Now()
				if err := w.Delete(ctx, p); err != nil {
					t.Error(err)
				}
				if waited := time.Since(before); waited > 0 {
					t.Errorf("its deletion waited for %s", waited)
				}
				cancel()
				<-done
				if got := strings.Join(story, " "); got != c.want {
					t.Errorf("written: %s; want %s", got, c.want)
				}
			})
		})
	}
}

// While the API is away nobody waits for it, and pods that can be written are.
func TestNobodyWaitsForTheAPI(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewSimpleClientset()
		var mu sync.Mutex
		written := map[string]int{}
		client.PrependReactor("patch", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
			mu.Lock()
			defer mu.Unlock()
			name := a.(clienttesting.PatchAction).GetName()
			written[name]++
			if name != "good" {
				return true, nil, errors.New("the API is away")
			}
			return true, &corev1.Pod{}, nil
		})
		w := status.NewWriter(client, slog.New(slog.DiscardHandler), 2)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); _ = w.Run(ctx) }()
		began := time.Now()
		for i := range 1000 {
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "bad", UID: types.UID(fmt.Sprint(i))}}
			w.Set(p, &corev1.PodStatus{Phase: corev1.PodRunning})
		}
		w.Set(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "good", UID: "good"}}, &corev1.PodStatus{Phase: corev1.PodRunning})
		if took := time.Since(began); took > 0 {
			t.Errorf("asking took %v", took)
		}
		time.Sleep(time.Second)
		mu.Lock()
		if written["good"] != 1 || written["bad"] < 2000 {
			t.Errorf("written %v", written)
		}
		mu.Unlock()
		cancel()
		<-done
		time.Sleep(time.Minute) // the timers that are left
	})
}

// Whoever changes what the kubelet owns is corrected: a phase, and conditions and
// containers' states, as the node lifecycle controller changes them when a node is silent.
func TestAStatusThatSomebodyElseChangedIsPutRight(t *testing.T) {
	yes := true
	want := corev1.PodStatus{
		Phase: corev1.PodRunning,
		Conditions: []corev1.PodCondition{
			{Type: "example.com/gate", Status: "True"},
			{Type: corev1.PodReady, Status: "True"},
			{Type: corev1.ContainersReady, Status: "True"},
		},
		ContainerStatuses: []corev1.ContainerStatus{{Name: "c", Ready: true, Started: &yes}},
	}
	for name, change := range map[string]func(*corev1.PodStatus){
		"phase":             func(st *corev1.PodStatus) { st.Phase = corev1.PodPending },
		"ready":             func(st *corev1.PodStatus) { st.Conditions[1].Status, st.Conditions[1].Reason = "False", "NodeNotReady" },
		"containers' ready": func(st *corev1.PodStatus) { st.ContainerStatuses[0].Ready = false },
		"started":           func(st *corev1.PodStatus) { st.ContainerStatuses[0].Started = nil },
		"condition removed": func(st *corev1.PodStatus) { st.Conditions = st.Conditions[:2] },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u", ResourceVersion: "1"}}
				client := fake.NewSimpleClientset(p)
				w := status.NewWriter(client, slog.New(slog.DiscardHandler), 0)
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan struct{})
				go func() { defer close(done); _ = w.Run(ctx) }()
				w.Set(p, want.DeepCopy())
				synctest.Wait()
				other := p.DeepCopy()
				want.DeepCopyInto(&other.Status)
				change(&other.Status)
				other.ResourceVersion = "7"
				if _, err := client.CoreV1().Pods("ns").UpdateStatus(ctx, other, metav1.UpdateOptions{}); err != nil {
					t.Fatal(err)
				}
				w.Seen(other)
				synctest.Wait()
				got, err := client.CoreV1().Pods("ns").Get(ctx, "p", metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if !apiequality.Semantic.DeepEqual(got.Status, want) {
					t.Errorf("status %+v, want %+v", got.Status, want)
				}
				cancel()
				<-done
			})
		})
	}
}

// A change that is seen while a patch is under way, which says nothing of it, is put right too.
func TestAChangeDuringAWriteIsPutRight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u", ResourceVersion: "1"}}
		ready := func(message string) *corev1.PodStatus {
			return &corev1.PodStatus{Message: message, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: "True"}}}
		}
		p.Status = *ready("")
		client := fake.NewSimpleClientset(p)
		w := status.NewWriter(client, slog.New(slog.DiscardHandler), 0)
		other := p.DeepCopy()
		other.Status.Conditions[0].Status, other.ResourceVersion = "False", "7"
		var once sync.Once
		client.PrependReactor("patch", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			once.Do(func() {
				if err := client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), other, "ns"); err != nil {
					t.Error(err)
				}
				w.Seen(other)
			})
			return false, nil, nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); _ = w.Run(ctx) }()
		w.Set(p, ready("a"))
		synctest.Wait()
		got, err := client.CoreV1().Pods("ns").Get(ctx, "p", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if !apiequality.Semantic.DeepEqual(got.Status, *ready("a")) {
			t.Errorf("status %+v", got.Status)
		}
		cancel()
		<-done
	})
}

// A pod that is forgotten while its write waits to be tried again, and is known again, is
// written by one writer and not two: the second would wait for ever to tell of a deletion
// that the first has told of.
func TestAForgottenPodThatComesBackIsDeletedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u"}}
		client := fake.NewSimpleClientset(p)
		client.PrependReactor("patch", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, errors.New("the API is away")
		})
		deletions := 0
		client.PrependReactor("delete", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			deletions++
			time.Sleep(time.Second) // the write of before is tried again in the middle of it
			return false, nil, nil
		})
		w := status.NewWriter(client, slog.New(slog.DiscardHandler), 0)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- w.Run(ctx) }()
		w.Set(p, &corev1.PodStatus{Message: "not written"})
		synctest.Wait()
		w.Forget(p.UID)
		if err := w.Delete(ctx, p); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		if deletions != 1 {
			t.Errorf("the pod was deleted %d times", deletions)
		}
		cancel()
		if err := <-ended; err != nil { // not while a write hangs
			t.Error(err)
		}
	})
}
