// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"bytes"
	"context"
	"encoding/gob"
	"os"
	"slices"
	"time"

	"github.com/wasmplane/wasmplane/core/run/atomicfile"
)

// memory is what was found out, by resource and key.
type memory struct {
	Objects map[string]map[string]*object
	Sets    map[uint64]*set
	Pass    uint64
}

// set are the versions of policies by which objects were judged, by key.
type set struct {
	Keys, Versions []string
}

// find is where a version of a policy stands.
func (s *set) find(key, version string) (int, bool) {
	if s == nil {
		return 0, false
	}
	i, ok := slices.BinarySearch(s.Keys, key)
	return i, ok && s.Versions[i] == version
}

// has says whether a policy is in the set, in whichever version.
func (s *set) has(key string) bool {
	if s == nil {
		return false
	}
	_, ok := slices.BinarySearch(s.Keys, key)
	return ok
}

// object is what policies have against one object.
type object struct {
	Revision int64
	Labels   uint64 // of its namespace
	Set      uint64
	Asked    []byte // bits, by the policies of the set
	Findings []finding
	About    *Reference // nil = there is nothing to say of it
	Written  uint64     // sum of its report; 0 = it has none
	At       int64      // when a policy failed last, in seconds

	seen uint64 // in which pass
}

type finding struct {
	Key     string // of the policy
	Info    Info
	Message string
	Failed  bool
}

func (o *object) asked(i int) bool { return i/8 < len(o.Asked) && o.Asked[i/8]&(1<<(i%8)) != 0 }

// keep takes over what the object before says of a policy, which stood at another place there.
func (o *object) keep(i int, before *object, at int, key string) {
	if !before.asked(at) {
		return
	}
	o.Asked[i/8] |= 1 << (i % 8)
	for _, f := range before.Findings {
		if f.Key == key {
			o.Findings = append(o.Findings, f)
			if f.Failed {
				o.At = before.At
			}
		}
	}
}

// again says whether policies that failed are to be asked again.
func (o *object) again(now time.Time) bool {
	return o.At != 0 && now.Sub(time.Unix(o.At, 0)) >= askAgain
}

// failed says whether a policy failed.
func (o *object) failed(key string) bool {
	return slices.ContainsFunc(o.Findings, func(f finding) bool { return f.Key == key && f.Failed })
}

// take adds what a policy says.
func (o *object) take(i int, info Info, asked bool, against []Objection) {
	if !asked {
		return
	}
	o.Asked[i/8] |= 1 << (i % 8)
	for _, a := range against[:min(len(against), mostObjections)] {
		message := a.Message
		if len(message) > mostMessage {
			message = string(bytes.ToValidUTF8([]byte(message[:mostMessage]), nil)) + "..."
		}
		o.Findings = append(o.Findings, finding{info.Key, info, message, a.Failed})
		if a.Failed {
			o.At = time.Now().Unix()
		}
	}
}

// set remembers the versions of policies, and answers their sum.
func (m *memory) set(policies []Policy) uint64 { return m.setWithout(policies, nil) }

// setWithout remembers some policies as ones that were not asked.
func (m *memory) setWithout(policies []Policy, left []string) uint64 {
	s := &set{}
	for _, p := range policies {
		key, version := p.Info().Key, p.Version()
		if slices.Contains(left, key) {
			version = ""
		}
		s.Keys, s.Versions = append(s.Keys, key), append(s.Versions, version)
	}
	sum := sumOf(s.Keys, s.Versions)
	m.Sets[sum] = s
	return sum
}

// reports is how many objects have reports, and how many in each namespace.
func (m *memory) reports() (n int, of map[string]int) {
	of = map[string]int{}
	used := map[uint64]bool{}
	for _, objects := range m.Objects {
		for _, o := range objects {
			used[o.Set] = true
			if o.Written != 0 {
				n++
				if o.About != nil {
					of[o.About.Namespace]++
				}
			}
		}
	}
	for sum := range m.Sets {
		if !used[sum] {
			delete(m.Sets, sum)
		}
	}
	return n, of
}

// load reads what is remembered. What cannot be read is found out again.
func (s *Scanner) load() {
	if s.cfg.File != "" {
		b, err := os.ReadFile(s.cfg.File)
		if err == nil {
			err = gob.NewDecoder(bytes.NewReader(b)).Decode(&s.memory)
		}
		if err != nil && !os.IsNotExist(err) {
			s.cfg.Logger.Warn("what policies have against stored objects is found out again", "file", s.cfg.File, "error", err)
			s.memory = memory{}
		}
	}
	if s.memory.Objects == nil || s.memory.Sets == nil {
		s.memory = memory{Objects: map[string]map[string]*object{}, Sets: map[uint64]*set{}}
	}
	s.saved = time.Now()
}

// save writes what is remembered.
func (s *Scanner) save(ctx context.Context) {
	if s.cfg.File == "" || !s.changed {
		return
	}
	var b bytes.Buffer
	err := gob.NewEncoder(&b).Encode(&s.memory)
	if err == nil {
		err = atomicfile.Write(s.cfg.File, b.Bytes(), 0o600)
	}
	if err != nil {
		s.cfg.Logger.WarnContext(ctx, "what policies have against stored objects is not kept for the next start", "file", s.cfg.File,
			"error", err)
		return
	}
	s.changed, s.saved = false, time.Now()
}
