// SPDX-License-Identifier: Apache-2.0

package accessgraph

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// Formats in which a graph is written.
func Formats() []string { return []string{"dot", "svg", "json", "mermaid"} }

// Write writes the graph; no format is a table for people.
func (g *Graph) Write(w io.Writer, format string) error {
	switch format {
	case "":
		return g.table(w)
	case "dot":
		return g.dot(w)
	case "svg":
		return g.svg(w)
	case "mermaid":
		return g.mermaid(w)
	case "json":
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(g)
	}
	return fmt.Errorf("expected %s, found %q", strings.Join(Formats(), ", "), format)
}

func (g *Graph) table(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 8, 3, ' ', 0)
	fmt.Fprintln(w, "ACTOR\tROLE\tIDENTITY\tWATCHES\tREADS\tWRITES")
	for _, a := range g.Actors {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", a.Name, a.Role, orNone([]string{a.Identity}), orNone(a.Watches), orNone(a.Reads),
			orNone(a.Writes))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, a := range g.Actors {
		for _, n := range a.Notes {
			fmt.Fprintf(out, "%s: %s\n", a.Name, n)
		}
	}
	if len(g.Loops) == 0 {
		_, err := fmt.Fprintln(out, "\nThere are no loops: no two actors write what the other one watches.")
		return err
	}
	shown := g.Loops
	if !g.part {
		shown = slices.DeleteFunc(slices.Clone(g.Loops), func(l Loop) bool { return !l.Plugin })
	}
	if rest := len(g.Loops) - len(shown); rest > 0 {
		fmt.Fprintf(out, "\n%d loops among the built-in parts are not listed: name an actor or a kind to see its loops, or print all with -o json.\n", rest)
	}
	if len(shown) == 0 {
		return nil
	}
	fmt.Fprintln(out,
		"\nLoops: each of the two writes what the other one watches. \"!\": both write the same kind, and may undo each other's work.")
	w = tabwriter.NewWriter(out, 0, 8, 3, ' ', 0)
	fmt.Fprintln(w, "\tONE\tWRITES\tTHE OTHER\tWRITES")
	for _, l := range shown {
		mark := ""
		if len(l.Contested) > 0 {
			mark = "!"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", mark, l.A, orNone(l.There), l.B, orNone(l.Back))
	}
	return w.Flush()
}

func orNone(list []string) string {
	if text := strings.Join(list, ","); text != "" {
		return text
	}
	return "-"
}

// looping says whether an actor has a loop.
func (g *Graph) looping(name string) bool {
	return slices.ContainsFunc(g.Loops, func(l Loop) bool { return l.A == name || l.B == name })
}

// contested says whether both actors of a loop write a kind.
func (g *Graph) contested(kind string) bool {
	return slices.ContainsFunc(g.Loops, func(l Loop) bool { return slices.Contains(l.Contested, kind) })
}

// edges calls f for all there is between an actor and a kind, with the manner: watches, reads or writes.
func (g *Graph) edges(f func(a *Actor, manner, kind string)) {
	for i := range g.Actors {
		a := &g.Actors[i]
		for _, k := range a.Watches {
			f(a, "watches", k)
		}
		for _, k := range a.Reads {
			f(a, "reads", k)
		}
		for _, k := range a.Writes {
			f(a, "writes", k)
		}
	}
}

// dot is for Graphviz: kinds are ellipses; arrows lead the way that information goes.
func (g *Graph) dot(w io.Writer) error {
	fmt.Fprintln(w, "digraph access {\n\trankdir=LR\n\tnode [fontname=\"sans-serif\"]")
	for _, a := range g.Actors {
		fmt.Fprintf(w, "\t%q [shape=box style=filled fillcolor=%q label=%q]\n", "actor "+a.Name, fill(a.Role), a.Name)
	}
	for _, k := range g.kinds() {
		color := "black"
		if g.contested(k) {
			color = "red"
		}
		fmt.Fprintf(w, "\t%q [shape=ellipse color=%s label=%q]\n", "kind "+k, color, k)
	}
	g.edges(func(a *Actor, manner, kind string) {
		from, to, style := "kind "+kind, "actor "+a.Name, "solid"
		switch manner {
		case "writes":
			from, to = to, from
		case "reads":
			style = "dashed"
		}
		fmt.Fprintf(w, "\t%q -> %q [style=%s tooltip=%q]\n", from, to, style, a.Name+" "+manner+" "+kind)
	})
	_, err := fmt.Fprintln(w, "}")
	return err
}

// mermaid is for pages that draw it, such as those of GitHub.
func (g *Graph) mermaid(w io.Writer) error {
	fmt.Fprintln(w, "flowchart LR")
	actors, kinds := map[string]string{}, map[string]string{}
	for i, a := range g.Actors {
		actors[a.Name] = fmt.Sprintf("a%d", i)
		fmt.Fprintf(w, "    a%d[\"%s\"]\n", i, plain(a.Name))
	}
	for i, k := range g.kinds() {
		kinds[k] = fmt.Sprintf("k%d", i)
		fmt.Fprintf(w, "    k%d([\"%s\"])\n", i, plain(k))
	}
	g.edges(func(a *Actor, manner, kind string) {
		switch manner {
		case "watches":
			fmt.Fprintf(w, "    %s --> %s\n", kinds[kind], actors[a.Name])
		case "reads":
			fmt.Fprintf(w, "    %s -.-> %s\n", kinds[kind], actors[a.Name])
		case "writes":
			fmt.Fprintf(w, "    %s ==> %s\n", actors[a.Name], kinds[kind])
		}
	})
	_, err := fmt.Fprintln(w)
	return err
}

// plain is text without what would end a label.
func plain(s string) string {
	return strings.NewReplacer(`"`, "'", "\n", " ", "<", "(", ">", ")").Replace(s)
}

func fill(r Role) string {
	switch r {
	case Controller:
		return "#dbe9f6"
	case Scheduler:
		return "#e3f4dd"
	case Node:
		return "#fdebd2"
	case Plugin:
		return "#ead9f7"
	}
	return "#ffffff"
}
