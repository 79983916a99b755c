// SPDX-License-Identifier: Apache-2.0

// Package accessgraph says who reads and who writes which kind of object in a cluster, and
// where two of them wake each other: a loop.
//
// It is pure: others collect what controllers, nodes and plugins declare. A kind is named as
// in RBAC, "jobs.batch"; a subresource counts as its kind ("pods/status" is "pods"). What
// nobody acts on is left out: events, reviews, tokens, and the leases of elections.
package accessgraph

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
)

// Role is which sort of part an actor is.
type Role string

// The roles, in the order in which they are shown.
const (
	Controller Role = "controller"
	Scheduler  Role = "scheduler"
	Node       Role = "node"
	Plugin     Role = "plugin"
)

// Every stands for all kinds, where somebody may read or write whatever there is.
const Every = "*"

// Actor is a part of the cluster with the kinds that it declares.
type Actor struct {
	Name string `json:"name"`
	Role Role   `json:"role"`
	// Identity under which it works; several actors may share one, and its rights.
	Identity string `json:"identity,omitempty"`
	// Watches are kinds whose changes have it act.
	Watches []string `json:"watches"`
	// Reads are kinds that it reads besides.
	Reads []string `json:"reads"`
	// Writes are kinds that it creates, changes or deletes.
	Writes []string `json:"writes"`
	// Notes say what is not known of it.
	Notes []string `json:"notes,omitempty"`
}

// Graph is what all actors declare.
type Graph struct {
	Actors []Actor `json:"actors"`
	Loops  []Loop  `json:"loops"`
	// part: of a whole graph, the table counts the loops among built-in parts only.
	part bool
}

// Loop is two actors that wake each other: each writes what the other one watches. That is how
// controllers work together, and it ends where both agree; where they don't, it does not.
type Loop struct {
	A string `json:"a"`
	B string `json:"b"`
	// There are the kinds that A writes and B watches, Back those that B writes and A watches.
	There []string `json:"there"`
	Back  []string `json:"back"`
	// Contested kinds are written and watched by both: they may undo each other's work.
	Contested []string `json:"contested,omitempty"`
	// Plugin: a plugin takes part.
	Plugin bool `json:"plugin"`
}

// New puts actors in order and finds the loops among them. Who may write everything (garbage
// collection, deletion of namespaces) would be in a loop with everybody, and is left out of them.
func New(actors []Actor) *Graph {
	g := &Graph{Actors: slices.Clone(actors), Loops: []Loop{}}
	for i := range g.Actors {
		a := &g.Actors[i]
		a.Watches, a.Writes = distinct(a.Watches), distinct(a.Writes)
		a.Reads = slices.DeleteFunc(distinct(a.Reads), func(k string) bool { return slices.Contains(a.Watches, k) })
	}
	roles := []Role{Controller, Scheduler, Node, Plugin}
	slices.SortStableFunc(g.Actors, func(a, b Actor) int {
		return cmp.Or(cmp.Compare(slices.Index(roles, a.Role), slices.Index(roles, b.Role)), cmp.Compare(a.Name, b.Name))
	})
	for i, a := range g.Actors {
		for _, b := range g.Actors[i+1:] {
			if l, ok := loop(a, b); ok {
				g.Loops = append(g.Loops, l)
			}
		}
	}
	// Plugins first: these are the loops that an operator made.
	slices.SortStableFunc(g.Loops, func(a, b Loop) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), -cmp.Compare(len(a.Contested), len(b.Contested)))
	})
	return g
}

func rank(l Loop) int {
	if l.Plugin {
		return 0
	}
	return 1
}

func loop(a, b Actor) (Loop, bool) {
	l := Loop{A: a.Name, B: b.Name, There: shared(a.Writes, b.Watches), Back: shared(b.Writes, a.Watches), Plugin: a.Role == Plugin ||
		b.Role == Plugin}
	l.Contested = shared(l.There, l.Back)
	return l, len(l.There) > 0 && len(l.Back) > 0
}

func shared(a, b []string) []string {
	var out []string
	for _, k := range a {
		if k != Every && slices.Contains(b, k) {
			out = append(out, k)
		}
	}
	return out
}

func distinct(kinds []string) []string {
	out := slices.Clone(kinds)
	slices.Sort(out)
	if out = slices.Compact(out); out == nil {
		return []string{}
	}
	return out
}

// Only is the part of the graph that concerns names, of actors or kinds: these actors, those that
// share one of these kinds, and the loops in which one of them is.
func (g *Graph) Only(names []string) (*Graph, error) {
	if len(names) == 0 {
		return g, nil
	}
	out := &Graph{Loops: []Loop{}, part: true}
	for _, a := range g.Actors {
		if slices.Contains(names, a.Name) || slices.ContainsFunc(names, a.touches) {
			out.Actors = append(out.Actors, a)
		}
	}
	for _, n := range names {
		if !slices.ContainsFunc(out.Actors, func(a Actor) bool { return a.Name == n || a.touches(n) }) {
			return nil, fmt.Errorf("nobody is called %q, and nobody reads or writes a kind of this name: expected a name such as %s", n,
				strings.Join(g.examples(), ", "))
		}
	}
	for _, l := range g.Loops {
		concerns := func(n string) bool {
			return n == l.A || n == l.B || slices.Contains(l.There, n) || slices.Contains(l.Back, n)
		}
		if slices.ContainsFunc(names, concerns) {
			out.Loops = append(out.Loops, l)
		}
	}
	return out, nil
}

func (a *Actor) touches(kind string) bool {
	return slices.Contains(a.Watches, kind) || slices.Contains(a.Reads, kind) || slices.Contains(a.Writes, kind)
}

func (g *Graph) examples() []string {
	var out []string
	if len(g.Actors) > 0 {
		out = append(out, g.Actors[0].Name)
	}
	if kinds := g.kinds(); len(kinds) > 0 {
		out = append(out, kinds[len(kinds)/2])
	}
	return out
}

// kinds that anybody touches, in order.
func (g *Graph) kinds() []string {
	all := map[string]bool{}
	for _, a := range g.Actors {
		for _, list := range [][]string{a.Watches, a.Reads, a.Writes} {
			for _, k := range list {
				all[k] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// Allow adds what rules let an actor do: who may watch a kind is taken to watch it.
func (a *Actor) Allow(rules []rbacv1.PolicyRule) {
	for _, r := range rules {
		for _, kind := range kindsOf(r) {
			if has(r.Verbs, "watch") {
				a.Watches = append(a.Watches, kind)
			}
			if has(r.Verbs, "get", "list") {
				a.Reads = append(a.Reads, kind)
			}
			if has(r.Verbs, "create", "update", "patch", "delete", "deletecollection") {
				a.Writes = append(a.Writes, kind)
			}
		}
	}
}

// AllowBesides adds what rules let an actor write and read whose own word on what it watches is known.
func (a *Actor) AllowBesides(rules []rbacv1.PolicyRule) {
	watches := slices.Clone(a.Watches)
	a.Allow(rules)
	a.Reads, a.Watches = append(a.Reads, a.Watches...), watches
}

func has(verbs []string, wanted ...string) bool {
	return slices.ContainsFunc(verbs, func(v string) bool { return v == rbacv1.VerbAll || slices.Contains(wanted, v) })
}

// idle kinds are those whose changes nobody acts on.
var idle = map[string]bool{
	"events": true, "events.events.k8s.io": true, "leases.coordination.k8s.io": true,
	"tokenreviews.authentication.k8s.io": true, "selfsubjectreviews.authentication.k8s.io": true,
	"subjectaccessreviews.authorization.k8s.io": true, "localsubjectaccessreviews.authorization.k8s.io": true,
	"selfsubjectaccessreviews.authorization.k8s.io": true, "selfsubjectrulesreviews.authorization.k8s.io": true,
}

// connections are subresources that store nothing.
var connections = []string{
	"token", "proxy", "exec", "attach", "portforward", "log", "metrics", "stats", "spec", "checkpoint", "configz",
	"healthz", "pods",
}

func kindsOf(r rbacv1.PolicyRule) []string {
	var out []string
	for _, resource := range r.Resources {
		kind, sub, _ := strings.Cut(resource, "/")
		if slices.Contains(connections, sub) {
			continue
		}
		for _, group := range r.APIGroups {
			if group == "extensions" {
				continue // nobody serves it any more; its kinds are those of apps and networking.k8s.io
			}
			if k := Kind(group, kind); !idle[k] {
				out = append(out, k)
			}
		}
	}
	return out
}

// Kind is the name of a kind here: "jobs.batch", "pods" (also of all groups), or Every.
func Kind(group, resource string) string {
	resource, _, _ = strings.Cut(resource, "/")
	switch {
	case resource == Every:
		return Every
	case group == "", group == Every:
		return resource
	}
	return resource + "." + group
}
