// SPDX-License-Identifier: Apache-2.0

// Package binary decodes and validates components.
//
// What comes out is a list of definitions in the order in which an instance is made of them, with
// every type resolved; whoever follows it meets no index that is out of bounds and no type that does
// not fit. Core modules are read as far as their imports and exports go: their code is for the engine
// to validate.
//
// Everything is bounded before it costs anything: nesting, the number of definitions, of types and of
// members, the length of names, the work of comparing types. An error says where it is, by section, item and byte.
//
// What needs more than one thread of execution (asynchronous functions, streams, futures) is refused by
// name, with what to do about it; so are values, and the types that the proposal still gates.
package binary
