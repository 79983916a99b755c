// SPDX-License-Identifier: Apache-2.0

package comparison

import (
	"fmt"
	"html"
	"io"
	"strings"

	"github.com/wasmplane/wasmplane/core/simulate"
)

// Plot is a measure over time.
type Plot struct {
	Name, Title string
	of          func(simulate.Sample) float64
	share       bool // of 1; else a number
}

// Plots are the measures that are drawn.
func Plots() []Plot {
	return []Plot{
		{"cpu", "cpu requested", func(s simulate.Sample) float64 { return s.CPU }, true},
		{"memory", "memory requested", func(s simulate.Sample) float64 { return s.Memory }, true},
		{"nodes", "nodes in use", func(s simulate.Sample) float64 { return float64(s.Nodes) }, false},
		{"pending", "pods pending", func(s simulate.Sample) float64 { return float64(s.Pending) }, false},
		{"stranded", "free cpu that is stranded", func(s simulate.Sample) float64 { return s.Stranded }, true},
		{"uneven", "unevenness of nodes' cpu", func(s simulate.Sample) float64 { return s.Uneven }, true},
	}
}

// top is the end of the vertical axis: a round number that no value exceeds.
func (p Plot) top(all []*simulate.Result) float64 {
	most := 0.0
	for _, r := range all {
		for _, s := range r.Series {
			most = max(most, p.of(s))
		}
	}
	if p.share {
		switch {
		case most <= 0.1:
			return 0.1
		case most <= 0.5:
			return 0.5
		}
		return 1
	}
	for unit := 1.0; ; unit *= 10 {
		for _, step := range []float64{1, 2, 5} {
			if most <= step*unit {
				return step * unit
			}
		}
	}
}

func (p Plot) label(x float64) string {
	if p.share {
		return fmt.Sprintf("%g%%", x*100)
	}
	return number(int(x))
}

// width of a line in the terminal, in characters.
const width = 60

// Lines draws the measures for the terminal: one line for each policy.
func Lines(w io.Writer, all []*simulate.Result) error {
	longest := 0
	for _, r := range all {
		longest = max(longest, len([]rune(r.Policy)))
	}
	for _, p := range Plots() {
		top := p.top(all)
		if _, err := fmt.Fprintf(w, "\n%s, up to %s\n", p.Title, p.label(top)); err != nil {
			return err
		}
		for _, r := range all {
			if _, err := fmt.Fprintf(w, "  %s%s  %s\n", r.Policy, strings.Repeat(" ", longest-len([]rune(r.Policy))), p.line(r, top)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p Plot) line(r *simulate.Result, top float64) string {
	blocks := []rune("▁▂▃▄▅▆▇█")
	var b strings.Builder
	n := min(width, len(r.Series))
	for i := range n {
		from, to := i*len(r.Series)/n, (i+1)*len(r.Series)/n
		sum := 0.0
		for _, s := range r.Series[from:to] {
			sum += p.of(s)
		}
		b.WriteRune(blocks[min(int(sum/float64(to-from)/top*float64(len(blocks))), len(blocks)-1)])
	}
	return b.String()
}

// colors of the policies, in turn: told apart by people who don't see all colours, too.
var colors = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"}

// The picture, in pixels, and the margins of the axes.
const (
	pictureWidth, pictureHeight = 760, 320
	left, right, above, beneath = 70, 20, 40, 60
)

// SVG draws one measure.
func (p Plot) SVG(all []*simulate.Result) string {
	var b strings.Builder
	top, hours := p.top(all), 0.0
	for _, r := range all {
		for _, s := range r.Series {
			hours = max(hours, s.Hours)
		}
	}
	if hours == 0 {
		hours = 1
	}
	x := func(h float64) float64 { return left + h/hours*(pictureWidth-left-right) }
	y := func(v float64) float64 { return pictureHeight - beneath - v/top*(pictureHeight-above-beneath) }
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", pictureWidth, pictureHeight)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="white"/>`+"\n", pictureWidth, pictureHeight)
	fmt.Fprintf(&b, `<text x="%d" y="22" font-size="15">%s</text>`+"\n", left, html.EscapeString(p.Title))
	for i := range 6 {
		v := top * float64(i) / 5
		fmt.Fprintf(&b, `<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="#ddd"/><text x="%d" y="%.1f" text-anchor="end">%s</text>`+"\n",
			left, pictureWidth-right, y(v), y(v), left-6, y(v)+4, p.label(v))
		h := hours * float64(i) / 5
		fmt.Fprintf(&b, `<text x="%.1f" y="%d" text-anchor="middle">%.4gh</text>`+"\n", x(h), pictureHeight-beneath+18, h)
	}
	at := left
	for i, r := range all {
		color := colors[i%len(colors)]
		var points []string
		for _, s := range r.Series {
			points = append(points, fmt.Sprintf("%.1f,%.1f", x(s.Hours), y(p.of(s))))
		}
		fmt.Fprintf(&b, `<polyline fill="none" stroke="%s" stroke-width="1.5" points="%s"/>`+"\n", color, strings.Join(points, " "))
		fmt.Fprintf(&b, `<rect x="%d" y="%d" width="12" height="12" fill="%s"/><text x="%d" y="%d">%s</text>`+"\n",
			at, pictureHeight-24, color, at+18, pictureHeight-14, html.EscapeString(r.Policy))
		at += 40 + 8*len(r.Policy)
	}
	b.WriteString("</svg>\n")
	return b.String()
}
