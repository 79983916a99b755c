// SPDX-License-Identifier: Apache-2.0

// Command reference runs the component model's own tests against plugins/component, and prints for
// each file what passed, what failed and why. It takes the tests as wasm-tools json-from-wast converts
// them: a folder with NAME/t.json and its binaries for each script.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"

	"github.com/wasmplane/wasmplane/plugins/component/binary"
	"github.com/wasmplane/wasmplane/plugins/component/link"
)

func main() {
	if len(os.Args) != 2 {
		_, _ = fmt.Fprintln(os.Stderr, "usage: reference FOLDER   (make component-tests says how the folder is made)")
		os.Exit(2)
	}
	ctx, cancel := context.WithCancel(context.Background())
	err := run(ctx, os.Stdout, os.Args[1])
	cancel()
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// command is one command of a converted script.
type command struct {
	Type       string
	Line       int
	Filename   string
	ModuleType string `json:"module_type"`
	Text       string
	Name       string
	Instance   string
	Module     string
	Action     struct {
		Field  string
		Module string
		Args   []typed
	}
	Expected []typed
}

// tally is what came of one script.
type tally struct {
	passed  int
	failed  []string
	refused int // for what is refused on purpose: asynchronous functions and proposals
}

func run(ctx context.Context, w io.Writer, dir string) error {
	scripts, err := filepath.Glob(filepath.Join(dir, "*", "*", "t.json"))
	if err != nil {
		return err
	}
	if len(scripts) == 0 {
		return fmt.Errorf("%s: no converted scripts (FOLDER/NAME/t.json) are there", dir)
	}
	sort.Strings(scripts)
	var all tally
	for _, path := range scripts {
		t, err := script(ctx, path)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		name, _ := filepath.Rel(dir, filepath.Dir(path))
		_, _ = fmt.Fprintf(w, "%-45s passed %4d  failed %3d  refused %3d\n", name, t.passed, len(t.failed), t.refused)
		for _, f := range t.failed {
			_, _ = fmt.Fprintln(w, "    "+f)
		}
		all.passed, all.refused, all.failed = all.passed+t.passed, all.refused+t.refused, append(all.failed, t.failed...)
	}
	_, _ = fmt.Fprintf(w, "%-45s passed %4d  failed %3d  refused %3d\n", "all", all.passed, len(all.failed), all.refused)
	return nil
}

// player runs one script.
type player struct {
	dir     string
	runtime wazero.Runtime
	defined map[string]*link.Linked
	last    *link.Linked
	current *link.Instance
	program *link.Program
	broken  error // why the module that the next commands are about is not there
	tally   tally
}

func script(ctx context.Context, path string) (*tally, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var s struct{ Commands []command }
	if err := json.Unmarshal(b, &s); err != nil {
		return nil, err
	}
	cfg := wazero.NewRuntimeConfigInterpreter().WithCoreFeatures(api.CoreFeaturesV2)
	p := &player{dir: filepath.Dir(path), runtime: wazero.NewRuntimeWithConfig(ctx, cfg), defined: map[string]*link.Linked{}}
	defer func() { _ = p.runtime.Close(ctx) }()
	for i := range s.Commands {
		if err := p.play(ctx, &s.Commands[i]); err != nil {
			return nil, fmt.Errorf("line %d: %w", s.Commands[i].Line, err)
		}
	}
	return &p.tally, nil
}

// result counts what came of a command.
func (p *player) result(c *command, err error) {
	switch {
	case err == nil:
		p.tally.passed++
	case onPurpose(err):
		p.tally.refused++
	default:
		text, _, _ := strings.Cut(err.Error(), "\n")
		p.tally.failed = append(p.tally.failed, fmt.Sprintf("line %d %s: %.300s", c.Line, c.Type, text))
	}
}

// onPurpose says that a component was refused for what is not supported, by name: by us, or by the engine
// (several memories or tables in one module).
func onPurpose(err error) bool {
	for _, what := range []string{
		"not supported: build", "tags (exceptions) are not supported", "tag index",
		"core types other than functions are not supported", "at most one memory allowed", "invalid memory alignment",
		"at most one table allowed", "is not given to components",
	} {
		if strings.Contains(err.Error(), what) {
			return true
		}
	}
	return false
}

func (p *player) play(ctx context.Context, c *command) error {
	switch c.Type {
	case "module", "module_definition":
		l, err := p.load(ctx, c.Filename)
		p.last, p.broken, p.current = l, err, nil
		var missing *link.MissingError
		if c.Type == "module_definition" && errors.As(err, &missing) {
			err = nil // it is valid
		}
		if c.Name != "" && l != nil {
			p.defined[c.Name] = l
		}
		if err == nil && c.Type == "module" {
			err = p.instantiate(ctx, l)
		}
		p.result(c, err)
	case "module_instance":
		l := p.last
		if named := p.defined[c.Module]; named != nil {
			l = named
		}
		if l == nil {
			p.result(c, p.broken)
			return nil
		}
		p.result(c, p.instantiate(ctx, l))
	case "assert_invalid", "assert_malformed":
		if c.ModuleType != "text" {
			p.result(c, p.refuses(ctx, c))
		}
	case "assert_return", "action":
		p.result(c, p.returns(ctx, c))
	case "assert_trap":
		p.result(c, p.traps(ctx, c))
	case "assert_uninstantiable":
		l, err := p.load(ctx, c.Filename)
		if err == nil {
			if err = p.instantiate(ctx, l); err != nil {
				err, p.broken = nil, nil
			} else {
				err = errors.New("it was instantiated")
			}
		}
		p.result(c, err)
	default:
		return fmt.Errorf("unknown command %s", c.Type)
	}
	return nil
}

func (p *player) load(ctx context.Context, name string) (*link.Linked, error) {
	wasm, err := os.ReadFile(filepath.Join(p.dir, name))
	if err != nil {
		return nil, err
	}
	if !binary.Is(wasm) {
		_, err := p.runtime.CompileModule(ctx, wasm)
		return nil, err
	}
	c, _, err := binary.Decode(wasm)
	if err != nil {
		return nil, err
	}
	if err := p.validate(ctx, c); err != nil {
		return nil, err
	}
	program, err := link.Plan(c)
	if err != nil {
		return nil, err
	}
	modules, err := program.Modules()
	if err != nil {
		return nil, err
	}
	var compiled []wazero.CompiledModule
	for _, m := range modules {
		code, err := p.runtime.CompileModule(ctx, m)
		if err != nil {
			return nil, err
		}
		compiled = append(compiled, code)
	}
	return link.Link(ctx, p.runtime, program, compiled, host{})
}

// validate has the engine look at every core module, as instantiation would.
func (p *player) validate(ctx context.Context, c *binary.Component) error {
	for _, d := range c.Defs {
		switch d := d.(type) {
		case *binary.CoreModule:
			wasm, err := link.Neutral(d)
			if err != nil {
				return err
			}
			if _, err := p.runtime.CompileModule(ctx, wasm); err != nil {
				return err
			}
		case *binary.Nested:
			if err := p.validate(ctx, d.Component); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *player) instantiate(ctx context.Context, l *link.Linked) error {
	p.broken = nil
	if l == nil {
		return nil
	}
	in, err := l.Instantiate(ctx, link.Config{})
	p.current, p.program, p.broken = in, l.Program(), err
	return err
}

func (p *player) refuses(ctx context.Context, c *command) error {
	l, err := p.load(ctx, c.Filename)
	var missing *link.MissingError
	if err == nil || errors.As(err, &missing) {
		_ = l
		return fmt.Errorf("expected %q, but it was accepted", c.Text)
	}
	return nil
}

func (p *player) invoke(ctx context.Context, c *command) (any, *link.Func, error) {
	if p.current == nil {
		if p.broken != nil {
			return nil, nil, fmt.Errorf("it is not there: %w", p.broken)
		}
		return nil, nil, errors.New("there is no instance")
	}
	f := p.program.Func("", c.Action.Field)
	if f == nil {
		return nil, nil, fmt.Errorf("no function %s is exported", c.Action.Field)
	}
	var args []any
	for i, a := range c.Action.Args {
		v, err := a.value(f.Type.Params[i].Type)
		if err != nil {
			return nil, nil, err
		}
		args = append(args, v)
	}
	v, err := p.current.Call(ctx, f, args...)
	return v, f, err
}

func (p *player) returns(ctx context.Context, c *command) error {
	v, f, err := p.invoke(ctx, c)
	if err != nil || len(c.Expected) == 0 {
		return err
	}
	want, err := c.Expected[0].value(f.Type.Result)
	if err != nil {
		return err
	}
	if got, want := fmt.Sprintf("%v", v), fmt.Sprintf("%v", want); got != want {
		return fmt.Errorf("%s: got %s, want %s", c.Action.Field, got, want)
	}
	return nil
}

func (p *player) traps(ctx context.Context, c *command) error {
	_, f, err := p.invoke(ctx, c)
	switch {
	case err == nil:
		return fmt.Errorf("expected a trap (%s)", c.Text)
	case f == nil && p.current == nil:
		return err
	}
	return nil
}

// host gives nothing.
type host struct{}

func (host) Func(string, string) link.HostFunc { return nil }

func (host) Drop(*link.Call, string, string, uint32) {}
