// SPDX-License-Identifier: Apache-2.0

// Package pause emits the program of the sandbox ("pause") container: a static ELF
// file of a few hundred bytes, made here byte by byte, so that a node needs neither
// a registry nor a C compiler for it, and a pod pays 4 KB of memory for it.
//
// The program holds the pod's namespaces and is their process 1. It ignores
// SIGCHLD, upon which the kernel reaps orphans by itself (that matters with a
// shared process namespace), and ends with success on TERM or INT. Those are
// blocked and waited for, not handled: a blocked signal is delivered to process 1
// of a namespace although it has no handler, and without handlers there is no
// stack to think of.
package pause

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

const (
	loadAddress = 0x400000
	elfHeader   = 64
	programHead = 56

	sigSet    = 1<<(2-1) | 1<<(15-1) // INT and TERM
	sigChld   = 17
	sigIgnore = 1
)

// Program answers the ELF file for a GOARCH: amd64 or arm64.
func Program(arch string) ([]byte, error) {
	switch arch {
	case "amd64":
		return link(62, amd64), nil
	case "arm64":
		return link(183, arm64), nil
	default:
		return nil, fmt.Errorf("there is no pause program for %s, only for amd64 and arm64", arch)
	}
}

// data is what the program reads: struct sigaction {handler, flags, restorer,
// mask} for SIG_IGN, then the set of signals.
func data() []byte {
	var b bytes.Buffer
	for _, v := range []uint64{sigIgnore, 0, 0, 0, sigSet} {
		_ = binary.Write(&b, binary.LittleEndian, v) // a bytes.Buffer takes everything
	}
	return b.Bytes()
}

const setOffset = 4 * 8 // of the signal set within data

// link lays out the file: headers, data, code, in one read-only executable segment.
func link(machine uint16, assemble func(action, set uint64) []byte) []byte {
	const at = elfHeader + programHead
	d := data()
	action := uint64(loadAddress + at)
	code := assemble(action, action+setOffset)
	entry := action + uint64(len(d))
	size := uint64(at + len(d) + len(code))

	var b bytes.Buffer
	b.WriteString("\x7fELF\x02\x01\x01") // 64 bits, little endian, version 1
	b.Write(make([]byte, 9))
	for _, v := range []any{
		uint16(2), machine, uint32(1), entry, // an executable
		uint64(elfHeader), uint64(0), uint32(0), // program headers follow; no sections
		uint16(elfHeader), uint16(programHead), uint16(1), uint16(0), uint16(0), uint16(0),

		uint32(1), uint32(5), uint64(0), // PT_LOAD, readable and executable, from offset 0
		uint64(loadAddress), uint64(loadAddress), size, size, uint64(0x10000),
	} {
		_ = binary.Write(&b, binary.LittleEndian, v)
	}
	b.Write(d)
	b.Write(code)
	return b.Bytes()
}

// amd64 assembles the program for x86-64: system call number in eax, arguments in
// rdi, rsi, rdx, r10.
func amd64(action, set uint64) []byte {
	var c []byte
	emit := func(b ...byte) { c = append(c, b...) }
	imm := func(v uint64) []byte { return binary.LittleEndian.AppendUint32(nil, uint32(v)) }
	mov := func(op byte, v uint64) { emit(append([]byte{op}, imm(v)...)...) }
	const eax, esi, edi = 0xb8, 0xbe, 0xbf // mov r32, imm32
	syscall := func(n uint64) { mov(eax, n); emit(0x0f, 0x05) }

	emit(0x31, 0xff) // xor edi, edi: SIG_BLOCK
	mov(esi, set)
	emit(0x31, 0xd2)                // xor edx, edx
	emit(0x41, 0xba, 0x08, 0, 0, 0) // mov r10d, 8: size of a signal set
	syscall(14)                     // rt_sigprocmask(SIG_BLOCK, set, NULL, 8)
	mov(edi, sigChld)
	mov(esi, action)
	syscall(13) // rt_sigaction(SIGCHLD, action, NULL, 8)
	loop := len(c)
	mov(edi, set)
	emit(0x31, 0xf6) // xor esi, esi
	syscall(128)     // rt_sigtimedwait(set, NULL, NULL, 8)
	emit(0x85, 0xc0) // test eax, eax
	emit(0x78, byte(loop-len(c)-2))
	emit(0x31, 0xff) // xor edi, edi
	syscall(231)     // exit_group(0)
	return c
}

// arm64 assembles the program for AArch64: system call number in x8, arguments in
// x0 to x3.
func arm64(action, set uint64) []byte {
	var c []byte
	emit := func(w uint32) { c = binary.LittleEndian.AppendUint32(c, w) }
	movz := func(r, v uint32) { emit(0xd2800000 | v<<5 | r) }
	load := func(r uint32, address uint64) { // movz, movk lsl 16
		movz(r, uint32(address&0xffff))
		emit(0xf2a00000 | uint32(address>>16&0xffff)<<5 | r)
	}
	syscall := func(n uint32) { movz(8, n); emit(0xd4000001) }

	movz(0, 0) // SIG_BLOCK
	load(1, set)
	movz(2, 0)
	movz(3, 8)   // size of a signal set
	syscall(135) // rt_sigprocmask(SIG_BLOCK, set, NULL, 8)
	movz(0, sigChld)
	load(1, action)
	movz(2, 0)
	syscall(134) // rt_sigaction(SIGCHLD, action, NULL, 8)
	loop := len(c)
	load(0, set)
	movz(1, 0)
	movz(2, 0)
	syscall(137) // rt_sigtimedwait(set, NULL, NULL, 8)
	// tbnz w0, #31, loop: again when a signal that was not asked for interrupted it
	back := uint32((loop-len(c))/4) & 0x3fff
	emit(0x37f80000 | back<<5)
	movz(0, 0)
	syscall(94) // exit_group(0)
	return c
}
