// SPDX-License-Identifier: Apache-2.0

package garbage

import (
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// kind is a type of object that the server has, with what is needed to reach it.
type kind struct {
	schema.GroupVersionKind
	resource   schema.GroupVersionResource
	namespaced bool
}

// identity names one object: by UID where the graph is concerned, by the rest
// towards the server.
type identity struct {
	uid             types.UID
	apiVersion      string
	kind            string
	namespace, name string
}

func (i identity) gvk() schema.GroupVersionKind {
	return schema.FromAPIVersionAndKind(i.apiVersion, i.kind)
}

// node is an object, or (virtual) an owner that dependents name and that no watch
// has shown yet: it may have been created a moment ago, or never have existed.
type node struct {
	identity
	// virtual: no watch shows it. absent: and the server said, or a watch, that it
	// is gone. It stays as long as somebody refers to it.
	virtual, absent bool
	owners          []metav1.OwnerReference
	dependents      map[types.UID]*node
	// deleting: it has a deletion timestamp. foreground, orphaning: and the
	// finalizer that says what happens to its dependents.
	deleting, foreground, orphaning bool
}

// graph knows who owns whom, as far as the watches have told. It is told of
// changes and answers which nodes want a look.
type graph struct {
	mu    sync.Mutex
	nodes map[types.UID]*node
}

func newGraph() *graph { return &graph{nodes: map[types.UID]*node{}} }

// work is what a change of the graph makes worth looking at.
type work struct {
	check  []types.UID // is it to be deleted, or its foreground deletion to be finished?
	orphan []types.UID // its dependents are to be orphaned
}

// object is what the graph takes from an object.
type object struct {
	identity
	owners                          []metav1.OwnerReference
	deleting, foreground, orphaning bool
}

func observe(k kind, obj metav1.Object) object {
	deleting := obj.GetDeletionTimestamp() != nil
	return object{
		identity: identity{
			uid: obj.GetUID(), apiVersion: k.GroupVersion().String(), kind: k.Kind,
			namespace: obj.GetNamespace(), name: obj.GetName(),
		},
		owners:     obj.GetOwnerReferences(),
		deleting:   deleting,
		foreground: deleting && slices.Contains(obj.GetFinalizers(), metav1.FinalizerDeleteDependents),
		orphaning:  deleting && slices.Contains(obj.GetFinalizers(), metav1.FinalizerOrphanDependents),
	}
}

// upsert takes in an object as a watch shows it.
func (g *graph) upsert(o object) work {
	g.mu.Lock()
	defer g.mu.Unlock()
	var w work
	n := g.nodes[o.uid]
	if n == nil {
		n = &node{identity: o.identity}
		g.nodes[o.uid] = n
	} else if n.virtual {
		n.virtual, n.absent, n.identity = false, false, o.identity
		for _, d := range n.dependents {
			// A reference may have the UID right and the name or namespace wrong: it
			// names an owner that doesn't exist.
			if i := refIndex(d.owners, n.uid); i >= 0 && !refersTo(d.owners[i], d.namespace, n.identity) {
				w.check = append(w.check, d.uid)
			}
		}
	}
	wasForeground, wasOrphaning := n.foreground, n.orphaning
	n.deleting, n.foreground, n.orphaning = o.deleting, o.foreground, o.orphaning
	former := n.owners
	n.owners = o.owners
	g.relink(n, former, &w)
	if n.foreground && !wasForeground {
		w.check = append(w.check, n.uid)
		w.check = append(w.check, uids(n.dependents)...)
	}
	if n.orphaning && !wasOrphaning {
		w.orphan = append(w.orphan, n.uid)
	}
	return w
}

// relink brings the edges from n to its owners up to date, and asks for a look at
// whoever may be concerned.
func (g *graph) relink(n *node, former []metav1.OwnerReference, w *work) {
	changed := false
	for _, ref := range former {
		i := refIndex(n.owners, ref.UID)
		if i >= 0 && blocks(n.owners[i]) == blocks(ref) {
			continue
		}
		changed = true
		owner := g.nodes[ref.UID]
		if owner == nil {
			continue
		}
		if i < 0 {
			delete(owner.dependents, n.uid)
			g.dropIfIdle(owner)
		}
		if owner.foreground {
			w.check = append(w.check, owner.uid) // it may have waited for this one
		}
	}
	for _, ref := range n.owners {
		owner := g.nodes[ref.UID]
		if owner == nil {
			owner = &node{virtual: true, identity: ownerIdentity(ref, n.namespace)}
			g.nodes[ref.UID] = owner
			w.check = append(w.check, owner.uid)
		}
		if owner.dependents == nil {
			owner.dependents = map[types.UID]*node{}
		}
		if _, linked := owner.dependents[n.uid]; linked {
			continue
		}
		owner.dependents[n.uid] = n
		changed = true
		if owner.foreground || owner.absent || (!owner.virtual && !refersTo(ref, n.namespace, owner.identity)) {
			w.check = append(w.check, n.uid)
		}
	}
	if changed && len(former) > 0 {
		w.check = append(w.check, n.uid) // its last solid owner may have gone with the change
	}
}

// dropIfIdle forgets a virtual node that nobody refers to any more.
func (g *graph) dropIfIdle(n *node) {
	if n.virtual && len(n.dependents) == 0 {
		delete(g.nodes, n.uid)
	}
}

// remove takes out an object that is gone; its dependents want a look, and so do
// owners that waited for it.
func (g *graph) remove(id identity) work {
	g.mu.Lock()
	defer g.mu.Unlock()
	var w work
	n := g.nodes[id.uid]
	if n == nil || n.identity != id {
		return w // somebody asked for it under a wrong name
	}
	for _, ref := range n.owners {
		if owner := g.nodes[ref.UID]; owner != nil {
			delete(owner.dependents, n.uid)
			if owner.foreground {
				w.check = append(w.check, owner.uid)
			}
			g.dropIfIdle(owner)
		}
	}
	n.owners, n.deleting, n.foreground, n.orphaning = nil, false, false, false
	n.virtual, n.absent = true, true
	w.check = append(w.check, uids(n.dependents)...)
	g.dropIfIdle(n)
	return w
}

// unwatch makes all objects of a kind virtual: no watch will tell of their end.
func (g *graph) unwatch(k schema.GroupVersionKind) work {
	g.mu.Lock()
	defer g.mu.Unlock()
	var w work
	for _, n := range g.nodes {
		if n.virtual || n.gvk() != k {
			continue
		}
		n.virtual = true
		if len(n.dependents) > 0 {
			w.check = append(w.check, n.uid)
		}
		g.dropIfIdle(n)
	}
	return w
}

// view is a copy of what the graph knows about a node.
type view struct {
	identity
	virtual, absent, deleting, foreground, orphaning bool
	hasDependents                                    bool
	// content: every owner stands, so there is no reason to ask the server.
	content bool
}

func (g *graph) view(uid types.UID) (view, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.nodes[uid]
	if n == nil {
		return view{}, false
	}
	content := !n.virtual && !n.foreground
	for _, ref := range n.owners {
		content = content && g.standing(ref, n.namespace)
	}
	return view{n.identity, n.virtual, n.absent, n.deleting, n.foreground, n.orphaning, len(n.dependents) > 0, content}, true
}

// dependent is one dependent of a node.
type dependent struct {
	identity
	blocking, foreground bool
}

func (g *graph) dependents(uid types.UID) []dependent {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.nodes[uid]
	if n == nil {
		return nil
	}
	all := make([]dependent, 0, len(n.dependents))
	for _, d := range n.dependents {
		i := refIndex(d.owners, uid)
		all = append(all, dependent{d.identity, i >= 0 && blocks(d.owners[i]), d.foreground})
	}
	return all
}

// stands reports that the referenced owner was observed, is the one meant, and is
// not on its way out. A false answer says nothing: the server has to be asked.
func (g *graph) stands(ref metav1.OwnerReference, namespace string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.standing(ref, namespace)
}

func (g *graph) standing(ref metav1.OwnerReference, namespace string) bool {
	n := g.nodes[ref.UID]
	return n != nil && !n.virtual && !n.deleting && refersTo(ref, namespace, n.identity)
}

// ownerIdentity is where an owner of an object in this namespace should be. For a
// cluster-scoped owner the namespace is ignored when it is looked up.
func ownerIdentity(ref metav1.OwnerReference, namespace string) identity {
	return identity{uid: ref.UID, apiVersion: ref.APIVersion, kind: ref.Kind, namespace: namespace, name: ref.Name}
}

// refersTo compares all but the version of the API group: the same object is seen
// under each version.
func refersTo(ref metav1.OwnerReference, namespace string, owner identity) bool {
	return ref.Kind == owner.kind && ref.Name == owner.name && sameGroup(ref.APIVersion, owner.apiVersion) &&
		(owner.namespace == "" || owner.namespace == namespace)
}

func sameGroup(a, b string) bool {
	ga, errA := schema.ParseGroupVersion(a)
	gb, errB := schema.ParseGroupVersion(b)
	return errA == nil && errB == nil && ga.Group == gb.Group
}

func refIndex(refs []metav1.OwnerReference, uid types.UID) int {
	return slices.IndexFunc(refs, func(r metav1.OwnerReference) bool { return r.UID == uid })
}

func blocks(ref metav1.OwnerReference) bool {
	return ref.BlockOwnerDeletion != nil && *ref.BlockOwnerDeletion
}

func uids(nodes map[types.UID]*node) []types.UID {
	all := make([]types.UID, 0, len(nodes))
	for uid := range nodes {
		all = append(all, uid)
	}
	return all
}
