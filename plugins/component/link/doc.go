// SPDX-License-Identifier: Apache-2.0

// Package link makes instances of components on wazero.
//
// Plan follows a component's definitions once and writes down what an instance consists of: core
// instances, each with where every one of its imports comes from; functions that cross between core code and
// the canonical ABI; resource types; what is exported. Nested components, aliases, and components and modules handed from one to
// another are gone then, so that the set of core modules and their wiring is known before anything is compiled. Plans are
// bounded: a small component may ask for any number of instances by nesting.
//
// A core module's imports are renamed to say where they come from (module "s3" is the fourth core instance, "t" the
// functions of the canonical ABI), and the engine finds these by name. So the same module in two places is two modules
// to the engine, unless its imports are the same.
//
// An Instance is a component instance with all that it contains. Its rules are the component model's: one call at a time and no
// re-entrance, no calls out of realloc and post-return, and nothing at all after a trap.
package link
