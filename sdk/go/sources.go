// SPDX-License-Identifier: Apache-2.0

//go:build !wasip1

package wasmplane

import "embed"

// Sources are the files of this module, for tools that put the SDK beside a plugin so
// that it builds without a network. Plugins do not contain them.
//
//go:embed *.go go.mod LICENSE
var Sources embed.FS
