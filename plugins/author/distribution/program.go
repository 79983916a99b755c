// SPDX-License-Identifier: Apache-2.0

package distribution

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/wasmplane/wasmplane/plugins/component/binary"
	"github.com/wasmplane/wasmplane/plugins/component/link"
	"github.com/wasmplane/wasmplane/plugins/fuel"
	"github.com/wasmplane/wasmplane/plugins/source"
	"github.com/wasmplane/wasmplane/plugins/workload/wasip2"
)

// PushProgram puts a program for pods into a registry, in a file: a module that is a command or a reactor, or a component that
// is a command or a server of HTTP. Pods name it as their image. What it is is answered, too.
func (r Registry) PushProgram(ctx context.Context, file, ref string) (p *Pushed, what string, err error) {
	wasm, err := os.ReadFile(file)
	if err != nil {
		return nil, "", err
	}
	if what, err = programOf(wasm); err != nil {
		return nil, "", fmt.Errorf("%s: %w", file, err)
	}
	f, err := fetcher()
	if err != nil {
		return nil, "", err
	}
	e := r.entry(ref)
	title := strings.TrimSuffix(filepath.Base(file), ".wasm")
	digest, err := f.Push(ctx, e, wasm, map[string]string{"org.opencontainers.image.title": title})
	if err != nil {
		return nil, "", err
	}
	return &Pushed{Source: strings.TrimPrefix(e.Source, "oci://") + "@" + digest, Digest: digest, Module: source.Digest(wasm)}, what, nil
}

// programOf says what a program is. What no pod could run is refused here, not on a node.
func programOf(wasm []byte) (string, error) {
	if !binary.Is(wasm) {
		shape, err := fuel.Inspect(wasm)
		switch {
		case err != nil:
			return "", fmt.Errorf("not a valid WebAssembly module: %w", err)
		case slices.Contains(shape.Exports, "_start"):
			return "a module, a command", nil
		case len(shape.Exports) > 0:
			return fmt.Sprintf("a module without _start: name one of its functions as the container's command, %[1]s as [main.wasm#%[1]s]",
				shape.Exports[0]), nil
		}
		return "", errors.New("the module exports no function: nothing of it can be run")
	}
	c, _, err := binary.Decode(wasm)
	if err != nil {
		return "", fmt.Errorf("not a valid component: %w", err)
	}
	program, err := link.Plan(c)
	switch {
	case err != nil:
		return "", err
	case wasip2.Serves(program):
		return "a component, a server of HTTP", nil
	case wasip2.Runs(program):
		return "a component, a command", nil
	}
	return "", errors.New("the component exports neither wasi:cli/run@0.2 (a command) nor wasi:http/incoming-handler@0.2 (a server): build it for one of these worlds")
}
