// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/wasmplane/wasmplane/test/internal/gotool"
)

// replacements are files of ours that stand where upstream's stand. Their names end with
// .txt, for they are Go of another module.
//
//go:embed testdata/overlay
var replacements embed.FS

const (
	overlayDir  = "testdata/overlay"
	kubernetes  = "k8s.io/kubernetes"
	integration = kubernetes + "/test/integration/"
)

// tree is upstream's module as it is built here: a copy, because the go command replaces no
// files in its module cache, and the overlay of our files.
type tree struct {
	module  string // folder of the module whose versions are used
	cache   string
	dir     string // the copy
	modfile string
	overlay string
	version string // flags of the linker: tests compare their own version with the server's
}

// takeTree makes the copy, once for each version, and the files that builds need.
func takeTree(ctx context.Context, o options) (*tree, error) {
	version, source, err := gotool.Module(ctx, o.module, kubernetes)
	if err != nil {
		return nil, err
	}
	t := &tree{
		module: o.module, cache: o.cache, dir: filepath.Join(o.cache, "kubernetes-"+version),
		modfile: filepath.Join(o.cache, "go.mod"), overlay: filepath.Join(o.cache, "overlay.json"),
	}
	if err := os.MkdirAll(o.cache, 0o755); err != nil {
		return nil, err
	}
	if err := copyOnce(source, t.dir); err != nil {
		return nil, err
	}
	if err := t.writeModfile(ctx); err != nil {
		return nil, err
	}
	if t.version, err = versionOf(ctx, o.wasmplane); err != nil {
		return nil, err
	}
	return t, t.writeOverlay()
}

// versionOf are the flags that have the linker say the version of the program that is tested.
func versionOf(ctx context.Context, wasmplane string) (string, error) {
	cmd := exec.CommandContext(ctx, wasmplane, "kubectl", "version", "--client", "-o", "json")
	cmd.Env = append(os.Environ(), "KUBERC=off")
	said, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s kubectl version (`make build` makes it): %w", wasmplane, err)
	}
	var v struct {
		ClientVersion struct{ GitVersion, GitCommit, GitTreeState, BuildDate string }
	}
	if err := json.Unmarshal(said, &v); err != nil {
		return "", fmt.Errorf("what %s says of its version: %w", wasmplane, err)
	}
	c, flags := v.ClientVersion, ""
	for _, f := range [][2]string{{"gitVersion", c.GitVersion}, {"gitCommit", c.GitCommit}, {"gitTreeState", c.GitTreeState}, {"buildDate", c.BuildDate}} {
		flags += " -X k8s.io/component-base/version." + f[0] + "=" + f[1]
	}
	return flags, nil
}

// copyOnce copies a folder, unless that has been done: the name appears when all is there.
func copyOnce(from, to string) error {
	if _, err := os.Stat(to); err == nil {
		return nil
	}
	part := to + ".part"
	if err := errors.Join(os.RemoveAll(part), os.CopyFS(part, os.DirFS(from)), runnable(part)); err != nil {
		return err
	}
	return os.Rename(part, to)
}

// runnable lets scripts be run, which tests do with some: no file of the module cache may be.
// One test wants to see a script fail for that, and the script is named so.
func runnable(dir string) error {
	return filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(name, ".sh") || strings.Contains(name, "not-executable") {
			return err
		}
		return os.Chmod(name, 0o755)
	})
}

// writeModfile has the module's versions, with the copy in the place of what was published.
func (t *tree) writeModfile(ctx context.Context) error {
	for _, name := range []string{"go.mod", "go.sum"} {
		data, err := os.ReadFile(filepath.Join(t.module, name))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(t.cache, name), data, 0o644); err != nil {
			return err
		}
	}
	root := filepath.Join(t.module, "..", "..")
	_, err := gotool.Run(ctx, t.module, "mod", "edit", "-replace="+kubernetes+"="+t.dir,
		"-replace=github.com/wasmplane/wasmplane="+root,
		"-replace=github.com/wasmplane/wasmplane/sdk/go="+filepath.Join(root, "sdk", "go"), t.modfile)
	return err
}

// writeOverlay writes our files and says where they belong.
func (t *tree) writeOverlay() error {
	places := map[string]string{}
	err := fs.WalkDir(replacements, overlayDir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := replacements.ReadFile(name)
		if err != nil {
			return err
		}
		relative := filepath.FromSlash(strings.TrimSuffix(strings.TrimPrefix(name, overlayDir+"/"), ".txt"))
		file := filepath.Join(t.cache, "overlay", relative)
		places[filepath.Join(t.dir, relative)] = file
		return errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), writeIfNew(file, data))
	})
	if err != nil {
		return err
	}
	text, err := json.Marshal(map[string]any{"Replace": places})
	if err != nil {
		return err
	}
	return writeIfNew(t.overlay, text)
}

func writeIfNew(file string, data []byte) error {
	if was, err := os.ReadFile(file); err == nil && bytes.Equal(was, data) {
		return nil
	}
	return os.WriteFile(file, data, 0o644)
}

// packages are those with tests that a pattern takes, by their paths below test/integration.
func (t *tree) packages(ctx context.Context, pattern *regexp.Regexp) ([]string, error) {
	said, err := gotool.Run(ctx, t.module, "list", "-modfile", t.modfile, "-overlay", t.overlay,
		"-f", "{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}", integration+"...")
	if err != nil {
		return nil, err
	}
	var chosen []string
	for line := range strings.Lines(said) {
		name := strings.TrimPrefix(strings.TrimSpace(line), integration)
		if name != "" && pattern.MatchString(name) {
			chosen = append(chosen, name)
		}
	}
	if chosen == nil {
		return nil, fmt.Errorf("--packages: %q is in the name of no package; --list prints them", pattern)
	}
	return chosen, nil
}

// build builds the tests of a package. Remove the program after use: it has 90 MB.
func (t *tree) build(ctx context.Context, name string) (string, error) {
	program := filepath.Join(t.cache, strings.ReplaceAll(name, "/", "_")+".test")
	_, err := gotool.Run(ctx, t.module, "test", "-c", "-vet=off", "-ldflags=-s -w"+t.version, "-modfile", t.modfile, "-overlay", t.overlay,
		"-o", program, integration+name)
	return program, err
}

// tools builds etcd, which upstream's tests look for in PATH, and what reads the output of
// tests, and answers their folder.
func (t *tree) tools(ctx context.Context) (string, error) {
	dir := filepath.Join(t.cache, "bin")
	for name, pkg := range map[string]string{"etcd": "go.etcd.io/etcd/server/v3", "test2json": "cmd/test2json"} {
		if _, err := gotool.Run(ctx, t.module, "build", "-ldflags=-s -w", "-o", filepath.Join(dir, name), pkg); err != nil {
			return "", err
		}
	}
	return dir, nil
}
