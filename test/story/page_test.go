// SPDX-License-Identifier: Apache-2.0

package story

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/wasmplane/wasmplane/test/internal/harness"
)

// onMachine is a command of a page, and the machine that a reader runs it on.
type onMachine struct{ machine, command string }

var (
	// whereTo is how a page says it, in the line before a block: On `server-2`, and then on `server-3`: ...
	whereTo     = regexp.MustCompile("[Oo]n `([a-z]+-[0-9])`")
	keepsServer = regexp.MustCompile(`wasmplane (up|join|agent)\b`)
	nodeIsReady = regexp.MustCompile(`(?m)^Ready in .*$`)
)

// section answers the commands of a page's part with that heading, in the order in which a reader runs them.
func section(page, heading string) ([]onMachine, error) {
	_, rest, found := strings.Cut("\n"+page, "\n"+heading+"\n")
	if !found {
		return nil, fmt.Errorf("there is no heading %q", heading)
	}
	var all []onMachine
	var block []string
	where, inside := "", false
	for line := range strings.Lines(rest) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case inside && line == "```":
			names := whereTo.FindAllStringSubmatch(where, -1)
			if len(names) == 0 {
				return nil, fmt.Errorf("nothing says on which machine this runs: %s", strings.Join(block, "; "))
			}
			for _, name := range names {
				for _, command := range block {
					all = append(all, onMachine{name[1], command})
				}
			}
			inside, block = false, nil
		case inside:
			if command, _, _ := strings.Cut(line, " # "); strings.TrimSpace(command) != "" {
				block = append(block, strings.TrimSpace(command))
			}
		case line == "```sh":
			inside = true
		case strings.HasPrefix(line, "#"):
			return all, nil
		case line != "":
			where = line
		}
	}
	return all, nil
}

// page FILE 'HEADING' MACHINE=NAME... does what a part of a page of docs says, each command on the
// machine that the page names: the one that `machines` made as NAME. The first MACHINE is the page's
// 192.0.2.1. A command that runs a server or a worker has to become ready, and goes on under NAME.
func (s *stage) page(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 3 {
		ts.Fatalf("usage: page FILE 'HEADING' MACHINE=NAME...")
	}
	text, err := os.ReadFile(filepath.Join(built.Root, "docs", args[0]))
	ts.Check(err)
	commands, err := section(string(text), args[1])
	ts.Check(err)
	names := map[string]string{}
	_, first, _ := strings.Cut(args[2], "=")
	for _, arg := range args[2:] {
		machine, name, _ := strings.Cut(arg, "=")
		names[machine] = name
	}
	s.remoteShell(ts, first)
	for _, c := range commands {
		name, known := names[c.machine]
		if !known {
			ts.Fatalf("the page has a command on %s, for which this script has no machine: %s", c.machine, c.command)
		}
		s.runOn(ts, name, c, strings.ReplaceAll(c.command, "192.0.2.1", ts.Getenv("ADDRESS_"+first)))
	}
	if len(commands) == 0 {
		ts.Fatalf("no commands below %q", args[1])
	}
}

// remoteShell makes an ssh to the first machine, and wasmplane in the PATH.
func (s *stage) remoteShell(ts *testscript.TestScript, first string) {
	dir := ts.MkAbs("path")
	ts.Check(os.MkdirAll(dir, 0o755))
	_ = os.Remove(filepath.Join(dir, "wasmplane")) // of an earlier part
	ts.Check(os.Symlink(built.Binary, filepath.Join(dir, "wasmplane")))
	script := fmt.Sprintf("#!/bin/sh\n[ \"$1\" = %s ] || exit 255\nshift\nWASMPLANE_DATA_DIR=%s exec nsenter %s \"$@\"\n",
		ts.Getenv("ADDRESS_"+first), ts.Getenv("DATA_"+first), ts.Getenv("IN_"+first))
	ts.Check(os.WriteFile(filepath.Join(dir, "ssh"), []byte(script), 0o755))
}

func (s *stage) runOn(ts *testscript.TestScript, name string, c onMachine, command string) {
	ts.Logf("on %s: %s", c.machine, command)
	in := func(command string) *exec.Cmd {
		cmd := exec.Command("nsenter", ts.Getenv("IN_"+name), "bash", "-c", command)
		cmd.Dir = ts.MkAbs(".")
		cmd.Env = append(slices.DeleteFunc(environment(ts.Getenv), func(e string) bool { return strings.HasPrefix(e, "KUBECONFIG=") }),
			"PATH="+ts.MkAbs("path")+":"+ts.Getenv("PATH"), "WASMPLANE_DATA_DIR="+ts.Getenv("DATA_"+name),
			"WASMPLANE_CLUSTER_NAME="+ts.Getenv("NAME_"+name), "WASMPLANE_NODE_NAME="+c.machine, "WASMPLANE_CONFIG="+ts.MkAbs("machine.yaml"))
		return cmd
	}
	if !keepsServer.MatchString(command) {
		out, err := in(command).CombinedOutput()
		if strings.HasPrefix(command, "wasmplane check") {
			// What a busy machine does not answer within seconds is blocked, it says: one looks again.
			_, _ = until(func() (bool, string) {
				if err != nil {
					out, err = in(command).CombinedOutput()
				}
				return err == nil, ""
			})
		}
		_, _ = ts.Stdout().Write(out)
		if err != nil {
			ts.Fatalf("on %s, %s: %v\n%s", c.machine, command, err, out)
		}
		return
	}
	// What brings a token is run first, so that the process is that of wasmplane and not a shell's.
	var input []byte
	if before, after, piped := strings.Cut(command, " | "); piped {
		cmd := in(before)
		cmd.Stderr = ts.Stderr()
		out, err := cmd.Output()
		if err != nil {
			ts.Fatalf("on %s, %s: %v", c.machine, before, err)
		}
		input, command = out, after
	}
	cmd := in("exec " + command)
	cmd.Stdin = bytes.NewReader(input)
	p, err := s.Start(name, cmd)
	ts.Check(err)
	said, err := p.AwaitLine(nodeIsReady)
	if err != nil {
		ts.Fatalf("on %s, %s: %v\n%s", c.machine, command, err, harness.Tail(p.Output.String(), 30))
	}
	ts.Logf("%s: %s", c.machine, said[0])
}
