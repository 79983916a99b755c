// SPDX-License-Identifier: Apache-2.0

// Package reply is what somebody hears who asks why an object makes no progress: one
// sentence of a cause, what says more, what would help, and what is not known.
//
// It guarantees that a command which it suggests has no word that a shell would
// interpret, and that nothing of what it prints is obeyed by a terminal.
package reply

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"unicode"

	"github.com/wasmplane/wasmplane/core/why/facts"
	"github.com/wasmplane/wasmplane/core/why/trial"
)

// Answer says why.
type Answer struct {
	Object string `json:"object"` // kind/name
	// Namespace is empty for what has none.
	Namespace string `json:"namespace,omitempty"`
	// Well: nothing keeps the object from getting on.
	Well bool `json:"well"`
	// Cause in one sentence.
	Cause string `json:"cause"`
	// Because are sentences that say more.
	Because []string `json:"because,omitempty"`
	// Refused is which plugin keeps a pod from how many nodes.
	Refused []trial.Refusal `json:"refused,omitempty"`
	// Preemption is why no pods of lower priority are removed for a pod, by nodes.
	Preemption []trial.Refusal `json:"preemption,omitempty"`
	// Changes that would let it go on, those that change least first.
	Changes []trial.Change `json:"changes,omitempty"`
	// Unknown is what could not be found out.
	Unknown []string `json:"unknown,omitempty"`

	public string // see Public
}

// Public is the cause for everybody who reads events of the object's namespace, who may read less than
// whoever asked: without objects of other namespaces.
func (a *Answer) Public() string { return cmp.Or(a.public, a.Cause) }

// Publicly says how much of the cause others may read.
func (a *Answer) Publicly(format string, args ...any) *Answer {
	a.public = fmt.Sprintf(format, args...)
	return a
}

// Write prints an answer for people. The first line is the cause.
func (a *Answer) Write(w io.Writer) {
	write := func(format string, words ...any) {
		for i, word := range words {
			if text, ok := word.(string); ok {
				words[i] = printable(text)
			}
		}
		fmt.Fprintf(w, format, words...)
	}
	write("%s: %s\n", strings.TrimPrefix(a.Namespace+"/", "/")+a.Object, a.Cause)
	for _, b := range a.Because {
		write("  %s\n", b)
	}
	for _, r := range a.Refused {
		write("  %s: %s: %d nodes (%s)\n", cmp.Or(r.Plugin, "a plugin"), r.Reason, len(r.Nodes), facts.Some(r.Nodes))
	}
	for _, r := range a.Preemption {
		write("  preemption: %s: %d nodes (%s)\n", r.Reason, len(r.Nodes), facts.Some(r.Nodes))
	}
	if len(a.Changes) > 0 {
		write("What would let it go on:\n")
	}
	for _, c := range a.Changes {
		tried := ""
		if c.Tried {
			tried = " (tried on a copy of the cluster)"
		}
		write("  %s%s:\n    %s\n", c.What, tried, c.Command)
	}
	for _, u := range a.Unknown {
		write("Not known: %s\n", u)
	}
}

// printable is what somebody wrote, on one line and without what a terminal obeys.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case unicode.IsPrint(r):
			return r
		case unicode.IsSpace(r):
			return ' '
		}
		return unicode.ReplacementChar
	}, text)
}

// Well is the answer about an object that nothing keeps from getting on.
func Well(format string, args ...any) *Answer {
	return &Answer{Well: true, Cause: fmt.Sprintf(format, args...)}
}

// Stuck is the answer about one that something does.
func Stuck(format string, args ...any) *Answer { return &Answer{Cause: fmt.Sprintf(format, args...)} }

// Or suggests a change that was not tried.
func (a *Answer) Or(what, format string, words ...any) *Answer {
	command, ok := facts.Command(format, words...)
	if !ok {
		a.Unknown = append(a.Unknown, "the command to "+what+": a name in it has characters that shells or programs would interpret")
		return a
	}
	a.Changes = append(a.Changes, trial.Change{What: what, Command: command})
	return a
}

// More adds a sentence that says more.
func (a *Answer) More(format string, args ...any) *Answer {
	a.Because = append(a.Because, fmt.Sprintf(format, args...))
	return a
}

// Of is the answer of an object that waits for another one.
func (a *Answer) Of(format string, args ...any) *Answer {
	if a.public != "" {
		a.public = fmt.Sprintf(format, args...) + ": " + a.public
	}
	a.Cause = fmt.Sprintf(format, args...) + ": " + a.Cause
	return a
}
