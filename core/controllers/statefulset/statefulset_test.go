// SPDX-License-Identifier: Apache-2.0

package statefulset

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/wasmplane/wasmplane/core/controllers"
	"github.com/wasmplane/wasmplane/core/controllers/controllertest"
)

func db(replicas int32) *appsv1.StatefulSet {
	l := map[string]string{"app": "db"}
	return &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: "db", Namespace: "default", UID: "db", Generation: 1},
		Spec: appsv1.StatefulSetSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: l}, ServiceName: "db",
			PodManagementPolicy: appsv1.OrderedReadyPodManagement, RevisionHistoryLimit: ptr.To[int32](10),
			UpdateStrategy: appsv1.StatefulSetUpdateStrategy{
				Type:          appsv1.RollingUpdateStatefulSetStrategyType,
				RollingUpdate: &appsv1.RollingUpdateStatefulSetStrategy{Partition: ptr.To[int32](0)},
			},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: l},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "db:1"}}},
			},
			VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}}},
			PersistentVolumeClaimRetentionPolicy: &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{
				WhenDeleted: appsv1.RetainPersistentVolumeClaimRetentionPolicyType, WhenScaled: appsv1.DeletePersistentVolumeClaimRetentionPolicyType,
			},
		},
	}
}

func ready(pod *corev1.Pod) {
	pod.Status.Phase = corev1.PodRunning
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}
}

// journal notes in which order pods come and go.
type journal struct {
	mu      sync.Mutex
	entries []string
}

func (j *journal) react(verb string) clienttesting.ReactionFunc {
	return func(a clienttesting.Action) (bool, runtime.Object, error) {
		j.mu.Lock()
		defer j.mu.Unlock()
		switch action := a.(type) {
		case clienttesting.CreateAction:
			// A second try from a stale cache is refused, for the name is taken.
			if pod, ok := action.GetObject().(*corev1.Pod); ok && !slices.Contains(j.entries, verb+pod.Name+"="+pod.Spec.Containers[0].Image) {
				j.entries = append(j.entries, verb+pod.Name+"="+pod.Spec.Containers[0].Image)
			}
		case clienttesting.DeleteAction:
			j.entries = append(j.entries, verb+action.GetName())
		}
		return false, nil, nil
	}
}

func (j *journal) take() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	defer func() { j.entries = nil }()
	return strings.Join(j.entries, " ")
}

// Pods come in order, each with its claim; an update goes from the last to the
// first; scaling down takes the last, and its claim's owner says that it may go.
func TestInOrder(t *testing.T) {
	c := controllertest.New(db(3))
	j := &journal{}
	c.Client.PrependReactor("create", "pods", j.react("+"))
	c.Client.PrependReactor("delete", "pods", j.react("-"))
	ctl, err := New(c.Env(t), 1)
	if err != nil {
		t.Fatal(err)
	}
	c.Start(t, ctl)
	settled := func(replicas int32) {
		t.Helper()
		controllertest.Eventually(t, func() error {
			pods, err := c.Client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
			if err != nil {
				return err
			}
			for i := range pods.Items {
				if pod := &pods.Items[i]; len(pod.Status.Conditions) == 0 {
					ready(pod)
					_, _ = c.Client.CoreV1().Pods("default").UpdateStatus(t.Context(), pod, metav1.UpdateOptions{})
				}
			}
			set, err := c.Client.AppsV1().StatefulSets("default").Get(t.Context(), "db", metav1.GetOptions{})
			if err != nil {
				return err
			}
			if s := set.Status; s.ReadyReplicas != replicas || s.UpdatedReplicas != replicas || s.Replicas != replicas ||
				s.CurrentRevision != s.UpdateRevision || s.ObservedGeneration != set.Generation {
				return fmt.Errorf("status %+v", s)
			}
			return nil
		})
	}
	change := func(f func(*appsv1.StatefulSet)) {
		t.Helper()
		controllertest.Eventually(t, func() error {
			set, err := c.Client.AppsV1().StatefulSets("default").Get(t.Context(), "db", metav1.GetOptions{})
			if err != nil {
				return err
			}
			f(set)
			set.Generation++
			_, err = c.Client.AppsV1().StatefulSets("default").Update(t.Context(), set, metav1.UpdateOptions{})
			return err
		})
	}
	settled(3)
	if got := j.take(); got != "+db-0=db:1 +db-1=db:1 +db-2=db:1" {
		t.Errorf("at first: %s", got)
	}
	change(func(s *appsv1.StatefulSet) { s.Spec.Template.Spec.Containers[0].Image = "db:2" })
	settled(3)
	if got := j.take(); got != "-db-2 +db-2=db:2 -db-1 +db-1=db:2 -db-0 +db-0=db:2" {
		t.Errorf("the update: %s", got)
	}
	change(func(s *appsv1.StatefulSet) { s.Spec.Replicas = ptr.To[int32](1) })
	settled(1)
	if got := j.take(); got != "-db-2 -db-1" {
		t.Errorf("scaling down: %s", got)
	}
	claims, err := c.Client.CoreV1().PersistentVolumeClaims("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, claim := range claims.Items {
		want := claim.Name != "data-db-0"
		if owned := len(claim.OwnerReferences) == 1; owned != want {
			t.Errorf("claim %s: owners %v", claim.Name, claim.OwnerReferences)
		}
	}
	if len(claims.Items) != 3 {
		t.Errorf("%d claims", len(claims.Items))
	}
}

// In order: at most one pod is missing or not ready because of us, and ordinals
// have no gaps above one that isn't ready. In the end all are there and new.
func TestOrderHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		replicas := rapid.Int32Range(1, 5).Draw(t, "replicas")
		set := db(replicas)
		pods := map[string]*corev1.Pod{}
		serial, update := 0, "r1"
		now := time.Unix(1_800_000_000, 0)
		list := func() []*corev1.Pod {
			var all []*corev1.Pod
			for i := range 10 {
				if p := pods[podName(set, i)]; p != nil {
					all = append(all, p.DeepCopy())
				}
			}
			return all
		}
		step := func() {
			now = now.Add(time.Second)
			current := set.Status.CurrentRevision
			if current == "" {
				current = update
			}
			p := decide(situation{set: set, pods: list(), current: current, update: update, now: now})
			for _, made := range p.create {
				if pods[podName(set, made.ordinal)] != nil {
					t.Fatalf("%d is made twice", made.ordinal)
				}
				pod := newPod(set, &set.Spec.Template, made.revision, made.ordinal)
				serial++
				pod.UID = types.UID(fmt.Sprint(serial))
				pods[pod.Name] = pod
			}
			for _, pod := range p.remove {
				delete(pods, pod.Name)
			}
			set.Status = p.status
		}
		settle := func() {
			for range 40 {
				step()
				for _, pod := range pods {
					ready(pod)
				}
			}
		}
		settle()
		for range rapid.IntRange(0, 40).Draw(t, "steps") {
			before := len(controllers.Filter(list(), running))
			switch rapid.IntRange(0, 4).Draw(t, "op") {
			case 0:
				update = rapid.SampledFrom([]string{"r1", "r2", "r3"}).Draw(t, "template")
			case 1:
				if all := list(); len(all) > 0 {
					ready(pods[rapid.SampledFrom(all).Draw(t, "pod").Name])
				}
			default:
				step()
				after := len(controllers.Filter(list(), running))
				if after < before && after < int(replicas)-1 {
					t.Fatalf("only %d of %d are ready", after, replicas)
				}
			}
		}
		settle()
		all := list()
		if len(all) != int(replicas) || slices.ContainsFunc(all, func(p *corev1.Pod) bool { return revisionOf(p) != update }) {
			t.Fatalf("in the end: %d pods of %d", len(all), replicas)
		}
		if set.Status.CurrentRevision != update {
			t.Fatalf("status %+v", set.Status)
		}
	})
}

// TestWhatIsWantedCostsNothing: a plan's cost follows from the pods that there are.
func TestWhatIsWantedCostsNothing(t *testing.T) {
	set := db(math.MaxInt32)
	set.Spec.Ordinals = &appsv1.StatefulSetOrdinals{Start: math.MaxInt32}
	in := situation{set: set, current: "a", update: "b", now: time.Now()}
	if p := decide(in); len(p.create) != 1 || p.create[0].ordinal != math.MaxInt32 {
		t.Errorf("in order: the plan creates %d pods: %v", len(p.create), p.create)
	}
	set.Spec.PodManagementPolicy = appsv1.ParallelPodManagement
	second := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: podName(set, math.MaxInt32+1), Namespace: "default"}}
	second.Labels = map[string]string{appsv1.StatefulSetRevisionLabel: "a"}
	in.pods = []*corev1.Pod{second}
	p := decide(in)
	if len(p.create) != burst || p.create[0].ordinal != math.MaxInt32 || p.create[1].ordinal != math.MaxInt32+2 {
		t.Errorf("in parallel: the plan creates %d pods", len(p.create))
	}
	if len(p.remove) != 1 || p.status.Replicas != 1 {
		t.Errorf("the old pod, which is not ready, is to be made anew: %d deletions, %d replicas", len(p.remove), p.status.Replicas)
	}
	set.Spec.Replicas = ptr.To[int32](0)
	for n := range 3 * burst {
		in.pods = append(in.pods, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: podName(set, n), Namespace: "default"}})
	}
	if p := decide(in); len(p.create) != 0 || len(p.remove) != burst {
		t.Errorf("down to none: %d creations, %d deletions", len(p.create), len(p.remove))
	}
}

func TestOrdinal(t *testing.T) {
	set := db(1)
	for name, want := range map[string]int{
		"db-0": 0, "db-12": 12, "db-01": -1, "db--1": -1, "db-x": -1, "other-0": -1, "db-a-0": -1,
		"db-": -1,
	} {
		if got := ordinal(set, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}}); got != want {
			t.Errorf("%s: %d, want %d", name, got, want)
		}
	}
}
