// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// verb is what a client did to an object.
type verb string

const (
	get    verb = "get"  // of etcd
	list   verb = "list" // of the watch cache, consistent
	create verb = "create"
	update verb = "update" // compare and swap
	patch  verb = "patch"  // unconditional
	remove verb = "delete" // with the resourceVersion as precondition
)

// input of an operation on one object.
type input struct {
	object   string
	verb     verb
	value    string // that is written
	expected int64  // resourceVersion that an update or a delete insists on
}

// outcome of an operation.
type outcome int

const (
	done     outcome = iota
	missing          // the object was not there
	conflict         // it was there, or it was another version of it
	unknown          // nobody was answered
)

type output struct {
	outcome  outcome
	value    string
	revision int64
}

// state of one object, as the model knows it.
type state struct {
	exists   bool
	value    string
	revision int64 // of the last write; 0 = not known, for nobody was answered
	least    int64 // the revision is above this one
}

// model is an object of the API: a register with compare and swap, whose
// versions only grow.
func model() porcupine.Model {
	m := porcupine.NondeterministicModel{
		Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
			parts := map[string][]porcupine.Operation{}
			for _, op := range history {
				name := op.Input.(input).object
				parts[name] = append(parts[name], op)
			}
			out := make([][]porcupine.Operation, 0, len(parts))
			for _, p := range parts {
				out = append(out, p)
			}
			return out
		},
		Init: func() []any { return []any{state{}} },
		Step: func(s, in, out any) []any { return step(s.(state), in.(input), out.(output)) },
		DescribeOperation: func(in, out any) string {
			i, o := in.(input), out.(output)
			return fmt.Sprintf("%s(%s,%d) -> %v %s@%d", i.verb, i.value, i.expected, o.outcome, o.value, o.revision)
		},
		DescribeState: func(s any) string { return fmt.Sprintf("%+v", s) },
	}
	return m.ToModel()
}

// step lists the states that an operation with that answer may lead to.
func step(s state, in input, out output) []any {
	switch in.verb {
	case get, list:
		return read(s, out)
	case create:
		return write(s, in, out, !s.exists, conflict)
	case patch:
		return write(s, in, out, s.exists, missing)
	case update, remove: // they insist on a version
	}
	if !s.exists {
		return refusal(s, out, missing)
	}
	if s.revision == 0 { // it may be the version that is insisted on
		if in.expected <= s.least {
			return refusal(s, out, conflict)
		}
		known := s
		known.revision = in.expected
		return append(write(known, in, out, true, conflict), refusal(s, out, conflict)...)
	}
	return write(s, in, out, s.revision == in.expected, conflict)
}

func read(s state, out output) []any {
	switch {
	case out.outcome == unknown:
		return []any{s}
	case out.outcome == missing:
		if s.exists {
			return nil
		}
		return []any{s}
	case !s.exists || out.value != s.value || out.revision <= s.least || s.revision != 0 && out.revision != s.revision:
		return nil
	}
	s.revision = out.revision
	return []any{s}
}

// write is one that succeeds where may is true, and is else refused as refused says.
func write(s state, in input, out output, may bool, refused outcome) []any {
	if !may {
		return refusal(s, out, refused)
	}
	next := state{exists: in.verb != remove, value: in.value, least: max(s.least, s.revision)}
	switch out.outcome {
	case done:
		if in.verb == remove {
			return []any{next}
		}
		if out.revision <= next.least {
			return nil
		}
		next.revision = out.revision
		return []any{next}
	case unknown:
		return []any{s, next}
	default: // a refusal that nothing explains
		return nil
	}
}

func refusal(s state, out output, want outcome) []any {
	if out.outcome == want || out.outcome == unknown {
		return []any{s}
	}
	return nil
}

// history collects operations of concurrent clients.
type history struct {
	began time.Time
	mu    sync.Mutex
	ops   []porcupine.Operation
}

// do runs an operation and notes when it began and ended. One that nobody was
// answered may take effect at any time after.
func (h *history) do(client int, in input, run func() output) output {
	call := time.Since(h.began).Nanoseconds()
	out := run()
	end := time.Since(h.began).Nanoseconds()
	if out.outcome == unknown {
		if in.verb == get || in.verb == list {
			return out // it says nothing
		}
		end = int64(1) << 62
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: in, Call: call, Output: out, Return: end})
	return out
}

// judge fails the test where the history is not linearizable.
func (h *history) judge(t *testing.T) {
	t.Helper()
	count := map[string]int{}
	for _, op := range h.ops {
		count[fmt.Sprintf("%s %d", op.Input.(input).verb, op.Output.(output).outcome)]++
	}
	t.Logf("%d operations (0 done, 1 missing, 2 conflict, 3 not answered): %v", len(h.ops), count)
	if count["update 0"] == 0 || count["get 0"] == 0 || count["list 0"] == 0 || count["delete 0"] == 0 {
		t.Fatal("the load was none")
	}
	result, info := porcupine.CheckOperationsVerbose(model(), h.ops, 3*time.Minute)
	switch result {
	case porcupine.Ok:
		return
	case porcupine.Unknown:
		t.Fatal("the history was not judged within 3 minutes: use fewer clients on an object")
	case porcupine.Illegal:
	}
	file := filepath.Join(os.TempDir(), "wasmplane-chaos-history.html")
	if err := porcupine.VisualizePath(model(), info, file); err != nil {
		t.Error(err)
	}
	t.Fatalf("the history is not linearizable: see %s", file)
}

// The model refuses what must not be: it is what the verdict rests on.
func TestTheModelSeesWhatIsWrong(t *testing.T) {
	op := func(at, until int64, in input, out output) porcupine.Operation {
		return porcupine.Operation{Input: in, Call: at, Output: out, Return: until}
	}
	made := op(0, 1, input{verb: create, value: "a"}, output{done, "a", 5})
	for _, c := range []struct {
		name string
		ok   bool
		ops  []porcupine.Operation
	}{
		{"a read of what was written", true, []porcupine.Operation{made, op(2, 3, input{verb: get}, output{done, "a", 5})}},
		{"a lost write", false, []porcupine.Operation{made, op(2, 3, input{verb: get}, output{missing, "", 0})}},
		{"a stale list", false, []porcupine.Operation{
			made,
			op(2, 3, input{verb: update, value: "b", expected: 5}, output{done, "b", 6}), op(4, 5, input{verb: list}, output{done, "a", 5}),
		}},
		{"two winners of one version", false, []porcupine.Operation{
			made,
			op(2, 9, input{verb: update, value: "b", expected: 5}, output{done, "b", 6}),
			op(2, 9, input{verb: update, value: "c", expected: 5}, output{done, "c", 7}),
		}},
		{"a version that goes back", false, []porcupine.Operation{
			made,
			op(2, 3, input{verb: patch, value: "b"}, output{done, "b", 4}),
		}},
		{"an unanswered write that happened", true, []porcupine.Operation{
			made,
			op(2, 1<<62, input{verb: update, value: "b", expected: 5}, output{outcome: unknown}), op(4, 5, input{verb: get}, output{done, "b", 8}),
		}},
		{"an unanswered write that did not", true, []porcupine.Operation{
			made,
			op(2, 1<<62, input{verb: update, value: "b", expected: 5}, output{outcome: unknown}), op(4, 5, input{verb: get}, output{done, "a", 5}),
		}},
		{"an unanswered write that happened twice", false, []porcupine.Operation{
			made,
			op(2, 1<<62, input{verb: patch, value: "b"}, output{outcome: unknown}), op(4, 5, input{verb: get}, output{done, "b", 8}),
			op(6, 7, input{verb: update, value: "c", expected: 8}, output{done, "c", 9}), op(8, 9, input{verb: get}, output{done, "b", 10}),
		}},
		{"a conflict that did something", false, []porcupine.Operation{
			made,
			op(2, 3, input{verb: update, value: "b", expected: 4}, output{outcome: conflict}), op(4, 5, input{verb: get}, output{done, "b", 6}),
		}},
		{"a delete that was undone", false, []porcupine.Operation{
			made,
			op(2, 3, input{verb: remove, expected: 5}, output{outcome: done}), op(4, 5, input{verb: get}, output{done, "a", 5}),
		}},
	} {
		if got := porcupine.CheckOperations(model(), slices.Clone(c.ops)); got != c.ok {
			t.Errorf("%s: linearizable is %v", c.name, got)
		}
	}
}
