// SPDX-License-Identifier: Apache-2.0

package guestframes

import "testing"

// TestTheAuthorsFrameIsFound: behind the host's own functions and the toolchain's, in the encodings of older and
// newer Rust compilers, with and without a name of the module before them.
func TestTheAuthorsFrameIsFound(t *testing.T) {
	for _, c := range []struct {
		modules []string
		trace   string
	}{
		{[]string{""}, "\twasmplane:fuel.yield(i32)\n" +
			"\t._ZN4core9panicking5panic17h9d9d4f164bc8223bE(i32,i32)\n\t\t0x12: /rustc/abc/library/core/src/panicking.rs:1:2\n" +
			"\t._ZN6plugin5judge17h9d9d4f164bc8223bE(i32)\n\t\t0x34: src/lib.rs:7:9"},
		{[]string{"p.wasm"}, "\tp.wasm._RNvCsfLfy6EI15iL_7___rustc17rust_begin_unwind(i32)\n" +
			"\tp.wasm._RNvNtCsgXGp5Oqx2Ny_4core9panicking18panic_bounds_check(i32,i32,i32)\n" +
			"\tp.wasm._RNvCsfLfy6EI15iL_6plugin5judge(i32)\n\t\t0x34: src/lib.rs:7:9"},
		{
			[]string{"", "adapter", "p.wasm"},
			"\tp.wasm._RNvCsfLfy6EI15iL_7___rustc17rust_begin_unwind(i32)\n" +
				"\tp.wasm._RNvCsfLfy6EI15iL_6plugin5judge(i32)\n\t\t0x34: src/lib.rs:7:9\n\tadapter.call(i32)",
		},
		{[]string{"p.wasm"}, "\tp.wasm.plugin::judge(i32)\n\t\t0x34: src/lib.rs:7:9"},
	} {
		clean, function, source := Read(c.trace, c.modules...)
		if function != "plugin::judge" || source != "src/lib.rs:7:9" || clean == "" {
			t.Errorf("got %q at %q in %q", function, source, clean)
		}
	}
	if _, function, _ := Read(""); function != "" {
		t.Errorf("of nothing: %q", function)
	}
}
