// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"slices"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/policyscan"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/process"
	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/core/run/leader"
	"github.com/wasmplane/wasmplane/plugins/policies/policyobject"
	"github.com/wasmplane/wasmplane/plugins/policies/scan"
)

// mostReports is how many objects have a policy report at most, and shareOfReports how many of these may be about
// objects of one namespace.
const (
	mostReports    = 10_000
	shareOfReports = mostReports / 4
)

// scanPolicies asks policies about what is stored, where somebody wants to know.
func (s *server) scanPolicies(ctx context.Context) error {
	format, most := scan.Format(s.Options.Config.PolicyReports), mostReports
	if format == "" {
		most = 0
	}
	if most == 0 && !slices.Contains(s.Options.Config.PolicyKinds, policyobject.Gatekeeper) || !run.Await(ctx, s.plugins.objects.Ready()) {
		<-ctx.Done()
		return nil
	}
	holder, err := process.Identity(s.Options)
	if err != nil {
		return err
	}
	election := leader.Election{
		Client: s.internal.Kube, Namespace: "kube-system", Name: "wasmplane-policy-scan", Identity: holder, Logger: s.Options.Logger,
	}
	return election.Stand(ctx, func(ctx context.Context) error {
		return scan.New(scan.Config{
			World: &policyscan.World{
				View: s.view, Namespaces: s.informers.Core().V1().Namespaces().Lister(), Policies: s.admit.policies, Plugins: s.plugins.Admission,
				Images: s.admit.images, Kyverno: s.admit.kyverno, Gate: s.admit.gate,
				Format: format,
			},
			Sink: scan.Objects{Client: s.internal.Dynamic, Format: format, Resource: s.view.ResourceOf}, Reports: most, Share: shareOfReports,
			File: s.Options.Dir.PolicyScan(), Logger: s.Options.Logger,
		}).Run(ctx)
	})
}
