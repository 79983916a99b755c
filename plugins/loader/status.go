// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"maps"
	"slices"
	"time"

	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/declared"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/point"
)

// Status is what there is to know about one plugin.
type Status struct {
	Name string `json:"name"`
	// MemberOf is the group whose member this is.
	MemberOf string        `json:"memberOf,omitempty"`
	Origin   Origin        `json:"origin"`
	Source   string        `json:"source"`
	Digest   string        `json:"digest,omitempty"`
	Version  string        `json:"version,omitempty"`
	Points   []abi.Point   `json:"points,omitempty"`
	Mode     manifest.Mode `json:"mode"`
	// Ready: a version answers. Error is why the last load failed, also where an
	// older version still answers.
	Ready bool   `json:"ready"`
	Error string `json:"error,omitempty"`
	// Waiting is what a load that is under way waits for, such as "waiting for its turn to be compiled".
	Waiting string `json:"waiting,omitempty"`
	// Kinds are what the module declares that it watches, reads and writes.
	Kinds declared.Kinds `json:"kinds,omitzero"`
	// Unused: the plugin takes no part at the points of this process.
	Unused bool `json:"unused,omitempty"`
	// Since is when the version in force was loaded, Replaced the digest of the one before.
	Since    time.Time `json:"since,omitzero"`
	Replaced string    `json:"replaced,omitempty"`
	// Moved is the digest at which the source's tag points now, instead of what is pinned.
	Moved string `json:"moved,omitempty"`

	Calls       int64         `json:"calls"`
	Denials     int64         `json:"denials"`
	Failures    int64         `json:"failures"`
	LastFailure string        `json:"lastFailure,omitempty"`
	MeanTime    time.Duration `json:"meanTimeNanoseconds"`
	MeanFuel    int64         `json:"meanFuel"`
	Instances   int           `json:"instances"`
	BreakerOpen bool          `json:"breakerOpen"`

	Candidate *CandidateStatus `json:"candidate,omitempty"`
}

// CandidateStatus is what there is to know about a candidate.
type CandidateStatus struct {
	Source  string `json:"source"`
	Digest  string `json:"digest,omitempty"`
	Version string `json:"version,omitempty"`
	Ready   bool   `json:"ready"`
	Error   string `json:"error,omitempty"`

	Calls     int64 `json:"calls"`
	Differing int64 `json:"differing"`
	Failures  int64 `json:"failures"`
	// Dropped counts calls that the candidate was not asked, as it was busy.
	Dropped     int64              `json:"dropped"`
	MeanTime    time.Duration      `json:"meanTimeNanoseconds"`
	MeanFuel    int64              `json:"meanFuel"`
	Differences []point.Difference `json:"differences,omitempty"` // the last ones
}

// Status lists every plugin, in order; then those that are loaded for the first time.
func (l *Loader) Status() []Status {
	var out []Status
	all, waiting := l.progress()
	for _, s := range all {
		st := s.status()
		if s.entry.Group != nil {
			st.join(s.verdicts != nil, all)
		}
		if j := waiting[st.Name]; j != nil {
			st.Waiting = j.waiting()
			delete(waiting, st.Name)
		}
		out = append(out, st)
	}
	for _, name := range slices.Sorted(maps.Keys(waiting)) {
		j := waiting[name]
		out = append(out, Status{
			Name: name, MemberOf: j.entry.MemberOf, Origin: j.origin, Source: j.entry.Source, Mode: j.entry.Mode,
			Waiting: j.waiting(),
		})
	}
	return out
}

// progress are the slots, and what is being loaded by name.
func (l *Loader) progress() ([]*slot, map[string]*load) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.slots, maps.Clone(l.loads)
}

// waiting is what a load waits for.
func (j *load) waiting() string {
	if what := j.waits.Load(); what != nil {
		return *what
	}
	return "about to be loaded"
}

// Entry is the entry of a plugin as it was applied last.
func (l *Loader) Entry(name string) (manifest.Entry, bool) {
	for _, s := range l.list() {
		if s.entry.Name == name {
			return s.entry, true
		}
	}
	return manifest.Entry{}, false
}

// Holds says whether an origin has a plugin of this name.
func (l *Loader) Holds(from Origin, name string) bool {
	return slices.ContainsFunc(l.list(), func(s *slot) bool { return s.origin == from && s.entry.Name == name })
}

func (s *slot) status() Status {
	stats := &s.plugin.Stats
	st := Status{
		Name: s.entry.Name, MemberOf: s.entry.MemberOf, Origin: s.origin, Source: s.entry.Source, Mode: s.entry.Mode, Unused: s.unused,
		Since: s.since, Replaced: s.replaced,
		Calls: stats.Calls.Load(), Denials: stats.Denials.Load(), Failures: stats.Failures.Load(), LastFailure: stats.LastError(),
		Candidate: s.candidateStatus(),
	}
	if st.Calls > 0 {
		st.MeanTime = time.Duration(stats.Nanoseconds.Load() / st.Calls)
		st.MeanFuel = stats.Fuel.Load() / st.Calls
	}
	if s.err != nil {
		st.Error = s.err.Error()
	}
	if moved := s.moved.Load(); moved != nil {
		st.Moved = *moved
	}
	if v := s.plugin.Current(); v.Loaded() {
		st.Ready, st.Digest, st.Version = true, v.Digest, v.Manifest.Version
		for _, p := range pointsOf(v) {
			st.Points = append(st.Points, abi.Point(p))
		}
		st.Kinds = declared.Of(v.Manifest, &s.entry)
		if v.Module != nil {
			st.Instances = v.Module.Instances()
			st.BreakerOpen, _ = v.Module.Breaker()
		}
	}
	return st
}

func (s *slot) candidateStatus() *CandidateStatus {
	e := s.entry.CandidateEntry()
	if e == nil || s.unused {
		return nil
	}
	st := &CandidateStatus{Source: e.Source}
	if s.candidate.err != nil {
		st.Error = s.candidate.err.Error()
	}
	c := s.plugin.Candidate()
	if c == nil {
		return st
	}
	st.Ready, st.Digest, st.Version = true, c.Version.Digest, c.Version.Manifest.Version
	st.Calls, st.Differing = c.Stats.Calls.Load(), c.Stats.Differing.Load()
	st.Failures, st.Dropped = c.Stats.Failures.Load(), c.Stats.Dropped.Load()
	if st.Calls > 0 {
		st.MeanTime, st.MeanFuel = time.Duration(c.Stats.Nanoseconds.Load()/st.Calls), c.Stats.Fuel.Load()/st.Calls
	}
	st.Differences = c.Recent()
	return st
}
