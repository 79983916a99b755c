// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/wasmplane/wasmplane/test/internal/gotool"
)

// inline is the name of what upstream asks between its groups, in the function that
// calls them.
const inline = "runTests"

// nodes is the group that looks at the conditions of the node.
const nodes = "run_nodes_tests"

var (
	// recorded is how upstream's script calls a group.
	recorded = regexp.MustCompile(`(?m)^\s*record_command (run_\w+)\s*$`)
	// temporary are the places outside of their own folder that scripts write to.
	temporary = regexp.MustCompile(`(/var)?/tmp/`)
	// plain are paths that no shell takes apart, for the scripts don't quote theirs.
	plain = regexp.MustCompile(`^[\w/.,:@%+-]+$`)
)

// published is where a group finds files of upstream's repository on the internet.
const published = "https://raw.githubusercontent.com/kubernetes/kubernetes/master/"

// parts are the folders that the scripts read, in the module.
func parts() []string {
	return []string{
		"test/cmd", "test/fixtures", "test/e2e/testing-manifests", "hack/lib", "hack/testdata", "third_party/forked/shell2junit",
	}
}

// chosen are the groups that a pattern takes, in upstream's order.
func chosen(upstream string, pattern *regexp.Regexp) ([]string, error) {
	script := filepath.Join(upstream, "test", "cmd", "legacy-script.sh")
	text, err := os.ReadFile(script)
	if err != nil {
		return nil, err
	}
	all := groupsOf(string(text))
	if len(all) == 1 {
		return nil, fmt.Errorf("%s calls no groups with record_command: this version of upstream's tests is made otherwise", script)
	}
	groups := slices.DeleteFunc(slices.Clone(all), func(g string) bool { return !pattern.MatchString(g) })
	if len(groups) == 0 {
		return nil, fmt.Errorf("--groups: %q is in the name of none of the %d groups; --list prints them", pattern, len(all))
	}
	return groups, nil
}

// groupsOf are the groups that a script calls, and what it asks between them.
func groupsOf(script string) []string {
	var groups []string
	for _, m := range recorded.FindAllStringSubmatch(script, -1) {
		if !slices.Contains(groups, m[1]) {
			groups = append(groups, m[1])
		}
	}
	return append(groups, inline)
}

// takeScripts copies what the groups read to a folder, and has the scripts write below
// tmp what they would write to /tmp, and read from pages what they would from the internet.
func takeScripts(upstream, to, tmp, pages string) error {
	if !plain.MatchString(to) || !plain.MatchString(tmp) {
		return fmt.Errorf("upstream's scripts cannot work in %s: set TMPDIR to a folder whose path has neither spaces nor quotes", to)
	}
	for _, part := range parts() {
		if err := copyTree(filepath.Join(upstream, part), filepath.Join(to, part), tmp, pages); err != nil {
			return err
		}
	}
	return nil
}

func copyTree(from, to, tmp, pages string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		target := filepath.Join(to, strings.TrimPrefix(path, from))
		if d.IsDir() {
			return os.MkdirAll(target, 0o755)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if strings.HasSuffix(path, ".sh") {
			data = temporary.ReplaceAllLiteral(data, []byte(tmp+"/"))
			data = bytes.ReplaceAll(data, []byte(published), []byte(pages))
		}
		// The module cache's files are read-only, and scripts that are run need to be executable.
		return os.WriteFile(target, data, 0o755)
	})
}

// version is of a program of Kubernetes.
type version struct {
	GitVersion   string `json:"gitVersion"`
	GitCommit    string `json:"gitCommit"`
	GitTreeState string `json:"gitTreeState"`
	Major        string `json:"major"`
	Minor        string `json:"minor"`
}

// buildTools builds kubectl and kubectl-convert as upstream's tests want them: of the same version
// as the server, which --match-server-version compares with the commit. It answers their folder.
func buildTools(ctx context.Context, o options) (string, error) {
	if err := installed("bash", "curl", "diff", "jq", "openssl", "script", "sed", "tput"); err != nil {
		return "", err
	}
	said, err := gotool.Output(ctx, "", append(os.Environ(), "KUBERC=off"), o.wasmplane, "kubectl", "version", "--client", "-o", "json")
	if err != nil {
		return "", err
	}
	var v struct {
		ClientVersion version `json:"clientVersion"`
	}
	if err := json.Unmarshal([]byte(said), &v); err != nil {
		return "", fmt.Errorf("what %s says of its version: %w", o.wasmplane, err)
	}
	if err := os.MkdirAll(o.cache, 0o755); err != nil {
		return "", err
	}
	for _, name := range []string{"kubectl", "kubectl-convert"} {
		if _, err := gotool.Run(ctx, o.module, "build", "-ldflags", v.ClientVersion.flags(), "-o", filepath.Join(o.cache, name),
			"k8s.io/kubernetes/cmd/"+name); err != nil {
			return "", err
		}
	}
	return o.cache, nil
}

// flags make the linker say that a program is of a version.
func (v version) flags() string {
	flags := []string{"-s", "-w"}
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		for _, field := range [][2]string{
			{"gitVersion", v.GitVersion}, {"gitCommit", v.GitCommit}, {"gitTreeState", v.GitTreeState}, {"gitMajor", v.Major}, {"gitMinor", v.Minor},
		} {
			flags = append(flags, "-X", pkg+"."+field[0]+"="+field[1])
		}
	}
	return strings.Join(flags, " ")
}

// installed is an error where one of the programs is missing.
func installed(programs ...string) error {
	var missing []string
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			missing = append(missing, p)
		}
	}
	if missing != nil {
		return fmt.Errorf("upstream's scripts need %s, which this machine lacks: `make deps-kubectl` installs them", strings.Join(missing, ", "))
	}
	return nil
}
