// SPDX-License-Identifier: Apache-2.0

// Package encode makes a component of a core module.
//
// The module's imports and exports have the names and the core types that the canonical ABI gives the functions of a WIT
// world: an import's module is an interface of the world, an export is a function of it. What the world is stands in the
// module, in the custom section component-type that generators of bindings write, or is given. The component has the
// world's imports that are called, the module between what lowers them and what lifts its exports, and the world's exports.
//
// A function that is lowered needs the module's memory, which is there once the module is instantiated, and the module
// needs the function before that. So the module calls a function of a first, small module, which calls by a table, and a
// last module fills the table.
//
// The module's function _initialize is called last, when all of that stands. Its start function comes before, and traps
// where it calls what needs memory. A world that exports interfaces, and a module with several worlds, are refused.
//
// # Adapters
//
// A module that was built for something else than the world gets adapters, core modules as well. One with a name answers
// what the module imports under that name: wasi_snapshot_preview1, for example. One without a name has functions that the
// world exports, and goes before the module there. Adapters are instantiated after the module, in their order. An adapter
// imports functions of the world, functions of adapters before it, and under the name MainModule functions and the memory of
// the module.
//
// If an adapter with a name exports a memory, then the functions of the world that it calls have their values there, with its
// own cabi_realloc. Otherwise, and for an adapter without a name, values are in the module's memory, with the adapter's
// cabi_realloc or else the module's.
//
// A section component-type of an adapter is its own world: imports that are added to the component's if they are
// called. An interface that the module's world has too is imported once, and has to have there what the adapter needs.
// The adapter's _initialize is called before the module's.
//
// An error names the function, what the world wants and what the module has. What comes out was decoded and validated
// by package binary.
package encode
