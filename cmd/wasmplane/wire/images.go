// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/process"
	"github.com/wasmplane/wasmplane/core/admission/matching"
	"github.com/wasmplane/wasmplane/core/admission/policy"
	"github.com/wasmplane/wasmplane/core/registry/view"
	"github.com/wasmplane/wasmplane/plugins/hostfn/backend"
	"github.com/wasmplane/wasmplane/plugins/policies/kyverno/celgate"
	"github.com/wasmplane/wasmplane/plugins/policies/kyverno/imagegate"
	"github.com/wasmplane/wasmplane/plugins/policies/policyobject"
	"github.com/wasmplane/wasmplane/plugins/rights"
)

// kyvernoPolicies has those of Kyverno's policies take part in admission that no policy of Kubernetes can hold.
func (b base) kyvernoPolicies(checker *rights.Checker, images *imagegate.Gate, access *backend.ChainAccess, by policy.Config,
) *celgate.Gate {
	return celgate.New(celgate.Config{
		World: served{b.view}, Namespaces: matching.Namespaces{Lister: b.informers.Core().V1().Namespaces().Lister(), Client: b.internal.Kube},
		Policies: by, Complete: policyobject.Complete, Rights: checker, Review: access.Review, Images: images,
		Operators: *process.OperatorsDial(b.Options), Tenants: *process.TenantsDial(b.Options), Logger: b.Options.Logger,
	})
}

// served says which kinds and resources there are.
type served struct{ *view.View }

// Served implements celgate.World.
func (s served) Served(gv schema.GroupVersion, kind, resource string) (foundKind, foundResource string, err error) {
	r, err := s.Find(gv, kind, resource)
	if err != nil {
		return "", "", err
	}
	return r.Kind, r.Resource, nil
}

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
