// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"strings"
)

// kebab is a hook's name as WIT writes it.
func (p point) kebab() string { return strings.ReplaceAll(p.Name, "_", "-") }

// worlds are the points at which a component can take part: the node table is kept inside of a
// module's memory, which components show to nobody.
func (t *table) worlds() []point {
	var out []point
	for _, x := range t.byOp() {
		if x.Point != "scheduling.table" {
			out = append(out, x)
		}
	}
	return out
}

func worldHooks(w io.Writer, t *table) {
	p := printer(w)
	p(goHeader + "package world\n")
	p("// hookNames are the functions that components export, by operation.\nvar hookNames = map[int32]string{\n\t0: %q,", "configure")
	for _, x := range t.worlds() {
		p("\t%d: %q,", x.Op, x.kebab())
	}
	p("}")
}

// decides says whether a hook answers with the record of decisions.
func (p point) typed() bool { return strings.HasPrefix(p.Point, "admission.") }

func witWorlds(w io.Writer, t *table) {
	p := printer(w)
	for _, x := range t.worlds() {
		p("\n/// %s: %s.", x.Point, x.Decides)
		p("world %s-plugin {\n  include base;", x.kebab())
		if x.typed() {
			p("  use types.{decision};\n")
		}
		p("  /// Operation %d. The document is %s, as JSON.", x.Op,
			strings.ReplaceAll(x.Document, "the same", "the request of an AdmissionReview"))
		if x.Answer != "" {
			p("  /// The answer is %s.", x.Answer)
		}
		answer := "option<string>"
		if x.typed() {
			answer = "decision"
		}
		p("  export %s: func(document: string) -> result<%s, string>;\n}", x.kebab(), answer)
	}
}

func witFunctions(w io.Writer, t *table) {
	p := printer(w)
	for _, f := range t.HostFunctions {
		p("  /// - %s: %s; reply: %s", f.Name, strings.ReplaceAll(f.Input, "`", ""), strings.ReplaceAll(f.Reply, "`", ""))
	}
}
