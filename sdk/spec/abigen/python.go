// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"strings"
)

func pyOperations(w io.Writer, t *table) {
	p := printer(w)
	p("ABI = %d\n\n# The operations and points, by hook.\nOPERATIONS: dict[str, tuple[int, str]] = {", t.Version)
	for _, x := range t.documents() {
		p("    %q: (%d, %q),", x.Name, x.Op, x.Point)
	}
	p("}")
}

func pyEvents(w io.Writer, t *table) {
	p := printer(w)
	p("# What can happen in the cluster and make a pod worth another try.\nEvent = Literal[")
	for _, e := range t.Events {
		p("    %q,  # %s.", e.Name, upperFirst(e.Is))
	}
	p("]")
}

func pyHooks(w io.Writer, t *table) {
	p := printer(w)
	for i, x := range t.documents() {
		if i > 0 {
			p("")
		}
		p("    def %s(self, *given: Any, **options: Unpack[Options]) -> Callable[[F], F]:", x.Name)
		p("        \"\"\"%s: %s.\"\"\"", x.Point, x.Decides)
		p("        return self._hook(%q, dict(options), given)", x.Name)
	}
}

func pyFunctions(w io.Writer, t *table) {
	p := printer(w)
	p("class host:\n    \"\"\"Host functions. Each needs its grant in the plugin's entry, and raises HostError without.\"\"\"")
	t.families(func(family string, _ function) { p("\n    class %s:", family) }, func(name string, f function) {
		in, reply, body := "input: Any", "Any", "call(%q, input)"
		switch {
		case f.Reply == "nothing":
			reply = "None"
		case strings.Contains(f.Reply, "decimal number"):
			in, reply, body = "", "int", "call(%q)"
		case f.Reply == "the bytes":
			in, reply, body = "count: int", "bytes", "_bytes(%q, count)"
		}
		at := strings.Repeat(indent(f), 2) // of four spaces for each level
		p("\n%s@staticmethod\n%sdef %s(%s) -> %s:", at, at, name, in, reply)
		p("%s    \"\"\"Grant: %s. Input: %s. Reply: %s.\"\"\"", at, f.Opens, strings.ReplaceAll(f.Input, "\\", ""),
			strings.ReplaceAll(f.Reply, "\\", ""))
		p("%s    return "+body, at, f.Name)
	}, func() {})
}
