// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/host"
	"github.com/wasmplane/wasmplane/plugins/point"
)

// shadow is the node table of a plugin's candidate: a second one, in an instance of
// the candidate's. Its rows are written before the cycle goes on, as the snapshot is the
// cycle's; it judges beside it. A cycle that finds it judging still is left out and counted.
type shadow struct {
	mu    sync.Mutex // held from the writing of the rows to the verdicts
	table *table
	owner *point.Candidate
}

// compare has the candidate judge what the plugin has judged. decided are the
// plugin's verdicts, or failed is why there are none.
func (s *shadow) compare(ctx context.Context, plugin *point.Plugin, p *framework.PodInfo, snap *framework.Snapshot, failed error,
	decided []framework.Verdict,
) {
	c := plugin.Candidate()
	if c == nil || c.Version.Hook(abi.SchedulingTable) == nil {
		return
	}
	if !s.mu.TryLock() {
		c.Stats.Dropped.Add(1)
		return
	}
	decided = slices.Clone(decided) // the cycle goes on with it
	var names []string
	held := false
	about := "Pod " + p.Pod.Namespace + "/" + p.Pod.Name
	c.Compare(ctx, plugin, abi.SchedulingTable, about, compared(failed, decided, nil, nil), func(ctx context.Context) error {
		err := s.prepare(ctx, c, p, snap)
		if err != nil {
			s.drop()
			return err
		}
		for _, n := range snap.Nodes {
			names = append(names, n.Node.Name)
		}
		held = true
		return nil
	}, func(ctx context.Context) (point.Opinion, point.Opinion, host.Usage) {
		defer s.mu.Unlock()
		verdicts, usage, err := s.judge(ctx, c, len(names))
		return compared(failed, decided, verdicts, names), compared(err, verdicts, decided, names), usage
	})
	if !held {
		s.mu.Unlock() // nobody judges
	}
}

// leave gives up the table of a candidate that goes.
func (s *shadow) leave(c *point.Candidate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.owner == c {
		s.drop()
	}
}

func (s *shadow) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop()
}

func (s *shadow) drop() {
	if s.table != nil {
		s.table.version.Module.Discard(s.table.instance)
	}
	s.table, s.owner = nil, nil
}

func (s *shadow) prepare(ctx context.Context, c *point.Candidate, p *framework.PodInfo, snap *framework.Snapshot) error {
	if s.table != nil && (s.owner != c || s.table.strings.Full()) {
		s.drop()
	}
	return c.Version.Module.Guard(ctx, func() (err error) {
		if s.table == nil {
			if s.table, err = newTable(ctx, c.Version, c.Version.Hook(abi.SchedulingTable)); err != nil {
				return err
			}
			s.owner = c
			c.OnClose(func() { s.leave(c) })
		}
		if err = s.table.follow(ctx, snap); err == nil {
			s.table.ask(p)
		}
		return err
	})
}

// judge asks the candidate about nodes whose rows are written.
func (s *shadow) judge(ctx context.Context, c *point.Candidate, nodes int) (verdicts []framework.Verdict, usage host.Usage, err error) {
	err = c.Version.Module.Guard(ctx, func() error {
		var answer []byte
		var err error
		if answer, usage, err = s.table.run(ctx); err == nil {
			verdicts, _, err = verdictsOf(s.table.hook, c.Version.Entry.Name, answer, nodes)
		}
		return err
	})
	var answered *host.GuestError
	if err != nil && !errors.As(err, &answered) {
		s.drop()
	}
	return verdicts, usage, err
}

// mostShown bounds the nodes that a difference names.
const mostShown = 3

// compared words verdicts: what matters is which nodes fit, with which score, not
// for which reason the others do not. The first nodes are named on which they differ
// from somebody else's, where there are such.
func compared(err error, verdicts, other []framework.Verdict, names []string) point.Opinion {
	if err != nil {
		return point.Opinion{Err: err}
	}
	what := make([]byte, len(verdicts))
	fit := 0
	var shown []string
	for i, v := range verdicts {
		what[i] = effect(v)
		if v.Status == nil {
			fit++
		}
		if i < len(other) && i < len(names) && effect(other[i]) != what[i] && len(shown) < mostShown {
			shown = append(shown, names[i]+": "+worded(v))
		}
	}
	text := fmt.Sprintf("%d of %d nodes fit", fit, len(verdicts))
	if len(shown) > 0 {
		text += "; " + strings.Join(shown, ", ")
	}
	return point.Opinion{What: string(what), Text: text}
}

// effect is a verdict as a byte: 0 and 255 do not fit, the latter whatever pods leave.
func effect(v framework.Verdict) byte {
	switch {
	case v.Status == nil:
		return byte(v.Score) + 1
	case v.Status.Code == framework.Unresolvable:
		return 255
	}
	return 0
}

func worded(v framework.Verdict) string {
	if v.Status == nil {
		return fmt.Sprint(v.Score)
	}
	return strings.Join(v.Status.Reasons, ", ")
}
