// SPDX-License-Identifier: Apache-2.0

package decision

import (
	"context"
	"maps"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

// shares are what Local plugins said of nodes, kept from cycle to cycle: pods of one template
// share it, and only nodes that changed are judged again. What was said stands beside the
// very NodeInfo, which nobody changes: it holds for as long as the snapshot has that one.
type shares struct {
	all   map[shareKey]*share
	clock int64
}

// shareKey is who said it of which pods.
type shareKey struct {
	profile   *Compiled
	signature string
}

// share is what was said for one signature, by the place of the node in the snapshot.
type share struct {
	used     int64
	filtered []filtered
	scored   [][]scored // by Score plugin of the profile
}

// filtered is what the filters said of a node: the first one that refused it, by its place in
// the profile, and with which words.
type filtered struct {
	node    *framework.NodeInfo
	refuser int
	status  *framework.Status
}

type scored struct {
	node  *framework.NodeInfo
	score int64
}

type sharesKey struct{}

// Bounds of the memory: signatures times nodes, and how many decisions ago one was last
// asked for. What nobody asks for holds on to nodes and pods that are long gone.
const (
	mostShared   = 1 << 17
	longestUnuse = 1 << 10
)

// share finds what is kept for a pod; nil where nothing is. Of a signature that is seen for the first
// time nothing is kept yet: most crowds have a template, and single pods don't pay for it.
func (c *Compiled) share(p *framework.PodInfo, snap *framework.Snapshot) *share {
	if snap.Memo == nil || len(c.locals) == 0 {
		return nil
	}
	var s framework.Signature
	for _, l := range c.locals {
		s.Text(l.Name())
		if !l.Sign(p, &s) {
			return nil
		}
	}
	kept := framework.Kept(snap, sharesKey{}, func() *shares { return &shares{all: map[shareKey]*share{}} })
	return kept.find(shareKey{c, s.String()}, len(snap.Nodes))
}

func (s *shares) find(key shareKey, nodes int) *share {
	if s.clock++; s.clock%longestUnuse == 0 {
		maps.DeleteFunc(s.all, func(_ shareKey, one *share) bool { return s.clock-one.used > longestUnuse })
	}
	one, known := s.all[key]
	if !known {
		s.makeRoom(nodes)
		s.all[key] = &share{used: s.clock}
		return nil
	}
	one.used = s.clock
	if len(one.filtered) != nodes {
		one.filtered, one.scored = make([]filtered, nodes), make([][]scored, len(key.profile.scores))
	}
	return one
}

func (s *shares) makeRoom(nodes int) {
	if len(s.all) == 0 || (len(s.all)+1)*nodes <= mostShared {
		return
	}
	var oldest shareKey
	least := s.clock
	for key, one := range s.all {
		if one.used < least {
			oldest, least = key, one.used
		}
	}
	delete(s.all, oldest)
}

// filterShared is filter about the node at a place of the snapshot: what the Local plugins
// said of this very node is not asked for again.
func (s *search) filterShared(ctx context.Context, state *framework.State, p *framework.PodInfo, n *framework.NodeInfo,
	at int,
) *framework.Status {
	if s.share == nil || s.outside(n) != nil {
		return s.filter(ctx, state, p, n)
	}
	kept := &s.share.filtered[at]
	if kept.node != n {
		kept.node, kept.refuser, kept.status = n, len(s.profile.filters), nil
		for _, f := range s.filters {
			if !f.local {
				continue
			}
			if st := f.plugin.Filter(ctx, state, p, n); !st.IsSuccess() {
				kept.refuser, kept.status = f.at, by(st, f.plugin)
				if st.Code == framework.Error {
					kept.node = nil // the next pod asks again
				}
				break
			}
		}
	}
	for _, f := range s.filters {
		if f.at >= kept.refuser {
			break
		}
		if f.local {
			continue
		}
		if st := f.plugin.Filter(ctx, state, p, n); !st.IsSuccess() {
			return by(st, f.plugin)
		}
	}
	return kept.status
}

// scoresOf is what is kept of a Score plugin; nil where nothing is.
func (s *search) scoresOf(c *Compiled, plugin int) []scored {
	if s.share == nil || !c.scores[plugin].local {
		return nil
	}
	if s.share.scored[plugin] == nil {
		s.share.scored[plugin] = make([]scored, len(s.share.filtered))
	}
	return s.share.scored[plugin]
}
