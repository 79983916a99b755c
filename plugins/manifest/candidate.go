// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"errors"

	"go.yaml.in/yaml/v3"

	"github.com/wasmplane/wasmplane/core/strictyaml"
)

// Candidate is what another version of a plugin has of its own. Everything else is the entry's.
type Candidate struct {
	Source     string      `yaml:"source"`
	Digest     string      `yaml:"digest"`
	Fetch      *Fetch      `yaml:"fetch"`
	Signatures []Signature `yaml:"signatures"`
	// Settings; left out: those of the entry.
	Settings yaml.Node `yaml:"settings"`
}

// CandidateEntry is the entry as it would be with the candidate in force; nil
// where there is none.
func (e *Entry) CandidateEntry() *Entry {
	c := e.Candidate
	if c == nil {
		return nil
	}
	out := *e
	out.Candidate, out.Previous = nil, nil
	if c.Source != "" {
		out.Source, out.Digest, out.Rego = c.Source, c.Digest, nil
		out.CEL = nil
	}
	if c.Fetch != nil {
		out.Fetch = *c.Fetch
	}
	if c.Signatures != nil {
		out.Signatures = c.Signatures
	}
	if c.Settings.Kind != 0 {
		out.Settings = c.Settings
	}
	return &out
}

// WithoutCandidate is the entry without its candidate and its previous version.
func (e *Entry) WithoutCandidate() Entry {
	out := *e
	out.Candidate, out.Previous = nil, nil
	return out
}

func (e *Entry) checkCandidate(n *yaml.Node, path string) error {
	c := e.CandidateEntry()
	if c == nil {
		return nil
	}
	if e.Candidate.Source == "" && e.Candidate.Settings.Kind == 0 {
		return fault(n, path, "candidate", "a candidate has another source or other settings")
	}
	if err := c.checkSource(n, path); err != nil {
		return fault(n, path, "candidate", problemOf(err))
	}
	if e.Candidate.Fetch != nil {
		*e.Candidate.Fetch = c.Fetch // with its defaults
	}
	return nil
}

// problemOf is what is wrong, without the place, where another place is named.
func problemOf(err error) string {
	var fe *strictyaml.FieldError
	if errors.As(err, &fe) {
		return fe.Problem
	}
	return err.Error()
}
