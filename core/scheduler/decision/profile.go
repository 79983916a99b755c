// SPDX-License-Identifier: Apache-2.0

package decision

import (
	"context"
	"fmt"
	"slices"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/core/scheduler/measure"
)

// Weighted is a plugin with the weight of its score; 0 means 1.
type Weighted struct {
	framework.Plugin
	Weight int64
	// Skip are points at which the plugin is not asked, although it could be.
	Skip []framework.Point
}

// Profile is one scheduling policy: the plugins, in the order in which they are
// asked, for pods whose spec.schedulerName is Name.
type Profile struct {
	Name    string
	Plugins []Weighted
	// PercentageOfNodes that are feasible end the search for more, of at least 100; 0 = by
	// the size of the cluster, from 50 down to 5.
	PercentageOfNodes int
}

// Compiled is a Profile sorted by points, once.
type Compiled struct {
	Name        string
	percent     int
	preEnqueues []framework.PreEnqueue
	Sorter      framework.QueueSort // nil = by priority and age alone
	preFilters  []framework.PreFilter
	extensions  []framework.PreFilterExtensions
	filters     []member[framework.Filter]
	judges      []weighted[framework.Judge]
	post        []framework.PostFilter
	preScores   []framework.PreScore
	scores      []member[framework.Score]
	reserves    []framework.Reserve
	Permits     []framework.Permit
	PreBinds    []framework.PreBind
	Binds       []framework.Bind
	PostBinds   []framework.PostBind
	extenders   []framework.Extender
	hints       map[string]framework.ClusterEvent
	Metrics     *measure.Metrics // nil = none

	// locals among the filters and scores; refusers are the plugins that refuse pods in a
	// decision, nil where one of them doesn't say what it reads of a pod.
	locals, refusers []framework.Signed
	isLocal          map[string]bool
	attentive        map[string]framework.Attentive
	awaiting         map[string]framework.Awaiting
	reclaimer        framework.Reclaimer // nil = room is made by priority
}

// member is a plugin of a profile at one point.
type member[P framework.Plugin] struct {
	plugin P
	weight int64
	local  bool // it is a framework.Local
}

type weighted[P framework.Plugin] struct {
	plugin P
	weight int64
}

// Compile sorts a profile, whose plugins count their calls in metrics; nil = nowhere.
func Compile(p Profile, m *measure.Metrics) (*Compiled, error) {
	c := &Compiled{
		Name: p.Name, Metrics: m, percent: p.PercentageOfNodes, hints: map[string]framework.ClusterEvent{},
		attentive: map[string]framework.Attentive{}, awaiting: map[string]framework.Awaiting{},
	}
	for _, w := range p.Plugins {
		name := w.Name()
		if _, twice := c.hints[name]; twice {
			return nil, fmt.Errorf("scheduler profile %s: plugin %s is listed twice", p.Name, name)
		}
		if w.Weight < 0 {
			return nil, fmt.Errorf("scheduler profile %s: plugin %s has weight %d; expected 0 or more", p.Name, name, w.Weight)
		}
		c.hints[name] = framework.AnyEvent
		if h, ok := w.Plugin.(framework.Hints); ok {
			c.hints[name] = h.Hints()
		}
		if a, ok := w.Plugin.(framework.Attentive); ok {
			c.attentive[name] = a
		}
		if a, ok := w.Plugin.(framework.Awaiting); ok {
			c.awaiting[name] = a
		}
		if q, ok := w.Plugin.(framework.QueueSort); ok && w.takes(framework.AtQueueSort) {
			if c.Sorter != nil {
				return nil, fmt.Errorf("scheduler profile %s: plugins %s and %s both order the queue; disable one of them in the profile", p.Name, c.Sorter.Name(), name)
			}
			c.Sorter = q
		}
		if r, ok := w.Plugin.(framework.Reclaimer); ok && w.takes(framework.AtPostFilter) && r.Groups() != nil {
			if c.reclaimer != nil {
				return nil, fmt.Errorf("scheduler profile %s: plugins %s and %s both say which groups make room; disable one of them in the profile", p.Name, c.reclaimer.Name(), name)
			}
			c.reclaimer = r
		}
		c.sort(w, max(w.Weight, 1))
	}
	// Who binds is decided by the extenders first, as upstream has it.
	slices.SortStableFunc(c.Binds, func(a, b framework.Bind) int { return place(a) - place(b) })
	c.sign(p)
	return c, nil
}

// place of a plugin among those that bind: extenders are before the others.
func place(p framework.Plugin) int {
	if _, is := p.(framework.Extender); is {
		return 0
	}
	return 1
}

// sign finds out what pods may share.
func (c *Compiled) sign(p Profile) {
	all := true
	c.isLocal = map[string]bool{}
	for _, w := range p.Plugins {
		if local(w.Plugin) && (w.takes(framework.AtFilter) || w.takes(framework.AtScore)) {
			c.locals, c.isLocal[w.Name()] = append(c.locals, w.Plugin.(framework.Signed)), true
		}
		if !w.refuses() {
			continue
		}
		signed, ok := w.Plugin.(framework.Signed)
		if !ok {
			all = false
			continue
		}
		c.refusers = append(c.refusers, signed)
	}
	if !all {
		c.refusers = nil
	}
}

func local(p framework.Plugin) bool {
	l, ok := p.(framework.Local)
	return ok && l.IsLocal()
}

// refuses says whether the plugin has a say in which nodes are left.
func (w Weighted) refuses() bool {
	_, pre := w.Plugin.(framework.PreFilter)
	_, filter := w.Plugin.(framework.Filter)
	_, judge := w.Plugin.(framework.Judge)
	_, post := w.Plugin.(framework.PostFilter)
	if _, extender := w.Plugin.(framework.Extender); extender && (w.takes(framework.AtFilter) || w.takes(framework.AtPostFilter)) {
		return true
	}
	return pre && w.takes(framework.AtPreFilter) || filter && w.takes(framework.AtFilter) ||
		judge && w.takes(framework.AtJudge) || post && w.takes(framework.AtPostFilter)
}

// takes says whether the plugin is to be asked at a point.
func (w Weighted) takes(at framework.Point) bool {
	return framework.Takes(w.Plugin, at) && !slices.Contains(w.Skip, at)
}

func (c *Compiled) sort(p Weighted, weight int64) {
	collect(&c.preEnqueues, p, framework.AtPreEnqueue)
	collect(&c.preFilters, p, framework.AtPreFilter)
	collect(&c.extensions, p, framework.AtPreFilter)
	collect(&c.post, p, framework.AtPostFilter)
	collect(&c.preScores, p, framework.AtPreScore)
	collect(&c.reserves, p, framework.AtReserve)
	collect(&c.Permits, p, framework.AtPermit)
	collect(&c.PreBinds, p, framework.AtPreBind)
	collect(&c.Binds, p, framework.AtBind)
	collect(&c.PostBinds, p, framework.AtPostBind)
	if x, ok := p.Plugin.(framework.Extender); ok {
		c.extenders = append(c.extenders, x)
	}
	// A Judge takes the place of its own Filter and Score.
	if j, ok := p.Plugin.(framework.Judge); ok && p.takes(framework.AtJudge) {
		c.judges = append(c.judges, weighted[framework.Judge]{j, weight})
		return
	}
	if f, ok := p.Plugin.(framework.Filter); ok && p.takes(framework.AtFilter) {
		c.filters = append(c.filters, member[framework.Filter]{f, weight, local(p.Plugin)})
	}
	if s, ok := p.Plugin.(framework.Score); ok && p.takes(framework.AtScore) {
		c.scores = append(c.scores, member[framework.Score]{s, weight, local(p.Plugin)})
	}
}

func collect[P framework.Plugin](list *[]P, p Weighted, at framework.Point) {
	if typed, ok := p.Plugin.(P); ok && p.takes(at) {
		*list = append(*list, typed)
	}
}

// Interest is the union of what may help a pod that these plugins refused.
func (c *Compiled) Interest(refusedBy []string) framework.ClusterEvent {
	if len(refusedBy) == 0 {
		return framework.AnyEvent
	}
	var e framework.ClusterEvent
	for _, name := range refusedBy {
		e |= c.hints[name]
	}
	return e
}

// Without returns the profile less the named plugins.
func (p Profile) Without(names []string) Profile {
	p.Plugins = slices.DeleteFunc(slices.Clone(p.Plugins), func(w Weighted) bool { return slices.Contains(names, w.Name()) })
	return p
}

// PreEnqueue is the first refusal of those who say whether a pod may be tried; nil = it may.
func (c *Compiled) PreEnqueue(ctx context.Context, p *framework.PodInfo) *framework.Status {
	for _, pre := range c.preEnqueues {
		if st := pre.PreEnqueue(ctx, p); !st.IsSuccess() {
			return by(st, pre)
		}
	}
	return nil
}

// Reserve asks the Reserve plugins. Where one refuses, nothing stays reserved.
func (c *Compiled) Reserve(ctx context.Context, d *Decision, p *framework.PodInfo) *framework.Status {
	end := c.Metrics.Point(c.Name, "Reserve")
	for i, r := range c.reserves {
		if st := r.Reserve(ctx, d.State, p, d.Node); !st.IsSuccess() {
			end(st)
			for ; i >= 0; i-- {
				c.reserves[i].Unreserve(ctx, d.State, p, d.Node)
			}
			return by(st, r)
		}
	}
	end(nil)
	return nil
}

// Unreserve takes back what the Reserve plugins have done, in the opposite order.
func (c *Compiled) Unreserve(ctx context.Context, d *Decision, p *framework.PodInfo, node string) {
	for i := len(c.reserves) - 1; i >= 0; i-- {
		c.reserves[i].Unreserve(ctx, d.State, p, node)
	}
}

// GroupPostFilter is who makes room for gangs; nil = nobody does.
func (c *Compiled) GroupPostFilter() framework.GroupPostFilter {
	for _, p := range c.post {
		if g, ok := p.(framework.GroupPostFilter); ok {
			return g
		}
	}
	return nil
}

// Frees says whether a plugin lets go of something that the pod holds, and that keeps it from every node.
func (c *Compiled) Frees(d *Decision) bool { return d.State != nil && framework.Frees(c.post, d.State) }

// Free has a pod that nothing helps give up what it holds.
func (c *Compiled) Free(ctx context.Context, d *Decision, p *framework.PodInfo) *framework.Status {
	return framework.Free(ctx, c.post, d.State, p)
}
