// SPDX-License-Identifier: Apache-2.0

package apiobject

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/wasmplane/wasmplane/plugins/declared"
	"github.com/wasmplane/wasmplane/plugins/loader"
	"github.com/wasmplane/wasmplane/plugins/point"
	"github.com/wasmplane/wasmplane/plugins/rights"
)

// Status is what became of a plugin, over all processes.
type Status struct {
	ObservedGeneration int64              `json:"observedGeneration,omitempty"`
	Conditions         []metav1.Condition `json:"conditions,omitempty"`

	// Origin is where the entry stands: file, api or tenant. Source is its module's.
	Origin      string     `json:"origin,omitempty"`
	Source      string     `json:"source,omitempty"`
	Digest      string     `json:"digest,omitempty"`
	Version     string     `json:"version,omitempty"`
	Points      []string   `json:"points,omitempty"`
	Mode        string     `json:"mode,omitempty"`
	Replaced    string     `json:"replaced,omitempty"`
	Moved       string     `json:"moved,omitempty"`
	BreakerOpen bool       `json:"breakerOpen,omitempty"` // in one process at least
	Calls       int64      `json:"calls"`
	Denials     int64      `json:"denials"`
	Failures    int64      `json:"failures"`
	LastFailure string     `json:"lastFailure,omitempty"`
	MeanTime    string     `json:"meanTime,omitempty"`
	MeanFuel    int64      `json:"meanFuel,omitempty"`
	Candidate   *Candidate `json:"candidate,omitempty"`
	// Kinds are what it watches, reads and writes, as its module declares.
	Kinds *declared.Kinds `json:"kinds,omitempty"`
	// Grants are what it may do besides deciding, and what was refused.
	Grants    *rights.Standing `json:"grants,omitempty"`
	Instances []Instance       `json:"instances,omitempty"`
}

// Candidate is what became of the candidate, over all processes.
type Candidate struct {
	Digest      string             `json:"digest,omitempty"`
	Version     string             `json:"version,omitempty"`
	Ready       bool               `json:"ready"`
	Error       string             `json:"error,omitempty"`
	Calls       int64              `json:"calls"`
	Differing   int64              `json:"differing"`
	Failures    int64              `json:"failures"`
	Dropped     int64              `json:"dropped"`
	MeanTime    string             `json:"meanTime,omitempty"`
	Differences []point.Difference `json:"differences,omitempty"`
}

// Instance is what one process reports.
type Instance struct {
	Name string `json:"name"`
	// Updated is when it was written last, by the process's clock. Whether the process lives is what
	// its lease says, however long ago that is.
	Updated metav1.Time `json:"updated"`
	// Generation of the spec that this is about.
	Generation int64  `json:"generation"`
	Ready      bool   `json:"ready"`
	Error      string `json:"error,omitempty"`
	Waiting    string `json:"waiting,omitempty"` // what the load of the spec waits for

	Source      string          `json:"source,omitempty"`
	Digest      string          `json:"digest,omitempty"`
	Version     string          `json:"version,omitempty"`
	Points      []string        `json:"points,omitempty"`
	Kinds       *declared.Kinds `json:"kinds,omitempty"`
	Mode        string          `json:"mode,omitempty"`
	Since       metav1.Time     `json:"since,omitzero"`
	Replaced    string          `json:"replaced,omitempty"`
	Moved       string          `json:"moved,omitempty"`
	BreakerOpen bool            `json:"breakerOpen,omitempty"`
	Calls       int64           `json:"calls"`
	Denials     int64           `json:"denials"`
	Failures    int64           `json:"failures"`
	LastFailure string          `json:"lastFailure,omitempty"`
	Nanoseconds int64           `json:"meanNanoseconds"`
	MeanFuel    int64           `json:"meanFuel"`
	Candidate   *Candidate      `json:"candidate,omitempty"`
}

// The conditions.
const (
	Ready   = "Ready"   // a version answers
	Updated = "Updated" // it is the spec's
)

// instance is what this process reports of a plugin.
func instance(name string, generation int64, s loader.Status, now time.Time) Instance {
	i := Instance{
		Name: name, Updated: metav1.NewTime(now), Generation: generation, Ready: s.Ready, Error: s.Error, Waiting: s.Waiting, Source: s.Source,
		Digest: s.Digest, Version: s.Version,
		Mode: string(s.Mode), Replaced: s.Replaced, Moved: s.Moved, BreakerOpen: s.BreakerOpen,
		Calls: s.Calls, Denials: s.Denials, Failures: s.Failures, LastFailure: s.LastFailure, Nanoseconds: int64(s.MeanTime),
		MeanFuel: s.MeanFuel,
	}
	if !s.Since.IsZero() {
		i.Since = metav1.NewTime(s.Since)
	}
	for _, p := range s.Points {
		i.Points = append(i.Points, string(p))
	}
	if len(s.Kinds.Watches)+len(s.Kinds.Reads)+len(s.Kinds.Writes) > 0 {
		i.Kinds = &s.Kinds
	}
	if c := s.Candidate; c != nil {
		i.Candidate = &Candidate{
			Digest: c.Digest, Version: c.Version, Ready: c.Ready, Error: c.Error, Calls: c.Calls, Differing: c.Differing, Failures: c.Failures,
			Dropped:  c.Dropped,
			MeanTime: shown(int64(c.MeanTime)), Differences: c.Differences,
		}
	}
	return i
}

// merge puts own, this process's report, in its place among the others (nil takes it
// out), and sums all of them up. It leaves before as it was.
func merge(before Status, name string, own *Instance, generation int64) Status {
	out := Status{ObservedGeneration: generation, Conditions: slices.Clone(before.Conditions), Grants: before.Grants}
	for _, i := range before.Instances {
		if i.Name != name {
			out.Instances = append(out.Instances, i)
		}
	}
	if own != nil {
		out.Instances = append(out.Instances, *own)
	}
	slices.SortFunc(out.Instances, func(a, b Instance) int { return cmp.Compare(a.Name, b.Name) })
	out.sum()
	out.judge(generation)
	return out
}

func (s *Status) sum() {
	var time, fuel int64
	for _, i := range s.Instances {
		if i.Digest != "" {
			s.Digest, s.Version, s.Points, s.Kinds = i.Digest, i.Version, i.Points, i.Kinds
		}
		s.Mode, s.BreakerOpen = i.Mode, s.BreakerOpen || i.BreakerOpen
		s.Source = cmp.Or(i.Source, s.Source)
		for field, v := range map[*string]string{&s.Replaced: i.Replaced, &s.Moved: i.Moved, &s.LastFailure: i.LastFailure} {
			if v != "" {
				*field = v
			}
		}
		s.Calls, s.Denials, s.Failures = s.Calls+i.Calls, s.Denials+i.Denials, s.Failures+i.Failures
		time, fuel = time+i.Nanoseconds*i.Calls, fuel+i.MeanFuel*i.Calls
		s.addCandidate(i.Candidate)
	}
	if s.Calls > 0 {
		s.MeanTime, s.MeanFuel = shown(time/s.Calls), fuel/s.Calls
	}
}

func (s *Status) addCandidate(c *Candidate) {
	if c == nil {
		return
	}
	if s.Candidate == nil {
		first := *c
		first.Differences = slices.Clone(c.Differences)
		s.Candidate = &first
		return
	}
	t := s.Candidate
	t.Ready = t.Ready && c.Ready
	t.Error = cmp.Or(t.Error, c.Error)
	t.Calls, t.Differing, t.Failures, t.Dropped = t.Calls+c.Calls, t.Differing+c.Differing, t.Failures+c.Failures, t.Dropped+c.Dropped
	t.Differences = append(t.Differences, c.Differences...)
	slices.SortFunc(t.Differences, func(a, b point.Difference) int { return a.Time.Compare(b.Time) })
	if len(t.Differences) > 10 {
		t.Differences = t.Differences[len(t.Differences)-10:]
	}
}

// judge sets the conditions.
func (s *Status) judge(generation int64) {
	ready := metav1.Condition{
		Type: Ready, Status: metav1.ConditionTrue, Reason: "Loaded",
		Message: "a version answers in every process that asks it",
	}
	updated := metav1.Condition{Type: Updated, Status: metav1.ConditionTrue, Reason: "Loaded", Message: "the version in force is the spec's"}
	if len(s.Instances) == 0 {
		ready.Status, ready.Reason = metav1.ConditionFalse, "NotAsked"
		ready.Message = "no process that is running asks plugins at the points of this one"
		updated.Status, updated.Reason, updated.Message = metav1.ConditionUnknown, ready.Reason, ready.Message
	}
	var down, old, behind, waiting []string
	for _, i := range s.Instances {
		if !i.Ready {
			down = append(down, i.Name)
		}
		if i.Error != "" {
			old = append(old, fmt.Sprintf("%s: %s", i.Name, i.Error))
		}
		if i.Waiting != "" {
			waiting = append(waiting, fmt.Sprintf("%s: %s", i.Name, i.Waiting))
		}
		if i.Generation != generation {
			behind = append(behind, i.Name)
		}
	}
	if len(down) > 0 {
		ready.Status, ready.Reason = metav1.ConditionFalse, "NotLoaded"
		ready.Message = "no version answers in " + strings.Join(down, ", ") + "; the failure policy decides there"
	}
	switch {
	case len(waiting) > 0:
		updated.Status, updated.Reason, updated.Message = metav1.ConditionUnknown, "Loading", strings.Join(waiting, "; ")
	case len(old) > 0:
		updated.Status, updated.Reason, updated.Message = metav1.ConditionFalse, "LoadFailed", strings.Join(old, "; ")
		if len(down) == 0 {
			updated.Message += " (the version before stays in force)"
		}
	case len(behind) > 0:
		updated.Status, updated.Reason, updated.Message = metav1.ConditionUnknown, "Loading", "not yet seen by "+strings.Join(behind, ", ")
	}
	for _, c := range []metav1.Condition{ready, updated} {
		c.ObservedGeneration = generation
		meta.SetStatusCondition(&s.Conditions, c)
	}
}

// originOf says where an object's entry stands.
func originOf(o *unstructured.Unstructured) string {
	switch {
	case mirrored(o):
		return FromFile
	case o.GetNamespace() != "":
		return string(loader.Tenant)
	}
	return string(loader.API)
}

// refused is the status of an object that is no entry.
func refused(before Status, generation int64, why error) Status {
	out := Status{ObservedGeneration: generation, Conditions: slices.Clone(before.Conditions)}
	for _, c := range []metav1.Condition{
		{Type: Ready, Status: metav1.ConditionFalse, Reason: "Refused", Message: why.Error(), ObservedGeneration: generation},
		{Type: Updated, Status: metav1.ConditionFalse, Reason: "Refused", Message: why.Error(), ObservedGeneration: generation},
	} {
		meta.SetStatusCondition(&out.Conditions, c)
	}
	return out
}

// shown is a duration for people.
func shown(nanoseconds int64) string {
	d := time.Duration(nanoseconds)
	switch {
	case d >= time.Second:
		return d.Round(10 * time.Millisecond).String()
	case d >= time.Millisecond:
		return d.Round(10 * time.Microsecond).String()
	}
	return d.Round(100 * time.Nanosecond).String()
}

// readStatus reads an object's status; what cannot be read is empty.
func readStatus(o *unstructured.Unstructured) Status {
	var s Status
	b, err := json.Marshal(o.Object["status"])
	if err != nil || json.Unmarshal(b, &s) != nil {
		return Status{}
	}
	return s
}

// state is the status without what changes with every call.
func (s Status) state() string {
	s.Calls, s.Denials, s.Failures, s.LastFailure, s.MeanTime, s.MeanFuel = 0, 0, 0, "", "", 0
	s.Candidate = s.Candidate.state()
	var list []Instance
	for _, i := range s.Instances {
		i.Updated, i.Calls, i.Denials, i.Failures, i.LastFailure, i.Nanoseconds, i.MeanFuel = metav1.Time{}, 0, 0, 0, "", 0, 0
		i.Candidate = i.Candidate.state()
		i.Since = metav1.NewTime(i.Since.Truncate(time.Second))
		list = append(list, i)
	}
	s.Instances = list
	b, err := json.Marshal(s)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

func (c *Candidate) state() *Candidate {
	if c == nil {
		return nil
	}
	return &Candidate{Digest: c.Digest, Version: c.Version, Ready: c.Ready, Error: c.Error}
}
