// SPDX-License-Identifier: Apache-2.0

package point

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/host"
)

// Candidate is another version of a plugin that runs on the same live calls. What it
// decides has no effect: it is compared with what was decided, beside the request, which does not wait for it. Where
// the candidate is slower than the traffic, calls are left out and counted.
//
// It takes part at every point where the plugin does. A node table, which lives in
// a guest's memory, has a second one beside it, for the candidate (Compare).
type Candidate struct {
	Version *Version
	Stats   CandidateStats

	slots   chan struct{}
	running sync.WaitGroup
	mu      sync.Mutex
	closed  bool
	closers []func()
	recent  []Difference // the last ones, oldest first
}

// CandidateStats count what a candidate was asked.
type CandidateStats struct {
	Calls, Differing, Failures, Dropped atomic.Int64
	Nanoseconds, Fuel                   atomic.Int64
}

// Difference is one call on which candidate and plugin decided differently.
type Difference struct {
	Time      time.Time `json:"time"`
	Point     abi.Point `json:"point"`
	About     string    `json:"about,omitempty"` // kind and name of the object
	Enforced  string    `json:"enforced"`
	Candidate string    `json:"candidate"`
}

// Bounds of candidates: calls at once, and differences that are remembered.
const (
	candidateCalls  = 2
	mostDifferences = 10
)

// NewCandidate makes a candidate of a loaded version.
func NewCandidate(v *Version) *Candidate {
	return &Candidate{Version: v, slots: make(chan struct{}, candidateCalls)}
}

// Recent are the last differences, oldest first.
func (c *Candidate) Recent() []Difference {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]Difference(nil), c.recent...)
}

// OnClose has f called when the candidate is closed and its last call has ended: who
// keeps an instance of it gives it back. It is for functions that Compare calls.
func (c *Candidate) OnClose(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closers = append(c.closers, f)
}

// Close ends the candidate when its last call has ended.
func (c *Candidate) Close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.running.Wait()
	for _, f := range c.closers { // nobody adds any more
		f()
	}
	if c.Version.Module == nil {
		return nil
	}
	return c.Version.Module.Close()
}

// SetCandidate puts a candidate beside the version in force, nil none, and returns
// the one before, which the caller closes.
func (p *Plugin) SetCandidate(c *Candidate) *Candidate { return p.candidate.Swap(c) }

// Candidate is the one beside the version in force; nil where there is none.
func (p *Plugin) Candidate() *Candidate { return p.candidate.Load() }

// compare asks the candidate what the plugin was asked. The document is projected
// here, as it belongs to the request; the rest goes on beside it.
func (p *Plugin) compare(ctx context.Context, pt abi.Point, kind string, doc any, answered *Call) {
	c := p.candidate.Load()
	if c == nil {
		return
	}
	h := c.Version.hooks[pt]
	if h == nil || host.Aside(ctx) || !c.begin() {
		return
	}
	w := writers.Get().(*abi.Writer)
	h.Projection.Write(w, doc, kind)
	about := aboutOf(kind, doc)
	answer, failure, hook := answered.Answer, answered.Err, answered.Hook.Hook
	// The request's end is not the candidate's, and what changes anything is left undone.
	detached := host.WithDryRun(context.WithoutCancel(ctx))
	run.Go("candidate "+p.Name(), func() error {
		defer c.end()
		got, usage, err := c.Version.Guest.Call(detached, h.Op, w.Bytes())
		writers.Put(w)
		c.Stats.Nanoseconds.Add(int64(usage.Duration))
		c.Stats.Fuel.Add(usage.Fuel)
		c.judge(p, pt, about, verdict(pt, hook, answer, failure), verdict(pt, h.Hook, got, err), err)
		return nil
	})
}

// Opinion is a decision in the words of a point whose answers only its adapter can read.
type Opinion struct {
	// What is compared: the same for decisions that have the same effect.
	What string
	// Text is what people are shown.
	Text string
	Err  error
}

func (o Opinion) decision() decision {
	if o.Err != nil {
		return decision{"failed", cut("failed: " + o.Err.Error())}
	}
	return decision{o.What, cut(o.Text)}
}

// Compare has the candidate asked by ask, beside the caller, and compares what it
// says with what was decided. Where the candidate is busy the call is left out. prepare
// reads what belongs to the caller, before Compare returns; where it fails, ask is not
// called, which answers what the candidate says, and what was decided in the same words.
func (c *Candidate) Compare(ctx context.Context, p *Plugin, pt abi.Point, about string, decided Opinion,
	prepare func(context.Context) error, ask func(context.Context) (decided, said Opinion, usage host.Usage),
) {
	if !c.begin() {
		return
	}
	detached := host.WithDryRun(context.WithoutCancel(ctx))
	if err := prepare(detached); err != nil {
		c.judge(p, pt, about, decided.decision(), Opinion{Err: err}.decision(), err)
		c.end()
		return
	}
	run.Go("candidate "+p.Name(), func() error {
		defer c.end()
		decided, said, usage := ask(detached)
		c.Stats.Nanoseconds.Add(int64(usage.Duration))
		c.Stats.Fuel.Add(usage.Fuel)
		c.judge(p, pt, about, decided.decision(), said.decision(), said.Err)
		return nil
	})
}

func (c *Candidate) begin() bool {
	select {
	case c.slots <- struct{}{}:
	default:
		c.Stats.Dropped.Add(1)
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		<-c.slots
		return false
	}
	c.running.Add(1)
	return true
}

func (c *Candidate) end() {
	<-c.slots
	c.running.Done()
}

func (c *Candidate) judge(p *Plugin, pt abi.Point, about string, enforced, candidate decision, err error) {
	// Counted last: whoever sees the call counted sees what became of it.
	defer c.Stats.Calls.Add(1)
	result := "same"
	switch {
	case err != nil && !isGuestError(err):
		c.Stats.Failures.Add(1)
		result = "failed"
	case enforced.what != candidate.what:
		c.Stats.Differing.Add(1)
		result = "differs"
	}
	p.metrics.candidates.WithLabelValues(p.name, string(pt), result).Inc()
	if result == "same" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.recent) == mostDifferences {
		c.recent = c.recent[1:]
	}
	c.recent = append(c.recent, Difference{time.Now(), pt, about, enforced.text, candidate.text})
}

func isGuestError(err error) bool {
	var g *host.GuestError
	return errors.As(err, &g)
}

// decision is an answer as it is compared, and as it is shown.
type decision struct{ what, text string }

// longestText bounds what is shown of a decision.
const longestText = 300

// verdict reads an answer. Messages are shown and not compared: another wording is
// no other decision.
func verdict(pt abi.Point, h *abi.Hook, answer []byte, err error) decision {
	if err != nil {
		return decision{"failed", cut("failed: " + err.Error())}
	}
	what, message := "", ""
	switch pt.Form() {
	case abi.AdmissionMutate, abi.CustomResourceConvert, abi.CustomResourceValidate:
		var a *abi.AdmissionAnswer
		if a, err = abi.ParseAdmission(answer, h); err != nil {
			break
		}
		switch {
		case a.Denied():
			what, message = "deny", a.Message
		case len(a.Patch) > 0:
			var b []byte
			if b, err = json.Marshal(a.Patch); err == nil {
				what = "patch " + string(b)
			}
		case len(a.Object) > 0:
			what = "object " + canonical(a.Object)
		default:
			what = "allow"
		}
	case abi.Authorization:
		var a abi.AuthorizationAnswer
		a, err = abi.ParseAuthorization(answer)
		what, message = a.Decision, a.Reason
	case abi.SchedulingFilter:
		var a abi.FilterAnswer
		if a, err = abi.ParseFilter(answer); err == nil {
			what, message = "fits", strings.Join(a.Reasons, ", ")
			if a.Fits != nil && !*a.Fits {
				what = "does not fit"
			}
		}
	case abi.NodeAdmission:
		var a abi.NodeAdmissionAnswer
		if a, err = abi.ParseNodeAdmission(answer); err == nil {
			what, message = "admitted", a.Message
			if a.Admitted != nil && !*a.Admitted {
				what = "not admitted"
			}
		}
	default:
		what = canonical(answer)
	}
	if err != nil {
		return decision{"failed", cut("failed: " + err.Error())}
	}
	text := what
	if message != "" {
		text += ": " + message
	}
	return decision{what, cut(text)}
}

// canonical is JSON with sorted keys and without space; what is no JSON stays as it is.
func canonical(b []byte) string {
	if len(b) == 0 {
		return "no opinion"
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var v any
	if d.Decode(&v) != nil {
		return string(b)
	}
	out, err := json.Marshal(v)
	if err != nil {
		return string(b)
	}
	return string(out)
}

func cut(s string) string {
	if len(s) > longestText {
		return s[:longestText] + "..."
	}
	return s
}

// aboutOf names the object that a document is about, where it says so.
func aboutOf(kind string, doc any) string {
	named, ok := doc.(interface{ About() string })
	if ok {
		return named.About()
	}
	if o, ok := doc.(*abi.Object); ok {
		if m, err := meta.Accessor(o.Object); err == nil {
			return fmt.Sprintf("%s %s/%s", kind, m.GetNamespace(), m.GetName())
		}
	}
	return kind
}
