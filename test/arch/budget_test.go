// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// budget is how many lines of Go a package may have, without tests and what is
// generated. A larger one has a second subject, which wants a package of its own.
const budget = 2420

var generated = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

// license is how a file begins (test/spdx.sh).
const license = "// SPDX-License-Identifier: Apache-2.0\n\n"

// lines counts what people have written of a package and have to read.
func (p pkg) lines(t *testing.T) (n int) {
	t.Helper()
	for _, f := range p.GoFiles {
		b, err := os.ReadFile(filepath.Join("../..", p.ImportPath, f))
		if err != nil {
			t.Fatal(err)
		}
		if !generated.Match(b) {
			n += bytes.Count(bytes.TrimPrefix(b, []byte(license)), []byte("\n"))
		}
	}
	return n
}

func TestNoPackageGrowsOverItsBudget(t *testing.T) {
	for _, p := range packages(t) {
		if n := p.lines(t); n > budget {
			t.Errorf("%s has %d lines, and %d are a package's budget: give its second subject a package of its own", p.ImportPath, n, budget)
		}
	}
}
