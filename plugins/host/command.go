// SPDX-License-Identifier: Apache-2.0

package host

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// command is the surroundings of a module that is run as a command of WASI.
type command struct {
	args  []string
	stdin []byte
	out   []byte
}

// Command runs the module's _start once, with arguments and standard input, and
// returns its standard output, bounded as answers are. Standard error goes to the
// log. An exit with another code than 0 is a *Fault of kind Exit.
func (in *Instance) Command(args []string, stdin []byte) ([]byte, error) {
	if err := in.Input(len(stdin)); err != nil {
		return nil, err
	}
	in.command = &command{args: args, stdin: stdin}
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

// wasiRead reads standard input; there is no other file.
func wasiRead(in *Instance, s []uint64) uint64 {
	fd, vec, count, result := uint32(s[0]), uint32(s[1]), uint32(s[2]), uint32(s[3])
	if fd != 0 || in.command == nil {
		return wasiBadFd
	}
	in.charge(int64(count) * 4)
	if count > 1024 {
		return wasiInval
	}
	var total uint32
	for i := uint32(0); i < count; i++ {
		v, ok := in.memory.Read(vec+8*i, 8)
		if !ok {
			return wasiInval
		}
		room, ok := in.memory.Read(binary.LittleEndian.Uint32(v), binary.LittleEndian.Uint32(v[4:]))
		if !ok {
			return wasiInval
		}
		n := copy(room, in.command.stdin)
		in.charge(int64(n) / 4)
		in.command.stdin = in.command.stdin[n:]
		total += uint32(n)
	}
	return in.put32(result, total)
}

func (in *Instance) arguments() []string {
	if in.command == nil {
		return nil
	}
	return in.command.args
}

func wasiArgSizes(in *Instance, s []uint64) uint64 {
	var bytes uint32
	args := in.arguments()
	for _, a := range args {
		bytes += uint32(len(a)) + 1
	}
	return max(in.put32(uint32(s[0]), uint32(len(args))), in.put32(uint32(s[1]), bytes))
}

func wasiArgs(in *Instance, s []uint64) uint64 {
	argv, buf := uint32(s[0]), uint32(s[1])
	for _, a := range in.arguments() {
		if in.put32(argv, buf) != wasiOK || !in.memory.WriteString(buf, a+"\x00") {
			return wasiInval
		}
		argv, buf = argv+4, buf+uint32(len(a))+1
	}
	return wasiOK
}

// SetStdin puts other bytes into a command's standard input: replies to its host calls.
func (in *Instance) SetStdin(b []byte) {
	if in.command != nil {
		in.command.stdin = b
	}
}
