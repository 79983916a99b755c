// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"

	"github.com/wasmplane/wasmplane/core/auth/removal"
	"github.com/wasmplane/wasmplane/core/join"
	"github.com/wasmplane/wasmplane/core/join/handover"
	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/core/store"
)

// lightServers decides which of them may use the store of this server. The record of removals is read
// through this server's API, which starts after its store.
type lightServers struct{ guard atomic.Pointer[removal.Guard] }

func (l *lightServers) admit(ctx context.Context, name string, begins time.Time) error {
	guard := l.guard.Load()
	if guard == nil {
		return errors.New("the server is starting")
	}
	gone, err := guard.RemovedSince(ctx, name, begins)
	if err == nil && gone {
		return store.ErrRemoved
	}
	return err
}

// beLight does what a light server has to do besides: it says where it is, and has its certificate for the store signed again.
func (s *server) beLight(ctx context.Context) error {
	if !s.Around.Light {
		return untilEnd(ctx)
	}
	if !run.Await(ctx, s.boot.Ready()) {
		return nil
	}
	again := run.Backoff{First: time.Second, Longest: time.Minute}
	for {
		err := handover.Enlist(ctx, s.internal.Kube, s.Around.Name, s.apiAddress())
		if err == nil {
			break
		}
		s.Options.Logger.WarnContext(ctx, "this light server could not say where it is; trying again", "error", err)
		if !again.Wait(ctx) {
			return nil
		}
	}
	signed := &join.StoreClient{
		Name: s.Around.Name, PKI: s.Options.Dir.PKI(), Servers: s.others, Log: s.Options.Logger,
		Own: func() (*rest.Config, error) { return s.Options.Dir.Own("light-server") },
	}
	return signed.Run(ctx)
}
