// SPDX-License-Identifier: Apache-2.0

package guestframes

import "testing"

// TestTheAuthorsFrameIsFound: behind the host's own functions and the toolchain's.
func TestTheAuthorsFrameIsFound(t *testing.T) {
	const trace = "\twasmplane:fuel.yield(i32)\n" +
		"\t._ZN4core9panicking5panic17h9d9d4f164bc8223bE(i32,i32)\n\t\t0x12: /rustc/abc/library/core/src/panicking.rs:1:2\n" +
		"\t._ZN6plugin5judge17h9d9d4f164bc8223bE(i32)\n\t\t0x34: src/lib.rs:7:9"
	clean, function, source := Read(trace)
	if function != "plugin::judge" || source != "src/lib.rs:7:9" || clean == "" {
		t.Errorf("got %q at %q in %q", function, source, clean)
	}
	if _, function, _ := Read(""); function != "" {
		t.Errorf("of nothing: %q", function)
	}
}
