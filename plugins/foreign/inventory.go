package foreign

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/plugins/foreign/kubewarden"
	"github.com/wasmplane/wasmplane/plugins/hostfn"
	"github.com/wasmplane/wasmplane/plugins/manifest"
)

// inventory is data.inventory of a Gatekeeper policy: the objects that the entry's
// grants.read name. It is read again when it is older than a second, and handed
// out as the same bytes while no object has changed.
type inventory struct {
	caller *hostfn.Caller
	kinds  []hostfn.Target

	mu      sync.Mutex
	seen    time.Time // when it was read
	states  string    // resourceVersions of what text was made from
	text    []byte
	targets []hostfn.Target // kinds, found out
}

const inventoryAge = time.Second

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

// read is the data document.
func (v *inventory) read(ctx context.Context) ([]byte, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.text != nil && time.Since(v.seen) < inventoryAge {
		return v.text, nil
	}
	lists, states, err := v.lists(ctx)
	if err != nil {
		return nil, err
	}
	if v.seen = time.Now(); v.text != nil && states == v.states {
		return v.text, nil
	}
	text, err := assembleInventory(v.targets, lists)
	if err != nil {
		return nil, err
	}
	v.text, v.states = text, states
	return text, nil
}

func (v *inventory) lists(ctx context.Context) ([]hostfn.ListReply, string, error) {
	states := ""
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
	var out []hostfn.ListReply
	for _, t := range v.targets {
		r, err := v.caller.ListObjects(ctx, hostfn.ListRequest{Target: t})
		if err != nil {
			return nil, "", err
		}
		out = append(out, r)
		for _, item := range r.Items {
			var o struct {
				Metadata struct {
					UID             string `json:"uid"`
					ResourceVersion string `json:"resourceVersion"`
				} `json:"metadata"`
			}
			if err := json.Unmarshal(item, &o); err != nil {
				return nil, "", err
			}
			if o.Metadata.UID == "" { // a mask hides it: the list's own version has to do
				states += r.ResourceVersion + "\n"
				break
			}
			states += o.Metadata.UID + "@" + o.Metadata.ResourceVersion + "\n"
		}
		states += "\n"
	}
	return out, states, nil
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
