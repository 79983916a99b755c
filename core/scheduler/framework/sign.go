// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"encoding/binary"
	"maps"
	"slices"
)

// Signed is for plugins that can say what they read of a pod. Pods of which all plugins read
// the same, those of one template, are alike: on the same cluster they are refused alike,
// and the scheduler has one of them speak for the others.
type Signed interface {
	Plugin
	// Sign writes everything that the plugin's points up to Score, and its PostFilter, read
	// of a pod. It is false where that is the pod's alone: its name, a claim.
	Sign(p *PodInfo, s *Signature) bool
}

// Local is for plugins whose PreFilter and PreScore read nothing but what they sign, and
// whose Filter and Score (before Normalize) read that and their node. What they say of a
// node is kept: they are asked again, for a pod with the same signature, once the node
// has changed. Their Filter also works where PreFilter was not asked.
type Local interface {
	Signed
	// IsLocal says whether the plugin, as it is configured, is one.
	IsLocal() bool
}

// Signature is what plugins read of a pod. Each value is written so that two lists of values
// are never the same text.
type Signature struct{ b []byte }

// Text adds texts.
func (s *Signature) Text(texts ...string) {
	for _, t := range texts {
		s.b = binary.AppendUvarint(s.b, uint64(len(t)))
		s.b = append(s.b, t...)
	}
}

// Number adds numbers.
func (s *Signature) Number(numbers ...int64) {
	for _, n := range numbers {
		s.b = binary.AppendVarint(s.b, n)
	}
}

// Texts adds a map.
func (s *Signature) Texts(m map[string]string) {
	s.Number(int64(len(m)))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		s.Text(k, m[k])
	}
}

// Resources adds amounts.
func (s *Signature) Resources(r Resources) {
	s.Number(r.MilliCPU, r.Memory, r.EphemeralStorage, r.Pods, int64(len(r.Scalar)))
	for _, name := range slices.Sorted(maps.Keys(r.Scalar)) {
		s.Text(string(name))
		s.Number(r.Scalar[name])
	}
}

// Object adds an object of the API. It is false for one that cannot be encoded.
func (s *Signature) Object(o interface{ Marshal() ([]byte, error) }) bool {
	b, err := o.Marshal()
	if err != nil {
		return false
	}
	s.Text(string(b))
	return true
}

// String is the signature as a key.
func (s *Signature) String() string { return string(s.b) }
