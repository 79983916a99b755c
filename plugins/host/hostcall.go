// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Func is a host function that an operator may grant to a plugin. input is valid
// until it returns. The context ends with the call's deadline.
type Func func(ctx context.Context, input []byte) ([]byte, error)

// What a host call answers instead of a length.
const (
	callRefused = -1 // not granted, or unknown; the reply is the reason
	callFailed  = -2 // the function failed; the reply is its error
)

// hostCall is wasmplane.call(op, op_len, in, in_len, out, out_cap) -> i64: the
// length of the reply, which is copied where it fits into out_cap, or a negative
// number, with the reason as the reply. A guest whose buffer was too small asks
// again with an empty name of the operation, and gets the same reply.
func hostCall(in *Instance, s []uint64) {
	opAt, opLen, inAt, inLen, outAt, outCap := uint32(s[0]), uint32(s[1]), uint32(s[2]), uint32(s[3]), uint32(s[4]), uint32(s[5])
	if opLen == 0 {
		s[0] = uint64(in.copyReply(outAt, outCap))
		return
	}
	m := &in.meter
	if m.hostCalls++; m.hostCalls > in.module.opts.Limits.HostCalls {
		panic(&stop{kind: HostCalls, detail: fmt.Sprintf("it called the host more than %d times (limits.hostCalls)",
			in.module.opts.Limits.HostCalls)})
	}
	op, ok := in.memory.Read(opAt, min(opLen, 256))
	input, ok2 := in.memory.Read(inAt, inLen)
	if !ok || !ok2 {
		panic(&stop{kind: BadPointer, detail: "it called the host with a pointer outside of its memory"})
	}
	in.charge(int64(inLen) / 4)
	code, reply := in.runHostFunc(string(op), input)
	in.charge(int64(len(reply)) / 4)
	in.checkTime(time.Now())
	in.reply = reply
	n := in.copyReply(outAt, outCap)
	if code < 0 {
		n = code
	}
	s[0] = uint64(n)
}

func (in *Instance) runHostFunc(op string, input []byte) (code int64, reply []byte) {
	f, ok := in.module.opts.Funcs[op]
	if !ok {
		return callRefused, fmt.Appendf(nil, "host function %q is not granted to plugin %q (grants)", op, in.module.name)
	}
	ctx, cancel := context.WithDeadline(in.ctx.request, in.meter.deadline)
	defer cancel()
	done := &work{left: in.meter.budget - in.used()}
	in.giveTurn()
	out, err := f(context.WithValue(ctx, workKey{}, done), input)
	in.charge(done.units)
	if err == nil && int64(len(out)) > in.module.opts.Limits.HostReply {
		err = fmt.Errorf("the reply of %d bytes is more than %d", len(out), in.module.opts.Limits.HostReply)
	}
	var refused *RefusedError
	if errors.As(err, &refused) {
		return callRefused, []byte(err.Error())
	}
	if err != nil {
		return callFailed, []byte(err.Error())
	}
	return 0, out
}

// RefusedError is what a host function returns for what the grants do not cover.
type RefusedError struct{ Reason string }

func (e *RefusedError) Error() string { return e.Reason }

func (in *Instance) copyReply(at, capacity uint32) int64 {
	n := uint32(len(in.reply))
	if n <= capacity && n > 0 && !in.memory.Write(at, in.reply) {
		panic(&stop{kind: BadPointer, detail: "it wants a reply outside of its memory"})
	}
	return int64(n)
}
