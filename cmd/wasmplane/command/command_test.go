// SPDX-License-Identifier: Apache-2.0

package command

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/datadir"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/kubectltexts"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/shell"
	"github.com/wasmplane/wasmplane/core/config"
)

// execute runs a command line and returns its exit code and what it printed.
func execute(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = Main(args, &out, &errs)
	return code, out.String(), errs.String()
}

func TestMistakesAreAnsweredWithWhatToDo(t *testing.T) {
	t.Setenv("KUBECONFIG", "")
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
		{"kubectl --data-dir " + dir + " get pods", "holds no cluster; start one with: wasmplane up"},
		{"trace pod/a --data-dir " + dir, "holds no cluster; start one with: wasmplane up"},
		{"plugin list --data-dir " + dir, "holds no cluster; start one with: wasmplane up"},
		{"webhook", "--kubeconfig is missing: that of the cluster to serve"},
	} {
		code, _, stderr := execute(t, strings.Fields(c.args)...)
		if code != 1 || !strings.Contains(stderr, c.want) {
			t.Errorf("wasmplane %s: exit code %d, stderr %q; want 1 and %q", c.args, code, stderr, c.want)
		}
	}
}

// A link to the program by the name of kubectl is kubectl.
func TestTheNameSaysWhatItIs(t *testing.T) {
	for _, c := range []struct{ line, want string }{
		{"wasmplane get pods", "get pods"},
		{"/usr/bin/wasmplane kubectl get pods", "kubectl get pods"},
		{"/usr/bin/kubectl get pods", "kubectl get pods"},
		{"kubectl", "kubectl"},
		{"wasmplane", ""},
	} {
		if got := strings.Join(kubectltexts.Args(strings.Fields(c.line)), " "); got != c.want {
			t.Errorf("%s: arguments %q, want %q", c.line, got, c.want)
		}
	}
}

func TestVariablesStandInForFlags(t *testing.T) {
	t.Setenv("WASMPLANE_NODES", "several")
	t.Setenv("WASMPLANE_DATA_DIR", t.TempDir())
	if _, _, stderr := execute(t, "up"); !strings.Contains(stderr, `found "several"`) {
		t.Errorf("the variable was not read: %q", stderr)
	}
	// A flag goes before its variable.
	if _, _, stderr := execute(t, "up", "--nodes", "few"); !strings.Contains(stderr, `found "few"`) {
		t.Errorf("the flag did not win: %q", stderr)
	}
}

// nameOf is what a command line makes of the cluster's name, and of the network that derives from it.
func nameOf(t *testing.T, args ...string) (cfg *config.Configuration, err error) {
	t.Helper()
	a := &app{shell.New(os.Stdin, io.Discard, io.Discard)}
	var s settings
	f := pflag.NewFlagSet("up", pflag.ContinueOnError)
	a.addSettings(f, &s)
	if err := f.Parse(args); err != nil {
		t.Fatal(err)
	}
	return a.load(f, &s)
}

// What a cluster has put on this machine goes by its name: who starts it again without the name gets that
// one, and who says another is told what to do.
func TestADirectoryKeepsTheNameOfItsCluster(t *testing.T) {
	dir := datadir.Dir(t.TempDir())
	at := []string{"--data-dir", string(dir)}
	file := filepath.Join(t.TempDir(), "other.yaml")
	if err := os.WriteFile(file, []byte("apiVersion: wasmplane.dev/v1alpha1\nkind: Configuration\ncluster: {name: beta}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if cfg, err := nameOf(t, at...); err != nil || cfg.Cluster.Name != "wasmplane" {
		t.Fatalf("a new directory: %v, %v", cfg, err)
	}
	if cfg, err := nameOf(t, append(at, "--config", file)...); err != nil || cfg.Cluster.Name != "beta" {
		t.Fatalf("a new directory, and a file: %v, %v", cfg, err)
	}
	wanted, err := nameOf(t, append(at, "--cluster-name", "alpha")...)
	if err != nil {
		t.Fatal(err)
	}
	if err := dir.WriteState(datadir.State{Cluster: "alpha"}); err != nil {
		t.Fatal(err)
	}
	for _, more := range [][]string{nil, {"--cluster-name", "alpha"}} {
		cfg, err := nameOf(t, append(at, more...)...)
		if err != nil {
			t.Fatal(err)
		}
		if cfg.Cluster.Name != "alpha" || cfg.Cluster.PodCIDR != wanted.Cluster.PodCIDR {
			t.Errorf("with %v it is cluster %s with pods in %s, want alpha with %s", more, cfg.Cluster.Name, cfg.Cluster.PodCIDR,
				wanted.Cluster.PodCIDR)
		}
	}
	for name, args := range map[string][]string{
		`--cluster-name is "beta"`:      {"--cluster-name", "beta"},
		`--cluster-name is "wasmplane"`: {"--cluster-name", "wasmplane"},
		`cluster.name in ` + file:       {"--config", file},
	} {
		_, err := nameOf(t, append(at, args...)...)
		if err == nil || !strings.HasPrefix(err.Error(), name) || !strings.Contains(err.Error(), `holds the cluster "alpha"`) ||
			!strings.Contains(err.Error(), "wasmplane down --purge --data-dir "+string(dir)) {
			t.Errorf("%v: %v", args, err)
		}
	}
	// Every command that takes the name asks the directory for it.
	for _, command := range []string{"up", "apiserver", "agent", "join", "kubelet --kubeconfig x", "proxy --kubeconfig x"} {
		line := append(append(strings.Fields(command), at...), "--cluster-name", "beta")
		if code, _, stderr := execute(t, line...); code != 1 || !strings.Contains(stderr, `holds the cluster "alpha"`) {
			t.Errorf("%v: exit code %d, stderr %q", line, code, stderr)
		}
	}
	if err := os.WriteFile(filepath.Join(string(dir), "state.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := nameOf(t, at...); err == nil || !strings.Contains(err.Error(), "say which cluster it is by --cluster-name") {
		t.Errorf("what is recorded is damaged: %v", err)
	}
	if cfg, err := nameOf(t, append(at, "--cluster-name", "alpha")...); err != nil || cfg.Cluster.Name != "alpha" {
		t.Errorf("what is recorded is damaged, and the name is said: %v", err)
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
