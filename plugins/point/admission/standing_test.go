// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"slices"
	"testing"

	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/point/pointtest"
)

// TestWhatIsStoredIsJudgedWhateverTheMode: without an effect, and without a count of its own.
func TestWhatIsStoredIsJudgedWhateverTheMode(t *testing.T) {
	others := []abi.Rule{{Resources: []string{"pods"}}}
	for name, c := range map[string]struct {
		answer string // "fails": the guest does
		rules  []abi.Rule
		asked  bool
		want   []string
		fails  bool
	}{
		"nothing":     {answer: "", asked: true},
		"one thing":   {answer: denial, asked: true, want: []string{"no owner"}},
		"more things": {answer: `{"allowed":false,"message":"a","causes":[{"message":"b"},{"field":"spec.c","message":"d"}]}`, asked: true, want: []string{"a", "b", "spec.c: d"}},
		"causes":      {answer: `{"allowed":false,"causes":[{"field":"spec.c"}]}`, asked: true, want: []string{"spec.c: no reason was given"}},
		"no reason":   {answer: `{"allowed":false}`, asked: true, want: []string{"no reason was given"}},
		"a failure":   {answer: "fails", asked: true, fails: true},
		"not asked":   {answer: denial, rules: others},
	} {
		for _, mode := range []manifest.Mode{manifest.Enforce, manifest.Shadow} {
			guest := pointtest.Answers{"": c.answer}
			if c.answer == "fails" {
				guest = nil
			}
			rules := c.rules
			if rules == nil {
				rules = everything
			}
			p := pointtest.Plugin(t, manifest.Entry{Mode: mode}, abi.Hook{Op: 1, Point: abi.AdmissionValidate, Match: rules}, guest)
			s, ok := New(p, Cluster{}).(Standing)
			if !ok || s.Version() == nil {
				t.Fatalf("%s: a plugin that validates is not asked about what is stored", name)
			}
			r := request()
			asked, against, err := s.Judge(t.Context(), r)
			if asked != c.asked || !slices.Equal(against, c.want) || c.fails != (err != nil) {
				t.Errorf("%s in mode %s: asked %v, %q, %v", name, mode, asked, against, err)
			}
			if len(r.Warnings())+len(r.Annotations()) > 0 || p.Stats.Calls.Load() != 0 {
				t.Errorf("%s in mode %s: warnings %v, annotations %v, %d calls", name, mode, r.Warnings(), r.Annotations(), p.Stats.Calls.Load())
			}
		}
	}
	mutates := pointtest.Plugin(t, manifest.Entry{Mode: manifest.Enforce}, abi.Hook{Op: 1, Point: abi.AdmissionMutate, Match: everything},
		pointtest.Answers{"": ""})
	if s, ok := New(mutates, Cluster{}).(Standing); ok && s.Version() != nil {
		t.Error("a plugin that only mutates is asked about what is stored")
	}
}
