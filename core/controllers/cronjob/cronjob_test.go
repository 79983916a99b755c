// SPDX-License-Identifier: Apache-2.0

package cronjob

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/wasmplane/wasmplane/core/controllers/controllertest"
)

func every(schedule string) *batchv1.CronJob {
	return &batchv1.CronJob{
		ObjectMeta: metav1.ObjectMeta{Name: "tick", Namespace: "default", UID: "tick", CreationTimestamp: metav1.Now()},
		Spec: batchv1.CronJobSpec{
			Schedule: schedule, ConcurrencyPolicy: batchv1.AllowConcurrent,
			SuccessfulJobsHistoryLimit: ptr.To[int32](2), FailedJobsHistoryLimit: ptr.To[int32](1),
		},
	}
}

func jobs(t *testing.T, c *controllertest.Cluster) []batchv1.Job {
	t.Helper()
	list, err := c.Client.BatchV1().Jobs("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return list.Items
}

func finish(t *testing.T, c *controllertest.Cluster) {
	t.Helper()
	for _, job := range jobs(t, c) {
		if len(job.Status.Conditions) > 0 {
			continue
		}
		job.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}
		job.Status.StartTime, job.Status.CompletionTime = ptr.To(metav1.Now()), ptr.To(metav1.Now())
		if _, err := c.Client.BatchV1().Jobs("default").UpdateStatus(t.Context(), &job, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// A Job a minute; finished ones go beyond the limit; with Forbid none is started
// beside one that runs, and the time that was missed for it is made up for.
func TestTicks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cj := every("* * * * *")
		cj.Spec.ConcurrencyPolicy = batchv1.ForbidConcurrent
		c := controllertest.New(cj)
		ctl, err := New(c.Env(t), 1)
		if err != nil {
			t.Fatal(err)
		}
		c.Start(t, ctl)
		time.Sleep(61 * time.Second)
		synctest.Wait()
		if n := len(jobs(t, c)); n != 1 {
			t.Fatalf("%d jobs after a minute", n)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if n := len(jobs(t, c)); n != 1 {
			t.Fatalf("%d jobs, though the first still runs", n)
		}
		finish(t, c)
		synctest.Wait()
		if n := len(jobs(t, c)); n != 2 {
			t.Fatalf("%d jobs once the first is done", n)
		}
		for range 4 {
			finish(t, c)
			time.Sleep(time.Minute)
			synctest.Wait()
		}
		all := jobs(t, c)
		done := 0
		for i := range all {
			if ended(&all[i]) != "" {
				done++
			}
		}
		if done != 2 {
			t.Errorf("%d finished jobs are kept", done)
		}
		got, err := c.Client.BatchV1().CronJobs("default").Get(t.Context(), "tick", metav1.GetOptions{})
		if err != nil || got.Status.LastSuccessfulTime == nil || len(got.Status.Active) != 1 {
			t.Errorf("status %+v, %v", got.Status, err)
		}
		if at := all[0].Annotations[batchv1.CronJobScheduledTimestampAnnotation]; !strings.HasSuffix(at, ":00Z") {
			t.Errorf("scheduled at %q", at)
		}
	})
}

// Whoever wrote a schedule that never comes learns of it from an event, within a second.
func TestAScheduleThatNeverComesIsSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := controllertest.New(every("59 23 31 2 *"))
		ctl, err := New(c.Env(t), 1)
		if err != nil {
			t.Fatal(err)
		}
		c.Start(t, ctl)
		time.Sleep(time.Second)
		synctest.Wait()
		select {
		case said := <-c.Events.Events:
			if !strings.HasPrefix(said, "Warning InvalidSchedule invalid schedule: 59 23 31 2 * : no time within five years") {
				t.Errorf("the event says %q", said)
			}
		default:
			t.Error("there is no event")
		}
	})
}

func TestDue(t *testing.T) {
	at := func(s string) time.Time {
		t.Helper()
		parsed, err := time.Parse(time.RFC3339, s)
		if err != nil {
			t.Fatal(err)
		}
		return parsed
	}
	for name, tc := range map[string]struct {
		schedule, zone, created, now, want string
		deadline                           *int64
		many                               bool
		err                                error
	}{
		"not yet":            {schedule: "0 * * * *", created: "2026-01-01T00:10:00Z", now: "2026-01-01T00:59:59Z"},
		"now":                {schedule: "0 * * * *", created: "2026-01-01T00:10:00Z", now: "2026-01-01T01:00:00Z", want: "2026-01-01T01:00:00Z"},
		"missed some":        {schedule: "0 * * * *", created: "2026-01-01T00:10:00Z", now: "2026-01-01T05:20:00Z", want: "2026-01-01T05:00:00Z"},
		"missed a year":      {schedule: "* * * * *", created: "2025-01-01T00:00:00Z", now: "2026-01-01T05:20:30Z", want: "2026-01-01T05:20:00Z", many: true},
		"too late":           {schedule: "0 * * * *", created: "2026-01-01T00:10:00Z", now: "2026-01-01T01:20:00Z", deadline: ptr.To[int64](60)},
		"on workdays":        {schedule: "0 9 * * 1-5", created: "2026-01-01T00:00:00Z", now: "2026-01-05T08:00:00Z", want: "2026-01-02T09:00:00Z"},
		"in its zone":        {schedule: "0 9 * * *", zone: "Asia/Tokyo", created: "2026-01-01T00:30:00Z", now: "2026-01-02T00:10:00Z", want: "2026-01-02T00:00:00Z"},
		"a day that is none": {schedule: "0 0 30 2 *", created: "2026-01-01T00:00:00Z", now: "2026-06-01T00:00:00Z", err: errNever},
		"one day a year":     {schedule: "* * 1 1 *", created: "2024-01-01T00:00:00Z", now: "2026-06-01T00:00:00Z", want: "2026-01-01T23:59:00Z", many: true},
	} {
		job := every(tc.schedule)
		job.CreationTimestamp = metav1.NewTime(at(tc.created))
		job.Spec.StartingDeadlineSeconds = tc.deadline
		if tc.zone != "" {
			job.Spec.TimeZone = &tc.zone
		}
		s, err := parse(&job.Spec)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got, err := due(job, s, at(tc.now))
		want := time.Time{}
		if tc.want != "" {
			want = at(tc.want)
		}
		if !errors.Is(err, tc.err) || !got.at.Equal(want) || got.many != tc.many {
			t.Errorf("%s: %v, many %v, %v; want %v, %v", name, got.at, got.many, err, want, tc.err)
		}
	}
}

// What is found is a scheduled time, up to now, and there is no later one.
func TestDueIsLatest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		job := every(rapid.SampledFrom([]string{"*/7 * * * *", "0 3 * * *", "15 */5 * * 1", "0 0 1 * *", "@hourly"}).Draw(t, "schedule"))
		created := time.Unix(1_700_000_000+rapid.Int64Range(0, 1e7).Draw(t, "created"), 0)
		now := created.Add(time.Duration(rapid.Int64Range(0, 4e7).Draw(t, "later")) * time.Second)
		job.CreationTimestamp = metav1.NewTime(created)
		s, err := parse(&job.Spec)
		if err != nil {
			t.Fatal(err)
		}
		got, err := due(job, s, now)
		if err != nil {
			t.Fatal(err)
		}
		if got.at.IsZero() {
			if next := s.Next(created); !next.After(now) {
				t.Fatalf("nothing is due, but %v was", next)
			}
			return
		}
		if got.at.After(now) || !s.Next(got.at).After(now) || !s.Next(got.at.Add(-time.Second)).Equal(got.at) {
			t.Fatalf("%v is not the latest up to %v", got.at, now)
		}
	})
}

func FuzzParse(f *testing.F) {
	f.Add("* * * * *", "UTC")
	f.Add("TZ=0", "")
	f.Fuzz(func(t *testing.T, schedule, zone string) {
		spec := &batchv1.CronJobSpec{Schedule: schedule}
		if zone != "" {
			spec.TimeZone = &zone
		}
		if s, err := parse(spec); err == nil && s == nil {
			t.Error("neither a schedule nor an error")
		}
	})
}
