// SPDX-License-Identifier: Apache-2.0

// Package fuel rewrites a WebAssembly module so that it cannot run longer than
// it is allowed to.
//
// The rewritten module computes what the original computes, and counts while it
// does: every basic block takes its weight from a counter, straight-line code
// included, and where the counter falls below zero the module calls the host.
// That call is a safe point: the host may let other goroutines and the garbage
// collector have their turn, look at the clock, hand out more fuel, or trap the
// guest. Between two safe points lie at most a few thousand instructions beyond
// the fuel that was handed out.
//
// What is charged:
//   - each instruction its weight, in blocks; small branches are paid for ahead by
//     the block that dominates them (deterministic, at most a few units too much);
//   - memory.fill and memory.copy by size and in chunks (short ones of constant length
//     by their block, as instructions are), memory.init, table.init,
//     table.copy, table.fill, table.grow by size, memory.grow by page;
//   - calls of functions that may recurse also take their frame from a stack
//     budget, so that recursion ends long before the engine's own stack does.
//
// The count depends on the module and its input only: it is the same on every
// machine and on both engines.
//
// What Rewrite makes of a module is to be trusted only if a validating compiler has
// accepted the original (the reserved counter is a global behind the module's own,
// and only validation keeps a module from naming it). Rewrite bounds what would be
// expensive to decode or compile, clamps the memory to the limit, moves function indices, keeps the name section and maps
// the line table of DWARF, so that errors still point at the author's source.
package fuel
