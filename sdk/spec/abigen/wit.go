// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"slices"
	"strings"
)

// kebab is a hook's name as WIT writes it.
func (p point) kebab() string { return strings.ReplaceAll(p.Name, "_", "-") }

// documents are the points whose hook gets a document: all but the node table.
func (t *table) documents() []point {
	return slices.DeleteFunc(t.byOp(), func(x point) bool { return x.Point == tablePoint })
}

// tablePoint is the point whose hook gets cells.
const tablePoint = "scheduling.table"

func worldHooks(w io.Writer, t *table) {
	p := printer(w)
	p(goHeader + "package world\n")
	p("// hookNames are the functions that components export, by operation.\nvar hookNames = map[int32]string{\n\t0: %q,", "configure")
	for _, x := range t.byOp() {
		p("\t%d: %q,", x.Op, x.kebab())
	}
	p("}")
	for _, x := range t.byOp() {
		if x.Point == tablePoint {
			p("\n// tableOp is the operation of the node table, which no document stands for.\nconst tableOp = %d", x.Op)
		}
	}
}

// typed says whether a hook answers with the record of decisions.
func (p point) typed() bool { return strings.HasPrefix(p.Point, "admission.") }

// witWorlds writes two worlds for each point: the hook alone, and a plugin of this one hook. A world may not include
// another one twice, so worlds of several hooks include the hooks.
func witWorlds(w io.Writer, t *table) {
	p := printer(w)
	for _, x := range t.byOp() {
		p("\n/// %s: %s.", x.Point, x.Decides)
		p("world %s-hook {", x.kebab())
		if x.typed() {
			p("  use types.{decision};\n")
		}
		if x.Point == tablePoint {
			p("%s", witTable)
		} else {
			witDocument(w, x)
		}
		p("}\n\nworld %s-plugin {\n  include base;\n  include %[1]s-hook;\n}", x.kebab())
	}
}

// witTable is the hook that gets no document.
const witTable = `  /// Operation 6. The pod's cells, and a list for each column, with the nodes' cells in the same order in all of them.
  /// The answer has a byte for each node: 0 does not fit (for the first reason), 1 to 101 fits, with a score of 0 to 100; 128 + r
  /// does not fit for reason r; 192 + r does not fit, whatever pods leave the node.
  export table: func(pod: list<s64>, columns: list<list<s64>>) -> result<list<u8>, string>;`

// witDocument is the hook of any other point.
func witDocument(w io.Writer, x point) {
	p := printer(w)
	p("  /// Operation %d. The document is %s, as JSON.", x.Op,
		strings.ReplaceAll(x.Document, "the same", "the request of an AdmissionReview"))
	if x.Answer != "" {
		p("  /// The answer is %s.", x.Answer)
	}
	answer := "option<string>"
	if x.typed() {
		answer = "decision"
	}
	p("  export %s: func(document: string) -> result<%s, string>;", x.kebab(), answer)
}

func witFunctions(w io.Writer, t *table) {
	p := printer(w)
	for _, f := range t.HostFunctions {
		p("  /// - %s: %s; reply: %s", f.Name, strings.ReplaceAll(f.Input, "`", ""), strings.ReplaceAll(f.Reply, "`", ""))
	}
}
