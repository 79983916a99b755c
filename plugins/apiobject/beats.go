// SPDX-License-Identifier: Apache-2.0

package apiobject

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/run/presence"
)

// Processes that keep no lease (of versions before there were leases, or without the right to one)
// write every status once a heartbeat, and take what others wrote longer than staleAfter ago to be of
// processes that have ended. Beside one of them a process with a lease does the same, so that it stays.
const (
	heartbeat  = time.Minute
	staleAfter = 5 * heartbeat
	// wary is for how long a process gives signs of life after its report was removed: somebody does not know leases.
	wary = 30 * time.Minute
)

// beats decides whose reports hold, and when this process's needs a sign of life besides its lease.
type beats struct {
	presence Presence
	seen     map[string]types.UID // the objects in which this process's report stood, by the plugin's name
	removed  time.Time            // when somebody last removed one of them
}

func (b *beats) state(i Instance) presence.State {
	if b.presence == nil {
		return presence.Unlisted
	}
	return b.presence.State(i.Name)
}

// current is a status without the reports of processes that have ended.
func (b *beats) current(s Status, now time.Time) Status {
	s.Instances = slices.DeleteFunc(slices.Clone(s.Instances), func(i Instance) bool { return !b.holds(i, now) })
	return s
}

func (b *beats) holds(i Instance, now time.Time) bool {
	switch b.state(i) {
	case presence.Gone:
		return false
	case presence.Unlisted:
		return now.Sub(i.Updated.Time) < staleAfter
	default: // it lives, or nobody can know
		return true
	}
}

// look notices that somebody has removed this process's report from an object, where reports says
// that it makes one.
func (b *beats) look(o *unstructured.Unstructured, before Status, identity string, reports bool, now time.Time) {
	name := nameOf(o)
	if !reports {
		delete(b.seen, name)
		return
	}
	there := slices.ContainsFunc(before.Instances, func(i Instance) bool { return i.Name == identity })
	switch {
	case there:
		b.seen[name] = o.GetUID()
	case b.seen[name] == o.GetUID() && o.GetUID() != "":
		b.removed = now
		delete(b.seen, name)
	}
}

// needed says whether somebody knows this process by its heartbeats only.
func (b *beats) needed(s Status, identity string, now time.Time) bool {
	if b.presence == nil || !b.presence.Held() || !b.removed.IsZero() && now.Sub(b.removed) < wary {
		return true
	}
	return slices.ContainsFunc(s.Instances, func(i Instance) bool { return i.Name != identity && b.state(i) == presence.Unlisted })
}
