// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"fmt"

	"github.com/wasmplane/wasmplane/plugins/host/preview1"
)

// command is the surroundings of a module that is run as a command of WASI.
type command struct {
	preview1.Standard
	out []byte
}

// standard is nil for a module that is no command.
func (c *command) standard() *preview1.Standard {
	if c == nil {
		return nil
	}
	return &c.Standard
}

// Command runs the module's _start once, with arguments and standard input, and
// returns its standard output, bounded as answers are. Standard error goes to the
// log. An exit with another code than 0 is a *Fault of kind Exit.
func (in *Instance) Command(args []string, stdin []byte) ([]byte, error) {
	if err := in.Input(len(stdin)); err != nil {
		return nil, err
	}
	in.command = &command{Standard: preview1.Standard{Args: args, Stdin: stdin}}
	defer func() { in.command = nil }()
	_, err := in.Run("_start")
	var f *Fault
	if errors.As(err, &f) && f.Kind == Exit && f.ExitCode == 0 {
		err = nil
	}
	return in.command.out, err
}

func (in *Instance) stdout(data []byte) {
	in.charge(int64(len(data)) / 4)
	c := in.command
	if limit := in.module.opts.Limits.Output; int64(len(c.out)+len(data)) > limit {
		panic(&stop{kind: OutputSize, detail: fmt.Sprintf("it printed more than limits.output (%d bytes)", limit)})
	}
	c.out = append(c.out, data...)
}

// SetStdin puts other bytes into a command's standard input: replies to its host calls.
func (in *Instance) SetStdin(b []byte) {
	if in.command != nil {
		in.command.Stdin = b
	}
}
