// SPDX-License-Identifier: Apache-2.0

package succession

import (
	"slices"
	"time"
)

// Grace is how long Announced lasts at least: clients that read their certificates from
// files look for new ones every few seconds, and keep connections until then.
const Grace = 30 * time.Second

// Machine is one of the cluster, with what it has reported.
type Machine struct {
	Name   string
	Server bool
	// Alive: it answers now. Silent is since when it does not, where that is known.
	Alive  bool
	Silent time.Time
	// Report is nil where the machine has never made one.
	Report *Report
}

// World is what Next looks at.
type World struct {
	State    State
	From, To string // pins
	Machines []Machine
	// Unpublished counts namespaces whose kube-root-ca.crt is not what it is to be.
	Unpublished int
	Now         time.Time
}

// Wait is what the next phase has to wait for.
type Wait struct {
	// Machines have not followed yet.
	Machines []Machine
	// Namespaces whose kube-root-ca.crt is an earlier one.
	Namespaces int
	// For is what is left of the Grace.
	For time.Duration
}

// Over tells that there is nothing to wait for.
func (w Wait) Over() bool { return len(w.Machines) == 0 && w.Namespaces == 0 && w.For <= 0 }

// Next is the phase that follows, "" after the last, and what it has to wait for.
func Next(w World) (Phase, Wait) {
	var wait Wait
	for _, m := range w.Machines {
		if !followed(w, m) {
			wait.Machines = append(wait.Machines, m)
		}
	}
	switch w.State.Phase {
	case Published, Dropped:
		wait.Namespaces = w.Unpublished
	case Announced:
		wait.For = w.State.Since.Add(Grace).Sub(w.Now)
	default: // the other phases wait for machines alone
	}
	all := Phases()
	if i := slices.Index(all, w.State.Phase); i+1 < len(all) {
		return all[i+1], wait
	}
	return "", wait
}

// followed tells whether a machine has done its part of the phase. What it has done of
// later phases counts: the driver may know less than the machines.
func followed(w World, m Machine) bool {
	phase := w.State.Phase
	if !m.Server && (phase == Offered || phase == Promoted) {
		return true // it is the servers' turn
	}
	if m.Report == nil {
		return false
	}
	r := *m.Report
	switch phase {
	case Offered, Published:
		return slices.Contains(r.Trusts, w.To)
	case Promoted, Announced:
		return slices.Contains(r.Trusts, w.To) && signedBy(r, w.To)
	default:
		return slices.Equal(r.Trusts, []string{w.To}) && signedBy(r, w.To)
	}
}

// signedBy tells that all certificates of a machine are signed by one authority.
func signedBy(r Report, by string) bool {
	return len(r.Signed) > 0 && !slices.ContainsFunc(r.Signed, func(pin string) bool { return pin != by })
}
