// SPDX-License-Identifier: Apache-2.0

package kyvernotest

import (
	"context"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"

	"github.com/wasmplane/wasmplane/core/admission/matching"
	"github.com/wasmplane/wasmplane/core/dial"
	"github.com/wasmplane/wasmplane/plugins/policies/kyverno/imagepolicy"
	"github.com/wasmplane/wasmplane/plugins/sign/evidence"
)

// registries are reached as the user of the command reaches them, with the credentials of his docker configuration.
type registries struct{}

const (
	registryTime = 30 * time.Second
	answerLimit  = 16 << 20
)

// Registry implements imagepolicy.Registries.
func (registries) Registry(_ context.Context, p *imagepolicy.Policy, repository name.Repository, _ bool) (evidence.Registry, error) {
	auth, err := authn.DefaultKeychain.Resolve(repository)
	return evidence.Registry{
		Transport: dial.Operator(nil).Client(nil, registryTime, answerLimit).Transport, Auth: auth, PlainHTTP: p.PlainHTTP,
	}, err
}

// verify asks a policy about images about a resource that is created, after its tags have become digests.
func (j *judge) verify(ctx context.Context, name string, p *imagepolicy.Policy, resource map[string]any) (*decision, error) {
	w := &imagepolicy.World{Registries: registries{}, Store: j.store, Namespaces: matching.Namespaces{Lister: j.namespaces}}
	r, err := j.request(name, resource)
	if err != nil {
		return nil, err
	}
	changed, err := p.Pin(ctx, w, r)
	if err != nil && !p.Ignore {
		return &decision{result: broken, why: err.Error()}, nil
	}
	if changed != nil {
		after, err := r.Object.Codec().FromTree(changed)
		if err != nil {
			return nil, err
		}
		r.Object.SetVersioned(after)
	}
	verified := &imagepolicy.Verified{}
	o := p.Judge(ctx, w, r, verified)
	against := o.Against
	if against == "" {
		against = o.Required(verified)
	}
	switch {
	case !o.Asked:
		return &decision{result: skip}, nil
	case o.Err != nil:
		return &decision{result: broken, why: o.Err.Error()}, nil //nolint:nilerr // it is the result
	case against != "":
		return &decision{result: fail, why: against}, nil
	}
	d := &decision{result: pass}
	d.object, err = r.Object.Tree()
	return d, err
}
