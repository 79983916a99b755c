// SPDX-License-Identifier: Apache-2.0

// Package compiler makes native code of modules in a child process, as compiling is the
// dangerous part of loading: it cannot be interrupted, and what it costs is up to
// whoever wrote the module.
//
// The child is this very binary in another role (MaybeRun). Before it reads a byte it
// gives up everything that it does not need: user, capabilities, network, files, most system calls; and
// it takes limits that the kernel enforces: address space, processor time, size of files,
// descriptors. It reads one module from its standard input, validates it, meters it
// (plugins/fuel), compiles it, tries out what taking over the result costs, and writes the result to its
// standard output. It is killed when its time is over, and when the server stops.
//
// What the child is for: a bound of what a module's compilation may use, a crash that
// takes nobody along, and as few rights as possible for the code that reads hostile input. What it is not:
// whoever takes over the compiler through a module decides what native code the server
// runs for that module. The child is trusted to compile, as the compiler in the server was.
//
// The server adopts an Artifact without compiling (Adopt): where the engine does not find
// the code it fails. Artifacts are kept in a Store, which authenticates them with
// a key of its own.
package compiler
