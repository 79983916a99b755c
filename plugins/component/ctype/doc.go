// SPDX-License-Identifier: Apache-2.0

// Package ctype holds the types of the component model: value types with their layout in
// linear memory, functions, instances, components and core modules, and the rules by which
// one stands for another.
//
// Value types are interned by a Set, so that equal types are the same pointer: a chain of
// types that each name the one before twice would otherwise have a size of two to the power of its length.
// Every type's size, alignment, flat form and depth are computed once, from its parts', when it is made.
package ctype
