// SPDX-License-Identifier: Apache-2.0

// Package readiness says what the probes of an API server ask: how far its start has come,
// and whether what it works with is well. It owns the names of the checks, which are
// upstream's where the same thing is checked, and asks only what the parts of the server
// tell of themselves, so that a probe costs next to nothing.
package readiness

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"k8s.io/client-go/informers"

	"github.com/wasmplane/wasmplane/core/aggregator"
	"github.com/wasmplane/wasmplane/core/apiserver/health"
	"github.com/wasmplane/wasmplane/core/bootstrap"
	"github.com/wasmplane/wasmplane/core/store/encryption"
	"github.com/wasmplane/wasmplane/core/store/space"
)

// Milestone is a part of the start that is reached once.
type Milestone struct {
	once    sync.Once
	reached chan struct{}
}

func newMilestone() *Milestone { return &Milestone{reached: make(chan struct{})} }

// Reach says that it is reached; every call but the first is without effect.
func (m *Milestone) Reach() { m.once.Do(func() { close(m.reached) }) }

// Before has work reach m when it begins.
func (m *Milestone) Before(work func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		m.Reach()
		return work(ctx)
	}
}

// Start are the milestones of a server that no part of it tells by itself: that its
// informers are started, that admission follows its files, that fairness works, that
// conditions of definitions are written, and that claims of Services are repaired.
type Start struct{ Informers, Admission, Fairness, Definitions, Repairs *Milestone }

// NewStart is a start of which nothing is reached yet.
func NewStart() Start {
	return Start{newMilestone(), newMilestone(), newMilestone(), newMilestone(), newMilestone()}
}

// Server is what is asked. All of it is needed but Sealed.
type Server struct {
	Start
	Boot    *bootstrap.Bootstrap
	Remotes *aggregator.Aggregator
	Shared  informers.SharedInformerFactory
	Cache   <-chan struct{}             // closed once the watch cache has what is stored
	Defined <-chan struct{}             // closed once everything that is defined is served
	Store   func(context.Context) error // whether it answers
	Room    *space.Keeper
	Sealed  *encryption.Store // nil = nothing is encrypted at rest
	Log     *health.Log
}

// Checks are what the server's probes ask, in upstream's order: log, what is asked of the
// store, and the start. That the store answers is upstream's etcd, and etcd-readiness at
// /readyz. A hook of upstream's that stands for nothing here has no check.
func (s Server) Checks() []health.Check {
	begun, remotes := s.Boot.Ready(), s.Remotes.Begun()
	checks := []health.Check{
		s.Log.Check(),
		{Name: "etcd", Check: s.Store},
		{Name: "etcd-readiness", Check: s.Store, ReadyOnly: true},
		{Name: "store-space", Check: s.Room.Check, Advisory: true},
	}
	if s.Sealed != nil {
		checks = append(checks, health.Check{Name: "kms-providers", Check: s.Sealed.Check})
	}
	checks = append(checks, health.Check{Name: "informer-sync", ReadyOnly: true, Check: s.checkInformers})
	for _, hook := range []struct {
		name string
		done <-chan struct{}
	}{
		{"start-apiserver-admission-initializer", s.Admission.reached},
		{"generic-apiserver-start-informers", s.Informers.reached},
		{"priority-and-fairness-config-consumer", s.Fairness.reached},
		{"priority-and-fairness-filter", s.Fairness.reached},
		{"storage-readiness", s.Cache},
		{"start-apiextensions-informers", s.Defined},
		{"start-apiextensions-controllers", s.Definitions.reached},
		{"crd-informer-synced", s.Defined},
		{"start-system-namespaces-controller", begun},
		{"start-cluster-authentication-info-controller", begun},
		{"start-kube-apiserver-identity-lease-controller", begun},
		{"start-kube-apiserver-identity-lease-garbage-collector", begun},
		{"start-legacy-token-tracking-controller", begun},
		{"start-service-ip-repair-controllers", s.Repairs.reached},
		{"start-kubernetes-service-cidr-controller", begun},
		{"rbac/bootstrap-roles", begun},
		{"scheduling/bootstrap-system-priority-classes", begun},
		{"priority-and-fairness-config-producer", s.Boot.Fair()},
		{"bootstrap-controller", begun},
		{"start-kube-aggregator-informers", remotes.Checking},
		{"apiservice-status-local-available-controller", remotes.Checking},
		{"apiservice-status-remote-available-controller", remotes.Checking},
		{"apiservice-registration-controller", remotes.Fetching},
		{"apiservice-discovery-controller", remotes.Fetching},
		{"kube-apiserver-autoregistration", remotes.Registering},
		{"apiservice-openapi-controller", remotes.Fetching},
		{"apiservice-openapiv3-controller", remotes.Fetching},
	} {
		checks = append(checks, health.Started(hook.name, hook.done))
	}
	return append(checks, health.Check{Name: "autoregister-completion", Check: s.Remotes.Registered})
}

// checkInformers fails while one of the server's own informers has not read what there is.
func (s Server) checkInformers(context.Context) error {
	select {
	case <-s.Informers.reached:
	default:
		return errors.New("the server's informers are not started yet")
	}
	now := make(chan struct{})
	close(now) // they are asked, and not waited for
	missing := 0
	for _, synced := range s.Shared.WaitForCacheSync(now) {
		if !synced {
			missing++
		}
	}
	if missing > 0 {
		return fmt.Errorf("%d of the server's informers are still reading", missing)
	}
	return nil
}
