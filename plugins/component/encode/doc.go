// SPDX-License-Identifier: Apache-2.0

// Package encode makes a component of a core module.
//
// The module's imports and exports have the names and the core types that the canonical ABI gives the functions of a WIT
// world: an import's module is an interface of the world, an export is a function of it. What the world is stands in the
// module, in the custom section component-type that generators of bindings write, or is given. The component has the
// world's imports, the module between what lowers them and what lifts its exports, and the world's exports.
//
// A function that is lowered needs the module's memory, which is there once the module is instantiated, and the module
// needs the function before that. So the module calls a function of a first, small module, which calls by a table, and a
// last module fills the table.
//
// The module's function _initialize is called last, when all of that stands. Its start function comes before, and traps
// where it calls what needs memory. Imports of the world that the module does not use stay in the component. A world that
// exports interfaces, and a module with several worlds, are refused.
//
// An error names the function, what the world wants and what the module has. What comes out was decoded and validated
// by package binary.
package encode
