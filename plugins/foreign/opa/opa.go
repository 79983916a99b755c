// SPDX-License-Identifier: Apache-2.0

// Package opa runs policies that were compiled from Rego, unmodified: for Open
// Policy Agent (the rule answers an AdmissionReview) and for Gatekeeper (the rule is a set
// of violations). It speaks versions 1.1 to 1.3 of their ABI.
//
// Of Rego's built-in functions, those that the compiler leaves to the host are here,
// written so that each one charges for its work and bounds what it makes. What would
// reach out of the policy is not: a policy that needs it is refused when it is loaded.
package opa

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/foreign/regobuiltins"
	"github.com/wasmplane/wasmplane/plugins/host"
	"github.com/wasmplane/wasmplane/plugins/manifest"
)

// Config is what a policy runs with.
type Config struct {
	// Settings as JSON: the data of a policy for Open Policy Agent, the parameters of one for Gatekeeper.
	Settings []byte
	// Gatekeeper: the rule is a set of violations.
	Gatekeeper bool
	// Entrypoint by path or number; "" = the first.
	Entrypoint string
	// Inventory is data.inventory of a Gatekeeper policy; nil = none. It answers the same
	// slice while nothing has changed.
	Inventory func(ctx context.Context) ([]byte, error)
	// External asks a provider of external data; nil = there are none.
	External func(ctx context.Context, provider string, keys []string) (any, error)
	// Points at which the hooks stand, by their number.
	Points map[int32]abi.Point
	// Grants decide which built-ins there are.
	Grants manifest.Grants
}

// Policy is a policy before and after it is loaded.
type Policy struct {
	cfg        Config
	module     *host.Module
	patterns   regobuiltins.Patterns
	entrypoint uint64
	rule       string // its name
}

// New makes the policy of a configuration. Compile its module with ABI, then Load it.
func New(cfg Config) *Policy { return &Policy{cfg: cfg} }

// instance is what is kept with each instance.
type instance struct {
	builtins map[uint32]string
	entries  map[string]uint64
	oneShot  bool
	base     uint64 // heap without data
	data     uint64 // address of the parsed data
	heap     uint64 // where the input goes
	source   []byte // what data was parsed from
	eval     *regobuiltins.Evaluation
}

// ABI is how such modules are run.
func (p *Policy) ABI() *host.ABI {
	a := &host.ABI{Name: "opa", ImportedMemory: true, Start: p.start, Check: check}
	for n := range 5 {
		a.Imports = append(a.Imports, host.Import{
			Module: "env", Name: "opa_builtin" + strconv.Itoa(n), Params: 2 + n, Result: true, Cost: 100,
			Run: func(in *host.Instance, a []uint32) uint32 { return p.builtin(in, a) },
		})
	}
	say := func(name string, run func(in *host.Instance, text string)) {
		a.Imports = append(a.Imports,
			host.Import{Module: "env", Name: name, Params: 1, Cost: 100, Run: func(in *host.Instance, a []uint32) uint32 {
				run(in, string(in.CString(a[0])))
				return 0
			}})
	}
	say("opa_abort", func(in *host.Instance, text string) { in.Fail(host.Trap, "the policy aborted: %s", clip(text)) })
	say("opa_println", func(in *host.Instance, text string) { in.Print(text) })
	return a
}

func check(exports map[string]host.FuncType) error {
	for name, want := range map[string]host.FuncType{
		"builtins": host.NewFuncType(0, "i32"), "entrypoints": host.NewFuncType(0, "i32"), "eval": host.NewFuncType(1, "i32"),
		"opa_malloc": host.NewFuncType(1, "i32"), "opa_json_parse": host.NewFuncType(2, "i32"), "opa_json_dump": host.NewFuncType(1, "i32"),
		"opa_value_parse": host.NewFuncType(2, "i32"), "opa_value_dump": host.NewFuncType(1, "i32"),
		"opa_heap_ptr_get": host.NewFuncType(0, "i32"), "opa_heap_ptr_set": host.NewFuncType(1),
		"opa_eval_ctx_new": host.NewFuncType(0, "i32"), "opa_eval_ctx_set_input": host.NewFuncType(2),
		"opa_eval_ctx_set_data":   host.NewFuncType(2),
		"opa_eval_ctx_get_result": host.NewFuncType(1, "i32"), "opa_eval_ctx_set_entrypoint": host.NewFuncType(2),
	} {
		got, ok := exports[name]
		if !ok {
			return fmt.Errorf("the module exports no function %s: it was not compiled from Rego, or for an ABI before 1.1", name)
		}
		if !got.Equal(want) {
			return fmt.Errorf("the exported function %s is %s: expected %s", name, got, want)
		}
	}
	return nil
}

// start makes a fresh instance ready: what it imports and offers, and its data.
func (p *Policy) start(in *host.Instance) error {
	if in.Has("_initialize") {
		if err := in.Start("_initialize"); err != nil {
			return err
		}
	}
	s := &instance{builtins: map[uint32]string{}, entries: map[string]uint64{}, oneShot: in.Has("opa_eval")}
	in.SetData(s)
	names, err := numbers(in, "builtins")
	if err != nil {
		return err
	}
	for name, id := range names {
		s.builtins[uint32(id)] = name
	}
	if s.entries, err = numbers(in, "entrypoints"); err != nil {
		return err
	}
	if _, err := in.Run("opa_malloc", 0); err != nil {
		return err
	}
	if s.base, err = in.Run("opa_heap_ptr_get"); err != nil {
		return err
	}
	s.heap = s.base
	if p.cfg.Gatekeeper {
		return s.setData(in, []byte(`{"inventory":{}}`))
	}
	return s.setData(in, p.cfg.Settings)
}

// numbers asks for an object of names with numbers.
func numbers(in *host.Instance, export string) (map[string]uint64, error) {
	at, err := in.Run(export)
	if err != nil {
		return nil, err
	}
	text, err := dump(in, "opa_json_dump", at)
	if err != nil {
		return nil, err
	}
	out := map[string]uint64{}
	if err := json.Unmarshal(text, &out); err != nil {
		return nil, fmt.Errorf("%s answered %q: %w", export, clip(string(text)), err)
	}
	return out, nil
}

func dump(in *host.Instance, how string, at uint64) ([]byte, error) {
	text, err := in.Run(how, at)
	if err != nil {
		return nil, err
	}
	return in.ReadCString(uint32(text))
}

// setData has the guest parse data below its heap.
func (s *instance) setData(in *host.Instance, data []byte) error {
	if err := in.Input(len(data)); err != nil {
		return err
	}
	// Blocks that were freed below the new heap would be handed out again.
	if err := optional(in, "opa_heap_stash_clear"); err != nil {
		return err
	}
	if _, err := in.Run("opa_heap_ptr_set", s.base); err != nil {
		return err
	}
	var err error
	if s.data, err = put(in, "opa_json_parse", data); err != nil {
		return err
	}
	if err := optional(in, "opa_heap_blocks_stash"); err != nil {
		return err
	}
	s.heap, err = in.Run("opa_heap_ptr_get")
	s.source = data
	return err
}

// optional runs an export that older modules do not have.
func optional(in *host.Instance, name string) error {
	if !in.Has(name) {
		return nil
	}
	_, err := in.Run(name)
	return err
}

// put writes text into the guest and has it parsed.
func put(in *host.Instance, parse string, text []byte) (uint64, error) {
	at, err := in.Run("opa_malloc", uint64(len(text)))
	if err != nil {
		return 0, err
	}
	if uint32(at) == 0 || !in.Write(uint32(at), text) {
		return 0, &host.Fault{
			Plugin: in.Name(), Kind: host.Refused,
			Detail: fmt.Sprintf("it has no room for %d bytes (limits.memory)", len(text)),
		}
	}
	in.Charge(int64(len(text)) / 4)
	value, err := in.Run(parse, at, uint64(len(text)))
	if err == nil && uint32(value) == 0 {
		err = &host.Fault{Plugin: in.Name(), Kind: host.Refused, Detail: "it cannot read its input"}
	}
	return value, err
}

// Load looks at what the policy needs, and finds its entrypoint.
func (p *Policy) Load(ctx context.Context, m *host.Module) error {
	p.module = m
	return m.With(ctx, func(in *host.Instance) error {
		s := in.Data().(*instance)
		if err := p.checkBuiltins(s.builtins); err != nil {
			return err
		}
		return p.findEntrypoint(s.entries)
	})
}

func (p *Policy) checkBuiltins(names map[uint32]string) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Values(names)) {
		b, ok := regobuiltins.Lookup(name)
		switch {
		case name == regobuiltins.External && p.cfg.External == nil:
			errs = append(errs, fmt.Errorf("the policy uses %s: only constraints of Gatekeeper ask providers, in a cluster whose policyKinds name gatekeeper", name))
		case !ok:
			errs = append(errs, fmt.Errorf("the policy uses the built-in function %s, which policies do not have here", name))
		case b.Grant == "clock" && !p.cfg.Grants.Clock, b.Grant == "random" && !p.cfg.Grants.Random:
			errs = append(errs, fmt.Errorf("the policy uses the built-in function %s: grant it with grants.%s: true", name, b.Grant))
		}
	}
	return errors.Join(errs...)
}

func (p *Policy) findEntrypoint(known map[string]uint64) error {
	for name, id := range known {
		if id == p.entrypoint {
			p.rule = ruleOf(name)
		}
	}
	if p.cfg.Entrypoint == "" {
		return nil
	}
	if n, err := strconv.ParseUint(p.cfg.Entrypoint, 10, 31); err == nil {
		for name, id := range known {
			if id == n {
				p.entrypoint, p.rule = n, ruleOf(name)
				return nil
			}
		}
	}
	id, ok := known[strings.ReplaceAll(strings.TrimPrefix(p.cfg.Entrypoint, "data."), ".", "/")]
	if !ok {
		return fmt.Errorf("entrypoint: the policy has no %q; it has %s", p.cfg.Entrypoint, strings.Join(slices.Sorted(maps.Keys(known)), ", "))
	}
	p.entrypoint, p.rule = id, ruleOf(p.cfg.Entrypoint)
	return nil
}

// Call implements point.Guest: input is the admission request.
func (p *Policy) Call(ctx context.Context, op int32, input []byte) (out []byte, u host.Usage, err error) {
	question := questions.Get().(*[]byte)
	defer questions.Put(question)
	*question = p.question((*question)[:0], input, p.cfg.Points[op])
	var result []byte
	err = p.module.With(ctx, func(in *host.Instance) error {
		if err := p.refresh(ctx, in); err != nil {
			return err
		}
		var err error
		u, err = in.Account(ctx, func() error {
			result, err = p.evaluate(ctx, in, *question)
			return err
		})
		return err
	})
	if err != nil {
		return nil, u, err
	}
	out, err = p.answer(result, p.cfg.Points[op])
	if err != nil {
		err = &host.GuestError{Plugin: p.module.Name(), Message: err.Error()}
	}
	return out, u, err
}

// refresh gives the instance the inventory of now.
func (p *Policy) refresh(ctx context.Context, in *host.Instance) error {
	if p.cfg.Inventory == nil {
		return nil
	}
	inventory, err := p.cfg.Inventory(ctx)
	if err != nil {
		return &host.GuestError{Plugin: in.Name(), Message: "read data.inventory: " + err.Error()}
	}
	s := in.Data().(*instance)
	if len(s.source) > 0 && len(inventory) > 0 && &s.source[0] == &inventory[0] {
		return nil
	}
	_, err = in.StartAccount(ctx, func() error { return s.setData(in, inventory) })
	return err
}

// questions keep the memory of input documents between calls.
var questions = sync.Pool{New: func() any { return new([]byte) }}

// question writes the input document behind out.
func (p *Policy) question(out, request []byte, at abi.Point) []byte {
	switch {
	case at == abi.Authorization:
		out = append(out, `{"apiVersion":"authorization.k8s.io/v1","kind":"SubjectAccessReview","spec":`...)
	case !p.cfg.Gatekeeper:
		out = append(out, `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":`...)
	default:
		out = append(append(append(out, `{"parameters":`...), p.cfg.Settings...), `,"review":`...)
		request = reviewed(request)
	}
	return append(append(out, request...), '}')
}

// reviewed is the request as Gatekeeper shows it: what is deleted is the object.
func reviewed(request []byte) []byte {
	var q map[string]json.RawMessage
	if !bytes.Contains(request, []byte(`"operation":"DELETE"`)) || json.Unmarshal(request, &q) != nil ||
		string(q["operation"]) != `"DELETE"` || q["oldObject"] == nil {
		return request
	}
	q["object"] = q["oldObject"]
	out, err := json.Marshal(q)
	if err != nil {
		return request
	}
	return out
}

func (p *Policy) evaluate(ctx context.Context, in *host.Instance, input []byte) ([]byte, error) {
	if err := in.Input(len(input)); err != nil {
		return nil, err
	}
	s := in.Data().(*instance)
	s.eval = p.evaluation(in)
	if p.cfg.External != nil {
		s.eval.External = func(provider string, keys []string) (any, error) {
			out, err := p.cfg.External(ctx, provider, keys)
			var refused *host.RefusedError
			if errors.As(err, &refused) { // an undefined value would allow
				in.Fail(host.Refused, "%s", refused.Reason)
			}
			return out, err
		}
	}
	defer func() { s.eval = nil }()
	if !s.oneShot {
		return p.evaluateSteps(in, s, input)
	}
	end := s.heap + uint64(len(input))
	if !in.Ensure(end) || !in.Write(uint32(s.heap), input) {
		return nil, &host.Fault{
			Plugin: in.Name(), Kind: host.Refused,
			Detail: fmt.Sprintf("it has no room for an input of %d bytes (limits.memory)", len(input)),
		}
	}
	in.Charge(int64(len(input)) / 4)
	at, err := in.Run("opa_eval", 0, p.entrypoint, s.data, s.heap, uint64(len(input)), end, 0)
	if err != nil {
		return nil, err
	}
	out, err := in.ReadCString(uint32(at))
	return slices.Clone(out), err
}

// evaluateSteps is what one call does since ABI 1.2.
func (p *Policy) evaluateSteps(in *host.Instance, s *instance, input []byte) ([]byte, error) {
	if _, err := in.Run("opa_heap_ptr_set", s.heap); err != nil {
		return nil, err
	}
	value, err := put(in, "opa_json_parse", input)
	if err != nil {
		return nil, err
	}
	ctx, err := in.Run("opa_eval_ctx_new")
	if err != nil {
		return nil, err
	}
	for _, set := range []struct {
		name  string
		value uint64
	}{{"opa_eval_ctx_set_input", value}, {"opa_eval_ctx_set_data", s.data}, {"opa_eval_ctx_set_entrypoint", p.entrypoint}} {
		if _, err := in.Run(set.name, ctx, set.value); err != nil {
			return nil, err
		}
	}
	if _, err := in.Run("eval", ctx); err != nil {
		return nil, err
	}
	result, err := in.Run("opa_eval_ctx_get_result", ctx)
	if err != nil {
		return nil, err
	}
	out, err := dump(in, "opa_json_dump", result)
	return slices.Clone(out), err
}

func (p *Policy) evaluation(in *host.Instance) *regobuiltins.Evaluation {
	return &regobuiltins.Evaluation{
		Charge: in.Charge, Now: sync.OnceValue(in.Now), Random: in.Random, Print: in.Print,
		Limit: int(in.Limits().HostReply), Patterns: &p.patterns,
	}
}

// builtin calls a built-in function for the guest. 0 is "undefined".
func (p *Policy) builtin(in *host.Instance, a []uint32) uint32 {
	s, _ := in.Data().(*instance)
	if s == nil || s.eval == nil {
		in.Fail(host.Refused, "it calls a built-in function outside of an evaluation")
	}
	name := s.builtins[a[0]]
	b, ok := regobuiltins.Lookup(name)
	if !ok {
		in.Fail(host.Refused, "it calls the built-in function %d %q, which it does not declare or does not have", a[0], clip(name))
	}
	var args [][]byte
	for _, at := range a[2:] {
		text, err := dump(in, "opa_value_dump", uint64(at))
		if err != nil {
			in.Abort(err)
		}
		args = append(args, slices.Clone(text))
	}
	var out []byte
	var err error
	in.Guard("the built-in function "+name, func() { out, err = b.Call(s.eval, args) })
	if err != nil {
		return 0
	}
	at, err := put(in, "opa_value_parse", out)
	if err != nil {
		in.Abort(err)
	}
	return uint32(at)
}

func clip(s string) string {
	if len(s) > 500 {
		return s[:500] + "..."
	}
	return s
}
