// SPDX-License-Identifier: Apache-2.0

package compiler

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/experimental"

	"github.com/wasmplane/wasmplane/plugins/fuel"
	"github.com/wasmplane/wasmplane/plugins/rego"
)

// Features are what modules may use: WebAssembly 2.0, and constant expressions that
// add, which toolchains emit for libraries that are linked when they are loaded. The rewriter covers all of it.
const Features = api.CoreFeaturesV2 | experimental.CoreFeaturesExtendedConst

// ErrNotCompiled is why a module was not adopted: the engine found no code for it.
var ErrNotCompiled = errors.New("the engine found no compiled code for the module")

// Adopt has an engine take over code that its cache directory holds. It never compiles:
// compilation by several workers ends before the first function when its context has
// ended, and taking over looks at no context.
func Adopt(ctx context.Context, r wazero.Runtime, metered []byte) (wazero.CompiledModule, error) {
	ended, end := context.WithCancelCause(experimental.WithCompilationWorkers(ctx, 2))
	end(ErrNotCompiled)
	return r.CompileModule(ended, metered)
}

// Validate has the engine check a module and makes no code of it.
func Validate(ctx context.Context, wasm []byte) error {
	wasm, err := fuel.Strip(wasm)
	if err != nil {
		return err
	}
	r := wazero.NewRuntimeWithConfig(ctx, wazero.NewRuntimeConfigCompiler().WithCoreFeatures(Features))
	defer func() { _ = r.Close(ctx) }()
	if _, err := Adopt(ctx, r, wasm); err != nil && !errors.Is(err, ErrNotCompiled) {
		return fmt.Errorf("not a valid WebAssembly module: %w", err)
	}
	return nil
}

// Spec says what is to be made of a module.
type Spec struct {
	Fuel fuel.Options
	// OwnMemory gives a module that imports its memory one of its own.
	OwnMemory bool
}

// Meter validates a module and gives it its budgets; validate is Validate or another engine's.
func (s Spec) Meter(ctx context.Context, wasm []byte, validate func(context.Context, []byte) error) ([]byte, error) {
	if s.OwnMemory {
		own, err := fuel.OwnMemory(wasm)
		if err != nil {
			return nil, fmt.Errorf("not a valid WebAssembly module: %w", err)
		}
		wasm = own
	}
	// First our own reader, which believes no length; then the engine's validator, which would
	// allocate what 34 hostile bytes ask for. Nothing is done with the first's result before the second agrees.
	metered, err := fuel.Rewrite(wasm, s.Fuel)
	if errors.Is(err, fuel.ErrMalformed) {
		return nil, fmt.Errorf("not a valid WebAssembly module: %w", err)
	}
	if err != nil {
		return nil, err
	}
	return metered, validate(ctx, wasm)
}

// Artifact is a compiled module.
type Artifact struct {
	Metered []byte // the module as it was compiled
	Name    string // of the file in which the engine looks for the code, in its cache directory
	Code    []byte // that file's content
}

// codeFile is the one file that the engine left in its cache directory.
func codeFile(dir string) (name string, err error) {
	found, err := filepath.Glob(filepath.Join(dir, "wazero-*", "*"))
	if err != nil || len(found) > 1 {
		return "", fmt.Errorf("the engine left %d files: %w", len(found), err)
	}
	if len(found) == 0 { // a module without functions of its own
		return "", nil
	}
	return filepath.Rel(dir, found[0])
}

// build meters and compiles a module; dir is an empty directory for the engine.
func build(ctx context.Context, wasm []byte, s Spec, dir string) (*Artifact, error) {
	metered, err := s.Meter(ctx, wasm, Validate)
	if err != nil {
		return nil, err
	}
	if err := compileInto(ctx, metered, dir); err != nil {
		return nil, err
	}
	a := &Artifact{Metered: metered}
	if a.Name, err = codeFile(dir); err != nil || a.Name == "" {
		return a, err
	}
	a.Code, err = os.ReadFile(filepath.Join(dir, a.Name))
	return a, err
}

func compileInto(ctx context.Context, metered []byte, dir string) error {
	r, done, err := newRuntime(ctx, dir)
	if err != nil {
		return err
	}
	_, err = r.CompileModule(experimental.WithCompilationWorkers(ctx, 1), metered)
	if err != nil {
		err = fmt.Errorf("compile module: %w", err)
	}
	return errors.Join(err, done())
}

// newRuntime makes an engine that keeps its code in dir.
func newRuntime(ctx context.Context, dir string) (wazero.Runtime, func() error, error) {
	cache, err := wazero.NewCompilationCacheWithDir(dir)
	if err != nil {
		return nil, nil, err
	}
	r := wazero.NewRuntimeWithConfig(ctx, wazero.NewRuntimeConfigCompiler().WithCoreFeatures(Features).WithCompilationCache(cache))
	return r, func() error { return errors.Join(r.Close(ctx), cache.Close(ctx)) }, nil
}

// InProcess compiles in this process: without a bound, for tests and tools that run modules
// of the one who runs them.
type InProcess struct{}

// Compile implements Compiler.
func (InProcess) Compile(ctx context.Context, wasm []byte, s Spec) (*Artifact, error) {
	dir, err := os.MkdirTemp("", "wasmplane-compile-")
	if err != nil {
		return nil, fmt.Errorf("make a directory to compile in: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	return build(ctx, wasm, s, dir)
}

// InTurn implements Compiler. What compiles in this process cannot rest.
func (c InProcess) InTurn(Turn) Compiler { return c }

// Rego implements Compiler.
func (InProcess) Rego(ctx context.Context, p rego.Policy) ([]byte, error) {
	return rego.Compile(ctx, p)
}

// Compiler makes an artifact of a module, and a module of a policy's text.
type Compiler interface {
	Compile(ctx context.Context, wasm []byte, s Spec) (*Artifact, error)
	Rego(ctx context.Context, p rego.Policy) ([]byte, error)
	// InTurn is a compiler that rests while others have their turn, where it can.
	InTurn(t Turn) Compiler
}
