// SPDX-License-Identifier: Apache-2.0

package command

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// run runs a command line and returns its exit code and what it printed.
func run(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = Main(args, &out, &errs)
	return code, out.String(), errs.String()
}

func TestMistakesAreAnsweredWithWhatToDo(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.yaml")
	if err := os.WriteFile(bad, []byte("apiVersion: wasmplane.dev/v1alpha1\nkind: Configuration\nnode:\n  mod: real\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ args, want string }{
		{"status --data-dir " + dir, "holds no cluster; start one with: wasmplane up"},
		{"scheduler --data-dir " + dir, "`wasmplane apiserver` writes one for each component"},
		{"scheduler --kubeconfig " + dir + "/none", "no such file"},
		{"trace nginx", "expected KIND/NAME"},
		{"trace pod/a -o yaml --data-dir " + dir, "expected json"},
		{"up --nodes many --data-dir " + dir, "expected real, simulated:N or none"},
		{"up --listen nowhere --data-dir " + dir, "expected HOST:PORT"},
		{"up --cluster-name UPPER --data-dir " + dir, "--cluster-name: expected"},
		{"up --log-level loud --nodes none --data-dir " + dir, "--log-level: expected debug"},
		{"up --config " + bad, "bad.yaml:4: node.mod: unknown field; known here: address"},
		{"up --config " + dir + "/none.yaml", "no such file"},
		{"image ls --data-dir " + dir, "holds no cluster"},
		{"trace", "received 0; usage: wasmplane trace KIND/NAME"},
		{"image import", "usage: wasmplane image import"},
		{"down --now", "unknown flag: --now; see: wasmplane down --help"},
		{"frobnicate", `unknown command "frobnicate" for "wasmplane"; see: wasmplane --help`},
		{"statu", "did you mean status?"},
		{"plugin frobnicate", `unknown command "frobnicate" for "wasmplane plugin"; see: wasmplane plugin --help`},
		{"stop all", `takes no arguments, found "all"; usage: wasmplane stop`},
		{"trace pod/a --data-dir " + dir, "holds no cluster; start one with: wasmplane up"},
		{"plugin list --data-dir " + dir, "holds no cluster; start one with: wasmplane up"},
		{"webhook", "--kubeconfig is missing: that of the cluster to serve"},
	} {
		code, _, stderr := run(t, strings.Fields(c.args)...)
		if code != 1 || !strings.Contains(stderr, c.want) {
			t.Errorf("wasmplane %s: exit code %d, stderr %q; want 1 and %q", c.args, code, stderr, c.want)
		}
	}
}

func TestVariablesStandInForFlags(t *testing.T) {
	t.Setenv("WASMPLANE_NODES", "several")
	t.Setenv("WASMPLANE_DATA_DIR", t.TempDir())
	if _, _, stderr := run(t, "up"); !strings.Contains(stderr, `found "several"`) {
		t.Errorf("the variable was not read: %q", stderr)
	}
	// A flag goes before its variable.
	if _, _, stderr := run(t, "up", "--nodes", "few"); !strings.Contains(stderr, `found "few"`) {
		t.Errorf("the flag did not win: %q", stderr)
	}
}

func TestEveryFlagSaysWhatItIsFor(t *testing.T) {
	for _, c := range newRoot(&bytes.Buffer{}, &bytes.Buffer{}).Commands() {
		if c.Short == "" {
			t.Errorf("%s has no description", c.Name())
		}
		if c.Name() != "kubectl" && c.GroupID == "" {
			t.Errorf("%s is in no group", c.Name())
		}
		for _, line := range strings.Split(c.Flags().FlagUsages(), "\n") {
			if words := strings.Fields(line); len(words) == 1 && strings.HasPrefix(words[0], "--") {
				t.Errorf("%s: flag %s has no description", c.Name(), words[0])
			}
		}
	}
}
