// SPDX-License-Identifier: Apache-2.0

package hostcheck

import (
	"strings"
	"testing"
)

func TestJudgeRunc(t *testing.T) {
	for _, c := range []struct {
		says    string
		problem string
		warning bool
	}{
		{"runc version 1.1.5+ds1\ncommit: 1.1.5\n", "", false},
		{"runc version 1.5.2\n", "", false},
		{"runc version 2.0.0-rc.1\n", "", false},
		{"runc version 1.3.6\ncommit: v1.3.6-0-g1\n", "", false},
		{"runc version 1.4.3\n", "", false},
		{"runc version 1.5.0-rc.3\n", "", false},
		{"runc version 1.3.0-0ubuntu2~24.04.1\n", "", false},
		{"runc version 1.2.9\ncommit: v1.2.9-0-g1\n", "CVE-2026-41579", true},
		{"runc version 1.3.5\n", "CVE-2026-41579", true},
		{"runc version 1.4.2\n", "CVE-2026-41579", true},
		{"runc version 1.4.0-rc.2\n", "CVE-2026-41579", true},
		{"runc version 1.5.0-rc.2\n", "CVE-2026-41579", true},
		{"runc version 1.0.3\n", "at least 1.1", false},
		{"runc version 0.1.1\n", "at least 1.1", false},
		{"crun version 1.8.1\n", "not a runc that is known", true},
		{"", "not a runc that is known", true},
	} {
		p := judgeRunc("/usr/sbin/runc", c.says)
		switch {
		case p == nil && c.problem != "":
			t.Errorf("%q: no problem, want %q", c.says, c.problem)
		case p != nil && (c.problem == "" || !strings.Contains(p.What, c.problem) || p.Warning != c.warning):
			t.Errorf("%q: %+v", c.says, *p)
		}
	}
}

// Without anything on PATH and in the usual places, each problem says what to do.
func TestCheckSaysWhatToInstall(t *testing.T) {
	if p := checkRunc(t.Context(), ""); p == nil || !strings.Contains(p.Fix, "apt-get install runc") || p.Warning {
		t.Errorf("no runc: %+v", p)
	}
	if p := checkRunc(t.Context(), "/bin/false"); p == nil || !strings.Contains(p.What, "/bin/false --version fails") {
		t.Errorf("a runc that fails: %+v", p)
	}
	if p := checkFilesystem("nosuchfs", "nosuchfs"); p == nil {
		t.Error("a file system that does not exist is there")
	}
	err := Fatal([]Problem{{What: "a", Fix: "b"}, {What: "c", Fix: "d", Warning: true}})
	if err == nil || err.Error() != "a; b" {
		t.Errorf("Fatal = %v", err)
	}
}

// The machine that runs this test can run nodes: the other tests here do.
func TestCheckThisMachine(t *testing.T) {
	if err := Fatal(Check(t.Context())); err != nil {
		t.Error(err)
	}
}

// The table of mounts has lines for each pod: it is not read for each of them.
func TestHierarchiesAreReadOnce(t *testing.T) {
	first, err := Hierarchies()
	if err != nil || len(first) == 0 {
		t.Fatalf("no cgroups here: %v", err)
	}
	again, err := Hierarchies()
	if err != nil || &first[0] != &again[0] {
		t.Errorf("they were read again (%v)", err)
	}
}
