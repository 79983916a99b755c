// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// odd is a service whose words need quoting.
func odd() Service {
	return Service{
		Name:    "second",
		Command: []string{"/usr/local/bin/wasmplane", "agent", "--data-dir", "/srv/my cluster", "--config", `/etc/100%/$HOME/it's "this"\.yaml`},
		Dir:     "/srv/my cluster",
	}
}

// golden compares a text with a file of testdata; UPDATE=1 writes the file.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(want) != string(got) {
		t.Errorf("%s (UPDATE=1 go test writes it):\n%s", file, got)
	}
}

func TestTextsOfServices(t *testing.T) {
	for name, s := range map[string]Service{"packaged": Packaged(), "odd": odd()} {
		for _, kind := range []Kind{Systemd, OpenRC} {
			text, err := (&Host{Kind: kind}).Text(s)
			if err != nil {
				t.Fatal(err)
			}
			golden(t, name+"."+string(kind), text)
		}
	}
	if _, err := (&Host{Kind: Systemd}).Text(Service{
		Name:    "x",
		Command: []string{"/bin/w", "up", "--config", "a\nExecStartPre=/bin/evil"},
	}); err == nil {
		t.Error("a line break in a flag became a line of the unit")
	}
}

// TestShellsUnderstandTheScript: what OpenRC hands on are the words that were given.
func TestShellsUnderstandTheScript(t *testing.T) {
	text, err := (&Host{Kind: OpenRC}).Text(odd())
	if err != nil {
		t.Fatal(err)
	}
	// As supervise-daemon.sh does it.
	script := string(text) + `
eval "set -- \"$command\" $command_args"
printf '%s\n' "$@"`
	out, err := exec.CommandContext(t.Context(), "sh", "-euc", script).CombinedOutput()
	if got := strings.Split(strings.TrimSpace(string(out)), "\n"); err != nil || !slices.Equal(got, odd().Command) {
		t.Errorf("%v: the program would be run as %q", err, got)
	}
}

// TestSystemdTakesTheUnits where there is one to ask.
func TestSystemdTakesTheUnits(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Logf("this machine has no systemd-analyze: the texts are compared with testdata only")
		return
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []Service{Packaged(), odd()} {
		s.Command[0] = self // it looks whether the program is there
		text, err := s.systemd()
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), s.Name+".service")
		if err := os.WriteFile(file, text, 0o644); err != nil {
			t.Fatal(err)
		}
		out, err := exec.CommandContext(t.Context(), analyze, "verify", "--man=no", file).CombinedOutput()
		if err != nil || strings.Contains(string(out), s.Name+".service") {
			t.Errorf("%v: systemd finds about the unit:\n%s\n%s", err, out, text)
		}
	}
}

// recorded is a machine whose supervisor writes down what it is asked for.
func recorded(t *testing.T, kind Kind) (*Host, *[]string) {
	t.Helper()
	var calls []string
	return &Host{Kind: kind, Root: t.TempDir(), Exec: func(_ context.Context, name string, args ...string) error {
		calls = append(calls, strings.Join(append([]string{name}, args...), " "))
		return nil
	}}, &calls
}

func TestInstallIsDoneOnceAndUndoneWhole(t *testing.T) {
	for kind, want := range map[Kind][]string{
		Systemd: {
			"systemctl daemon-reload", "systemctl enable second.service", "systemctl start second.service",
			"systemctl daemon-reload", "systemctl enable second.service", "systemctl start second.service",
			"systemctl daemon-reload", "systemctl enable second.service", "systemctl restart second.service",
			"systemctl disable --now second.service", "systemctl daemon-reload",
		},
		OpenRC: {
			"rc-update add second default", "rc-service second start",
			"rc-update add second default", "rc-service second start",
			"rc-update add second default", "rc-service second restart",
			"rc-service --ifstarted second stop", "rc-update --all del second",
		},
	} {
		h, calls := recorded(t, kind)
		s := odd()
		for i, expect := range []bool{true, false, true} { // new, the same, with another flag
			if i == 2 {
				s.Command = append(s.Command, "--log-level", "debug")
			}
			if changed, err := h.Install(t.Context(), s, true); err != nil || changed != expect {
				t.Fatalf("%s: %v, %v", kind, changed, err)
			}
		}
		if dir, err := h.Installed("second"); err != nil || dir != s.Dir {
			t.Errorf("%s: %q, %v", kind, dir, err)
		}
		if err := errors.Join(h.Stop(t.Context(), "second"), h.Remove(t.Context(), "second")); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(*calls, want) {
			t.Errorf("%s was asked for:\n%s", kind, strings.Join(*calls, "\n"))
		}
		if _, err := os.Stat(h.File("second")); err == nil {
			t.Errorf("%s: %s is left", kind, h.File("second"))
		}
		if _, err := h.Installed("second"); !errors.Is(err, ErrNotInstalled) {
			t.Errorf("%s: %v", kind, err)
		}
	}
}

func TestNobodyElsesServiceIsTouched(t *testing.T) {
	h, calls := recorded(t, Systemd)
	write := func(file string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte("[Service]\n"), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(h.Root, "/usr/lib/systemd/system/wasmplane.service"))
	write(h.File("mine"))
	for name, hint := range map[string]string{"wasmplane": "a package has installed", "mine": "has not written it"} {
		_, err := h.Install(t.Context(), Service{Name: name, Command: []string{"/w", "up"}, Dir: "/d"}, true)
		if err == nil || !strings.Contains(err.Error(), hint) {
			t.Errorf("install over %s: %v", name, err)
		}
		if err := h.Remove(t.Context(), name); err == nil {
			t.Errorf("remove took away %s", name)
		}
	}
	if len(*calls) > 0 {
		t.Errorf("systemd was asked for %q", *calls)
	}
}

func TestNamesOfServices(t *testing.T) {
	for name, ok := range map[string]bool{
		"wasmplane": true, "a-1": true, "": false, "../x": false, "a b": false, "-x": false,
		"a.service": false,
	} {
		if err := CheckName(name); (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestTheSupervisorThatRunsIsFound(t *testing.T) {
	root := t.TempDir()
	if _, err := Find(root, ""); !errors.Is(err, ErrNone) {
		t.Errorf("where there is none: %v", err)
	}
	if _, err := Find(root, "upstart"); err == nil {
		t.Error("upstart is taken for a supervisor that is known")
	}
	if err := os.MkdirAll(filepath.Join(root, "run/openrc"), 0o755); err != nil {
		t.Fatal(err)
	}
	if h, err := Find(root, ""); err != nil || h.Kind != OpenRC {
		t.Errorf("%v, %v", h, err)
	}
	if h, err := Find(root, Systemd); err != nil || h.Kind != Systemd {
		t.Errorf("the one that is named: %v, %v", h, err)
	}
}
