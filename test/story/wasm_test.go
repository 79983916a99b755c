// SPDX-License-Identifier: Apache-2.0

package story

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/wasmplane/wasmplane/plugins/toolchain"
)

// serveWasm is an image registry on loopback with testdata/module, in each form that a
// WebAssembly module has as an image, and artifacts with components: wasm MODULE COMMAND SERVER.
//
//	artifact  a configuration and the module, no file system
//	image     an image of platform wasi/wasm with the module as its entry point
//	index     an index whose only image for anybody is that one
//	compat    an image for Linux with the module as its entry point
//	broken    an artifact that is no module
//	command   an artifact that is a component, a command
//	server    an artifact that is a component, a server of HTTP
func serveWasm() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var binaries [][]byte
	for _, file := range os.Args[1:] {
		b, err := os.ReadFile(file)
		check(err)
		binaries = append(binaries, b)
	}
	module := binaries[0]
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	images := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	go func() { log.Fatal(http.Serve(l, images)) }()
	wasi, linux := image(module, "wasi", "wasm"), image(module, "linux", "amd64")
	index := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{
		Add: wasi, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "wasi", Architecture: "wasm"}},
	})
	for tag, push := range map[string]func(name.Reference) error{
		"artifact": func(r name.Reference) error { return remote.Write(r, artifact(module)) },
		"command":  func(r name.Reference) error { return remote.Write(r, artifact(binaries[1])) },
		"server":   func(r name.Reference) error { return remote.Write(r, artifact(binaries[2])) },
		"broken":   func(r name.Reference) error { return remote.Write(r, artifact([]byte("MZ this is no module"))) },
		"image":    func(r name.Reference) error { return remote.Write(r, wasi) },
		"compat":   func(r name.Reference) error { return remote.Write(r, linux) },
		"index":    func(r name.Reference) error { return remote.WriteIndex(r, index) },
	} {
		ref, err := name.ParseReference(l.Addr().String()+"/module:"+tag, name.Insecure)
		if err == nil {
			err = push(ref)
		}
		if err != nil {
			log.Fatal(tag, ": ", err)
		}
	}
	fmt.Println("modules at", l.Addr())
	<-ctx.Done()
}

// compileModule compiles testdata/module for WASI.
func compileModule(root, file string) error { return compileWasm(root, file, "module") }

func compileWasm(root, file, name string, flags ...string) error {
	args := append([]string{"build", "-trimpath", "-ldflags=-s -w", "-o", file}, flags...)
	cmd := exec.Command("go", append(args, "./test/story/testdata/"+name)...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the stories' module: %w\n%s", err, out)
	}
	return nil
}

// componentTools is the folder of the Bytecode Alliance's tools (test/deps.sh installs them).
const componentTools = "component-tools-0.15.0"

// components makes components of the stories' modules, by tools that are not ours: a command of
// testdata/module, and testdata/component, a server of HTTP.
func (s *stage) components(ts *testscript.TestScript, _ bool, args []string) {
	cache, err := toolchain.Cache()
	ts.Check(err)
	tools := filepath.Join(cache, componentTools)
	if _, err := os.Stat(tools); err != nil {
		ts.Fatalf("the tools that make components are not installed: run test/deps.sh test (%v)", err)
	}
	sources := filepath.Join(built.Root, "test", "story", "testdata", "component")
	reactor := ts.MkAbs("reactor.wasm")
	ts.Check(compileWasm(built.Root, reactor, "component", "-buildmode=c-shared"))
	for _, making := range [][]string{
		{"command", built.module, ts.MkAbs(args[0])},
		{"reactor", reactor, ts.MkAbs(args[1]), filepath.Join(sources, "world.wit")},
	} {
		out, err := exec.Command("node", append([]string{filepath.Join(sources, "new.mjs"), tools}, making...)...).CombinedOutput()
		if err != nil {
			ts.Fatalf("make a component: %v\n%s", err, out)
		}
	}
}

// image has the module as a file and as its entry point.
func image(module []byte, system, architecture string) v1.Image {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	check(w.WriteHeader(&tar.Header{Name: "app/main.wasm", Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(module))}))
	_, err := w.Write(module)
	check(err)
	check(w.Close())
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil })
	check(err)
	img, err := mutate.AppendLayers(empty.Image, layer)
	check(err)
	config, err := img.ConfigFile()
	check(err)
	config.OS, config.Architecture, config.Config.Entrypoint = system, architecture, []string{"/app/main.wasm"}
	img, err = mutate.ConfigFile(img, config)
	check(err)
	return img
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// wasmArtifact is the artifact that the cloud native community agreed on.
type wasmArtifact struct {
	config, manifest []byte
	layer            v1.Layer
}

func artifact(module []byte) v1.Image {
	a := &wasmArtifact{layer: static.NewLayer(module, "application/wasm")}
	digest, err := a.layer.Digest()
	check(err)
	a.config, err = json.Marshal(map[string]any{
		"created": "2026-01-01T00:00:00Z", "architecture": "wasm", "os": "wasip1", "layerDigests": []string{digest.String()},
	})
	check(err)
	config, layer := descriptor(a.config, "application/vnd.wasm.config.v0+json"), descriptor(module, "application/wasm")
	a.manifest, err = json.Marshal(v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Config: config,
		Layers: []v1.Descriptor{layer},
	})
	check(err)
	img, err := partial.CompressedToImage(a)
	check(err)
	return img
}

func descriptor(b []byte, mediaType types.MediaType) v1.Descriptor {
	digest, size, err := v1.SHA256(bytes.NewReader(b))
	check(err)
	return v1.Descriptor{MediaType: mediaType, Digest: digest, Size: size}
}

func (a *wasmArtifact) RawConfigFile() ([]byte, error)      { return a.config, nil }
func (a *wasmArtifact) MediaType() (types.MediaType, error) { return types.OCIManifestSchema1, nil }
func (a *wasmArtifact) RawManifest() ([]byte, error)        { return a.manifest, nil }
func (a *wasmArtifact) LayerByDigest(d v1.Hash) (partial.CompressedLayer, error) {
	if d == descriptor(a.config, "").Digest {
		return partial.ConfigLayer(a)
	}
	return a.layer, nil
}

// TestAModuleIsCompiledWithoutRights: before it reads a byte, the compiler has no root directory of the machine's,
// no user and no capability, and limits that the kernel enforces.
func TestAModuleIsCompiledWithoutRights(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), filepath.Join(built.Root, "bin", "helpers", "wasm"), "compile", dir)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var out, problem bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problem
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	proc := fmt.Sprintf("/proc/%d/", cmd.Process.Pid)
	deadline := time.NewTimer(time.Minute)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for status := ""; !strings.Contains(status, "Uid:\t65534\t65534\t65534\t65534\n"); {
		select {
		case <-deadline.C:
			t.Fatalf("the compiler's status stays %s", status)
		case <-tick.C:
		}
		text, err := os.ReadFile(proc + "status")
		if err != nil {
			t.Fatal(err)
		}
		status = string(text)
	}
	status, err := os.ReadFile(proc + "status")
	if err != nil || !strings.Contains(string(status), "CapEff:\t0000000000000000\n") || !strings.Contains(string(status),
		"Gid:\t65534\t65534\t65534\t65534\n") {
		t.Errorf("the compiler's status is %s, %v", status, err)
	}
	if root, err := os.Readlink(proc + "root"); err != nil || root != dir {
		t.Errorf("its root directory is %s, %v", root, err)
	}
	limits, err := os.ReadFile(proc + "limits")
	if err != nil || !regexp.MustCompile(`Max cpu time +60 +60 `).Match(limits) ||
		!regexp.MustCompile(`Max address space +3221225472 `).Match(limits) {
		t.Errorf("its limits are %s, %v", limits, err)
	}
	if _, err := in.Write([]byte("\x00asm\x01\x00\x00\x00rubbish")); err != nil {
		t.Fatal(err)
	}
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil || out.Len() > 0 || !strings.Contains(problem.String(), "compile the module") {
		t.Errorf("rubbish was compiled: %v, %s", err, problem.String())
	}
}
