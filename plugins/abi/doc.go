// SPDX-License-Identifier: Apache-2.0

// Package abi is the host's side of the ABI between wasmplane and a plugin: the manifest
// that a module describes itself with, the paths of fields, the projection of an object onto
// them as JSON or as a flat table, and answers with their patches. sdk/spec/README.md is the
// same from the plugin's side; the vectors beside it hold both together.
//
// The package runs nothing and keeps nothing: it is pure functions over data.
// Everything that comes from a guest is bounded and checked here.
package abi
