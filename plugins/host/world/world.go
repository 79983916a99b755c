// SPDX-License-Identifier: Apache-2.0

// Package world is the host's side of the WIT package wasmplane:plugin (sdk/wit): what a component
// has to export to be a plugin, and what it is given.
//
// A component is asked what a core module is asked: to describe itself, and for an answer to an operation with
// an input, both JSON of sdk/spec. It exports a function for each hook, by the hook's name ("validate"), or
// one for all operations ("call").
package world

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/wasmplane/wasmplane/plugins/component/canon"
	"github.com/wasmplane/wasmplane/plugins/component/ctype"
	"github.com/wasmplane/wasmplane/plugins/component/link"
	"github.com/wasmplane/wasmplane/plugins/component/wasi"
)

// Package is the WIT package.
const Package = "wasmplane:plugin@1"

// hostInterface is what is imported of it.
const hostInterface = "wasmplane:plugin/host@1"

// Services is what a plugin is given.
type Services interface {
	wasi.Services
	// HostCall carries out a granted host function; refused says that the grants don't cover it.
	HostCall(op string, input []byte) (reply []byte, refused bool, err error)
}

// Guest is the data of an instance.
type Guest struct{ Services Services }

// WASI implements wasi.Provider.
func (g *Guest) WASI() wasi.Services { return g.Services }

// form is how a function takes its input and answers.
type form uint8

const (
	documents form = iota // func(string) -> result<option<string>, string>
	octets                // func(s32, list<u8>) -> result<option<list<u8>>, string>
	decisions             // func(string) -> result<decision, string>
	cells                 // func(list<s64>, list<list<s64>>) -> result<list<u8>, string>
)

type function struct {
	*link.Func
	form form
}

// World is what a component exports of it. It implements link.Host.
type World struct {
	describe *link.Func
	call     *function
	hooks    map[int32]*function
}

// New finds what a component exports, and says what it lacks.
func New(p *link.Program) (*World, error) {
	w := &World{hooks: map[int32]*function{}}
	if w.describe = p.Func("", "describe"); w.describe == nil || signature(w.describe.Type) != "() -> string" {
		return nil, fmt.Errorf("the component exports no function describe: func() -> string: it is no plugin of %s (sdk/wit)", Package)
	}
	if f := p.Func("", "call"); f != nil {
		if got, want := signature(f.Type), "(s32, list<u8>) -> result<option<list<u8>>, string>"; got != want {
			return nil, fmt.Errorf("the component's function call is %s: expected %s (sdk/wit)", got, want)
		}
		w.call = &function{Func: f, form: octets}
	}
	for op, name := range hookNames {
		f := p.Func("", name)
		if f == nil {
			continue
		}
		hook := &function{Func: f}
		switch got := signature(f.Type); {
		case op == tableOp:
			if want := "(list<s64>, list<list<s64>>) -> result<list<u8>, string>"; got != want {
				return nil, fmt.Errorf("the component's function %s is %s: expected %s (sdk/wit)", name, got, want)
			}
			hook.form = cells
		case got == "(string) -> result<option<string>, string>":
		case strings.HasPrefix(got, "(string) -> result<record{") && isDecision(f.Type.Result.Cases[0].Type):
			hook.form = decisions
		default:
			return nil, fmt.Errorf("the component's function %s is %s: expected a function of %s (sdk/wit)", name, got, Package)
		}
		w.hooks[op] = hook
	}
	if w.call == nil && len(w.hooks) == 0 {
		return nil, fmt.Errorf("the component exports no hook, and no function call: it is no plugin of %s (sdk/wit)", Package)
	}
	return w, nil
}

// signature writes a function's type without the names of parameters.
func signature(f *ctype.Func) string {
	var params []string
	for _, p := range f.Params {
		params = append(params, written(p.Type))
	}
	out := "(" + strings.Join(params, ", ") + ")"
	if f.Result != nil {
		out += " -> " + written(f.Result)
	}
	return out
}

func written(t *ctype.Type) string {
	switch t.Kind {
	case ctype.List, ctype.Option:
		return fmt.Sprintf("%s<%s>", t.Kind, written(t.Elem))
	case ctype.Result:
		parts := []string{"_", "_"}
		for i, c := range t.Cases {
			if c.Type != nil {
				parts[i] = written(c.Type)
			}
		}
		return "result<" + strings.Join(parts, ", ") + ">"
	case ctype.Record:
		var parts []string
		for _, f := range t.Fields[:min(len(t.Fields), 8)] {
			parts = append(parts, f.Name)
		}
		return "record{" + strings.Join(parts, ", ") + "}"
	default:
	}
	return t.String()
}

// decision is the record of sdk/wit, field by field, with the key that each has in JSON.
var decision = []struct{ name, typ, key string }{
	{"allowed", "bool", "allowed"},
	{"message", "option<string>", "message"},
	{"field", "option<string>", "field"},
	{"reason", "option<string>", "reason"},
	{"code", "option<u16>", "code"},
	{"patch", "option<string>", "patch"},
	{"warnings", "list<string>", "warnings"},
	{"annotations", "list<tuple<string, string>>", "auditAnnotations"},
}

func isDecision(t *ctype.Type) bool {
	if t == nil || t.Kind != ctype.Record || len(t.Fields) != len(decision) {
		return false
	}
	for i, f := range t.Fields {
		if f.Name != decision[i].name || written(f.Type) != decision[i].typ {
			return false
		}
	}
	return true
}

// Failure is an error that the plugin answered with.
type Failure struct{ Message string }

func (f *Failure) Error() string { return f.Message }

// Describe asks what the plugin is.
func (w *World) Describe(ctx context.Context, in *link.Instance) ([]byte, error) {
	v, err := in.Call(ctx, w.describe)
	if err != nil {
		return nil, err
	}
	s, _ := v.(string)
	return []byte(s), nil
}

// Call asks for the answer to an operation; nil = none.
func (w *World) Call(ctx context.Context, in *link.Instance, op int32, input []byte) ([]byte, error) {
	f := w.hooks[op]
	var args []any
	switch {
	case f != nil && f.form == cells:
		return nil, &Failure{Message: hookNames[op] + " takes cells and no document"}
	case f != nil:
		args = []any{string(input)}
	case w.call != nil:
		f, args = w.call, []any{op, input}
	case op == 0: // settings, which describe has said nothing of
		return nil, nil
	default:
		return nil, &Failure{Message: fmt.Sprintf("it exports no function for operation %d: %s", op, hookNames[op])}
	}
	answer, err := f.ask(ctx, in, args...)
	if err != nil {
		return nil, err
	}
	if f.form == decisions {
		return encode(answer)
	}
	some, _ := answer.(canon.Variant)
	switch v := some.Value.(type) {
	case string:
		return []byte(v), nil
	case []byte:
		return v, nil
	}
	return nil, nil
}

// ask calls a function whose answer is a result: what it holds, or a *Failure.
func (f *function) ask(ctx context.Context, in *link.Instance, args ...any) (any, error) {
	v, err := in.Call(ctx, f.Func, args...)
	if err != nil {
		return nil, err
	}
	answer, _ := v.(canon.Variant)
	if answer.Case != 0 {
		message, _ := answer.Value.(string)
		return nil, &Failure{Message: message}
	}
	return answer.Value, nil
}

// Judges says whether the component exports the function of the node table.
func (w *World) Judges() bool { return w.hooks[tableOp] != nil }

// Judge asks for a byte for each node: of a pod's cells, and of the nodes' by column.
func (w *World) Judge(ctx context.Context, in *link.Instance, pod []int64, columns [][]int64) ([]byte, error) {
	f := w.hooks[tableOp]
	if f == nil {
		return nil, &Failure{Message: "it exports no function " + hookNames[tableOp]}
	}
	lists := make([]any, len(columns))
	for i, c := range columns {
		lists[i] = c
	}
	answer, err := f.ask(ctx, in, pod, lists)
	verdicts, _ := answer.([]byte)
	return verdicts, err
}

// encode makes of a decision what sdk/spec calls the answer at admission.
func encode(v any) ([]byte, error) {
	fields, ok := v.([]any)
	if !ok || len(fields) != len(decision) {
		return nil, &Failure{Message: "it answered with no decision"}
	}
	out := map[string]any{}
	for i, d := range decision {
		switch v := fields[i].(type) {
		case canon.Variant:
			if v.Case == 0 {
				continue
			}
			out[d.key] = v.Value
		case bool:
			out[d.key] = v
		case []any:
			if len(v) > 0 {
				out[d.key] = listed(v)
			}
		}
	}
	if patch, ok := out["patch"].(string); ok {
		if !json.Valid([]byte(patch)) {
			return nil, &Failure{Message: "the patch of its decision is no JSON"}
		}
		out["patch"] = json.RawMessage(patch)
	}
	return json.Marshal(out)
}

// listed is a list of strings, or of pairs as an object.
func listed(in []any) any {
	pairs := map[string]string{}
	for _, e := range in {
		pair, ok := e.([]any)
		if !ok {
			return in
		}
		k, _ := pair[0].(string)
		pairs[k], _ = pair[1].(string)
	}
	return pairs
}

// Func implements link.Host.
func (w *World) Func(iface, name string) link.HostFunc {
	if ctype.Compatible(iface) == hostInterface && name == "call" {
		return hostCall
	}
	return wasi.Func(iface, name)
}

// Drop implements link.Host: nothing is kept for a resource.
func (w *World) Drop(*link.Call, string, string, uint32) {}

// hostCall is call: func(operation: string, input: list<u8>) -> result<list<u8>, call-error>, whose
// error is a variant of refused(string) and failed(string).
func hostCall(c *link.Call, args []any) any {
	g, ok := c.Instance.Data().(*Guest)
	if !ok || len(args) != 2 {
		canon.Fail("it declares wasmplane:plugin/host with other parameters")
	}
	op, ok := args[0].(string)
	input, ok2 := args[1].([]byte)
	if !ok || !ok2 {
		canon.Fail("it declares wasmplane:plugin/host with other parameters")
	}
	reply, refused, err := g.Services.HostCall(op, input)
	switch {
	case err != nil && refused:
		return canon.Error(canon.Variant{Case: 0, Value: err.Error()})
	case err != nil:
		return canon.Error(canon.Variant{Case: 1, Value: err.Error()})
	case reply == nil:
		reply = []byte{}
	}
	return canon.OK(reply)
}
