// SPDX-License-Identifier: Apache-2.0

package host

import "time"

// fault makes a Fault of what the engine returned, with what the guest said of it.
func (in *Instance) fault(err error) *Fault {
	f := in.module.fault(err)
	in.out.Flush()
	if f.Kind == Trap || f.Kind == Exit || f.Kind == StackDepth {
		f.Printed = in.out.Excerpt()
	}
	return f
}

// startFault is the fault of a guest that has not begun to work.
func (in *Instance) startFault(err error) *Fault {
	f := in.fault(err)
	f.Detail = "while it started: " + f.Detail
	return f
}

// printed takes what a guest writes to stdout or stderr.
func (in *Instance) printed(data []byte) {
	in.charge(int64(len(data)))
	in.out.Write(data)
}

// spent is what the call that has ended cost.
func (in *Instance) spent(start time.Time) Usage {
	in.finish()
	in.out.Flush()
	return Usage{
		Fuel: in.used(), HostCalls: in.meter.hostCalls, Memory: uint32(in.linear.Size()), Duration: time.Since(start),
		Printed: in.out.Text(),
	}
}
