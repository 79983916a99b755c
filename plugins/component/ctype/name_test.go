// SPDX-License-Identifier: Apache-2.0

package ctype

import "testing"

// TestCompatible: the version is cut as semantic versions promise.
func TestCompatible(t *testing.T) {
	for name, want := range map[string]string{
		"wasi:io/streams":                 "wasi:io/streams",
		"wasi:io/streams@0.2.0":           "wasi:io/streams@0.2",
		"wasi:io/streams@0.2.12":          "wasi:io/streams@0.2",
		"wasi:io/streams@0.2":             "wasi:io/streams@0.2",
		"wasi:io/streams@0.0.7":           "wasi:io/streams@0.0.7",
		"wasi:io/streams@0.0.7+build.1":   "wasi:io/streams@0.0.7+build.1",
		"wasi:io/streams@0.0.0":           "wasi:io/streams@0.0.0",
		"wasi:io/streams@1.4.2":           "wasi:io/streams@1",
		"wasi:io/streams@12.0.0":          "wasi:io/streams@12",
		"wasi:io/streams@0.2.0-rc-2023.1": "wasi:io/streams@0.2.0-rc-2023.1",
		"a@":                              "a@",
		"a@0":                             "a@0",
	} {
		if got := Compatible(name); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}
