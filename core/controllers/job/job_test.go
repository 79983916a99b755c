// SPDX-License-Identifier: Apache-2.0

package job

import (
	"fmt"
	"slices"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
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

func countTo(completions, parallelism, backoffLimit int32) *batchv1.Job {
	labels := map[string]string{"job": "count"}
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "count", Namespace: "default", UID: "job", Generation: 1},
		Spec: batchv1.JobSpec{
			Completions: &completions, Parallelism: &parallelism, BackoffLimit: &backoffLimit,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
			},
		},
	}
}

func asIndexed(job *batchv1.Job) *batchv1.Job {
	job.Spec.CompletionMode = ptr.To(batchv1.IndexedCompletion)
	return job
}

// runs ends every pod that has not ended, in the phase that end chooses.
func runs(t *testing.T, c *controllertest.Cluster, end func(*corev1.Pod) corev1.PodPhase) {
	t.Helper()
	pods, err := c.Client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range pods.Items {
		if pod := &pods.Items[i]; pod.Status.Phase == "" {
			pod.Status.Phase = end(pod)
			// A conflict means that somebody was faster; the next round sees it.
			_, _ = c.Client.CoreV1().Pods("default").UpdateStatus(t.Context(), pod, metav1.UpdateOptions{})
		}
	}
}

func start(t *testing.T, job *batchv1.Job) *controllertest.Cluster {
	t.Helper()
	c := controllertest.New(job)
	jc, err := New(c.Env(t), 2)
	if err != nil {
		t.Fatal(err)
	}
	c.Start(t, jc)
	return c
}

func until(t *testing.T, c *controllertest.Cluster, end func(*corev1.Pod) corev1.PodPhase, kind batchv1.JobConditionType) *batchv1.Job {
	t.Helper()
	var job *batchv1.Job
	controllertest.Eventually(t, func() error {
		runs(t, c, end)
		var err error
		job, err = c.Client.BatchV1().Jobs("default").Get(t.Context(), "count", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if !isTrue(job.Status.Conditions, kind) {
			return fmt.Errorf("status %+v", job.Status)
		}
		return nil
	})
	return job
}

func TestIndexedJobCompletes(t *testing.T) {
	c := start(t, asIndexed(countTo(5, 2, 6)))
	seen := map[string]bool{}
	job := until(t, c, func(p *corev1.Pod) corev1.PodPhase {
		seen[p.Labels[batchv1.JobCompletionIndexAnnotation]] = true
		return corev1.PodSucceeded
	}, batchv1.JobComplete)
	if job.Status.Succeeded != 5 || job.Status.CompletedIndexes != "0-4" || len(seen) != 5 || job.Status.CompletionTime == nil {
		t.Errorf("status %+v, indexes %v", job.Status, seen)
	}
	pods, err := c.Client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range pods.Items {
		if hasFinalizer(&pods.Items[i]) {
			t.Errorf("pod %s still has its finalizer", pods.Items[i].Name)
		}
	}
}

func TestFailureBeyondLimit(t *testing.T) {
	c := start(t, countTo(1, 1, 0))
	job := until(t, c, func(*corev1.Pod) corev1.PodPhase { return corev1.PodFailed }, batchv1.JobFailed)
	cond := find(job.Status.Conditions, batchv1.JobFailed)
	if cond.Reason != "BackoffLimitExceeded" || cond.Message != "Job has reached the specified backoff limit" || job.Status.Failed != 1 {
		t.Errorf("%+v, status %+v", cond, job.Status)
	}
}

// TestAPodThatIsFirstSeenAsDeletedWasCreated: a user was faster than the watch. What was
// expected has come, so that the pod is replaced.
func TestAPodThatIsFirstSeenAsDeletedWasCreated(t *testing.T) {
	job := countTo(1, 1, 6)
	c := controllertest.New(job)
	jc, err := New(c.Env(t), 1)
	if err != nil {
		t.Fatal(err)
	}
	c.Start(t) // the informers alone
	c.Informers.WaitForCacheSync(t.Context().Done())
	key := controllers.Key{Namespace: "default", Name: "count"}
	jc.expected.Expect(key, 1)
	now := metav1.Now()
	jc.podChanged(nil, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: "p", Namespace: "default", UID: "p", DeletionTimestamp: &now, Finalizers: []string{batchv1.JobTrackingFinalizer},
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(job, jobKind)},
	}})
	if !jc.expected.Satisfied(key) {
		t.Error("the creation is expected still")
	}
}

// TestAPodThatLosesItsFinalizerMeanwhileIsCountedOnce: a pod was counted and
// released. The cache still has its finalizer when a reconcile reads the pods, and
// the event that shows it gone comes before the plan is made.
func TestAPodThatLosesItsFinalizerMeanwhileIsCountedOnce(t *testing.T) {
	job := countTo(2, 2, 6)
	job.Status = batchv1.JobStatus{Failed: 1, UncountedTerminatedPods: &batchv1.UncountedTerminatedPods{}}
	pod := func(name string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: "default", UID: types.UID(name), Labels: job.Spec.Template.Labels,
			Finalizers: []string{batchv1.JobTrackingFinalizer},
		}}
	}
	counted, orphan := pod("counted"), pod("orphan")
	counted.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(job, jobKind)}
	counted.Status.Phase = corev1.PodFailed
	c := controllertest.New(job, counted, orphan)
	jc, err := New(c.Env(t), 1)
	if err != nil {
		t.Fatal(err)
	}
	c.Start(t) // the informers alone
	c.Informers.WaitForCacheSync(t.Context().Done())
	jc.markReleased(job.UID, counted.UID)
	// The orphan makes the controller read the Job anew while it claims its pods.
	c.Client.PrependReactor("get", "jobs", func(clienttesting.Action) (bool, runtime.Object, error) {
		bare := counted.DeepCopy()
		bare.Finalizers = nil
		jc.podChanged(counted, bare)
		return false, nil, nil
	})
	if err := jc.reconcile(t.Context(), controllers.Key{Namespace: "default", Name: "count"}); err != nil {
		t.Fatal(err)
	}
	got, err := c.Client.BatchV1().Jobs("default").Get(t.Context(), "count", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got.Status.Failed != 1 || len(got.Status.UncountedTerminatedPods.Failed) != 0 {
		t.Errorf("one pod has failed, the status is %+v", got.Status)
	}
}

func TestIndexes(t *testing.T) {
	set := parseIndexes("0,2-3,9-20,x,7-5", 12)
	if got := set.String(); got != "0,2,3,9-11" {
		t.Errorf("got %q", got)
	}
	if got := set.missing(4, 12); !slices.Equal(got, []int{1, 4, 5, 6}) {
		t.Errorf("missing %v", got)
	}
	if !set.has(10) || set.has(4) || set.count() != 6 {
		t.Errorf("has or count: %v", set)
	}
}

// TestSetsOverlap: by the indexes one by one.
func TestSetsOverlap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		some := rapid.SliceOf(rapid.IntRange(0, 40))
		a, b := indexes(nil).with(some.Draw(t, "a")...), indexes(nil).with(some.Draw(t, "b")...)
		want := 0
		for i := range 41 {
			if a.has(i) && b.has(i) {
				want++
			}
		}
		if got := a.overlap(b); got != want {
			t.Errorf("%s and %s have %d in common, counted %d", a, b, want, got)
		}
	})
}

// world is a server, a kubelet and a controller that may die between any two
// writes. It checks that every pod that ended is counted once.
type world struct {
	job     *batchv1.Job
	pods    map[types.UID]*corev1.Pod
	serial  int
	ended   map[corev1.PodPhase]int
	created int
}

func (w *world) list() []*corev1.Pod {
	var all []*corev1.Pod
	for i := range w.serial {
		if p := w.pods[types.UID(fmt.Sprint(i))]; p != nil {
			all = append(all, p.DeepCopy())
		}
	}
	return all
}

// reconcile does what the controller does, and dies after so many writes.
func (w *world) reconcile(writes int, now time.Time) {
	dies := func() bool { writes--; return writes < 0 }
	in := situation{
		job: w.job.DeepCopy(), pods: w.list(), settled: true, manage: true, removed: map[types.UID]bool{},
		released: map[types.UID]bool{}, now: now,
	}
	for {
		if finished(in.job) {
			for _, p := range w.pods {
				p.Finalizers = nil
			}
			return
		}
		p := decide(in)
		if in.manage {
			for _, pod := range p.remove {
				if dies() {
					return
				}
				if p.forget {
					w.pods[pod.UID].Finalizers = nil
				}
				w.delete(pod.UID)
				in.removed[pod.UID] = true
			}
			for _, made := range p.create {
				if dies() {
					return
				}
				pod := newPod(w.job, made)
				pod.UID = types.UID(fmt.Sprint(w.serial))
				w.serial++
				w.created++
				w.pods[pod.UID] = pod
			}
		}
		if dies() {
			return
		}
		if p.status != nil {
			w.job.Status = p.status.Status
		}
		for _, pod := range p.release {
			if dies() {
				return
			}
			if there := w.pods[pod.UID]; there != nil {
				there.Finalizers = nil
			}
			in.released[pod.UID] = true
		}
		if len(p.release) == 0 {
			return
		}
		in.job, in.manage = w.job.DeepCopy(), false
	}
}

func (w *world) delete(uid types.UID) {
	p := w.pods[uid]
	if len(p.Finalizers) == 0 {
		delete(w.pods, uid)
		return
	}
	p.DeletionTimestamp = ptr.To(metav1.Now())
}

// sweep removes pods that are deleted and free.
func (w *world) sweep() {
	for uid, p := range w.pods {
		if p.DeletionTimestamp != nil {
			if p.Status.Phase == "" || p.Status.Phase == corev1.PodRunning {
				p.Status.Phase = corev1.PodFailed
			}
			if len(p.Finalizers) == 0 {
				delete(w.pods, uid)
			}
		}
	}
}

func TestEveryEndIsCountedOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		completions := rapid.Int32Range(1, 6).Draw(t, "completions")
		job := countTo(completions, rapid.Int32Range(1, 4).Draw(t, "parallelism"), 1000)
		if rapid.Bool().Draw(t, "indexed") {
			job = asIndexed(job)
		}
		w := &world{job: job, pods: map[types.UID]*corev1.Pod{}, ended: map[corev1.PodPhase]int{}}
		now := time.Now()
		end := func(phases ...corev1.PodPhase) {
			for _, p := range w.list() {
				if p.Status.Phase != "" || p.DeletionTimestamp != nil || !rapid.Bool().Draw(t, "ends") {
					continue
				}
				phase := rapid.SampledFrom(phases).Draw(t, "phase")
				w.pods[p.UID].Status.Phase = phase
				w.ended[phase]++
			}
		}
		for range rapid.IntRange(0, 25).Draw(t, "steps") {
			now = now.Add(time.Hour) // backoff is over
			w.reconcile(rapid.IntRange(0, 12).Draw(t, "writes before death"), now)
			end(corev1.PodSucceeded, corev1.PodFailed)
			w.sweep()
			if active := len(controllers.Filter(w.list(), controllers.PodActive)); active > int(*job.Spec.Parallelism) {
				t.Fatalf("%d pods run side by side", active)
			}
		}
		for range 60 {
			now = now.Add(time.Hour)
			w.reconcile(1000, now)
			for _, p := range w.pods {
				if p.Status.Phase == "" && p.DeletionTimestamp == nil {
					p.Status.Phase = corev1.PodSucceeded
					w.ended[corev1.PodSucceeded]++
				}
			}
			w.sweep()
		}
		s := w.job.Status
		if !isTrue(s.Conditions, batchv1.JobComplete) {
			t.Fatalf("not complete: %+v", s)
		}
		if s.Succeeded != completions {
			t.Fatalf("succeeded %d of %d: %+v", s.Succeeded, completions, s)
		}
		if int(s.Failed) != w.ended[corev1.PodFailed] {
			t.Fatalf("counted %d failures, there were %d", s.Failed, w.ended[corev1.PodFailed])
		}
		if u := s.UncountedTerminatedPods; len(u.Succeeded)+len(u.Failed) > 0 {
			t.Fatalf("uncounted left: %+v", u)
		}
	})
}

// A pod that somebody deletes while it runs is a failure at once. It may yet end well, and is none of the successes.
func TestADeletedPodIsNoSuccess(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		completions := rapid.Int32Range(1, 4).Draw(t, "completions")
		job := countTo(completions, rapid.Int32Range(1, 4).Draw(t, "parallelism"), 1000)
		if rapid.Bool().Draw(t, "indexed") {
			job = asIndexed(job)
		}
		w := &world{job: job, pods: map[types.UID]*corev1.Pod{}}
		now := time.Now()
		for range rapid.IntRange(0, 25).Draw(t, "steps") {
			now = now.Add(time.Hour)
			w.reconcile(rapid.IntRange(0, 8).Draw(t, "writes before death"), now)
			for _, p := range w.list() {
				there := w.pods[p.UID]
				if there.Status.Phase == "" {
					there.Status.Phase = rapid.SampledFrom([]corev1.PodPhase{"", "", corev1.PodSucceeded, corev1.PodFailed}).Draw(t, "end")
				}
				if there.DeletionTimestamp == nil && rapid.Bool().Draw(t, "deleted") {
					w.delete(p.UID)
				}
				if there.Status.Phase != "" && there.DeletionTimestamp != nil && len(there.Finalizers) == 0 {
					delete(w.pods, p.UID)
				}
			}
		}
		for range 60 {
			now = now.Add(time.Hour)
			w.reconcile(1000, now)
			for _, p := range w.pods {
				if p.Status.Phase == "" {
					p.Status.Phase = corev1.PodSucceeded
				}
			}
			w.sweep()
		}
		if s := w.job.Status; !isTrue(s.Conditions, batchv1.JobComplete) || s.Succeeded < completions {
			t.Fatalf("%d of %d have succeeded: %+v", s.Succeeded, completions, s)
		}
	})
}

// What ends a Job, and in whose words.
func TestVerdict(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	pod := func(phase corev1.PodPhase, index int, change func(*corev1.Pod)) *corev1.Pod {
		p := newPod(countTo(1, 1, 1), creation{index: index})
		p.Name, p.UID, p.Namespace = fmt.Sprint("p", index), types.UID(fmt.Sprint("p", index)), "default"
		p.Status.Phase = phase
		if change != nil {
			change(p)
		}
		return p
	}
	exits := func(code int32) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{
				Name:  "c",
				State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code}},
			}}
		}
	}
	failOn42 := &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{{
		Action:      batchv1.PodFailurePolicyActionFailJob,
		OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{Operator: batchv1.PodFailurePolicyOnExitCodesOpIn, Values: []int32{42}},
	}}}
	for name, tc := range map[string]struct {
		change func(*batchv1.Job)
		pods   []*corev1.Pod
		reason string
		text   string
	}{
		"nothing yet":      {pods: []*corev1.Pod{pod(corev1.PodRunning, -1, nil)}},
		"the deadline":     {change: func(j *batchv1.Job) { j.Spec.ActiveDeadlineSeconds = ptr.To[int64](60) }, pods: []*corev1.Pod{pod(corev1.PodRunning, -1, nil)}, reason: "DeadlineExceeded", text: "Job was active longer than specified deadline"},
		"not if suspended": {change: func(j *batchv1.Job) { j.Spec.ActiveDeadlineSeconds, j.Spec.Suspend = ptr.To[int64](60), ptr.To(true) }},
		"an exit code": {
			change: func(j *batchv1.Job) { j.Spec.PodFailurePolicy = failOn42 }, pods: []*corev1.Pod{pod(corev1.PodFailed, -1, exits(42))},
			reason: "PodFailurePolicy", text: "Container c for pod default/p-1 failed with exit code 42 matching FailJob rule at index 0",
		},
		"another exit code": {change: func(j *batchv1.Job) { j.Spec.PodFailurePolicy = failOn42 }, pods: []*corev1.Pod{pod(corev1.PodFailed, -1, exits(1))}},
		"restarts in place": {
			change: func(j *batchv1.Job) { j.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyOnFailure },
			pods: []*corev1.Pod{pod(corev1.PodRunning, -1,
				func(p *corev1.Pod) { p.Status.ContainerStatuses = []corev1.ContainerStatus{{RestartCount: 3}} })},
			reason: "BackoffLimitExceeded", text: "Job has reached the specified backoff limit",
		},
		"a success policy": {
			change: func(j *batchv1.Job) {
				asIndexed(j)
				j.Spec.SuccessPolicy = &batchv1.SuccessPolicy{Rules: []batchv1.SuccessPolicyRule{{SucceededIndexes: ptr.To("1")}}}
			},
			pods: []*corev1.Pod{pod(corev1.PodSucceeded, 1, nil), pod(corev1.PodRunning, 0, nil)}, reason: "SuccessPolicy",
			text: "Matched rules at index 0",
		},
		"too many lost indexes": {
			change: func(j *batchv1.Job) {
				asIndexed(j)
				j.Spec.BackoffLimit, j.Spec.BackoffLimitPerIndex, j.Spec.MaxFailedIndexes = ptr.To[int32](1000), ptr.To[int32](0), ptr.To[int32](0)
			},
			pods: []*corev1.Pod{pod(corev1.PodFailed, 0, nil)}, reason: "MaxFailedIndexesExceeded",
			text: "Job has exceeded the specified maximal number of failed indexes",
		},
		"all done": {pods: []*corev1.Pod{pod(corev1.PodSucceeded, -1, nil), pod(corev1.PodSucceeded, -1, func(p *corev1.Pod) { p.UID = "second" })}, reason: "CompletionsReached", text: "Reached expected number of succeeded pods"},
	} {
		job := countTo(2, 2, 3)
		job.Status.StartTime = ptr.To(metav1.NewTime(now.Add(-2 * time.Minute)))
		if tc.change != nil {
			tc.change(job)
		}
		p := decide(situation{job: job, pods: tc.pods, settled: true, manage: true, removed: map[types.UID]bool{}, now: now})
		var got *batchv1.JobCondition
		if p.status != nil {
			for _, kind := range []batchv1.JobConditionType{batchv1.JobFailureTarget, batchv1.JobSuccessCriteriaMet} {
				if c := find(p.status.Status.Conditions, kind); c != nil {
					got = c
				}
			}
		}
		switch {
		case got == nil && tc.reason != "":
			t.Errorf("%s: no verdict", name)
		case got != nil && (got.Reason != tc.reason || got.Message != tc.text):
			t.Errorf("%s: %s: %s", name, got.Reason, got.Message)
		}
	}
}

// A suspended Job has no pods; resumed, it goes on, and its clock begins anew.
func TestSuspend(t *testing.T) {
	job := countTo(3, 2, 6)
	c := start(t, job)
	active := func(want int32) {
		t.Helper()
		controllertest.Eventually(t, func() error {
			j, err := c.Client.BatchV1().Jobs("default").Get(t.Context(), "count", metav1.GetOptions{})
			if err != nil {
				return err
			}
			if j.Status.Active != want || j.Status.Failed != 0 {
				return fmt.Errorf("%+v", j.Status)
			}
			return nil
		})
	}
	suspend := func(on bool) {
		t.Helper()
		controllertest.Eventually(t, func() error {
			j, err := c.Client.BatchV1().Jobs("default").Get(t.Context(), "count", metav1.GetOptions{})
			if err != nil {
				return err
			}
			j.Spec.Suspend = &on
			_, err = c.Client.BatchV1().Jobs("default").Update(t.Context(), j, metav1.UpdateOptions{})
			return err
		})
	}
	active(2)
	suspend(true)
	active(0)
	suspend(false)
	active(2)
	done := until(t, c, func(*corev1.Pod) corev1.PodPhase { return corev1.PodSucceeded }, batchv1.JobComplete)
	if s := find(done.Status.Conditions, batchv1.JobSuspended); s == nil || s.Status != corev1.ConditionFalse || s.Reason != "JobResumed" {
		t.Errorf("%+v", s)
	}
}
