// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"context"
	"fmt"
	"hash/fnv"
	"strconv"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/admission"
	pointadmission "github.com/wasmplane/wasmplane/plugins/point/admission"
	"github.com/wasmplane/wasmplane/plugins/policies/gatekeeper/expansion"
)

// Expansions are the expansion templates as they are now: constraints judge by them what stored objects imply, as they do when one is
// written.
type Expansions struct {
	gate *Gate
	s    *state
}

// Expansions reads them; nil = there are none.
func (g *Gate) Expansions(ctx context.Context) (*Expansions, error) {
	s, err := g.current.Get(ctx)
	if err != nil || s.templates.Empty() {
		return nil, err
	}
	return &Expansions{g, s}, nil
}

// Version changes with the templates, and with what changes what they make.
func (e *Expansions) Version() string {
	if e == nil {
		return ""
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(e.s.version)) // which never fails
	return strconv.FormatUint(h.Sum64(), 16)
}

// Expands says whether objects of a kind imply others.
func (e *Expansions) Expands(kind schema.GroupVersionKind) bool {
	return e != nil && e.s.templates.Expands(kind)
}

type impliedKey struct{}

// Judge says what a constraint has against what a request's object implies.
func (e *Expansions) Judge(ctx context.Context, s pointadmission.Standing, r *admission.Request) (asked bool, against []string, err error) {
	if !e.Expands(r.Object.Kind()) || !(expanding{e.gate}).Handles(r) {
		return false, nil, nil
	}
	type made struct {
		list []expansion.Implied
		err  error
	}
	all, _ := r.Memo(impliedKey{}, func() any { // for all constraints
		list, err := e.implied(ctx, r, false)
		return made{list, err}
	}).(made)
	if all.err != nil {
		return true, nil, fmt.Errorf("expansion: %w", all.err)
	}
	for i := range all.list {
		about, err := (expanding{e.gate}).request(r, &all.list[i])
		if err != nil {
			return true, nil, err
		}
		if !s.Handles(about) {
			continue
		}
		one, found, err := s.Judge(ctx, about)
		if err != nil {
			return true, nil, err
		}
		asked = asked || one
		for _, text := range found {
			against = append(against, all.list[i].Message(text))
		}
	}
	return asked, against, nil
}

// implied is what an object is going to make. Mutators ask providers about it for a request alone.
func (e *Expansions) implied(ctx context.Context, r *admission.Request, asking bool) ([]expansion.Implied, error) {
	t, err := e.gate.target(ctx, r)
	if err != nil {
		return nil, err
	}
	if asking {
		t.External = e.gate.external(ctx, e.s, nil)
	}
	mutators := e.s.mutators
	if !e.s.settings.Changes(r.Namespace) {
		mutators = nil
	}
	return e.s.templates.Expand(t, mutators)
}
