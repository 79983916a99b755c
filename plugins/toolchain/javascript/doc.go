// SPDX-License-Identifier: Apache-2.0

// Package javascript builds plugins from JavaScript and TypeScript, without a
// compiler on the author's machine: a bundle of the source and what it imports is evaluated by the
// runtime of sdk/javascript, and the runtime with its memory as it is afterwards is the plugin. What
// is wrong with the source, or throws while it is loaded, is an error of the build, with its place.
//
// The runtime is embedded in releases. A binary that was built without it builds the
// runtime once, from sources that are pinned by their digest, into the folder of toolchains.
package javascript
