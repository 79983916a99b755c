// SPDX-License-Identifier: Apache-2.0

package wat

import (
	"math"
	"strconv"
	"strings"
)

// emitter writes the instructions of one body.
type emitter struct {
	a      *assembler
	fn     *function
	out    []byte
	labels []string
}

func (e *emitter) instructions(list []node) error {
	for len(list) > 0 {
		n := list[0]
		if n.isList {
			if err := e.folded(n); err != nil {
				return err
			}
			list = list[1:]
			continue
		}
		rest, err := e.plain(n, list[1:])
		if err != nil {
			return err
		}
		list = rest
	}
	return nil
}

// folded writes (op immediates operands...).
func (e *emitter) folded(n node) error {
	if len(n.list) == 0 || n.list[0].isList {
		return n.errorf("expected an instruction")
	}
	op, rest := n.list[0], n.list[1:]
	switch op.atom {
	case "block", "loop":
		rest, err := e.block(op, rest)
		if err != nil {
			return err
		}
		if err := e.instructions(rest); err != nil {
			return err
		}
		return e.end(op)
	case "if":
		return e.foldedIf(op, rest)
	}
	// Operands come before the instruction, but behind its immediates.
	split := len(rest)
	for i, r := range rest {
		if r.isList && r.head() != "type" && r.head() != "param" && r.head() != "result" {
			split = i
			break
		}
	}
	if err := e.instructions(rest[split:]); err != nil {
		return err
	}
	left, err := e.plain(op, rest[:split])
	if err != nil {
		return err
	}
	if len(left) > 0 {
		return left[0].errorf("unexpected %q behind %s", left[0].atom, op.atom)
	}
	return nil
}

func (e *emitter) foldedIf(op node, rest []node) error {
	// (if $l (result t) cond... (then ...) (else ...)): the condition is written first.
	then := -1
	for i, r := range rest {
		if r.head() == "then" {
			then = i
			break
		}
	}
	if then < 0 {
		return op.errorf("(if ...) needs (then ...)")
	}
	head := 0
	for head < then && (!rest[head].isList || rest[head].head() == "result" || rest[head].head() == "param" || rest[head].head() == "type") {
		head++
	}
	if err := e.instructions(rest[head:then]); err != nil {
		return err
	}
	if _, err := e.block(op, rest[:head]); err != nil {
		return err
	}
	if err := e.instructions(rest[then].list[1:]); err != nil {
		return err
	}
	if len(rest) > then+1 && rest[then+1].head() == "else" && len(rest[then+1].list) > 1 {
		e.out = append(e.out, 0x05)
		if err := e.instructions(rest[then+1].list[1:]); err != nil {
			return err
		}
	}
	return e.end(op)
}

func (e *emitter) block(op node, rest []node) ([]node, error) {
	name, rest := takeName(rest)
	t, sig, _, rest, err := e.a.typeUse(rest)
	if err != nil {
		return nil, err
	}
	e.out = append(e.out, map[string]byte{"block": 0x02, "loop": 0x03, "if": 0x04}[op.atom])
	switch {
	case len(sig.params) == 0 && len(sig.results) == 0:
		e.out = append(e.out, 0x40)
	case len(sig.params) == 0 && len(sig.results) == 1:
		e.out = append(e.out, sig.results[0])
	default:
		e.out = append(e.out, s64(int64(t))...)
	}
	e.labels = append(e.labels, name)
	return rest, nil
}

func (e *emitter) end(at node) error {
	if len(e.labels) == 0 {
		return at.errorf("end without a block")
	}
	e.labels = e.labels[:len(e.labels)-1]
	e.out = append(e.out, 0x0b)
	return nil
}

func (e *emitter) label(n node) ([]byte, error) {
	if !strings.HasPrefix(n.atom, "$") {
		v, err := strconv.ParseUint(n.atom, 10, 32)
		if err != nil {
			return nil, n.errorf("%q is no label", n.atom)
		}
		return u32(uint32(v)), nil
	}
	for i := len(e.labels) - 1; i >= 0; i-- {
		if e.labels[i] == n.atom {
			return u32(uint32(len(e.labels) - 1 - i)), nil
		}
	}
	return nil, n.errorf("no enclosing label %s", n.atom)
}

func (e *emitter) local(n node) ([]byte, error) {
	if strings.HasPrefix(n.atom, "$") {
		i, ok := e.fn.locals[n.atom]
		if !ok {
			return nil, n.errorf("no local is named %s", n.atom)
		}
		return u32(i), nil
	}
	v, err := strconv.ParseUint(n.atom, 10, 32)
	if err != nil {
		return nil, n.errorf("%q is no local", n.atom)
	}
	return u32(uint32(v)), nil
}

func isIndex(n node) bool {
	if n.isList || n.isStr || n.atom == "" {
		return false
	}
	return n.atom[0] == '$' || n.atom[0] >= '0' && n.atom[0] <= '9'
}

// plain writes one instruction; rest holds its immediates and what follows.
func (e *emitter) plain(op node, rest []node) ([]node, error) {
	need := func(n int) error {
		if len(rest) < n {
			return op.errorf("%s needs %d immediates", op.atom, n)
		}
		return nil
	}
	one := func(code byte, space string) ([]node, error) {
		if err := need(1); err != nil {
			return nil, err
		}
		i, err := e.a.index(space, rest[0])
		e.out = append(append(e.out, code), u32(i)...)
		return rest[1:], err
	}
	switch op.atom {
	case "block", "loop", "if":
		return e.block(op, rest)
	case "else":
		e.out = append(e.out, 0x05)
		return rest, nil
	case "end":
		return rest, e.end(op)
	case "br", "br_if":
		if err := need(1); err != nil {
			return nil, err
		}
		l, err := e.label(rest[0])
		e.out = append(append(e.out, map[string]byte{"br": 0x0c, "br_if": 0x0d}[op.atom]), l...)
		return rest[1:], err
	case "br_table":
		var labels [][]byte
		for len(rest) > 0 && isIndex(rest[0]) {
			l, err := e.label(rest[0])
			if err != nil {
				return nil, err
			}
			labels = append(labels, l)
			rest = rest[1:]
		}
		if len(labels) == 0 {
			return nil, op.errorf("br_table needs labels")
		}
		e.out = append(append(e.out, 0x0e), u32(uint32(len(labels)-1))...)
		for _, l := range labels {
			e.out = append(e.out, l...)
		}
		return rest, nil
	case "call":
		return one(0x10, spaceFunc)
	case "ref.func":
		return one(0xd2, spaceFunc)
	case "global.get":
		return one(0x23, spaceGlobal)
	case "global.set":
		return one(0x24, spaceGlobal)
	case "call_indirect":
		t, _, _, left, err := e.a.typeUse(rest)
		if err != nil {
			return nil, err
		}
		e.out = append(append(append(e.out, 0x11), u32(t)...), 0)
		return left, nil
	case "local.get", "local.set", "local.tee":
		if err := need(1); err != nil {
			return nil, err
		}
		l, err := e.local(rest[0])
		e.out = append(append(e.out, map[string]byte{"local.get": 0x20, "local.set": 0x21, "local.tee": 0x22}[op.atom]), l...)
		return rest[1:], err
	case "i32.const", "i64.const", "f32.const", "f64.const":
		if err := need(1); err != nil {
			return nil, err
		}
		return rest[1:], e.constant(op.atom, rest[0])
	case "memory.size", "memory.grow":
		e.out = append(e.out, map[string]byte{"memory.size": 0x3f, "memory.grow": 0x40}[op.atom], 0)
		return rest, nil
	case "memory.copy":
		e.out = append(e.out, 0xfc, 10, 0, 0)
		return rest, nil
	case "memory.fill":
		e.out = append(e.out, 0xfc, 11, 0)
		return rest, nil
	case "memory.init", "data.drop":
		if err := need(1); err != nil {
			return nil, err
		}
		i, err := e.a.index(spaceData, rest[0])
		if op.atom == "data.drop" {
			e.out = append(append(e.out, 0xfc, 9), u32(i)...)
		} else {
			e.out = append(append(append(e.out, 0xfc, 8), u32(i)...), 0)
		}
		return rest[1:], err
	case "table.init":
		if err := need(1); err != nil {
			return nil, err
		}
		i, err := e.a.index(spaceElem, rest[0])
		e.out = append(append(append(e.out, 0xfc, 12), u32(i)...), 0)
		return rest[1:], err
	case "table.copy":
		e.out = append(e.out, 0xfc, 14, 0, 0)
		return rest, nil
	case "table.grow", "table.size", "table.fill":
		e.out = append(e.out, 0xfc, map[string]byte{"table.grow": 15, "table.size": 16, "table.fill": 17}[op.atom], 0)
		return rest, nil
	case "table.get", "table.set":
		e.out = append(e.out, map[string]byte{"table.get": 0x25, "table.set": 0x26}[op.atom], 0)
		return rest, nil
	case "ref.null":
		e.out = append(e.out, 0xd0, 0x70)
		if len(rest) > 0 && rest[0].atom == "func" {
			rest = rest[1:]
		}
		return rest, nil
	}
	if code, ok := memoryOps[op.atom]; ok {
		return e.memarg(code, rest)
	}
	if code, ok := simpleOps[op.atom]; ok {
		if code >= 0xfc00 {
			e.out = append(e.out, 0xfc, byte(code))
		} else {
			e.out = append(e.out, byte(code))
		}
		return rest, nil
	}
	return nil, op.errorf("unknown instruction %q", op.atom)
}

func (e *emitter) memarg(code memoryOp, rest []node) ([]node, error) {
	offset, align := uint64(0), uint64(code.align)
	for len(rest) > 0 {
		key, value, ok := strings.Cut(rest[0].atom, "=")
		if !ok || key != "offset" && key != "align" {
			break
		}
		v, err := strconv.ParseUint(strings.ReplaceAll(value, "_", ""), 0, 32)
		if err != nil {
			return nil, rest[0].errorf("%q is no number", value)
		}
		if key == "offset" {
			offset = v
		} else {
			align = uint64(math.Log2(float64(v)))
		}
		rest = rest[1:]
	}
	e.out = append(append(append(e.out, code.op), u32(uint32(align))...), u32(uint32(offset))...)
	return rest, nil
}

func (e *emitter) constant(op string, n node) error {
	text := strings.ReplaceAll(n.atom, "_", "")
	switch op {
	case "i32.const", "i64.const":
		v, err := strconv.ParseInt(text, 0, 64)
		if err != nil {
			u, uerr := strconv.ParseUint(text, 0, 64)
			if uerr != nil {
				return n.errorf("%q is no integer", n.atom)
			}
			v = int64(u)
		}
		if op == "i32.const" {
			e.out = append(append(e.out, 0x41), s64(int64(int32(v)))...)
		} else {
			e.out = append(append(e.out, 0x42), s64(v)...)
		}
	default:
		v, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return n.errorf("%q is no number", n.atom)
		}
		if op == "f32.const" {
			bits := math.Float32bits(float32(v))
			e.out = append(e.out, 0x43, byte(bits), byte(bits>>8), byte(bits>>16), byte(bits>>24))
			return nil
		}
		bits := math.Float64bits(v)
		e.out = append(e.out, 0x44)
		for i := 0; i < 8; i++ {
			e.out = append(e.out, byte(bits>>(8*i)))
		}
	}
	return nil
}
