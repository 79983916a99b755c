// SPDX-License-Identifier: Apache-2.0

package linear

import "unsafe"

// ptr is the address of a mapped region, for the system call that maps over it.
func ptr(region []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(region)) }

// address is where a mapped region is.
func address(region []byte) uintptr { return uintptr(ptr(region)) }
