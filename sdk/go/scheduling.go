// SPDX-License-Identifier: Apache-2.0

package wasmplane

// Event is something that happens in the cluster and may change the mind of a hook
// that refused a pod.
type Event string

// Keys that several answers have.
const (
	unresolvable = "unresolvable"
	scoresField  = "scores"
	eventsKey    = "events"
	reasonsKey   = "reasons"
	allowedKey   = "allowed"
)

// Filter is a hook at scheduling.filter, asked about one node at a time; the input
// has pod, requests, node, allocatable, requested and pods.
type Filter struct {
	Fields []string
	Events []Event
	// Fits says why the pod may not run there; "" where it may.
	Fits func(in Input) (reason string)
	// Never, where set, is asked first. What it says holds whatever pods leave the
	// node, so that nobody is evicted for nothing.
	Never func(in Input) (reason string)
}

// Score is a hook at scheduling.score; the input is that of Filter, the answer is 0 to 100.
type Score struct {
	Fields []string
	Rate   func(in Input) int
}

// Gate is a hook that lets a pod go on or holds it back: at scheduling.preEnqueue
// (before it is tried at all), reserve (a node was chosen: nodeName) and preBind (just before it is bound).
type Gate struct {
	Fields []string
	Events []Event // of preEnqueue
	// Decide says what the pod waits for, or why it may not; "" lets it go on.
	Decide func(in Input) (reason string)
}

// Groups tell pods apart by what is written in them. The pods of a group have their usage
// counted, by the host: preFilter, queueSort and postFilter read the fields group (its name), usage
// (of the pod's group), groups (of all, by name), others (of pods in none) and total (what the nodes have).
// A usage has requested, leaving and promised: amounts, as requests are.
type Groups struct {
	// Of is the value that decides: pod.metadata.namespace, pod.metadata.labels["..."] or pod.metadata.annotations["..."].
	Of string
	// Names of groups by the value; several values may be one group. At most 1024.
	Names map[string]string
	// Other is the group of pods with another value, or none; "" = they are in no group.
	Other string
}

func (g *Groups) object() Object {
	all := Object{}
	for value, name := range g.Names {
		all[value] = name
	}
	return Object{"of": g.Of, "names": all, "other": g.Other}
}

// QueueSort is a hook at scheduling.queueSort; the input has pod and added. The
// highest rank goes first; among equals, priority and age decide. A plugin with Groups ranks groups: pod is
// the first one of a group that waits, and Rank is asked again when what the group has changes.
type QueueSort struct {
	Fields []string
	Rank   func(in Input) int64
}

// PreFilter is a hook at scheduling.preFilter, asked once a cycle before all nodes;
// the input has pod, requests and nodes, their names.
type PreFilter struct {
	Fields []string
	Events []Event
	// Pure: the answer depends on the fields and the settings only, so that the host may
	// answer the same question again by itself, and lets one pod speak for others like it.
	Pure   bool
	Decide func(in Input, out *Selection)
}

// PreScore is a hook at scheduling.preScore, asked once a cycle with the nodes that are left.
type PreScore struct {
	Fields []string
	Decide func(in Input, out *Preparation)
}

// Preparation is what a hook works out for the later ones of the same cycle.
type Preparation struct {
	skip  bool
	state any
}

// Skip leaves the plugin's filter (after PreFilter) or score (after PreScore) out of this cycle.
func (p *Preparation) Skip() { p.skip = true }

// Keep hands a value to the plugin's later hooks of this cycle: they read it as
// "state". What an instance keeps in its own memory another does not see.
func (p *Preparation) Keep(state any) { p.state = state }

func (p *Preparation) object() Object {
	o := Object{}
	if p.skip {
		o["skip"] = true
	}
	if p.state != nil {
		o["state"] = p.state
	}
	return o
}

// Selection is what a PreFilter answers: nothing, so far, leaves all nodes in.
type Selection struct {
	Preparation
	nodes    []string
	narrowed bool
	reasons  []string
	never    bool
}

// Only narrows the search to nodes by their names; none of them, and the pod fits nowhere.
func (s *Selection) Only(nodes ...string) {
	s.narrowed, s.nodes = true, append(s.nodes, nodes...)
}

// Refuse keeps the pod off every node, for now.
func (s *Selection) Refuse(reason string) { s.reasons = append(s.reasons, reason) }

// Never keeps the pod off every node, whatever pods leave them.
func (s *Selection) Never(reason string) { s.never = true; s.Refuse(reason) }

// PostFilter is a hook at scheduling.postFilter: no node was left. The input has
// failed (node, plugin, reasons, unresolvable).
type PostFilter struct {
	Fields []string
	// Pure: the answer depends on the fields and the settings only, so that the host may
	// answer the same question again by itself, and lets one pod speak for others like it.
	Pure   bool
	Decide func(in Input, out *Nomination)
}

// Nomination is what a PostFilter proposes: nothing, so far.
type Nomination struct {
	node    string
	evict   []Object
	reclaim []Object
	reasons []string
}

// Amounts of resources by name: milliCPU, memory, ephemeralStorage, pods, or an extended resource.
type Amounts map[string]int64

func (a Amounts) object() Object {
	o, scalar := Object{}, Object{}
	for name, n := range a {
		switch name {
		case "milliCPU", "memory", "ephemeralStorage", "pods":
			o[name] = n
		default:
			scalar[name] = n
		}
	}
	if len(scalar) > 0 {
		o["scalar"] = scalar
	}
	return o
}

// Reclaim lets those pods of a group make room that have no place in what it keeps: the most important
// ones keep theirs, and of a resource that is not named, all. The host finds out which of
// them have to go, whole gangs; the pods of a group that is named first rather stay. It takes the place of
// Nominate, for plugins with Groups.
func (n *Nomination) Reclaim(group string, keep Amounts) {
	n.reclaim = append(n.reclaim, Object{"group": group, "keep": keep.object()})
}

// ReclaimBelow lets the pods of a group make room whose priority is lower.
func (n *Nomination) ReclaimBelow(group string, priority int64) {
	n.reclaim = append(n.reclaim, Object{"group": group, "below": priority})
}

// Nominate names the node on which the pod will fit.
func (n *Nomination) Nominate(node string) { n.node = node }

// Evict removes a pod of the nominated node, of lower priority, to make room; uid may be "".
func (n *Nomination) Evict(namespace, name, uid string) {
	n.evict = append(n.evict, Object{"namespace": namespace, "name": name, "uid": uid})
}

// Explain says why nothing is proposed.
func (n *Nomination) Explain(reason string) { n.reasons = append(n.reasons, reason) }

// Normalize is a hook at scheduling.normalize: Scale changes the plugin's scores of
// all nodes, in the order of the field nodes, to what they are to be among each other, 0 to 100.
type Normalize struct {
	Fields []string
	Scale  func(in Input, scores []int64)
}

func (n *Normalize) fields() []string {
	if len(n.Fields) == 0 {
		return nil
	}
	for _, f := range n.Fields {
		if f == scoresField {
			return n.Fields
		}
	}
	return append(n.Fields[:len(n.Fields):len(n.Fields)], scoresField)
}

// Notice is a hook that is told and decides nothing: at scheduling.unreserve (a
// choice came to nothing) and scheduling.postBind (the pod is bound). The input has pod and nodeName.
type Notice struct {
	Fields []string
	Do     func(in Input)
}

// Permit is a hook at scheduling.permit, before binding; the input has pod, nodeName
// and waitedSeconds.
type Permit struct {
	Fields []string
	Decide func(in Input) Permission
}

// Permission is a Permit's answer. The zero value lets the pod be bound.
type Permission struct {
	decision string
	seconds  float64
	reason   string
}

// Proceed lets the pod be bound.
func Proceed() Permission { return Permission{} }

// Wait holds the pod and its place on the node; the hook is asked again within
// that many seconds, for 15 minutes at most.
func Wait(seconds float64, reason string) Permission { return Permission{"wait", seconds, reason} }

// Reject gives the place up; the pod is tried again later.
func Reject(reason string) Permission { return Permission{decision: "deny", reason: reason} }

// Bind is a hook at scheduling.bind; the input has pod and nodeName.
type Bind struct {
	Fields []string
	Decide func(in Input, out *Binding)
}

// Binding is what a Bind answers: nothing, so far, leaves the binding to others.
type Binding struct {
	bound       bool
	annotations Object
	reasons     []string
}

// Bind has the pod bound to the node.
func (b *Binding) Bind() { b.bound = true }

// Annotate has the pod bound, with an annotation.
func (b *Binding) Annotate(key, value string) {
	if b.annotations == nil {
		b.annotations = Object{}
	}
	b.bound, b.annotations[key] = true, value
}

// Refuse gives the place up.
func (b *Binding) Refuse(reason string) { b.reasons = append(b.reasons, reason) }

// schedule runs an operation of a pod's cycle; false where the plugin does not have it.
func (p *Plugin) schedule(op int32, input []byte) ([]byte, bool) {
	switch {
	case op == opFilter && p.Filter != nil:
		return p.Filter.run(input), true
	case op == opScore && p.Score != nil:
		return appendInt(nil, int64(p.Score.Rate(newInput(&p.Score.Fields, input)))), true
	case op == opQueueSort && p.QueueSort != nil:
		return appendInt(nil, p.QueueSort.Rank(newInput(&p.QueueSort.Fields, input))), true
	case op == opPreFilter && p.PreFilter != nil:
		return p.PreFilter.run(input), true
	case op == opPostFilter && p.PostFilter != nil:
		return p.PostFilter.run(input), true
	case op == opPreScore && p.PreScore != nil:
		var out Preparation
		p.PreScore.Decide(newInput(&p.PreScore.Fields, input), &out)
		return out.object().unlessEmpty(), true
	case op == opNormalize && p.Normalize != nil:
		return p.Normalize.run(input), true
	case op == opPermit && p.Permit != nil:
		return p.Permit.run(input), true
	case op == opBind && p.Bind != nil:
		return p.Bind.run(input), true
	}
	if g := p.gate(op); g != nil {
		return gated(g.Decide(newInput(&g.Fields, input))), true
	}
	if n := p.notice(op); n != nil {
		n.Do(newInput(&n.Fields, input))
		return nil, true
	}
	return nil, false
}

func (p *Plugin) gate(op int32) *Gate {
	switch op {
	case opPreEnqueue:
		return p.PreEnqueue
	case opReserve:
		return p.Reserve
	case opPreBind:
		return p.PreBind
	}
	return nil
}

func (p *Plugin) notice(op int32) *Notice {
	switch op {
	case opUnreserve:
		return p.Unreserve
	case opPostBind:
		return p.PostBind
	}
	return nil
}

// describeScheduling adds the hooks of a pod's cycle to the manifest.
func (p *Plugin) describeScheduling(add func(op int, fields []string) Object) {
	at := func(op int, fields []string, events ...Event) Object {
		h := add(op, fields)
		if len(events) > 0 {
			h[eventsKey] = names(events)
		}
		return h
	}
	gate := func(op int, g *Gate) {
		if g != nil {
			at(op, g.Fields, g.Events...)
		}
	}
	notice := func(op int, n *Notice) {
		if n != nil {
			at(op, n.Fields)
		}
	}
	gate(opPreEnqueue, p.PreEnqueue)
	if p.QueueSort != nil {
		at(opQueueSort, p.QueueSort.Fields)
	}
	if p.PreFilter != nil {
		at(opPreFilter, p.PreFilter.Fields, p.PreFilter.Events...)["pure"] = p.PreFilter.Pure
	}
	if p.Filter != nil {
		at(opFilter, p.Filter.Fields, p.Filter.Events...)
	}
	if p.PostFilter != nil {
		at(opPostFilter, p.PostFilter.Fields)["pure"] = p.PostFilter.Pure
	}
	if p.PreScore != nil {
		at(opPreScore, p.PreScore.Fields)
	}
	if p.Score != nil {
		at(opScore, p.Score.Fields)
	}
	if p.Normalize != nil {
		at(opNormalize, p.Normalize.fields())
	}
	gate(opReserve, p.Reserve)
	notice(opUnreserve, p.Unreserve)
	if p.Permit != nil {
		at(opPermit, p.Permit.Fields)
	}
	gate(opPreBind, p.PreBind)
	if p.Bind != nil {
		at(opBind, p.Bind.Fields)
	}
	notice(opPostBind, p.PostBind)
}

func names(events []Event) []string {
	out := make([]string, len(events))
	for i, e := range events {
		out[i] = string(e)
	}
	return out
}

func gated(reason string) []byte {
	if reason == "" {
		return nil
	}
	return Object{allowedKey: false, reasonsKey: []string{reason}}.append(nil)
}

func (f *Filter) run(input []byte) []byte {
	in := newInput(&f.Fields, input)
	if f.Never != nil {
		if reason := f.Never(in); reason != "" {
			return Object{"fits": false, unresolvable: true, reasonsKey: []string{reason}}.append(nil)
		}
	}
	if f.Fits == nil {
		return nil
	}
	reason := f.Fits(in)
	if reason == "" {
		return nil
	}
	return Object{"fits": false, reasonsKey: []string{reason}}.append(nil)
}

func (p *PreFilter) run(input []byte) []byte {
	var s Selection
	p.Decide(newInput(&p.Fields, input), &s)
	if len(s.reasons) > 0 {
		o := Object{"fits": false, reasonsKey: s.reasons}
		if s.never {
			o[unresolvable] = true
		}
		return o.append(nil)
	}
	o := s.object()
	if s.narrowed {
		o["nodes"] = s.nodes
	}
	return o.unlessEmpty()
}

func (p *PostFilter) run(input []byte) []byte {
	var n Nomination
	p.Decide(newInput(&p.Fields, input), &n)
	o := Object{}
	if n.node != "" {
		o["nominated"], o["evict"] = n.node, n.evict
	}
	if len(n.reclaim) > 0 {
		o["reclaim"] = n.reclaim
	}
	if len(n.reasons) > 0 {
		o[reasonsKey] = n.reasons
	}
	return o.unlessEmpty()
}

func (n *Normalize) run(input []byte) []byte {
	fields := n.fields()
	in := newInput(&fields, input)
	given := in.Get(scoresField)
	scores := make([]int64, given.Len())
	for i := range scores {
		scores[i] = given.At(i).Int()
	}
	n.Scale(in, scores)
	return appendList(nil, len(scores), func(b []byte, i int) []byte {
		return appendInt(b, min(max(scores[i], 0), 100))
	})
}

func (p *Permit) run(input []byte) []byte {
	v := p.Decide(newInput(&p.Fields, input))
	if v.decision == "" {
		return nil
	}
	o := Object{"decision": v.decision, reasonsKey: []string{v.reason}}
	if v.decision == "wait" {
		o["waitSeconds"] = v.seconds
	}
	return o.append(nil)
}

func (b *Bind) run(input []byte) []byte {
	var out Binding
	b.Decide(newInput(&b.Fields, input), &out)
	switch {
	case len(out.reasons) > 0:
		return Object{allowedKey: false, reasonsKey: out.reasons}.append(nil)
	case !out.bound:
		return nil
	case out.annotations == nil:
		return []byte(`{"annotations":{}}`)
	}
	return Object{"annotations": out.annotations}.append(nil)
}

// unlessEmpty writes the object; an empty one is no answer.
func (o Object) unlessEmpty() []byte {
	if len(o) == 0 {
		return nil
	}
	return o.append(nil)
}
