// SPDX-License-Identifier: Apache-2.0

// Package host runs plugin modules: it compiles them, keeps pools of instances, and calls
// them within budgets that hold. Only the packages below it, plugins/component and
// plugins/workload import the WebAssembly engine.
//
// What it guarantees:
//   - A module has no authority: no files, network, environment or arguments;
//     clock and random are fake unless granted; any other host function is one
//     that the operator granted by name.
//   - A call ends: fuel, deadline (waiting in host calls included), memory, stack
//     depth, output size and number of host calls are bounded, and so is start-up.
//     While a guest runs it gives way to the rest of the process every few
//     hundred microseconds, so that neither goroutines nor the garbage collector wait for it.
//   - A fault (trap, exhausted budget, bad pointer, exit) ends in a *Fault that
//     names plugin, reason, guest function and line; the instance is thrown away,
//     and a new one is made in the background. Many faults in a row open a breaker.
//   - Compilation happens off the request path, in a child process that the kernel bounds
//     (package compiler), operators' modules before tenants' (package fairqueue). The result is kept in a directory
//     that only the owner can read, and authenticated, as it is native code. This process never compiles
//     unless Config.InProcess says so.
//
// Host.Compile makes a Module, which is one version of one plugin; Module.Call is
// a request. Closing a Module waits for the calls that run.
package host
