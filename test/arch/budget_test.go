// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

// budget is how many lines of Go a package may have, without tests and what is
// generated. A larger one has a second subject, which wants a package of its own.
const budget = 2500

// mayGrow are the packages over budget, with the size that each has. The numbers only
// fall: whoever makes one of them smaller lowers its number, down to none.
var mayGrow = map[string]int{
	"core/api":     3357,
}

// rows is what a large package may grow by nevertheless: imports and rows of its lists,
// for what has a package of its own (CONTRIBUTING.md shows one).
const rows = 20

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
	sizes := map[string]int{}
	for _, p := range packages(t) {
		sizes[p.ImportPath] = p.lines(t)
		if _, known := mayGrow[p.ImportPath]; !known && sizes[p.ImportPath] > budget {
			t.Errorf("%s has %d lines, and %d are a package's budget: give its second subject a package of its own", p.ImportPath, sizes[p.ImportPath], budget)
		}
	}
	for _, p := range slices.Sorted(maps.Keys(mayGrow)) {
		switch most, n := mayGrow[p], sizes[p]; {
		case n <= budget:
			t.Errorf("%s has %d lines, within the budget of %d: delete its entry", p, n, budget)
		case n > most+rows:
			t.Errorf("%s has grown to %d lines; it may have %d, and the number may only fall", p, n, most)
		case n < most*95/100:
			t.Errorf("%s has shrunk to %d lines: lower its entry, which is %d", p, n, most)
		}
	}
}
