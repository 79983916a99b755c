// SPDX-License-Identifier: Apache-2.0

package runtimehandler

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"
)

func TestProblem(t *testing.T) {
	for _, c := range []struct {
		name    string
		handler Handler
		field   string // empty: there is none
		want    string
	}{
		{"gVisor", Handler{Name: "gvisor", Type: "io.containerd.runsc.v1", Options: map[string]any{"TypeUrl": "io.containerd.runsc.v1.options", "ConfigPath": "/etc/containerd/runsc.toml"}}, "", ""},
		{"Kata", Handler{Name: "kata", Type: "io.containerd.kata-qemu.v2", Path: "/opt/kata/bin/shim", PodAnnotations: []string{"io.katacontainers.*"}, PrivilegedWithoutHostDevices: true}, "", ""},
		{"crun", Handler{Name: "crun", Type: Runc, Options: map[string]any{"BinaryName": "/usr/bin/crun", "SystemdCgroup": false, "IoUid": 0}}, "", ""},
		{"no name", Handler{Type: Runc}, "name", "expected the handler of a RuntimeClass"},
		{"the node's own", Handler{Name: "wasm", Type: Runc}, "name", "wasm is the node's own"},
		{"a name that breaks out", Handler{Name: "a]\n[plugins", Type: Runc}, "name", "lower-case"},
		{"no type", Handler{Name: "a"}, "runtimeType", "such as io.containerd.runc.v2"},
		{"a path as type", Handler{Name: "a", Type: "/usr/bin/runsc"}, "runtimeType", "expected a type"},
		{"a relative shim", Handler{Name: "a", Type: Runc, Path: "bin/shim"}, "runtimePath", "expected the absolute path"},
		{"a path of two lines", Handler{Name: "a", Type: Runc, Path: "/bin\nx"}, "runtimePath", "printable"},
		{"a relative file", Handler{Name: "a", Type: Runc, BaseRuntimeSpec: "x.json"}, "baseRuntimeSpec", "absolute path"},
		{"no pattern", Handler{Name: "a", Type: Runc, PodAnnotations: []string{"a["}}, "podAnnotations", "io.katacontainers.*"},
		{"no annotation", Handler{Name: "a", Type: Runc, ContainerAnnotations: []string{""}}, "containerAnnotations", "io.katacontainers.*"},
		{"unknown option", Handler{Name: "a", Type: Runc, Options: map[string]any{"Binary": "x"}}, "options.Binary", "known: BinaryName"},
		{"option of another kind", Handler{Name: "a", Type: Runc, Options: map[string]any{"IoUid": "root"}}, "options.IoUid", "expected a value as 0"},
		{"option of the node", Handler{Name: "a", Type: Runc, Options: map[string]any{"Root": "/x"}}, "options.Root", "leave it out"},
		{"cgroups of systemd", Handler{Name: "a", Type: Runc, Options: map[string]any{"SystemdCgroup": true}}, "options.SystemdCgroup", "expected false"},
		{"relative program", Handler{Name: "a", Type: Runc, Options: map[string]any{"BinaryName": "bin/crun"}}, "options.BinaryName", "absolute path"},
		{"nested option", Handler{Name: "a", Type: "io.containerd.x.v1", Options: map[string]any{"a": map[string]any{}}}, "options.a", "ConfigPath"},
		{"option of two lines", Handler{Name: "a", Type: "io.containerd.x.v1", Options: map[string]any{"a": "b\nc = 1"}}, "options.a", "printable"},
		{"odd option", Handler{Name: "a", Type: "io.containerd.x.v1", Options: map[string]any{"a = 1\nb": true}}, "options", "names of letters"},
	} {
		field, problem := c.handler.Problem()
		if field != c.field || !strings.Contains(problem, c.want) || (problem == "") != (c.want == "") {
			t.Errorf("%s: %q of %q, want %q of %q", c.name, problem, field, c.want, c.field)
		}
	}
}

// What the machine does not have is found when the node starts, not when a pod does.
func TestFind(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "containerd-shim-odd-v1")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	for _, c := range []struct {
		handler Handler
		want    string
	}{
		{Handler{Name: "a", Type: Runc}, ""},
		{Handler{Name: "a", Type: "io.containerd.odd.v1"}, ""},
		{Handler{Name: "a", Type: "io.containerd.odd.v2"}, "the shim of runtime handler a cannot be run"},
		{Handler{Name: "a", Type: "io.containerd.odd.v2", Path: program}, ""},
		{Handler{Name: "a", Type: Runc, Options: map[string]any{"BinaryName": "crun"}}, "options.BinaryName"},
		{Handler{Name: "a", Type: Runc, BaseRuntimeSpec: dir}, "is no file"},
		{Handler{Name: "a", Type: Runc, BaseRuntimeSpec: filepath.Join(dir, "none")}, "cannot be read"},
	} {
		err := Check([]Handler{c.handler})
		if (err == nil) != (c.want == "") || (err != nil && !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: %v, want %q", c.handler, err, c.want)
		}
	}
}

// What Problem lets pass is one value of TOML, and that value.
func FuzzLiteral(f *testing.F) {
	f.Add(`a "quoted" \path`)
	f.Add("line\nbreak")
	f.Add("\u202e\U0001F600\x7f")
	f.Fuzz(func(t *testing.T, text string) {
		h := Handler{Name: "a", Type: "io.containerd.x.v1", Options: map[string]any{"a": text}}
		if _, problem := h.Problem(); problem != "" {
			return
		}
		var got map[string]any
		if err := toml.Unmarshal([]byte("a = "+Literal(text)+"\n"), &got); err != nil || len(got) != 1 || got["a"] != text {
			t.Fatalf("%q is %v (%v)", text, got, err)
		}
	})
}
