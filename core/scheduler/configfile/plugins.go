// SPDX-License-Identifier: Apache-2.0

package configfile

import (
	"fmt"
	"slices"

	"k8s.io/kube-scheduler/config/v1"

	"github.com/wasmplane/wasmplane/core/scheduler"
	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

// always are upstream's plugins whose work the scheduler itself does.
var always = map[string]string{
	"SchedulingGates": "the scheduler itself leaves pods with gates alone",
	"PrioritySort":    "the queue itself orders pods by priority and age, where no plugin orders them",
	"DefaultBinder":   "the scheduler itself binds, where no plugin does",
}

// absent are upstream's plugins that this scheduler does not have.
var absent = []string{
	"GangScheduling", "DeferredPodScheduling",
	"TopologyPlacementGenerator", "PodGroupPodsCount",
}

// set is a plugin set of a profile.
type set struct {
	field string
	at    framework.Point // "" = multiPoint
	v1.PluginSet
}

func sets(p *v1.Plugins) []set {
	return []set{
		{"multiPoint", "", p.MultiPoint},
		{"preEnqueue", framework.AtPreEnqueue, p.PreEnqueue},
		{"queueSort", framework.AtQueueSort, p.QueueSort},
		{"preFilter", framework.AtPreFilter, p.PreFilter},
		{"filter", framework.AtFilter, p.Filter},
		{"postFilter", framework.AtPostFilter, p.PostFilter},
		{"preScore", framework.AtPreScore, p.PreScore},
		{"score", framework.AtScore, p.Score},
		{"reserve", framework.AtReserve, p.Reserve},
		{"permit", framework.AtPermit, p.Permit},
		{"preBind", framework.AtPreBind, p.PreBind},
		{"bind", framework.AtBind, p.Bind},
		{"postBind", framework.AtPostBind, p.PostBind},
	}
}

// part is how one plugin takes part.
type part struct {
	scheduler.Weighted
	everywhere bool                     // multiPoint, or by default
	at         map[framework.Point]bool // enabled or disabled there
}

// choice is the plugins of one profile while its sets are read.
type choice struct {
	file  *File
	known []scheduler.Weighted // native ones, then Wasm
	parts []*part              // in the order in which they are asked
}

// plugins of a profile. Without a word about it the native ones take part, those in Wasm do not.
func (f *File) plugins(path string, p *v1.Plugins, ours, wasm []scheduler.Weighted) ([]scheduler.Weighted, error) {
	c := &choice{file: f, known: slices.Concat(ours, wasm)}
	for _, w := range ours {
		c.parts = append(c.parts, &part{Weighted: w, everywhere: true, at: map[framework.Point]bool{}})
	}
	if p == nil {
		return ours, nil
	}
	for field, s := range map[string]v1.PluginSet{
		"placementGenerate": p.PlacementGenerate, "placementScore": p.PlacementScore,
		"podGroupPostFilter": p.PodGroupPostFilter,
	} {
		if len(s.Enabled)+len(s.Disabled) > 0 {
			return nil, f.wrong(path+"."+field, "groups of pods are not placed as one: no plugin is asked there")
		}
	}
	for _, s := range sets(p) {
		if err := c.read(path+"."+s.field, s); err != nil {
			return nil, err
		}
	}
	return c.result(path)
}

// read a set: what is disabled first, then what is enabled, as upstream does.
func (c *choice) read(path string, s set) error {
	for i, d := range s.Disabled {
		at := fmt.Sprintf("%s.disabled[%d].name", path, i)
		switch {
		case d.Name == "*":
			for _, p := range c.parts {
				p.off(s.at)
			}
		case always[d.Name] != "":
			if len(s.Enabled) == 0 {
				return c.file.wrong(at, "%s cannot be left out: %s", d.Name, always[d.Name])
			}
		case slices.Contains(absent, d.Name): // it is not there
		default:
			if c.find(d.Name) == nil {
				return c.unknown(at, d.Name)
			}
			if p := c.part(d.Name); p != nil {
				p.off(s.at)
			}
		}
	}
	for i, e := range s.Enabled {
		at := fmt.Sprintf("%s.enabled[%d]", path, i)
		if e.Weight != nil && (*e.Weight < 1 || s.at != "" && s.at != framework.AtScore) {
			return c.file.wrong(at+".weight", "expected 1 or more, at score and multiPoint only, found %d", *e.Weight)
		}
		if always[e.Name] != "" {
			continue
		}
		known := c.find(e.Name)
		if known == nil {
			return c.unknown(at+".name", e.Name)
		}
		p := c.part(e.Name)
		if p == nil {
			p = &part{Weighted: *known, at: map[framework.Point]bool{}}
			c.parts = append(c.parts, p)
		}
		if e.Weight != nil {
			p.Weight = int64(*e.Weight)
		}
		if s.at == "" {
			p.everywhere = true
		} else {
			p.at[s.at] = true
		}
	}
	return nil
}

func (p *part) off(at framework.Point) {
	if at == "" {
		p.everywhere = false
	} else {
		p.at[at] = false
	}
}

func (c *choice) find(name string) *scheduler.Weighted {
	if i := slices.IndexFunc(c.known, func(w scheduler.Weighted) bool { return w.Name() == name }); i >= 0 {
		return &c.known[i]
	}
	return nil
}

func (c *choice) part(name string) *part {
	if i := slices.IndexFunc(c.parts, func(p *part) bool { return p.Name() == name }); i >= 0 {
		return c.parts[i]
	}
	return nil
}

func (c *choice) unknown(path, name string) error {
	if slices.Contains(absent, name) {
		return c.file.wrong(path, "this scheduler has no plugin %s; it has %s", name, c.names())
	}
	return c.file.wrong(path, "there is no plugin %q; there are %s. A plugin in Wasm is named as its entry in plugins: is", name, c.names())
}

func (c *choice) names() (out string) {
	for i, w := range c.known {
		if i > 0 {
			out += ", "
		}
		out += w.Name()
	}
	return out
}

// takes says whether the plugin is to be asked at a point.
func (p *part) takes(at framework.Point) bool {
	if said, ok := p.at[at]; ok {
		return said
	}
	return p.everywhere
}

// together are points of which a plugin that has both cannot do without one: the first one
// works out what the second one reads.
var together = [][2]framework.Point{{framework.AtPreFilter, framework.AtFilter}, {framework.AtPreScore, framework.AtScore}}

func (c *choice) result(path string) ([]scheduler.Weighted, error) {
	var out []scheduler.Weighted
	for _, p := range c.parts {
		for _, pair := range together {
			if has(p.Plugin, pair[0]) && has(p.Plugin, pair[1]) && p.takes(pair[1]) && !p.takes(pair[0]) {
				return nil, c.file.wrong(path, "plugin %s is enabled at %s and not at %s, where it works out what it reads there: enable it at both, or at multiPoint", p.Name(), pair[1], pair[0])
			}
		}
		if has(p.Plugin, framework.AtJudge) && p.takes(framework.AtFilter) != p.takes(framework.AtScore) {
			return nil, c.file.wrong(path, "plugin %s filters and scores all nodes in one call: enable it at filter and at score, or at multiPoint", p.Name())
		}
		w, somewhere := p.Weighted, false
		w.Skip = nil
		for _, at := range points {
			asked := p.takes(at)
			if at == framework.AtJudge {
				asked = p.takes(framework.AtFilter)
			}
			if asked {
				somewhere = true
			} else {
				w.Skip = append(w.Skip, at)
			}
		}
		if somewhere {
			out = append(out, w)
		}
	}
	return out, nil
}

var points = []framework.Point{
	framework.AtPreEnqueue, framework.AtQueueSort, framework.AtPreFilter, framework.AtFilter, framework.AtJudge, framework.AtPostFilter,
	framework.AtPreScore, framework.AtScore, framework.AtReserve, framework.AtPermit, framework.AtPreBind, framework.AtBind,
	framework.AtPostBind,
}

// has says whether a plugin has something to say at a point.
func has(p framework.Plugin, at framework.Point) bool {
	if !framework.Takes(p, at) {
		return false
	}
	ok := false
	switch at {
	case framework.AtPreFilter:
		_, ok = p.(framework.PreFilter)
	case framework.AtFilter:
		_, ok = p.(framework.Filter)
	case framework.AtPreScore:
		_, ok = p.(framework.PreScore)
	case framework.AtScore:
		_, ok = p.(framework.Score)
	case framework.AtJudge:
		_, ok = p.(framework.Judge)
	default: // nobody asks
	}
	return ok
}
