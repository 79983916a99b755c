// SPDX-License-Identifier: Apache-2.0

// Package bytejoin puts the parts of a component's encoding together.
package bytejoin

import "encoding/binary"

// Join puts parts one behind the other: a byte and a []byte as they are, an int as an unsigned LEB128 number, which it
// must not be below zero for, and a string with its length before it. Parts of other types are left out.
func Join(parts ...any) (out []byte) {
	for _, p := range parts {
		switch p := p.(type) {
		case byte:
			out = append(out, p)
		case int:
			out = binary.AppendUvarint(out, uint64(p)) //nolint:gosec // not negative
		case string:
			out = append(binary.AppendUvarint(out, uint64(len(p))), p...)
		case []byte:
			out = append(out, p...)
		}
	}
	return out
}
