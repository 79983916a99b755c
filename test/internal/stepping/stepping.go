// SPDX-License-Identifier: Apache-2.0

// Package stepping steps the wall clock of one process while it runs, ahead or back, as NTP, an administrator or a machine that
// wakes do. The process's program is built with test/clock's overlay, and not stripped. Its timers and the kernel
// notice nothing: time namespaces would shift those, and leave the wall clock as it is.
package stepping

import (
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"
)

// variable is what test/clock's overlay adds to the seconds of the clock.
const variable = "runtime.starttime"

// Set has the process's clock be ahead of the true time, in whole seconds; negative: behind.
func Set(pid int, program string, ahead time.Duration) error {
	at, err := address(program)
	if err != nil {
		return err
	}
	memory, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = memory.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(ahead/time.Second)), at) //nolint:gosec // negative numbers wrap, as wanted
	return errors.Join(err, memory.Close())
}

func address(program string) (int64, error) {
	f, err := elf.Open(program)
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	if f.Type != elf.ET_EXEC {
		return 0, fmt.Errorf("%s is loaded where chance says: build it with -buildmode=exe", program)
	}
	symbols, err := f.Symbols()
	if err != nil {
		return 0, fmt.Errorf("%s: %w: build it without -s", program, err)
	}
	for _, s := range symbols {
		if s.Name == variable {
			return int64(s.Value), nil //nolint:gosec // an address of user space
		}
	}
	return 0, fmt.Errorf("%s has no variable %s: build it with test/clock's overlay", program, variable)
}
