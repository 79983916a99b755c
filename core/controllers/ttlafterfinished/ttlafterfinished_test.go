// SPDX-License-Identifier: Apache-2.0

package ttlafterfinished

import (
	"testing"
	"testing/synctest"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/controllers/controllertest"
)

func TestDeletedInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		job := func(name string, ttl *int32, finished bool) *batchv1.Job {
			j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, Spec: batchv1.JobSpec{TTLSecondsAfterFinished: ttl}}
			if finished {
				j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobFailed, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}
			}
			return j
		}
		c := controllertest.New(job("soon", ptr.To[int32](10), true), job("later", ptr.To[int32](100), true), job("kept", nil, true),
			job("runs", ptr.To[int32](1), false))
		ctl, err := New(c.Env(t), 1)
		if err != nil {
			t.Fatal(err)
		}
		c.Start(t, ctl)
		for _, step := range []struct {
			wait time.Duration
			want int
		}{{5 * time.Second, 4}, {10 * time.Second, 3}, {50 * time.Second, 3}, {time.Minute, 2}, {time.Hour, 2}} {
			time.Sleep(step.wait)
			synctest.Wait()
			jobs, err := c.Client.BatchV1().Jobs("default").List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if len(jobs.Items) != step.want {
				t.Errorf("%d jobs, want %d", len(jobs.Items), step.want)
			}
		}
	})
}
