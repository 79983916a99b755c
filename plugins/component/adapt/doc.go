// SPDX-License-Identifier: Apache-2.0

// Package adapt makes adapters for package encode: small core modules by which a module that was built for WASI 0.1
// (wasi_snapshot_preview1) becomes a component with imports of WASI 0.2.
//
// An adapter is assembled of the functions that the module imports and of nothing else, so the component imports only the
// interfaces of WASI that these functions call. It has a memory of its own, at most 4 MiB, for what the component's imports
// answer, and keeps nothing there between calls. Into the module's memory it writes what WASI 0.1 says, through the
// functions of one more small module: an engine need not know modules with several memories.
//
// What there is: arguments, environment, clocks, random numbers, writing to standard output and error, waiting for a clock,
// the end of the program. Files, directories, sockets and standard input are not there: the functions that need one answer
// badf, as for a descriptor that is not open.
package adapt
