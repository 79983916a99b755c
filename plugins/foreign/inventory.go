// SPDX-License-Identifier: Apache-2.0

package foreign

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/plugins/foreign/kubewarden"
	"github.com/wasmplane/wasmplane/plugins/hostfn"
	"github.com/wasmplane/wasmplane/plugins/manifest"
)

// inventory is data.inventory of a Gatekeeper policy: the objects that the entry's
// grants.read name. It is read for each request, at the newest revision, and handed
// out as the same bytes while no object has changed.
type inventory struct {
	caller *hostfn.Caller
	kinds  []hostfn.Target

	mu      sync.Mutex
	state   string // of the objects that text was made from
	text    []byte
	targets []hostfn.Target // kinds, found out
}

// versions are tried in this order where only the group of a resource is known.
var versions = []string{"v1", "v2", "v1beta1", "v1beta2", "v1alpha1"}

func newInventory(f *hostfn.Functions, e *manifest.Entry, m *kubewarden.Metadata) *inventory {
	v := &inventory{caller: f.For(e)}
	if m != nil {
		for _, r := range m.ContextAwareResources {
			v.kinds = append(v.kinds, hostfn.Target{APIVersion: r.APIVersion, Kind: r.Kind})
		}
	}
	if len(v.kinds) > 0 {
		return v
	}
	for _, g := range e.Grants.Read {
		groups := g.APIGroups
		if len(groups) == 0 {
			groups = []string{""}
		}
		for _, group := range groups {
			for _, r := range g.Resources {
				v.kinds = append(v.kinds, hostfn.Target{APIVersion: group, Resource: r})
			}
		}
	}
	return v
}

// read is the data document, of the newest state: two writes of the same, one after
// the other, must not both pass because the second was judged by what was before the first.
// Nor must two in the same moment: whoever reads the newest state raises the fence of its group (hostfn).
func (v *inventory) read(ctx context.Context) ([]byte, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	seen, state, err := v.look(ctx)
	if err != nil {
		return nil, err
	}
	if v.text != nil && state != "" && state == v.state {
		return v.text, nil
	}
	lists := make([]hostfn.ListReply, 0, len(seen))
	for _, s := range seen {
		reply, err := s.Encode(ctx)
		if err != nil {
			return nil, err
		}
		lists = append(lists, reply)
	}
	text, err := assembleInventory(v.targets, lists)
	if err != nil {
		return nil, err
	}
	v.text, v.state = text, state
	return text, nil
}

// look reads all kinds; state is the same only where all objects are, "" where that
// cannot be told.
func (v *inventory) look(ctx context.Context) (seen []*hostfn.Seen, state string, err error) {
	if v.targets == nil {
		targets := make([]hostfn.Target, 0, len(v.kinds))
		for _, k := range v.kinds {
			t, err := v.find(ctx, k)
			if err != nil {
				return nil, "", err
			}
			targets = append(targets, t)
		}
		v.targets = targets
	}
	known := true
	for _, t := range v.targets {
		s, err := v.caller.Look(ctx, hostfn.ListRequest{Target: t, Fresh: true})
		if err != nil {
			return nil, "", err
		}
		known = known && s.State != ""
		seen, state = append(seen, s), state+s.State+"\n\n"
	}
	if !known {
		state = ""
	}
	return seen, state, nil
}

// find finds the version of a resource whose group is known.
func (v *inventory) find(ctx context.Context, t hostfn.Target) (hostfn.Target, error) {
	if t.Kind != "" {
		return t, nil
	}
	var last error
	for _, version := range versions {
		one := hostfn.Target{APIVersion: schema.GroupVersion{Group: t.APIVersion, Version: version}.String(), Resource: t.Resource}
		_, err := v.caller.ListObjects(ctx, hostfn.ListRequest{Target: one, Limit: 1})
		if err == nil {
			return one, nil
		}
		if last = err; !apierrors.IsNotFound(err) {
			return t, err
		}
	}
	return t, fmt.Errorf("find a version of %s: %w", t.Resource, last)
}

// assembleInventory sorts objects as Gatekeeper does: by scope, group version, kind and name.
func assembleInventory(targets []hostfn.Target, lists []hostfn.ListReply) ([]byte, error) {
	type names map[string]json.RawMessage
	type kinds map[string]names
	type groups map[string]kinds
	put := func(g groups, gv, kind, name string, o json.RawMessage) {
		if g[gv] == nil {
			g[gv] = kinds{}
		}
		if g[gv][kind] == nil {
			g[gv][kind] = names{}
		}
		g[gv][kind][name] = o
	}
	cluster, namespaces := groups{}, map[string]groups{}
	for i, list := range lists {
		for _, item := range list.Items {
			var o struct {
				Metadata struct{ Name, Namespace string } `json:"metadata"`
			}
			if err := json.Unmarshal(item, &o); err != nil {
				return nil, err
			}
			ns, gv := o.Metadata.Namespace, targets[i].APIVersion
			if ns == "" {
				put(cluster, gv, list.Kind, o.Metadata.Name, item)
				continue
			}
			if namespaces[ns] == nil {
				namespaces[ns] = groups{}
			}
			put(namespaces[ns], gv, list.Kind, o.Metadata.Name, item)
		}
	}
	return json.Marshal(map[string]any{"inventory": map[string]any{"cluster": cluster, "namespace": namespaces}})
}
