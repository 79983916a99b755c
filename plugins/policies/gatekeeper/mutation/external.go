// SPDX-License-Identifier: Apache-2.0

package mutation

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/wasmplane/wasmplane/plugins/policies/gatekeeper"
	"github.com/wasmplane/wasmplane/plugins/policies/tree"
)

// What may be asked about, and what becomes of a field if there is no answer: externaldata_types.go of Gatekeeper.
const (
	valueAtLocation = "ValueAtLocation"
	username        = "Username"
	failurePolicy   = "Fail"
	ignorePolicy    = "Ignore"
	defaultPolicy   = "UseDefault"
	mostQuestions   = 1000 // of one object
)

// external puts what a provider of external data answers. While mutators are at work a token stands there; when nothing changes any
// more, all questions of a mutator are asked at once.
type external struct {
	provider, source, failure, fallback string
}

func readExternal(text json.RawMessage) (*external, error) {
	const at = "spec.parameters.assign.externalData"
	var e struct {
		Provider      string  `json:"provider"`
		DataSource    string  `json:"dataSource"`
		FailurePolicy string  `json:"failurePolicy"`
		Default       *string `json:"default"`
	}
	if err := tree.Strict(text, &e, at); err != nil {
		return nil, err
	}
	x := &external{provider: e.Provider, source: orElse(e.DataSource, valueAtLocation), failure: orElse(e.FailurePolicy, failurePolicy)}
	switch {
	case e.Provider == "":
		return nil, errors.New(at + ".provider: expected the name of a Provider")
	case x.source != valueAtLocation && x.source != username:
		return nil, fmt.Errorf("%s.dataSource: expected %s or %s, found %q", at, valueAtLocation, username, x.source)
	case x.failure != failurePolicy && x.failure != ignorePolicy && x.failure != defaultPolicy:
		return nil, fmt.Errorf("%s.failurePolicy: expected %s, %s or %s, found %q", at, failurePolicy, ignorePolicy, defaultPolicy, x.failure)
	case x.failure == defaultPolicy && e.Default == nil:
		return nil, fmt.Errorf("%s.default: failurePolicy %s needs it", at, defaultPolicy)
	case e.Default != nil:
		x.fallback = *e.Default
	}
	return x, nil
}

// Provider is the name of the provider of external data that the mutator asks; "" = none.
func (m *Mutator) Provider() string {
	if a, ok := m.setter.(*assign); ok && a.external != nil {
		return a.external.provider
	}
	return ""
}

// question is what one mutator asks about one field.
type question struct {
	by       *Mutator
	external *external
	key      string
	was      any // what stood there; there says whether anything did
	there    bool
}

// questions of all mutators about one object. A token cannot be guessed, so that no object has one of its own.
type questions struct {
	prefix string
	all    []question
	ids    map[string]int
}

func (q *questions) token(i int) string { return q.prefix + strconv.Itoa(i) + "\x00" }

// of is the question that a token stands for.
func (q *questions) of(v any) (*question, bool) {
	text, ok := v.(string)
	if !ok || q.prefix == "" || !strings.HasPrefix(text, q.prefix) {
		return nil, false
	}
	i, err := strconv.Atoi(strings.TrimSuffix(text[len(q.prefix):], "\x00"))
	if err != nil || i < 0 || i >= len(q.all) || q.token(i) != text {
		return nil, false
	}
	return &q.all[i], true
}

func (e *external) set(w *walk, parent map[string]any, field string) error {
	qs := &w.budget.questions
	one := question{by: w.Mutator, external: e, key: w.target.User}
	one.was, one.there = parent[field]
	if before, ok := qs.of(one.was); ok {
		one.was, one.there = before.was, before.there
	}
	if e.source == valueAtLocation {
		text, ok := one.was.(string)
		if one.there && !ok {
			return fmt.Errorf("expected a text, to ask provider %q about, found %s", e.provider, kindOf(one.was))
		}
		one.key = text
	}
	was, err := json.Marshal([]any{w.ID(), one.key, one.was, one.there})
	if err != nil {
		return err
	}
	if qs.prefix == "" {
		qs.prefix, qs.ids = "\x00"+rand.Text()+":", map[string]int{}
	}
	i, known := qs.ids[string(was)]
	if !known {
		if len(qs.all) == mostQuestions {
			return fmt.Errorf("more than %d questions are asked about one object", mostQuestions)
		}
		i = len(qs.all)
		qs.ids[string(was)], qs.all = i, append(qs.all, one)
	}
	parent[field] = qs.token(i)
	return w.budget.spend(len(was))
}

// resolve asks, and puts the answers where the tokens stand. Without anybody to ask, what was there stays.
func (q *questions) resolve(t *gatekeeper.Target) error {
	if len(q.all) == 0 {
		return nil
	}
	open := map[*Mutator][]string{}
	// In a copy, which has no tokens after it.
	if err := q.each(runtime.DeepCopyJSON(t.Object), func(one *question) (any, bool, error) {
		if !slices.Contains(open[one.by], one.key) {
			open[one.by] = append(open[one.by], one.key)
		}
		return nil, false, nil
	}); err != nil {
		return err
	}
	answers := map[*Mutator]gatekeeper.Answers{}
	if t.External != nil {
		for m, keys := range open {
			answers[m] = t.External(m.ID(), m.Provider(), keys)
		}
	}
	return q.each(t.Object, func(one *question) (any, bool, error) {
		ask := answers[one.by]
		if ask == nil {
			return one.was, one.there, nil
		}
		text, err := ask(one.key)
		switch {
		case err == nil:
			return text, true, nil
		case one.external.failure == ignorePolicy:
			return one.was, one.there, nil
		case one.external.failure == defaultPolicy:
			return one.external.fallback, true, nil
		}
		return nil, false, fmt.Errorf("%s: %w", one.by.ID(), err)
	})
}

// each replaces all tokens.
func (q *questions) each(object map[string]any, answer func(*question) (now any, there bool, err error)) error {
	var in func(v any) (any, bool, error)
	in = func(v any) (any, bool, error) {
		switch v := v.(type) {
		case map[string]any:
			for field, item := range v {
				now, there, err := in(item)
				if err != nil {
					return nil, false, err
				}
				if !there {
					delete(v, field)
				} else {
					v[field] = now
				}
			}
		case []any:
			for i, item := range v {
				now, there, err := in(item)
				if err != nil {
					return nil, false, err
				}
				if !there {
					now = nil // no question stands for an item; see takeAssign
				}
				v[i] = now
			}
		case string:
			if one, ok := q.of(v); ok {
				return answer(one)
			}
			if strings.Contains(v, q.prefix) {
				return nil, false, errors.New("one mutator changes what another one asks a provider about: they cannot be used for one field")
			}
		}
		return v, true, nil
	}
	_, _, err := in(object)
	return err
}
