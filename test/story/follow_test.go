// SPDX-License-Identifier: Apache-2.0

package story

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/wasmplane/wasmplane/core/why"
	"github.com/wasmplane/wasmplane/test/internal/harness"
)

// follow waits until `wasmplane why` gives a cause that matches in its first line, and does
// what it suggests: the first command that matches, as it is printed, but for the words that
// it leaves open.
func (s *stage) follow(ts *testscript.TestScript, neg bool, args []string) {
	open := strings.NewReplacer()
	if len(args) > 0 && strings.HasPrefix(args[0], "-") {
		from, to, _ := strings.Cut(args[0][1:], "=")
		open, args = strings.NewReplacer(from, to), args[1:]
	}
	if neg || len(args) < 3 {
		ts.Fatalf("usage: follow [-WORD=VALUE] 'CAUSE' 'COMMAND' WHY-ARGS")
	}
	cause, err := regexp.Compile(args[0])
	ts.Check(err)
	wanted, err := regexp.Compile(args[1])
	ts.Check(err)
	path := s.commands(ts)
	var command string
	last, ok := until(func() (bool, string) {
		out, err := s.shell(ts, path, `wasmplane why "$@" && wasmplane why -o json "$@"`, args[2:]...)
		text, document, found := strings.Cut(out, "\n{")
		first, _, _ := strings.Cut(text, "\n")
		var a why.Answer
		if err != nil || !found || !cause.MatchString(first) || json.Unmarshal([]byte("{"+document), &a) != nil {
			return false, out
		}
		for _, c := range a.Changes {
			if wanted.MatchString(c.Command) {
				command = c.Command
				return true, text
			}
		}
		return false, out
	})
	if !ok {
		ts.Fatalf("waited %s for %s, and a command like %s; last:\n%s", harness.Patience, cause, wanted, last)
	}
	command = open.Replace(command)
	_, _ = fmt.Fprintln(ts.Stdout(), last+"\n$ "+command)
	out, err := s.shell(ts, path, command)
	_, _ = io.WriteString(ts.Stdout(), out)
	if err != nil {
		ts.Fatalf("what was suggested fails: %v\n%s", err, out)
	}
}

// commands is a folder with wasmplane and kubectl as users call them.
func (s *stage) commands(ts *testscript.TestScript) string {
	bin := ts.MkAbs("commands")
	ts.Check(os.MkdirAll(bin, 0o755))
	for name, call := range map[string]string{"wasmplane": "", "kubectl": " kubectl"} {
		ts.Check(os.WriteFile(filepath.Join(bin, name), fmt.Appendf(nil, "#!/bin/sh\nexec %s%s \"$@\"\n", built.Binary, call), 0o755)) //nolint:gosec // a program
	}
	return bin
}

func (s *stage) shell(ts *testscript.TestScript, path, command string, args ...string) (string, error) {
	cmd := exec.Command("sh", append([]string{"-c", command, "sh"}, args...)...)
	cmd.Env, cmd.Dir = append(environment(ts.Getenv), "PATH="+path+":"+ts.Getenv("PATH"), "KUBECONFIG="+ts.Getenv("KUBECONFIG")), ts.MkAbs(".")
	out, err := cmd.CombinedOutput()
	return string(out), err
}
