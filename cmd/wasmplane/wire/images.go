// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"slices"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/process"
	"github.com/wasmplane/wasmplane/core/admission/matching"
	"github.com/wasmplane/wasmplane/plugins/policies/kyverno/imagegate"
	"github.com/wasmplane/wasmplane/plugins/policies/policyobject"
	"github.com/wasmplane/wasmplane/plugins/rights"
)

// images has Kyverno's policies about images take part in admission; nil where they are not in force.
func (b base) images(checker *rights.Checker) (*imagegate.Gate, error) {
	if !slices.Contains(b.Options.Config.PolicyKinds, policyobject.Kyverno) {
		return nil, nil
	}
	roots, err := process.TrustedRoot(b.Options)
	if err != nil {
		return nil, err
	}
	operators, tenants := process.RegistryTransports(b.Options)
	return imagegate.New(imagegate.Config{
		Objects: b.view, Namespaces: matching.Namespaces{Lister: b.informers.Core().V1().Namespaces().Lister(), Client: b.internal.Kube},
		Resources: b.view, Rights: checker, Secrets: process.Secrets(b.internal.Kube), Operators: operators, Tenants: tenants, Roots: roots,
		Logger: b.Options.Logger,
	}), nil
}
