// SPDX-License-Identifier: Apache-2.0

package fuel

import "github.com/wasmplane/wasmplane/plugins/fuel/wasm"

// emit writes the edited body. frame > 0 takes that much of the stack budget.
func (s *scanner) emit(out []byte, frame int64, results []byte) []byte {
	out = s.emitLocals(out)
	out = s.enter(out, frame)
	wrapped := frame > 0 || s.held // one way out, where what was taken is given back
	if wrapped {
		out = s.m.appendBlockType(append(out, wasm.OpBlock), results)
	}
	pos := s.bodyFrom
	s.m.moved(pos, len(out))
	for _, e := range s.edits {
		out = append(out, s.r.B[pos:e.at]...)
		pos = e.at
		switch e.kind {
		case editCharge:
			p := &s.pieces[e.arg]
			if p.into != e.arg || p.weight == 0 {
				continue
			}
			out = s.charge(out, p.weight, p.check)
		case editCheck:
			out = s.check(out)
		case editReturn:
			if !wrapped {
				continue
			}
			out = wasm.AppendU32(append(out, wasm.OpBr), uint32(e.arg))
		case editSized:
			out = s.chargeSized(out, e.arg)
		case editSave:
			out = s.save(out)
		case editLoad:
			out = s.load(out)
		case editReplace, editInsert:
			out = append(out, e.bytes...)
		}
		pos = e.at + e.skip
		s.m.moved(pos, len(out))
	}
	out = append(out, s.r.B[pos:]...)
	if !wrapped {
		return out
	}
	if s.held { // the last byte ended our block
		out = s.save(out)
	}
	if frame > 0 {
		out = s.m.leaveFrame(out, frame)
	}
	return append(out, wasm.OpEnd)
}

// enter takes what the function needs at its entry, before its first instruction.
func (s *scanner) enter(out []byte, frame int64) []byte {
	if s.held {
		out = s.load(out)
	}
	if frame > 0 {
		entry := &s.pieces[0]
		out = s.enterFrame(out, frame, entry.weight)
		entry.weight = 0 // and so is not charged once more
	}
	return out
}

// emitLocals adds the local of the counter, and that of sizes.
func (s *scanner) emitLocals(out []byte) []byte {
	var added []byte
	groups := uint32(0)
	if s.held {
		added = append(added, 1, wasm.TypeI64)
		groups++
	}
	if s.sized {
		added = append(added, 1, wasm.TypeI32)
		groups++
	}
	r := wasm.Reader{B: s.r.B}
	n := r.U32()
	out = wasm.AppendU32(out, n+groups)
	out = append(out, s.r.B[r.Pos:s.bodyFrom]...)
	return append(out, added...)
}
