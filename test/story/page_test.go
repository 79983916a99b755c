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
	"strconv"
	"strings"
	"testing"

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

// block is what one block of a page has a reader type.
type block struct {
	where    string // the paragraph before it
	commands []string
}

// blocksBelow are the blocks of a page's part with that heading, in its order.
func blocksBelow(page, heading string) (all []block, err error) {
	_, rest, found := strings.Cut("\n"+page, "\n"+heading+"\n")
	if !found {
		return nil, fmt.Errorf("there is no heading %q", heading)
	}
	var is block
	inside, over := false, false // over: the paragraph has ended
	for line := range strings.Lines(rest) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case inside && line == "```":
			all, is, inside = append(all, is), block{where: is.where}, false
		case inside:
			if command, _, _ := strings.Cut(line, " # "); strings.TrimSpace(command) != "" {
				is.commands = append(is.commands, strings.TrimSpace(command))
			}
		case line == "```sh":
			inside, over = true, true
		case strings.HasPrefix(line, "#"):
			return all, nil
		case line == "":
			over = true
		case over:
			is.where, over = line, false
		default:
			is.where += " " + line
		}
	}
	return all, nil
}

// section answers the commands of a page's part with that heading, in the order in which a reader runs them.
func section(page, heading string) ([]onMachine, error) {
	blocks, err := blocksBelow(page, heading)
	if err != nil {
		return nil, err
	}
	var all []onMachine
	for _, b := range blocks {
		names := whereTo.FindAllStringSubmatch(b.where, -1)
		if len(names) == 0 {
			return nil, fmt.Errorf("nothing says on which machine this runs: %s", strings.Join(b.commands, "; "))
		}
		for _, name := range names {
			for _, command := range b.commands {
				all = append(all, onMachine{name[1], command})
			}
		}
	}
	return all, nil
}

// page FILE 'HEADING' MACHINE=NAME... does what a part of a page of docs says, each command on the
// machine that the page names: the one that `machines` made as NAME. The first MACHINE is the page's
// 192.0.2.1. A command that runs a server or a worker has to become ready, and goes on under NAME.
//
// page FILE 'HEADING' N [-WORD=VALUE...] [-stdin=FILE] MACHINE=NAME [FIRST=NAME] does what the Nth block says, on
// that machine, with words of it replaced; FIRST is the page's 192.0.2.1.
func (s *stage) page(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 3 {
		ts.Fatalf("usage: page FILE 'HEADING' [N [-WORD=VALUE...] [-stdin=FILE]] MACHINE=NAME...")
	}
	text, err := os.ReadFile(filepath.Join(built.Root, "docs", args[0]))
	ts.Check(err)
	n, err := strconv.Atoi(args[2])
	if err == nil {
		s.pageBlock(ts, string(text), args[1], n, args[3:])
		return
	}
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
		s.runOn(ts, name, c, strings.ReplaceAll(c.command, "192.0.2.1", ts.Getenv("ADDRESS_"+first)), nil)
	}
	if len(commands) == 0 {
		ts.Fatalf("no commands below %q", args[1])
	}
}

func (s *stage) pageBlock(ts *testscript.TestScript, text, heading string, n int, args []string) {
	blocks, err := blocksBelow(text, heading)
	ts.Check(err)
	if n < 1 || n > len(blocks) {
		ts.Fatalf("there are %d blocks below %q", len(blocks), heading)
	}
	var machines, words []string
	var input []byte
	for _, arg := range args {
		before, after, _ := strings.Cut(strings.TrimPrefix(arg, "-"), "=")
		switch {
		case strings.HasPrefix(arg, "-stdin="):
			input = []byte(ts.ReadFile(after))
		case strings.HasPrefix(arg, "-"):
			words = append(words, before, after)
		default:
			machines = append(machines, before, after)
		}
	}
	if len(machines) == 0 {
		ts.Fatalf("name the machine")
	}
	machine, name, first := machines[0], machines[1], machines[len(machines)-1]
	s.remoteShell(ts, first)
	words = append(words, "192.0.2.1", ts.Getenv("ADDRESS_"+first), "/var/lib/wasmplane", ts.Getenv("DATA_"+name))
	for _, command := range blocks[n-1].commands {
		s.runOn(ts, name, onMachine{machine, command}, strings.NewReplacer(words...).Replace(command), input)
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

// runOn runs a command on a machine; input is what a reader pastes.
func (s *stage) runOn(ts *testscript.TestScript, name string, c onMachine, command string, input []byte) {
	ts.Logf("on %s: %s", c.machine, command)
	in := func(command string) *exec.Cmd {
		cmd := exec.Command("nsenter", ts.Getenv("IN_"+name), "bash", "-c", command)
		cmd.Dir = ts.MkAbs(".")
		cmd.Env = append(slices.DeleteFunc(environment(ts.Getenv), func(e string) bool { return strings.HasPrefix(e, "KUBECONFIG=") }),
			"PATH="+ts.MkAbs("path")+":"+ts.Getenv("PATH"), "WASMPLANE_TOOLCHAINS="+built.cache, "WASMPLANE_DATA_DIR="+ts.Getenv("DATA_"+name),
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

// The machines of a paragraph count wherever its lines break, and those of the paragraph before do not.
func TestMachinesOfAParagraph(t *testing.T) {
	const page = "## Part\nOn `server-9`, nothing.\n\nOn `server-1`\nand on\n`server-2`:\n\n```sh\none   # first\ntwo\n```\n\nOn `server-3`:\n```sh\nthree\n```\n## Next\n"
	is, err := section(page, "## Part")
	want := []onMachine{{"server-1", "one"}, {"server-1", "two"}, {"server-2", "one"}, {"server-2", "two"}, {"server-3", "three"}}
	if err != nil || !slices.Equal(is, want) {
		t.Errorf("%v, %v", is, err)
	}
}
