// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/opencontainers/go-digest"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

func write(t *testing.T, file string, v any) {
	t.Helper()
	text, ok := v.([]byte)
	if !ok {
		var err error
		if text, err = json.Marshal(v); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, text, 0o644); err != nil {
		t.Fatal(err)
	}
}

// store is a content store with blobs, and says their digests.
func blobs(t *testing.T, dir string, of ...any) []string {
	t.Helper()
	var names []string
	for _, v := range of {
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		d := digest.FromBytes(text)
		write(t, filepath.Join(dir, "blobs/sha256", d.Encoded()), text)
		names = append(names, d.String())
	}
	return names
}

func bundle(t *testing.T, image string) (string, specs.Spec) {
	t.Helper()
	dir := t.TempDir()
	limit := int64(64 << 20)
	spec := specs.Spec{
		Annotations: map[string]string{portsAnnotation: `[{"name":"http","containerPort":8080,"protocol":"TCP"},{"containerPort":53,"protocol":"UDP"}]`},
		Process: &specs.Process{
			Args:         []string{"module.wasm", "a b"},
			Capabilities: &specs.LinuxCapabilities{Bounding: []string{"CAP_SYS_ADMIN", "CAP_DAC_OVERRIDE"}, Effective: []string{"CAP_SYS_ADMIN"}},
		},
		Mounts: []specs.Mount{
			{Type: "proc", Destination: "/proc"},
			{Type: "bind", Destination: "/dev/shm"},
			{Type: "bind", Destination: "/dev/termination-log"},
			{Type: "bind", Destination: "/sys/fs/cgroup"},
			{Type: "bind", Destination: "/data"},
		},
		Linux: &specs.Linux{
			Devices:   []specs.LinuxDevice{{Path: "/dev/sda"}},
			Resources: &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &limit}, Devices: []specs.LinuxDeviceCgroup{{Allow: true}}},
		},
	}
	if image != "" {
		spec.Annotations[wasmAnnotation] = image
	}
	write(t, filepath.Join(dir, "config.json"), spec)
	return dir, spec
}

func prepared(t *testing.T, dir string) (specs.Spec, bool, error) {
	t.Helper()
	wasm, err := prepare(t.Context(), &taskapi.CreateTaskRequest{ID: "c", Bundle: dir})
	text, readErr := os.ReadFile(filepath.Join(dir, "config.json"))
	if readErr != nil {
		t.Fatal(readErr)
	}
	var spec specs.Spec
	if err := json.Unmarshal(text, &spec); err != nil {
		t.Fatal(err)
	}
	return spec, wasm, err
}

// TestAModulesProcessIsTheEngine, with the module, what the container declares, and less rights.
func TestAModulesProcessIsTheEngine(t *testing.T) {
	content := t.TempDir()
	module := blobs(t, content, "the module")[0]
	image := blobs(t, content, map[string]any{"os": "wasip1", "architecture": "wasm", "layerDigests": []string{module}})[0]
	t.Setenv(contentVariable, content)
	dir, _ := bundle(t, image)
	spec, wasm, err := prepared(t, dir)
	if err != nil || !wasm {
		t.Fatal(wasm, err)
	}
	a := spec.Process.Args
	if len(a) != 6 || a[0] != engineFile || a[1] != "run" || !slices.Equal(a[3:], []string{"--", "module.wasm", "a b"}) {
		t.Fatalf("the process is %q", a)
	}
	want := `{"module":"/.wasmplane/module.wasm","mounts":["/dev/termination-log","/data"],"listen":[{"name":"http","port":8080}],"memory":67108864}`
	if got := spec.Process.Args[2]; got != want {
		t.Errorf("the engine is told\n%s, want\n%s", got, want)
	}
	sources := map[string]string{}
	for _, m := range spec.Mounts {
		if strings.HasPrefix(m.Destination, engineDirectory) {
			if !slices.Contains(m.Options, "ro") {
				t.Errorf("%s can be written", m.Destination)
			}
			sources[m.Destination] = m.Source
		}
	}
	if !strings.HasSuffix(sources[moduleFile], digest.Digest(module).Encoded()) ||
		filepath.Base(sources[engineFile]) != engineName || len(sources) != 2 {
		t.Errorf("mounted are %v", sources)
	}
	c := spec.Process.Capabilities
	if !spec.Process.NoNewPrivileges || !slices.Equal(c.Bounding, []string{"CAP_DAC_OVERRIDE"}) || len(c.Effective) > 0 {
		t.Errorf("it may %+v", c)
	}
	if len(spec.Linux.Devices) > 0 || spec.Linux.Resources.Devices[0].Allow {
		t.Error("it has devices")
	}
}

// TestOtherContainersAreLeftAlone, and images that are neither say what is wrong.
func TestOtherContainersAreLeftAlone(t *testing.T) {
	content := t.TempDir()
	t.Setenv(contentVariable, content)
	names := blobs(t, content,
		map[string]any{"rootfs": map[string]any{"diff_ids": []string{"sha256:1"}}},
		map[string]any{"os": "wasip1"},
		map[string]any{"layerDigests": []string{"sha256:1", "sha256:2"}},
		map[string]any{"layerDigests": []string{"../../../etc/passwd"}},
		map[string]any{"layerDigests": []string{digest.FromString("absent").String()}},
		"no configuration")
	for _, c := range []struct{ name, image, problem string }{
		{"no module", "", ""},
		{"an image with files", names[0], ""},
		{"an image with nothing", names[1], "neither files nor layerDigests"},
		{"two modules", names[2], "lists 2 layers"},
		{"a path", names[3], "invalid"},
		{"a module that was collected", names[4], "no such file"},
		{"no configuration", names[5], "read the image's configuration"},
		{"no digest", "sha256:../../x", "invalid"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, before := bundle(t, c.image)
			spec, wasm, err := prepared(t, dir)
			if (err == nil) != (c.problem == "") || err != nil && !strings.Contains(err.Error(), c.problem) {
				t.Fatalf("%v, want %q", err, c.problem)
			}
			if changed := len(spec.Process.Args) != len(before.Process.Args); changed != wasm || wasm != (c.image != "" && c.problem == "") {
				t.Errorf("changed: %v, a module: %v", changed, wasm)
			}
		})
	}
}

// TestCodeIsUnpackedIntoItsDirectory: an archive of a compiler that was taken over writes nowhere else.
func TestCodeIsUnpackedIntoItsDirectory(t *testing.T) {
	archive := func(h tar.Header) *bytes.Reader {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		h.Size = 4
		if h.Typeflag != tar.TypeReg {
			h.Size = 0
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			if _, err := w.Write([]byte("code")); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return bytes.NewReader(b.Bytes())
	}
	for name, c := range map[string]struct {
		header tar.Header
		fine   bool
	}{
		"a file":   {tar.Header{Typeflag: tar.TypeReg, Name: "code"}, true},
		"a folder": {tar.Header{Typeflag: tar.TypeDir, Name: "engine/"}, true},
		"outside":  {tar.Header{Typeflag: tar.TypeReg, Name: "../code"}, false},
		"absolute": {tar.Header{Typeflag: tar.TypeReg, Name: "/code"}, false},
		"a link":   {tar.Header{Typeflag: tar.TypeSymlink, Name: "code", Linkname: "/etc/passwd"}, false},
		"a device": {tar.Header{Typeflag: tar.TypeChar, Name: "code"}, false},
	} {
		dir := t.TempDir()
		err := unpack(archive(c.header), filepath.Join(dir, "to"))
		if (err == nil) != c.fine {
			t.Errorf("%s: %v", name, err)
		}
		if entries, _ := os.ReadDir(dir); len(entries) != 1 {
			t.Errorf("%s: beside the directory there is %v", name, entries)
		}
	}
}

// TestTheLongestUnusedCodeGoesFirst, when there is too much, and never what was added just now.
func TestTheLongestUnusedCodeGoesFirst(t *testing.T) {
	s := store{dir: t.TempDir()}
	now := time.Now()
	for i, name := range []string{"old", "used", "new"} {
		file := filepath.Join(s.dir, name, "engine", "code")
		write(t, file, []byte(""))
		if err := os.Truncate(file, mostCode/2); err != nil { // holes, no bytes on the disk
			t.Fatal(err)
		}
		when := now.Add(time.Duration(i-3) * time.Hour)
		if err := os.Chtimes(filepath.Join(s.dir, name), when, when); err != nil {
			t.Fatal(err)
		}
	}
	if !s.has(filepath.Join(s.dir, "old")) { // it is the latest now
		t.Fatal("the code is not there")
	}
	s.shrink(filepath.Join(s.dir, "new"))
	for name, there := range map[string]bool{"old": true, "used": false, "new": true} {
		if _, err := os.Stat(filepath.Join(s.dir, name)); (err == nil) != there {
			t.Errorf("%s is there: %v", name, err == nil)
		}
	}
}
