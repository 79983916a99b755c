// SPDX-License-Identifier: Apache-2.0

package kubelet_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/wasmplane/wasmplane/core/kubelet"
	"github.com/wasmplane/wasmplane/core/kubelet/shutdown"
)

// power is a machine's, which a test shuts down.
type power struct {
	signs chan bool
	let   chan struct{}
}

func (*power) Delay(context.Context) (time.Duration, error)     { return time.Hour, nil }
func (*power) Lengthen(context.Context, time.Duration) error    { return nil }
func (p *power) Shutdowns(context.Context) (<-chan bool, error) { return p.signs, nil }
func (*power) Close() error                                     { return nil }
func (p *power) Hold(context.Context) (let func() error, err error) {
	return func() error { close(p.let); return nil }, nil
}

func readiness(w *world) (status corev1.ConditionStatus, says string) {
	n, err := w.client.CoreV1().Nodes().Get(w.t.Context(), "n1", metav1.GetOptions{})
	if err != nil {
		return "", err.Error()
	}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status, c.Reason + ": " + c.Message
		}
	}
	return "", ""
}

// TestTheMachineGoesDown: its pods end, critical ones last, it takes no others, and says so; when all have ended, it may go.
func TestTheMachineGoesDown(t *testing.T) {
	w := newWorld(t)
	w.start()
	p := &power{signs: make(chan bool), let: make(chan struct{})}
	settings := shutdown.Settings{Grace: time.Minute, Critical: 30 * time.Second}
	periods, err := settings.Read()
	if err != nil {
		t.Fatal(err)
	}
	down := shutdown.New(shutdown.Config{
		Periods: periods, Logger: slog.New(slog.DiscardHandler), Connect: func(context.Context) (shutdown.Power, error) { return p, nil },
	})
	k, _ := w.begin("n1", w.engine(), func(c *kubelet.Config) {
		c.Admitters, c.Node.Unwell = append(c.Admitters, down), down.Unwell
	})
	<-k.Ready()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- down.Run(ctx, k) }()
	critical := int32(2_000_000_000)
	w.create("n1", "plain", func(*corev1.Pod) {})
	w.create("n1", "critical", func(p *corev1.Pod) { p.Spec.Priority = &critical })
	w.until("plain", "running", running)
	w.until("critical", "running", running)
	p.signs <- true
	first, second := w.until("plain", "terminated", failed), w.until("critical", "terminated", failed)
	for _, one := range []*corev1.Pod{first, second} {
		if one.Status.Reason != "Terminated" || one.Status.Message != "Pod was terminated in response to imminent node shutdown." {
			t.Errorf("%s", describe(one))
		}
	}
	<-p.let
	if status, says := readiness(w); status != corev1.ConditionFalse || says != "KubeletNotReady: node is shutting down" {
		t.Errorf("the node is ready: %s, %s", status, says)
	}
	w.create("n1", "late", func(*corev1.Pod) {})
	if late := w.until("late", "refused", failed); late.Status.Reason != "NodeShutdown" ||
		late.Status.Message != "Pod was rejected: Pod was rejected as the node is shutting down." {
		t.Errorf("late is %s", describe(late))
	}
	p.let = make(chan struct{})
	p.signs <- false
	// The sign is taken, and may still have to be heeded: the node says when it was.
	err = wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		status, _ := readiness(w)
		return status == corev1.ConditionTrue, nil
	})
	if err != nil {
		t.Fatalf("the node is not ready again: %v", err)
	}
	w.create("n1", "again", func(*corev1.Pod) {})
	w.until("again", "running", running)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
