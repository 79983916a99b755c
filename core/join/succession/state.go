// SPDX-License-Identifier: Apache-2.0

// Package succession changes the authority of a running cluster: the old one and the new
// one are trusted everywhere, then the new one signs, then the old one is dropped.
//
// Who drives it (`wasmplane certs rotate-ca`) keeps nothing but what is in the cluster: a
// Secret that says how far it has come, and holds the new authority, sealed so that only
// servers can read it, until all have it. Each machine follows by itself, and reports what it trusts
// and by whom its certificates are signed. Next decides, from that alone, whether the next phase may
// begin: it is pure, so a driver that was killed is replaced by another at any point.
package succession

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/pki"
	"github.com/wasmplane/wasmplane/core/pki/cabundle"
)

const (
	// Name of the Secret and of the ConfigMap of the servers' reports, in kube-system.
	Name = "wasmplane-authority"
	// Annotation of a Node is its machine's report.
	Annotation = "wasmplane.dev/authority"
)

// Phase is how far the change has come.
type Phase string

// The phases in their order. What each waits for says Next.
const (
	// Offered: servers take the new authority, and trust it.
	Offered Phase = "offered"
	// Published: all others are to trust it, too.
	Published Phase = "published"
	// Promoted: it signs on servers.
	Promoted Phase = "promoted"
	// Announced: machines have it sign their certificates, and tokens name it.
	Announced Phase = "announced"
	// Dropped: nobody is to trust the old one any more.
	Dropped Phase = "dropped"
)

// Phases in their order.
func Phases() []Phase { return []Phase{Offered, Published, Promoted, Announced, Dropped} }

// Step is what servers do in a phase.
func (p Phase) Step() pki.Step {
	switch p {
	case Offered, Published:
		return pki.Trusting
	case Promoted, Announced:
		return pki.Signing
	case Dropped:
		return pki.Dropping
	}
	return pki.Settled
}

// State is what the Secret holds.
type State struct {
	Phase Phase
	// Since is when the phase began.
	Since time.Time
	// From and To are the two authorities in PEM; Root is that of To, where To is an intermediate.
	From, To, Root []byte
	// Sealed is the new one with its keys, for servers alone; nil once all have it.
	Sealed []byte
}

// Pins of the two authorities.
func (s State) Pins() (from, to string, err error) {
	for _, of := range []struct {
		text []byte
		pin  *string
	}{{s.From, &from}, {s.To, &to}} {
		certs, err := cabundle.Parse(of.text)
		if err != nil {
			return "", "", fmt.Errorf("the secret %s: %w", Name, err)
		}
		*of.pin = cabundle.Pin(certs[0])
	}
	return from, to, nil
}

// root is the pin of what clients are to know the servers by.
func (s State) root() (string, error) {
	text := s.To
	if len(s.Root) > 0 {
		text = s.Root
	}
	certs, err := cabundle.Parse(text)
	if err != nil {
		return "", fmt.Errorf("the secret %s: %w", Name, err)
	}
	return cabundle.Pin(certs[0]), nil
}

// Public is what all machines are told in a phase: the authorities to trust, the one that
// signs first.
func (s State) Public() []byte {
	switch s.Phase {
	case Offered:
		return s.From
	case Published, Promoted:
		return slices.Concat(s.From, s.To)
	case Announced:
		return slices.Concat(s.To, s.From)
	default:
		return s.To
	}
}

// Secret is s as an object.
func (s State) Secret() *corev1.Secret {
	data := map[string][]byte{
		"phase": []byte(s.Phase), "since": []byte(s.Since.UTC().Format(time.RFC3339)), "from": s.From, "to": s.To,
	}
	if len(s.Root) > 0 {
		data["root"] = s.Root
	}
	if len(s.Sealed) > 0 {
		data["sealed"] = s.Sealed
	}
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: Name}, Type: "wasmplane.dev/authority", Data: data,
	}
}

// Read is the state that an object holds.
func Read(o *corev1.Secret) (s State, err error) {
	s = State{Phase: Phase(o.Data["phase"]), From: o.Data["from"], To: o.Data["to"], Root: o.Data["root"], Sealed: o.Data["sealed"]}
	if !slices.Contains(Phases(), s.Phase) {
		return s, fmt.Errorf("the secret %s names a phase %q that this version of wasmplane does not know: use that with which the change began", Name, s.Phase)
	}
	if s.Since, err = time.Parse(time.RFC3339, string(o.Data["since"])); err != nil {
		return s, fmt.Errorf("the secret %s: %w", Name, err)
	}
	_, _, err = s.Pins()
	return s, err
}

// Report is what a machine has of the change: whom it trusts, and by whom each of its
// certificates is signed, as pins.
type Report struct {
	Trusts, Signed []string
}

// String is how a Report is written down.
func (r Report) String() string {
	return "trusts " + strings.Join(r.Trusts, " ") + "; signed by " + strings.Join(r.Signed, " ")
}

// ParseReport reads what String wrote.
func ParseReport(text string) (r Report, err error) {
	trusts, signed, ok := strings.Cut(text, "; signed by ")
	trusts, ok2 := strings.CutPrefix(trusts, "trusts ")
	if !ok || !ok2 {
		return r, errors.New("the report cannot be read")
	}
	return Report{strings.Fields(trusts), strings.Fields(signed)}, nil
}

// Key of a server's report in the ConfigMap, by the address at which it is reached.
func Key(address string) string { return strings.ReplaceAll(address, ":", "-") }
