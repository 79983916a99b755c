// SPDX-License-Identifier: Apache-2.0

package canon

import (
	"fmt"

	"github.com/wasmplane/wasmplane/plugins/component/ctype"
)

// Trap is why a guest cannot go on.
type Trap struct{ Reason string }

func (t *Trap) Error() string { return t.Reason }

// Fail traps.
func Fail(format string, args ...any) { panic(&Trap{Reason: fmt.Sprintf(format, args...)}) }

// Variant is a case of a variant, enumeration, option or result, with its payload.
type Variant struct {
	Case  uint32
	Value any
}

// None is an option without a value.
func None() Variant { return Variant{} }

// Some is an option with a value.
func Some(v any) Variant { return Variant{Case: 1, Value: v} }

// OK is a result that is none of an error; v is nil where it has no payload.
func OK(v any) Variant { return Variant{Value: v} }

// Error is a result that is an error; v is nil where it has no payload.
func Error(v any) Variant { return Variant{Case: 1, Value: v} }

// Flags are flags, the first one in the lowest bit.
type Flags uint32

// Resource is a resource type of one instance.
type Resource struct {
	Name string
	// Impl is the instance that made it; nil = the host.
	Impl any
	// Drop ends a resource whose last owner has gone; nil = nothing is to be done.
	Drop func(rep uint32)
}

// Handle is a resource outside of any table.
type Handle struct {
	Resource *Resource
	Rep      uint32
	Own      bool
}

// text is a string lifted for another component: how it is lowered depends on how it was stored.
type text struct {
	value    string
	encoding Encoding
	units    uint32 // code units, of UTF-16 where wide
	wide     bool   // latin1+utf16: it was UTF-16
}

// Encoding is how a guest's strings are encoded.
type Encoding uint8

// The encodings, numbered as the options of the binary format.
const (
	UTF8 Encoding = iota
	UTF16
	Latin1
)

// Account pays for the work that is done for a guest, and bounds what is held for it.
type Account interface {
	// Charge takes fuel; it may trap.
	Charge(units int64)
	// Hold accounts for bytes of Go's memory; it traps where a call has too many.
	Hold(bytes int64)
}

// Context is what lifting and lowering for one call need to know.
type Context struct {
	// Bytes is the linear memory as it is now; nil where the options name none.
	Bytes func() []byte
	// Realloc calls the guest's realloc; nil where the options name none.
	Realloc  func(old, oldSize, align, size uint32) uint32
	Encoding Encoding
	Table    *Table
	// Resource is the resource type that a static one stands for.
	Resource func(*ctype.Resource) *Resource
	// Scope counts what is lent in this call.
	Scope   *Scope
	Account Account
	// Instance is the instance whose memory it is.
	Instance any
	// Keep lifts strings for another component and not for the host.
	Keep bool
}

// Fuel for work of the host.
const (
	perValue     = 8 // one value of any type
	bytesPerUnit = 8
	perCall      = 200 // one call through the canonical ABI
	perHandle    = 32
)

// Begin charges for one call.
func (c *Context) Begin() { c.Account.Charge(perCall) }

// bytes charges for so many bytes that are copied and held.
func (c *Context) bytes(n uint64) {
	c.Account.Charge(int64(n / bytesPerUnit))
	c.Account.Hold(int64(n))
}

// region checks that n bytes at p are in memory, and returns them; they are good until the guest runs again.
func (c *Context) region(p uint32, n uint64, align uint32, what string) []byte {
	if p&(align-1) != 0 {
		Fail("unaligned pointer: %s at %#x has to be aligned to %d", what, p, align)
	}
	m := c.Bytes()
	if uint64(p)+n > uint64(len(m)) {
		Fail("%s pointer out of bounds of memory: %d bytes at %#x, memory has %d", what, n, p, len(m))
	}
	return m[p : uint64(p)+n : uint64(p)+n]
}

// allocate has the guest make room.
func (c *Context) allocate(align uint32, n uint64) uint32 { return c.grow(0, 0, align, n) }

func (c *Context) grow(old, oldSize, align uint32, n uint64) uint32 {
	if n > 1<<32-1 {
		Fail("a value of %d bytes does not fit into a memory of 32 bits", n)
	}
	p := c.Realloc(old, oldSize, align, uint32(n))
	c.region(p, n, align, "realloc returned a")
	return p
}
