// SPDX-License-Identifier: Apache-2.0

package scheduler_test

import (
	"context"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/scheduler"
	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

// slow prepares one pod for as long as it may.
type slow struct {
	pod     string
	entered chan struct{}
}

func (slow) Name() string            { return "Slow" }
func (slow) Patience() time.Duration { return time.Hour }

func (s slow) PreBind(ctx context.Context, _ *framework.State, p *framework.PodInfo, _ string) *framework.Status {
	if p.Pod.Name != s.pod {
		return nil
	}
	close(s.entered)
	<-ctx.Done()
	return framework.AsStatus(context.Cause(ctx))
}

// TestAPodThatWaitsForItsVolumes: others are bound meanwhile, and its room is given
// back as soon as it is deleted.
func TestAPodThatWaitsForItsVolumes(t *testing.T) {
	s := slow{"waits", make(chan struct{})}
	c := start(t, scheduler.Weighted{Plugin: s})
	c.node("a", "2")
	c.create(pod("waits", "1"))
	<-s.entered
	c.create(pod("other", "1"))
	c.await("other", bound)
	c.create(pod("third", "1"))
	if err := c.client.CoreV1().Pods("default").Delete(t.Context(), "waits", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.await("third", bound)
}
