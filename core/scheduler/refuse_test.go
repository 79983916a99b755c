// SPDX-License-Identifier: Apache-2.0

package scheduler_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/core/scheduler"
	"github.com/wasmplane/wasmplane/core/scheduler/native"
	"github.com/wasmplane/wasmplane/core/scheduler/report"
)

// silent is an API that does not answer when a pod's status is written.
type silent struct {
	report.API
	bound chan string
}

func (silent) PatchStatus(ctx context.Context, _ *corev1.Pod, _ map[string]any) error {
	<-ctx.Done()
	return ctx.Err()
}

func (s silent) Bind(_ context.Context, b *corev1.Binding) error {
	s.bound <- b.Name
	return nil
}

// However long it takes to write to pods why they wait, one that fits gets its node meanwhile.
func TestRefusedPodsDoNotHoldUpOneThatFits(t *testing.T) {
	client := fake.NewClientset()
	inf := informers.NewSharedInformerFactory(client, 0)
	effects := silent{report.API{Client: client}, make(chan string, 1)}
	s, err := scheduler.NewWith(scheduler.Config{
		Client: client, Informers: inf, Logger: slog.New(slog.DiscardHandler),
		Profiles: []scheduler.Profile{{
			Name:    corev1.DefaultSchedulerName,
			Plugins: native.Default(native.Config{Client: client, Informers: inf}),
		}},
	}, effects)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	inf.Start(ctx.Done())
	done := run.Go("scheduler", func() error { return s.Run(ctx) })
	<-s.Ready()
	c := &cluster{t: t, client: client, s: s}
	c.node("n", "4")
	for i := range 100 {
		c.create(pod(fmt.Sprint("large-", i), "5"))
	}
	c.create(pod("small", "1"))
	if got := <-effects.bound; got != "small" {
		t.Errorf("%s was bound", got)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	inf.Shutdown()
}
