// SPDX-License-Identifier: Apache-2.0

package accessgraph

import (
	"encoding/xml"
	"fmt"
	"io"
	"strings"
)

const (
	rowHeight = 22
	boxHeight = 17
	boxWidth  = 330
	gap       = 420 // between the two columns, for the lines
	margin    = 20
	top       = 60
)

// svg draws actors on the left and kinds on the right, with a line for all that is between them.
// It needs no tool and no script; who points at a line or a box reads what it is.
func (g *Graph) svg(w io.Writer) error {
	kinds := g.kinds()
	rows := max(len(g.Actors), len(kinds), 1)
	height, width := top+rows*rowHeight+margin, 2*margin+2*boxWidth+gap
	fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="sans-serif" font-size="11">`+"\n",
		width, height, width, height)
	fmt.Fprintf(w, `<rect width="%d" height="%d" fill="white"/>`+"\n", width, height)
	legend(w)
	at := func(i, of int) int { return top + i*rowHeight + (rows-of)*rowHeight/2 }
	actorAt, kindAt := map[string]int{}, map[string]int{}
	for i, a := range g.Actors {
		actorAt[a.Name] = at(i, len(g.Actors)) + boxHeight/2
	}
	for i, k := range kinds {
		kindAt[k] = at(i, len(kinds)) + boxHeight/2
	}
	g.edges(func(a *Actor, manner, kind string) {
		line(w, actorAt[a.Name], kindAt[kind], manner, a.Name+" "+manner+" "+kind)
	})
	for i, a := range g.Actors {
		border := "#777777"
		if g.looping(a.Name) && a.Role == Plugin {
			border = "#c00000"
		}
		box(w, margin, at(i, len(g.Actors)), fill(a.Role), border, a.Name, string(a.Role)+" "+a.Name+", as "+orNone([]string{a.Identity}))
	}
	for i, k := range kinds {
		border := "#777777"
		if g.contested(k) {
			border = "#c00000"
		}
		box(w, margin+boxWidth+gap, at(i, len(kinds)), "#f4f4f4", border, k, k)
	}
	_, err := fmt.Fprintln(w, "</svg>")
	return err
}

func legend(w io.Writer) {
	fmt.Fprintf(w, `<text x="%d" y="20" font-size="13">Who reads and writes which kind: `+
		`<tspan fill="#c0504d">writes</tspan>, <tspan fill="#1f6fb4">watches</tspan>, <tspan fill="#999999">reads (dashed)</tspan>.</text>`+"\n", margin)
	fmt.Fprintf(w, `<text x="%d" y="38">A red border: a plugin in a loop, and a kind that two who watch it write.</text>`+"\n", margin)
}

func line(w io.Writer, from, to int, manner, title string) {
	color, dash, shift := "#1f6fb4", "", 0
	switch manner {
	case "writes":
		color, shift = "#c0504d", 3
	case "reads":
		color, dash, shift = "#999999", ` stroke-dasharray="4 3"`, -3
	}
	left, right := margin+boxWidth, margin+boxWidth+gap
	fmt.Fprintf(w, `<path d="M%d %d C%d %d %d %d %d %d" fill="none" stroke="%s" stroke-opacity="0.55"%s><title>%s</title></path>`+"\n",
		left, from+shift, left+gap/2, from+shift, right-gap/2, to+shift, right, to+shift, color, dash, escaped(title))
}

func box(w io.Writer, x, y int, color, border, text, title string) {
	fmt.Fprintf(w, `<g><title>%s</title><rect x="%d" y="%d" width="%d" height="%d" rx="3" fill="%s" stroke="%s"/><text x="%d" y="%d">%s</text></g>`+"\n",
		escaped(title), x, y, boxWidth, boxHeight, color, border, x+6, y+boxHeight-5, escaped(shortened(text)))
}

// shortened is text that fits into a box; the title has all of it.
func shortened(s string) string {
	const most = 52
	if r := []rune(s); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return s
}

func escaped(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a Builder takes everything
	return b.String()
}
