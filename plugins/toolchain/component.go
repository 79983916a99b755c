// SPDX-License-Identifier: Apache-2.0

package toolchain

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"

	"github.com/wasmplane/wasmplane/plugins/component/encode"
	"github.com/wasmplane/wasmplane/plugins/toolchain/canonical"
	"github.com/wasmplane/wasmplane/sdk"
)

// componentOf makes a component of the module in a file. A module that says itself what its world is, as
// generators of bindings have it, is of that world, any other of the SDKs'. A module of the plugin ABI, or for WASI 0.1, gets
// the adapters that it needs.
func componentOf(file string) error {
	module, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read the module: %w", err)
	}
	adapters, err := canonical.Adapters(module)
	if err != nil {
		return err
	}
	component, err := encode.Component(module, sdk.World(), adapters...)
	if err != nil {
		return fmt.Errorf("%w (an SDK beside the plugin, in the folder wasmplane, has to be of a version that knows components)", err)
	}
	return os.WriteFile(file, component, 0o644)
}

// switches are the lines by which a library is built for components, where its compiler takes no definitions.
var switches = map[Language]struct{ file, off, on string }{
	Zig:            {"wasmplane.zig", "\nconst component = false;", "\nconst component = true;"},
	AssemblyScript: {"index.ts", "\ntype Handed = u64;", "\ntype Handed = u32;"},
}

// library is the folder of the SDK that a plugin is built with: vendored's or, for a component, a copy, which
// done removes.
func (b *Builder) library(l Language, dir string) (library string, done func(), err error) {
	done = func() {}
	if library, err = b.vendored(l, dir); err != nil || !b.cfg.Component {
		return library, done, err
	}
	tmp, err := os.MkdirTemp("", "wasmplane-sdk-")
	if err != nil {
		return "", done, fmt.Errorf("make a folder for the SDK: %w", err)
	}
	done = func() { _ = os.RemoveAll(tmp) }
	to := filepath.Join(tmp, "wasmplane")
	if err := switched(l, library, to); err != nil {
		done()
		return "", func() {}, err
	}
	return to, done, nil
}

// switched copies a library, and builds it for components.
func switched(l Language, from, to string) error {
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		return fmt.Errorf("copy the SDK: %w", err)
	}
	s := switches[l]
	file := filepath.Join(to, s.file)
	source, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read the SDK: %w", err)
	}
	if !bytes.Contains(source, []byte(s.off)) {
		return fmt.Errorf("%s is of a version that does not know components: remove the folder, or take that of this version (wasmplane plugin init)", filepath.Join(from, s.file))
	}
	return os.WriteFile(file, bytes.Replace(source, []byte(s.off), []byte(s.on), 1), 0o600)
}
