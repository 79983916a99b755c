// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/oci"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/pelletier/go-toml/v2"
	"go.uber.org/goleak"

	"github.com/wasmplane/wasmplane/core/kubelet/hostcheck"
	"github.com/wasmplane/wasmplane/core/kubelet/linuxhost"
	"github.com/wasmplane/wasmplane/core/kubelet/runtimehandler"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func testConfig(dir string) Config {
	return Config{
		Dir: dir, Names: linuxhost.NamesOf("test"), Runc: "/usr/sbin/runc", Facts: &hostcheck.Facts{Root: true},
		Helpers: fstest.MapFS{
			shimName: {Data: []byte("#!/bin/true\n"), Mode: 0o755},
			cniName:  {Data: []byte("#!/bin/true\n"), Mode: 0o755},
			wasmName: {Data: []byte("#!/bin/true\n"), Mode: 0o755},
		},
	}
}

// The configuration is TOML whatever the paths contain, and says what was asked.
func TestRender(t *testing.T) {
	odd := `/data/with "quotes" and \backslash`
	cfg, err := testConfig(odd).complete()
	if err != nil {
		t.Fatal(err)
	}
	cfg.CNIBinDirs = []string{"/opt/cni/bin"}
	data, err := cfg.render(odd + "/bin/x")
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Root    string
		Plugins map[string]map[string]any
	}
	if err := toml.Unmarshal(data, &doc); err != nil {
		t.Fatalf("%v in\n%s", err, data)
	}
	if doc.Root != odd+"/root" {
		t.Errorf("root is %q", doc.Root)
	}
	if a := doc.Plugins["io.containerd.server.v1.ttrpc"]["address"]; a != cfg.Socket()+".ttrpc" {
		t.Errorf("the ttrpc address is %q", a)
	}
	run := doc.Plugins["io.containerd.cri.v1.runtime"]
	if run["disable_apparmor"] != true || run["restrict_oom_score_adj"] != true {
		t.Errorf("on a machine without AppArmor and CAP_SYS_RESOURCE: %v", run)
	}
	if run["enable_criu"] != false {
		t.Errorf("containers may be written to files though the node makes no checkpoints: %v", run)
	}
	if period, err := time.ParseDuration(run["stats_collect_period"].(string)); err != nil || period < 10*time.Second {
		t.Errorf("the cgroups of all containers are read every %s, %v", period, err)
	}
	same, err := cfg.render(odd + "/bin/x")
	if err != nil || hash(same) != hash(data) {
		t.Errorf("the same configuration has two hashes (%v)", err)
	}
	other, err := cfg.render(odd + "/bin/y")
	if err != nil || hash(other) == hash(data) {
		t.Errorf("another shim has the same hash (%v)", err)
	}
	cfg.Checkpoints = true
	if data, err = cfg.render(odd + "/bin/x"); err != nil || !strings.Contains(string(data), "\n  enable_criu = true\n") {
		t.Errorf("a node that makes checkpoints (%v):\n%s", err, data)
	}
}

// Further handlers are in containerd's table beside our own, with what the node decides of them.
func TestRenderHandlers(t *testing.T) {
	cfg := testConfig("/data")
	cfg.Handlers = []runtimehandler.Handler{
		{Name: "crun", Type: runtimehandler.Runc, Options: map[string]any{"BinaryName": "/bin/true", "NoPivotRoot": true}},
		{Name: "gvisor", Type: "io.containerd.runsc.v1", Path: "/bin/true", PodAnnotations: []string{"dev.gvisor.*"}, Options: map[string]any{"ConfigPath": `/etc/"x"`}},
	}
	cfg, err := cfg.complete()
	if err != nil {
		t.Fatal(err)
	}
	data, err := cfg.render("/data/bin/x")
	if err != nil {
		t.Fatal(err)
	}
	type entry struct {
		Type        string         `toml:"runtime_type"`
		Path        string         `toml:"runtime_path"`
		Annotations []string       `toml:"pod_annotations"`
		Options     map[string]any `toml:"options"`
	}
	var doc struct {
		Plugins map[string]struct {
			Containerd struct{ Runtimes map[string]entry }
		}
	}
	if err := toml.Unmarshal(data, &doc); err != nil {
		t.Fatalf("%v in\n%s", err, data)
	}
	got := doc.Plugins["io.containerd.cri.v1.runtime"].Containerd.Runtimes
	own := got["runc"]
	crun := entry{Type: own.Type, Path: own.Path, Options: map[string]any{
		"BinaryName": "/bin/true", "NoPivotRoot": true, "Root": own.Options["Root"], "SystemdCgroup": false,
	}}
	if !reflect.DeepEqual(got["crun"], crun) {
		t.Errorf("crun is %+v, want %+v", got["crun"], crun)
	}
	gvisor := entry{
		Type: "io.containerd.runsc.v1", Path: "/bin/true", Annotations: []string{"dev.gvisor.*"},
		Options: map[string]any{"ConfigPath": `/etc/"x"`},
	}
	if !reflect.DeepEqual(got["gvisor"], gvisor) || len(got) != 5 {
		t.Errorf("gvisor is %+v, want %+v, of %d", got["gvisor"], gvisor, len(got))
	}
}

func TestConfigIsChecked(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"absolute":          func(c *Config) { c.Dir = "data" },
		"names":             func(c *Config) { c.Names = linuxhost.Names{} },
		"apt-get install r": func(c *Config) { c.Runc = "" },
		"containerd-shim-no-such-v1": func(c *Config) {
			c.Handlers = []runtimehandler.Handler{{Name: "a", Type: "io.containerd.no-such.v1"}}
		},
	} {
		cfg := testConfig("/data")
		change(&cfg)
		if _, err := cfg.complete(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want an error with %q", err, want)
		}
	}
}

// Sockets have short paths wherever the directory is.
func TestSocketPaths(t *testing.T) {
	for _, dir := range []string{
		"/d", "/var/lib/wasmplane/default/node",
		"/home/somebody/projects/wasmplane/.data/cluster/node/" + strings.Repeat("x", 200),
	} {
		cfg := testConfig(dir)
		if n := len(cfg.stateDir() + "/s"); n > maxSocketDir {
			t.Errorf("%s: the shims' sockets are in a directory of %d bytes", dir, n)
		}
		if n := len(cfg.Socket() + ".ttrpc"); n > 107 {
			t.Errorf("%s: a socket's path has %d bytes", dir, n)
		}
	}
	if a, b := testConfig("/"+strings.Repeat("a", 99)), testConfig("/"+strings.Repeat("b", 99)); a.Socket() == b.Socket() {
		t.Error("two directories share a socket")
	}
}

// Where runc gives pods users of their own, a new node's state is where those get past; what an earlier one
// began with stays in force until the machine is booted.
func TestWhereStateIs(t *testing.T) {
	program := func(name, says string) string {
		file := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(file, []byte("#!/bin/sh\n"+says+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		return file
	}
	maps := program("new", `echo '{"linux":{"mountExtensions":{"idmap":{"enabled":true}}}}'`)
	cannot := program("without", `echo '{"linux":{"mountExtensions":{"idmap":{"enabled":false}}}}'`)
	for _, c := range []struct {
		name, runc, boot string
		short            bool
	}{
		{name: "new", runc: maps, short: true},
		{name: "new, runc cannot", runc: cannot},
		{name: "new, runc does not know the question", runc: program("old", "exit 1")},
		{name: "new, runc says something else", runc: program("odd", "echo hello")},
		{name: "began before", runc: maps, boot: bootID()},
		{name: "began before the last boot", runc: maps, boot: "another", short: true},
		{name: "began before the last boot, runc cannot", runc: cannot, boot: "another"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, err := os.MkdirTemp("/tmp", "wp") //nolint:usetesting // a short path, as sockets need
			if err != nil {
				t.Fatal(err)
			}
			cfg := testConfig(dir)
			cfg.Runc, cfg.volatile = c.runc, t.TempDir()
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			if c.boot != "" {
				if err := errors.Join(
					os.Mkdir(filepath.Join(dir, "run"), 0o711),
					os.WriteFile(filepath.Join(dir, "run/boot"), []byte(c.boot), 0o600),
				); err != nil {
					t.Fatal(err)
				}
			}
			want := filepath.Join(dir, "run")
			if c.short {
				want = cfg.shortStateDir()
			}
			cfg, err = cfg.complete()
			if err != nil {
				t.Fatal(err)
			}
			for range 2 { // it is started again
				if _, _, _, err := cfg.prepare(t.Context()); err != nil {
					t.Fatal(err)
				}
				if got := cfg.stateDir(); got != want {
					t.Errorf("state is in %s, want %s", got, want)
				}
			}
			if info, err := os.Stat(want); err != nil || info.Mode().Perm() != 0o711 {
				t.Errorf("%v, %v", info, err)
			}
		})
	}
}

func TestUnpack(t *testing.T) {
	dir := t.TempDir()
	helpers := testConfig(dir).Helpers
	bin, err := unpack(helpers, dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range append(cniPlugins(), shimName, wasmName) {
		if err := exec.Command(filepath.Join(bin, name)).Run(); err != nil {
			t.Errorf("%s does not run: %v", name, err)
		}
	}
	again, err := unpack(helpers, dir)
	if err != nil || again != bin {
		t.Errorf("unpacked to %s, then to %s (%v)", bin, again, err)
	}
	next, err := unpack(fstest.MapFS{shimName: {Data: []byte("new")}, cniName: {Data: []byte("new")}, wasmName: {Data: []byte("new")}}, dir)
	if err != nil || next == bin {
		t.Errorf("new helpers went to %s over the old (%v)", next, err)
	}
	if _, err := os.Stat(filepath.Join(bin, shimName)); err != nil {
		t.Errorf("the old shim, which runs, is gone: %v", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 {
		t.Errorf("%v (%v), want the two directories alone", entries, err)
	}
	for _, missing := range helperNames() {
		half := fstest.MapFS{shimName: {}, cniName: {}, wasmName: {}}
		delete(half, missing)
		if _, err := unpack(half, dir); !errors.Is(err, ErrNoHelpers) || !strings.Contains(err.Error(), "make build") {
			t.Errorf("without %s: %v", missing, err)
		}
	}
	if _, err := unpack(fstest.MapFS{
		shimName + ".zst": {Data: []byte("junk")}, cniName + ".zst": {Data: []byte("junk")},
		wasmName + ".zst": {Data: []byte("junk")},
	}, dir); err == nil {
		t.Error("junk was unpacked")
	}
	if entries, err = os.ReadDir(dir); err != nil || len(entries) != 2 {
		t.Errorf("a failure left %v (%v)", entries, err)
	}
}

// A pid that is another process's now, or nobody's, is no running containerd.
func TestPIDFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pid")
	self, err := identify(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		p    process
		runs bool
	}{
		"this process":         {self, true},
		"its pid, born before": {process{self.PID, "1", self.Boot}, false},
		"before the last boot": {process{self.PID, self.Start, "another"}, false},
		"nobody":               {process{1 << 22, "1", self.Boot}, false},
	} {
		if err := writePIDFile(path, pidFile{process: c.p, Hash: "h"}); err != nil {
			t.Fatal(err)
		}
		got, err := readPIDFile(path)
		if (err == nil) != c.runs || err == nil && got.Hash != "h" || err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %+v, %v", what, got, err)
		}
	}
	if err := os.WriteFile(path, []byte("junk"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readPIDFile(path); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a pid file full of junk: %v", err)
	}
}

// A process is seen to end, whoever's child it is; letting go of it ends the watch.
func TestWatch(t *testing.T) {
	cmd := exec.Command("sleep", "100")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p, err := identify(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	first, err := watch(pidFile{process: p})
	if err != nil {
		t.Fatal(err)
	}
	second, err := watch(pidFile{process: p})
	if err != nil {
		t.Fatal(err)
	}
	first.close()
	select {
	case <-first.ended:
		t.Error("the process has ended, says a watch that was closed")
	default:
	}
	if err := second.signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-second.ended
	second.close()
	if _, err := watch(pidFile{process: p}); err == nil {
		t.Error("a process that has ended can be watched")
	}
	_ = cmd.Process.Release()
}

// Two containerds never serve one directory.
func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	first, err := lockFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lockFile(path); err == nil {
		t.Error("the lock was had twice")
	}
	first.Close()
	second, err := lockFile(path)
	if err != nil {
		t.Fatal(err)
	}
	second.Close()
}

func TestChildEnv(t *testing.T) {
	env := childEnv([]string{"PATH=/bin", "https_proxy=http://p", "HOME=/root", "LD_PRELOAD=x", "NOTIFY_SOCKET=/s"}, "{}", "/helpers")
	got := strings.Join(env, " ")
	if got != roleVariable+"={} https_proxy=http://p PATH=/helpers:/bin" {
		t.Errorf("the child's environment is %s", got)
	}
}

// A containerd that cannot start says why, and leaves nothing running.
func TestCannotStart(t *testing.T) {
	dir := t.TempDir()
	cfg := testConfig(dir)
	// This test's binary does not call MaybeRun: as a child it prints usage and ends.
	_, err := Start(t.Context(), cfg)
	if err == nil || !strings.Contains(err.Error(), "start containerd") {
		t.Errorf("Start = %v", err)
	}
	if pid := Running(cfg); pid != 0 {
		t.Errorf("process %d runs", pid)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Stop(ctx, cfg); err != nil {
		t.Errorf("Stop with nothing to stop: %v", err)
	}
}

func FuzzPIDFile(f *testing.F) {
	f.Add([]byte(`{"PID":1,"Start":"2","Boot":"b","Hash":"h"}`))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(dir, "pid")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		if p, err := readPIDFile(path); err == nil && p.PID <= 0 {
			t.Errorf("process %d runs", p.PID)
		}
	})
}

// Containers of modules have a namespace of cgroups in their specification, on machines where CRI would else read all mounts of the node
// for each of them; and nothing else in it that CRI's own has not.
func TestBaseSpecOfModules(t *testing.T) {
	cfg, err := testConfig(t.TempDir()).complete()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Mkdir(filepath.Dir(cfg.baseSpecFile()), 0o755), cfg.writeBaseSpec(t.Context())); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(cfg.baseSpecFile())
	if err != nil {
		t.Fatal(err)
	}
	var got oci.Spec
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	own, err := oci.GenerateSpec(namespaces.WithNamespace(t.Context(), "k8s.io"), nil, &containers.Container{})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(got.Linux.Namespaces) - 1; n < 0 || got.Linux.Namespaces[n].Type != specs.CgroupNamespace {
		t.Fatalf("its namespaces are %+v", got.Linux.Namespaces)
	} else {
		got.Linux.Namespaces = got.Linux.Namespaces[:n]
	}
	own.Process.Rlimits = nil // CRI takes the default ones away
	if !reflect.DeepEqual(&got, own) {
		t.Errorf("it is %+v, want %+v", &got, own)
	}
	data, err := cfg.render("/data/bin/x")
	if err != nil || !strings.Contains(string(data), fmt.Sprintf("base_runtime_spec = %q", cfg.baseSpecFile())) {
		t.Errorf("containerd is not told of it (%v):\n%s", err, data)
	}
	cfg.Facts.CgroupV2 = true
	data, err = cfg.render("/data/bin/x")
	if err != nil || cfg.baseSpecFile() != "" || !strings.Contains(string(data), `base_runtime_spec = ""`) {
		t.Errorf("on a machine with cgroups of version 2 (%v):\n%s", err, data)
	}
}
