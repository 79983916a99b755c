// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/wasmplane/wasmplane/test/internal/journal"
)

const script = `
# record_command run_kubectl_tests
function record_command() { :; }
  record_command run_first_tests
  if kube::test::if_supports_resource "${pods}" ; then
    record_command run_second_test
  fi
  record_command "run_${pkg}_tests"
  record_command run_first_tests
`

func TestGroupsAreThoseThatTheScriptCalls(t *testing.T) {
	want := []string{"run_first_tests", "run_second_test", inline}
	if got := groupsOf(script); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestAPatternChoosesGroups(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "test/cmd/legacy-script.sh"), script)
	got, err := chosen(dir, regexp.MustCompile("second|runTests"))
	if want := []string{"run_second_test", inline}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v and %v, want %v", got, err, want)
	}
	if _, err := chosen(dir, regexp.MustCompile("third")); err == nil || !strings.Contains(err.Error(), "--list") {
		t.Errorf("a pattern that takes nothing: %v", err)
	}
	write(t, filepath.Join(dir, "test/cmd/legacy-script.sh"), "echo something else\n")
	if _, err := chosen(dir, regexp.MustCompile("")); err == nil || !strings.Contains(err.Error(), "record_command") {
		t.Errorf("a script without groups: %v", err)
	}
}

func TestScriptsWriteToTheirOwnFolderInPlaceOfTmp(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	for _, p := range parts() {
		write(t, filepath.Join(from, p, "one.sh"), "touch /tmp/a /var/tmp/b \"${TMPDIR:-/tmp}\"/c\nget "+published+"d\n")
	}
	write(t, filepath.Join(from, "hack/testdata/data.json"), `{"path": "/tmp/a"}`)
	if err := takeScripts(from, to, "/own", "http://here/"); err != nil {
		t.Fatal(err)
	}
	want := "touch /own/a /own/b \"${TMPDIR:-/tmp}\"/c\nget http://here/d\n"
	if got := read(t, filepath.Join(to, "test/cmd/one.sh")); got != want {
		t.Errorf("the script became %q, want %q", got, want)
	}
	if got := read(t, filepath.Join(to, "hack/testdata/data.json")); got != `{"path": "/tmp/a"}` {
		t.Errorf("a file that is no script became %q", got)
	}
	if err := takeScripts(from, to, "/own folder", ""); err == nil || !strings.Contains(err.Error(), "TMPDIR") {
		t.Errorf("a path with a space: %v", err)
	}
}

func TestTheFirstFailedAssertionIsFound(t *testing.T) {
	tree := "!!! [1123 18:10:54] Call tree:\n!!! [1123 18:10:54]  1: apply.sh:377 kube::test::get_object_assert(...)\n"
	for name, c := range map[string]struct{ log, want string }{
		"a comparison": {
			log:  "apply.sh:1: Successful get\n\x1b[1m\x1b[31m\napply.sh:377: FAIL!\nGet crds {{.}}\n  Expected: a\n  Got:      b\n\x1b(B\x1b[m" + tree,
			want: "apply.sh:377: FAIL! | Get crds {{.}} | Expected: a | Got:      b | !!! [1123 18:10:54] Call tree:",
		},
		"a command": {log: "one\nThe Node is invalid\n" + tree, want: "apply.sh:377 kube::test::get_object_assert(...) failed after: one | The Node is invalid"},
		"a later comparison": {
			log: "The Node is invalid\n" + tree + "FAIL!\n", want: "apply.sh:377 kube::test::get_object_assert(...) failed after: The Node is invalid",
		},
		"what was before the group": {
			log:  "FAIL! canary\n" + tree + "=== run_good_tests\nThe Node is invalid\n" + tree,
			want: "apply.sh:377 kube::test::get_object_assert(...) failed after: _good_tests | The Node is invalid",
		},
		"nothing": {log: "all is well\n"},
	} {
		if got := firstFailure(c.log); !strings.HasPrefix(got, c.want) || c.want == "" && got != "" {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
	if got := firstFailure("FAIL!\n" + strings.Repeat("x", 10*journal.MaxText)); len(got) > journal.MaxText+3 {
		t.Errorf("a message of %d bytes", len(got))
	}
}

func TestResultsAreOfOneBuildAndTheLastCounts(t *testing.T) {
	file := filepath.Join(t.TempDir(), "out", "results.jsonl")
	b, err := openBook(file, "new")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []result{
		{Group: "a", Build: "new"},
		{Group: "b", Build: "old", Passed: true},
		{Group: "a", Build: "new", Passed: true, Took: time.Second},
	} {
		if err := b.add(r); err != nil {
			t.Fatal(err)
		}
	}
	write(t, file, read(t, file)+`{"group":"half`)
	if b, err = openBook(file, "new"); err != nil {
		t.Fatal(err)
	}
	if r, ok := b.of("a"); !ok || !r.Passed || r.Took != time.Second {
		t.Errorf("a is %+v, %t", r, ok)
	}
	if _, ok := b.of("b"); ok {
		t.Error("another build's result counts")
	}
}

// The functions that the driver needs of upstream's scripts, and groups that end in each way.
const fakeScripts = `
create_and_use_new_namespace() { :; }
stop-proxy() { touch "$TMPDIR/stopped"; }
kube::util::ensure-gnu-sed() { :; }
run_good_tests() { set -o errexit; kubectl true; echo "home is $HOME"; }
run_bad_tests() { set -o errexit; echo "FAIL! bad"; false; echo "never reached"; }
run_slow_tests() { set -o errexit; sleep 1000 & echo "$!" > "$TMPDIR/sleeper"; wait; }
runTests() {
  [ -z "${WHAT-}" ] || { record_command run_selected_tests; return; }
  record_command run_good_tests
  echo "between the groups"
  record_command run_bad_tests
}
`

func TestEachGroupRunsInAProcessOfItsOwn(t *testing.T) {
	s := &site{dir: t.TempDir(), address: "127.0.0.1:1"}
	s.scripts = s.path("kubernetes")
	if err := os.MkdirAll(s.path("tmp"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, lib := range []string{"hack/lib/init.sh", "hack/lib/test.sh"} {
		write(t, filepath.Join(s.scripts, lib), "")
	}
	write(t, filepath.Join(s.scripts, "test/cmd/legacy-script.sh"), fakeScripts)
	write(t, s.path("driver.sh"), driver)
	write(t, s.path("bin/kubectl"), "#!/bin/sh\nexit 0\n")
	t.Setenv("PATH", s.path("bin")+":"+os.Getenv("PATH"))
	t.Setenv("KUBECONFIG", "/the/user's")

	log := s.path("log")
	if r := s.runGroup(t.Context(), "run_good_tests", log, time.Minute); !r.Passed || r.Group != "run_good_tests" {
		t.Errorf("a good group: %+v\n%s", r, read(t, log))
	}
	if got := read(t, log); !strings.Contains(got, "home is "+s.path("home")) {
		t.Errorf("it printed %q", got)
	}
	if r := s.runGroup(t.Context(), "run_bad_tests", log, time.Minute); r.Passed || r.Message != "FAIL! bad" {
		t.Errorf("a bad group: %+v\n%s", r, read(t, log))
	}
	if r := s.runGroup(t.Context(), inline, log, time.Minute); !r.Passed || !strings.Contains(read(t, log), "between the groups") {
		t.Errorf("what is between the groups: %+v\n%s", r, read(t, log))
	}
	if r := s.runGroup(t.Context(), "run_unknown_tests", log, time.Minute); r.Passed {
		t.Error("a group that does not exist has passed")
	}
	if slices.ContainsFunc(s.environment(), func(v string) bool { return strings.HasPrefix(v, "KUBECONFIG=") }) {
		t.Error("the user's kubeconfig is in the environment of groups")
	}
}

func TestAGroupThatTakesTooLongEndsWithAllItStarted(t *testing.T) {
	s := &site{dir: t.TempDir(), address: "127.0.0.1:1"}
	s.scripts = s.dir
	fifo := s.path("log")
	write(t, s.path("driver.sh"), "sleep 1000 & sleep 1000\n")
	r := s.runGroup(t.Context(), "run_slow_tests", fifo, 200*time.Millisecond)
	if r.Passed || !strings.Contains(r.Message, "not done after 200ms") {
		t.Errorf("got %+v", r)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.drive(ctx, "run_slow_tests", fifo, time.Minute); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
}

func TestBadFlagsAreRefused(t *testing.T) {
	for _, args := range [][]string{{"--groups", "("}, {"--parallel", "0"}, {"--patience", "0s"}, {"surplus"}} {
		if _, err := parseOptions(args); err == nil {
			t.Errorf("%v is accepted", args)
		}
	}
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
