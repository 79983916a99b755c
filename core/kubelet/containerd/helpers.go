// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/klauspost/compress/zstd"
)

// Names of the helper binaries.
const (
	shimName = "containerd-shim-runc-v2"
	cniName  = "cni"
	wasmName = "wasm" // the shim finds it beside itself
)

// helperNames are the binaries that are stored, each once.
func helperNames() []string { return []string{shimName, cniName, wasmName} }

// cniPlugins are the names under which the CNI helper is called.
func cniPlugins() []string { return []string{"bridge", "host-local", "loopback", "portmap"} }

// The directory holds only a README in a clean checkout; the Makefile fills it.
//
//go:embed embedded
var embedded embed.FS

// ErrNoHelpers means that this binary was built without the node's helpers.
var ErrNoHelpers = errors.New("built without node helpers: run make build")

func embeddedHelpers() fs.FS {
	sub, err := fs.Sub(embedded, "embedded")
	if err != nil {
		return embedded // cannot be: the path is a constant
	}
	return sub
}

// openHelper opens a helper, compressed (name.zst) or plain.
func openHelper(helpers fs.FS, name string) (io.ReadCloser, error) {
	if f, err := helpers.Open(name + ".zst"); err == nil {
		z, err := zstd.NewReader(f, zstd.WithDecoderConcurrency(1))
		if err != nil {
			f.Close()
			return nil, fmt.Errorf("decompress %s: %w", name, err)
		}
		return z.IOReadCloser(), nil
	}
	f, err := helpers.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", name, ErrNoHelpers)
	}
	return f, err
}

// unpack puts the helpers into a directory below dir that is named by their
// content, and returns it. The directory appears whole or not at all, and is never
// changed: shims of running pods execute from it.
func unpack(helpers fs.FS, dir string) (bin string, err error) {
	sum, err := helpersHash(helpers)
	if err != nil {
		return "", err
	}
	bin = filepath.Join(dir, sum)
	if _, err := os.Stat(bin); err == nil {
		return bin, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("unpack the node helpers: %w", err)
	}
	tmp, err := os.MkdirTemp(dir, ".new-")
	if err != nil {
		return "", fmt.Errorf("unpack the node helpers: %w", err)
	}
	defer os.RemoveAll(tmp)
	if err := unpackInto(helpers, tmp); err != nil {
		return "", fmt.Errorf("unpack the node helpers: %w", err)
	}
	if err := os.Rename(tmp, bin); err != nil {
		if _, have := os.Stat(bin); have == nil {
			return bin, nil // another process was faster
		}
		return "", fmt.Errorf("unpack the node helpers: %w", err)
	}
	return bin, nil
}

func unpackInto(helpers fs.FS, dir string) error {
	for _, name := range helperNames() {
		if err := unpackFile(helpers, name, filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	for _, name := range cniPlugins() {
		// A hard link, so that nothing depends on the directory's later name.
		if err := os.Link(filepath.Join(dir, cniName), filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return os.Chmod(dir, 0o755)
}

func unpackFile(helpers fs.FS, name, to string) error {
	in, err := openHelper(helpers, name)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	// The directory's name promises the content, also after a power cut.
	return errors.Join(err, out.Sync(), out.Close())
}

// helpersHash names the helpers by what is stored, compressed or not.
func helpersHash(helpers fs.FS) (string, error) {
	h := sha256.New()
	for _, name := range helperNames() {
		f, err := helpers.Open(name + ".zst")
		if err != nil {
			f, err = helpers.Open(name)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("%s: %w", name, ErrNoHelpers)
		}
		if err != nil {
			return "", fmt.Errorf("read the node helper %s: %w", name, err)
		}
		_, err = io.Copy(h, f)
		f.Close()
		if err != nil {
			return "", fmt.Errorf("read the node helper %s: %w", name, err)
		}
		fmt.Fprintln(h, name)
	}
	return hex.EncodeToString(h.Sum(nil))[:12], nil
}
