// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/certwatch"
	"github.com/wasmplane/wasmplane/core/join/succession"
	"github.com/wasmplane/wasmplane/core/run"
)

// followAuthority follows a change of the cluster's authority until ctx ends.
func (s *server) followAuthority(ctx context.Context) error {
	if !run.Await(ctx, s.boot.Ready()) {
		return nil
	}
	return (&succession.Server{
		Kube: s.internal.Kube, Authority: s.Authority, Address: s.Advertise.String(), Log: s.Options.Logger,
		Changed: func(ctx context.Context) error {
			if err := s.Republish(ctx); err != nil {
				return err
			}
			return s.boot.PublishAuthorities(ctx, s.Authority.CAPEM(), s.Authority.FrontProxyCAPEM())
		},
	}).Run(ctx)
}

// watchCertificates reports certificates of this machine whose renewal fails.
func (s *server) watchCertificates(ctx context.Context) error {
	w := &certwatch.Watch{Dir: s.Options.Dir, Node: s.Options.Config.Node.Name, Kube: s.internal.Kube, Log: s.Options.Logger}
	if err := s.metrics.Register(w); err != nil {
		return err
	}
	if !run.Await(ctx, s.boot.Ready()) {
		return nil
	}
	return w.Run(ctx)
}
