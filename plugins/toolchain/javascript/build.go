// SPDX-License-Identifier: Apache-2.0

package javascript

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/wasmplane/wasmplane/plugins/host"
)

// Builder builds plugins.
type Builder struct {
	// Cache is the folder of toolchains.
	Cache string
	// Library is the folder of the SDK that plugins import.
	Library string
	// Compiler returns the path of zig, by which the runtime is built where there is none yet.
	Compiler        func(context.Context) (string, error)
	CompilerVersion string
	// Progress is told, in a sentence, what takes longer than a moment.
	Progress func(string)
}

// limits of evaluating a script at build time: they end what would never end.
var limits = host.Limits{
	Fuel: 60_000_000_000, Deadline: time.Minute, StartFuel: 60_000_000_000, StartDeadline: time.Minute,
	Memory: 512 << 20, Output: 1 << 20, Instances: 1,
}

// Build makes the plugin whose source begins with the file main of the folder dir.
func (b *Builder) Build(ctx context.Context, dir, main string) ([]byte, error) {
	script, err := pack(dir, main, b.Library)
	if err != nil {
		return nil, err
	}
	runtime, err := b.Runtime(ctx)
	if err != nil {
		return nil, err
	}
	memory, err := b.evaluate(ctx, runtime, script.input())
	var fault *host.Fault
	if errors.As(err, &fault) && (fault.Kind == host.Fuel || fault.Kind == host.Deadline) {
		return nil, fmt.Errorf("the script did not end: what stands at the top of a file runs when it is built, within a minute (%w)", err)
	}
	if err != nil {
		return nil, err
	}
	return freeze(runtime, memory)
}

// evaluate has the runtime load a script, and returns its memory afterwards.
func (b *Builder) evaluate(ctx context.Context, runtime, script []byte) ([]byte, error) {
	// What runs is the author's own script on the author's machine, within bounds.
	h, err := host.New(ctx, host.Config{InProcess: true, CacheDir: filepath.Join(b.Cache, "javascript", "compiled")})
	if err != nil {
		return nil, err
	}
	m, err := h.Compile(ctx, runtime, host.Options{Name: "the script", Limits: limits})
	if err != nil {
		return nil, errors.Join(err, h.Close())
	}
	var memory []byte
	err = m.With(ctx, func(in *host.Instance) error {
		at, err := in.Invoke(ctx, "alloc", uint64(len(script)))
		if err != nil {
			return err
		}
		room, ok := in.View(uint32(at), uint32(len(script)))
		if !ok || at == 0 {
			return fmt.Errorf("a script of %d bytes is too large", len(script))
		}
		copy(room, script)
		answer, err := in.Invoke(ctx, "evaluate", at, uint64(len(script)))
		if err != nil {
			return err
		}
		if words, ok := in.View(uint32(answer>>32), uint32(answer)&^(1<<31)); answer != 0 && ok {
			return errors.New(string(words))
		}
		memory = append(memory, in.Memory()...)
		return nil
	})
	return memory, errors.Join(err, m.Close(), h.Close())
}
