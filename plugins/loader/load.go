// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/wasmplane/wasmplane/core/attempts"
	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/point"
	pointadmission "github.com/wasmplane/wasmplane/plugins/point/admission"
)

// load is one entry on its way into force. It has no effect before commit.
type load struct {
	origin  Origin
	entry   manifest.Entry
	place   int    // among the entries of its origin; guarded by Loader.mu
	content string // digest of the local file, and of the candidate's
	other   string
	members []*load // of a group
	cancel  context.CancelCauseFunc
	done    chan struct{} // closed at its end
	err     error         // of what could not be loaded, when it is done
	waits   atomic.Pointer[string]

	plugin, candidate bool // which of the two has to be loaded

	fetched fetched // what its source held, if that is followed; of its own goroutine
}

// newLoad says what an entry needs that is in force as s, or not at all (nil).
func (l *Loader) newLoad(from Origin, place int, e manifest.Entry, s *slot, files map[string]string) *load {
	j := &load{origin: from, entry: e, place: place, content: files[l.fetch.Path(&e)], done: make(chan struct{})}
	c := e.CandidateEntry()
	if c != nil {
		j.other = files[l.fetch.Path(c)]
	}
	if s == nil {
		j.plugin, j.candidate = true, c != nil
		return j
	}
	j.plugin = s.stale.Load() || s.err != nil || s.since.IsZero() || j.content != s.content ||
		!same(s.entry.WithoutCandidate(), e.WithoutCandidate())
	was := s.entry.CandidateEntry()
	switch {
	case c == nil || was == nil:
		j.candidate = c != was // one came, or went
	case j.plugin && s.unused:
		j.candidate = true
	default:
		j.candidate = !s.unused && (!same(*was, *c) || s.candidate.err != nil || s.candidate.content != j.other || s.plugin.Candidate() == nil)
	}
	return j
}

// due says that there is something to do.
func (j *load) due() bool { return j.plugin || j.candidate }

// equals says that another load would do what this one does.
func (j *load) equals(o *load) bool {
	return j.content == o.content && j.other == o.other && same(j.entry, o.entry)
}

// progress says what the load waits for.
func (j *load) progress(what string) { j.waits.Store(&what) }

// result is what a load has made.
type result struct {
	start   time.Time
	version *point.Version // nil where err says why, or where the plugin is unused
	err     error
	unused  bool // it takes no part at this process's points
	group   *pointadmission.Verdicts
	fetched fetched

	candidate    *point.Version
	candidateErr error
}

// start has a load done by a goroutine of its own. l.mu is held.
func (l *Loader) start(ctx context.Context, j *load) {
	ctx, j.cancel = context.WithCancelCause(ctx)
	l.working.Go(func() {
		defer close(j.done)
		defer j.cancel(nil)
		r := l.prepare(ctx, j)
		if cause := context.Cause(ctx); cause != nil {
			l.discard(r)
			l.forget(j)
			j.err = fmt.Errorf("load plugin %q: %w", j.entry.Name, cause)
			return
		}
		l.finish(j, r)
	})
}

// prepare fetches, compiles and starts what is due, without touching what is in force.
func (l *Loader) prepare(ctx context.Context, j *load) *result {
	r := &result{start: time.Now()}
	e := j.entry
	switch {
	case l.elsewhere(e.Points):
		r.unused = true
		return r
	case e.Refused != nil:
		r.err = e.Refused
		return r
	case e.Group != nil:
		r.version, r.group, r.err = prepareGroup(ctx, j)
		return r
	}
	if j.plugin {
		if r.version, r.err = l.version(ctx, j, e); r.err != nil {
			l.report(ctx, &e, r.err)
			return r
		}
		r.fetched = j.fetched
		if l.elsewhere(pointsOf(r.version)) {
			l.retire(r.version)
			r.version, r.unused = nil, true
			return r
		}
	}
	if c := e.CandidateEntry(); c != nil && j.candidate {
		if r.candidate, r.candidateErr = l.version(ctx, j, *c); r.candidateErr != nil {
			l.report(ctx, c, r.candidateErr)
		}
	}
	return r
}

// report writes down that a module is beyond a limit. The plugin's status says it too, and an event of it.
func (l *Loader) report(ctx context.Context, e *manifest.Entry, err error) {
	var limit interface{ LimitName() string }
	if errors.As(err, &limit) {
		l.cfg.Attempts.Refused(ctx, attempts.Attempt{
			Kind: attempts.Module, Reason: limit.LimitName(), Subject: e.Subject(), Detail: fmt.Sprintf("plugin %q: %v", e.Name, err),
		})
	}
}

// discard closes what was made for nobody.
func (l *Loader) discard(r *result) {
	l.retire(r.version)
	l.retire(r.candidate)
}

// forget takes a load that was given up out of those under way.
func (l *Loader) forget(j *load) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.loads[j.entry.Name] == j {
		delete(l.loads, j.entry.Name)
	}
}

// finish puts into force what a load has made, unless its entry has gone meanwhile.
func (l *Loader) finish(j *load, r *result) {
	l.mu.Lock()
	if l.loads[j.entry.Name] != j {
		l.mu.Unlock()
		l.discard(r)
		j.err = fmt.Errorf("load plugin %q: %w", j.entry.Name, errReplaced)
		return
	}
	delete(l.loads, j.entry.Name)
	c := l.commit(j, r)
	l.mu.Unlock()
	for _, f := range c.after {
		f()
	}
	j.err = c.err
}

// commit is a load's effect, with what is left to do when the lock is given up.
type commit struct {
	err   error
	after []func()
}

// commit swaps a version and a candidate in where they are sound. l.mu is held.
func (l *Loader) commit(j *load, r *result) *commit {
	c := &commit{}
	i := slices.IndexFunc(l.slots, func(s *slot) bool { return s.entry.Name == j.entry.Name })
	s := &slot{plugin: point.NewPlugin(j.entry.Name, l.metrics), origin: j.origin}
	if i >= 0 {
		s = l.slots[i]
	}
	fresh := s.with(j.entry)
	fresh.place = j.place
	if j.plugin {
		fresh.content = j.content
		c.err = l.commitVersion(s, fresh, r, c)
	}
	if j.candidate && !fresh.unused && fresh.err == nil {
		c.err = errors.Join(c.err, l.commitCandidate(s, fresh, j, r))
	} else if r.candidate != nil {
		l.retire(r.candidate)
	}
	fresh.adapters = adapters{} // join makes a group's; members have none of their own
	if j.entry.Group == nil && j.entry.MemberOf == "" {
		fresh.adapters = l.adapt(s.plugin, s.adapters)
	}
	slots := slices.Clone(l.slots)
	if i >= 0 {
		slots[i] = fresh
	} else {
		slots = append(slots, fresh)
	}
	l.arrange(slots, true)
	return c
}

func (l *Loader) commitVersion(s, fresh *slot, r *result, c *commit) error {
	fresh.err, fresh.unused = nil, r.unused
	fresh.moved.Store(nil)
	switch {
	case r.unused:
		fresh.since = r.start
		if s.plugin.Current().Pending() { // requests under way may still ask it
			s.plugin.Swap(point.NewUnused(fresh.entry))
			return nil
		}
		c.after = append(c.after, l.putAway(s))
		return nil
	case r.err != nil:
		return l.failed(s, fresh, r.err)
	}
	fresh.since = time.Now()
	fresh.fetched = r.fetched
	old := s.plugin.Swap(r.version)
	if r.group != nil {
		fresh.verdicts = r.group
		l.cfg.Logger.Info("plugin group loaded", "plugin", fresh.entry.Name, "members", len(fresh.entry.Group.Members))
		return nil
	}
	if old != nil && old.Digest != r.version.Digest {
		fresh.replaced = old.Digest
	}
	c.after = append(c.after, s.adapters.release) // what is kept in an instance of the old version is made anew
	l.retire(old)
	l.cfg.Logger.Info("plugin loaded", "plugin", fresh.entry.Name, "version", r.version.Manifest.Version, "digest", r.version.Digest,
		"points", r.version.Manifest.Points(), "took", time.Since(r.start).Round(time.Microsecond))
	return nil
}

// failed keeps what is in force, or has the failure policy decide where nothing is.
func (l *Loader) failed(s, fresh *slot, err error) error {
	e := fresh.entry
	err = fmt.Errorf("load plugin %q: %w", e.Name, err)
	fresh.err = err
	if cur := s.plugin.Current(); cur == nil || cur.Err != nil {
		var known *knownError
		var m *abi.Manifest
		if errors.As(err, &known) {
			m = known.manifest
		}
		broken := point.NewBroken(e, m, err)
		s.plugin.Swap(broken)
		l.cfg.Logger.Error("plugin could not be loaded", "plugin", e.Name, "meanwhile", consequence(broken), "error", err)
		fresh.err = fmt.Errorf("%w (until it can be, %s)", err, consequence(broken))
		err = fresh.err
	} else {
		l.cfg.Logger.Error("new version of a plugin could not be loaded; the one before stays in force", "plugin", e.Name, "digest", cur.Digest,
			"error", err)
	}
	return err
}

// consequence words what becomes of requests while nothing of a plugin is loaded.
func consequence(v *point.Version) string {
	var at []string
	for _, p := range abi.Points() {
		guards := strings.HasPrefix(string(p), "admission.") || p == abi.Authorization || strings.HasPrefix(string(p), "customresource.")
		if guards && v.Hook(p) != nil {
			at = append(at, string(p))
		}
	}
	switch {
	case len(at) == 0:
		return "nobody is asked in its place"
	case v.Entry.FailurePolicy == manifest.Ignore:
		return fmt.Sprintf("what it would be asked at %s goes on without it: its failurePolicy is Ignore", strings.Join(at, " and "))
	case v.Entry.Mode != manifest.Enforce:
		return fmt.Sprintf("what it would be asked at %s goes on without it: its mode is %s", strings.Join(at, " and "), v.Entry.Mode)
	}
	return fmt.Sprintf("what it would be asked at %s is refused: its failurePolicy is Fail", strings.Join(at, " and "))
}

// putAway unloads a plugin that has no part in this process any more, and returns what is to
// be done when the lock is given up.
func (l *Loader) putAway(s *slot) func() {
	l.retire(s.plugin.Swap(nil))
	l.retireCandidate(s.plugin.SetCandidate(nil))
	return s.adapters.release
}

// unload ends a plugin. l.mu is held.
func (l *Loader) unload(s *slot) {
	s.plugin.Remove()
	l.working.Go(l.putAway(s))
	l.metrics.Forget(s.entry.Name)
	l.cfg.Logger.Info("plugin unloaded", "plugin", s.entry.Name)
}

// commitCandidate does for the candidate what commitVersion does for the plugin. A
// candidate that could not be loaded leaves the one before, and everything else, as it is.
func (l *Loader) commitCandidate(s, fresh *slot, j *load, r *result) error {
	e := fresh.entry.CandidateEntry()
	if e == nil {
		fresh.candidate = candidate{}
		l.retireCandidate(s.plugin.SetCandidate(nil))
		return nil
	}
	fresh.candidate = candidate{content: j.other}
	if r.candidateErr != nil {
		fresh.candidate.err = fmt.Errorf("load the candidate of plugin %q: %w", e.Name, r.candidateErr)
		l.cfg.Logger.Error("the candidate of a plugin could not be loaded", "plugin", e.Name, "error", r.candidateErr)
		return fresh.candidate.err
	}
	l.retireCandidate(s.plugin.SetCandidate(point.NewCandidate(r.candidate)))
	l.cfg.Logger.Info("a candidate runs beside a plugin", "plugin", e.Name, "version", r.candidate.Manifest.Version,
		"digest", r.candidate.Digest)
	return nil
}

func (l *Loader) retireCandidate(c *point.Candidate) {
	if c == nil {
		return
	}
	l.working.Go(func() {
		if err := c.Close(); err != nil {
			l.cfg.Logger.Warn("could not close a candidate of a plugin", "plugin", c.Version.Entry.Name, "error", err)
		}
	})
}

// retire closes a version when its last call has ended.
func (l *Loader) retire(v *point.Version) {
	if v == nil || v.Module == nil {
		return
	}
	l.working.Go(func() {
		if err := v.Module.Close(); err != nil {
			l.cfg.Logger.Warn("could not close an old version of a plugin", "plugin", v.Entry.Name, "error", err)
		}
	})
}
