// SPDX-License-Identifier: Apache-2.0

// Package comparison shows the results of simulations: as a table, over time as lines in the
// terminal and as SVG. It reads nothing but results, and writes the same bytes for the same
// ones.
package comparison

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"

	"github.com/wasmplane/wasmplane/core/simulate"
)

// Write the results, one column each.
func Write(w io.Writer, all []*simulate.Result) error {
	t := &table{all: all}
	t.head("", func(r *simulate.Result) string { return r.Policy })
	t.row("pods placed", func(r *simulate.Result) string { return number(r.Pods.Placed) })
	t.row("  pending at the end", func(r *simulate.Result) string { return number(r.Pods.Pending) })
	t.row("  preempted", func(r *simulate.Result) string { return number(r.Pods.Preempted) })
	t.row("waiting, median", func(r *simulate.Result) string { return seconds(r.Waiting.P50) })
	t.row("  90 of 100 at most", func(r *simulate.Result) string { return seconds(r.Waiting.P90) })
	t.row("  99 of 100 at most", func(r *simulate.Result) string { return seconds(r.Waiting.P99) })
	for _, name := range resources(all) {
		t.row(string(name)+" requested, mean", func(r *simulate.Result) string { return percent(r.Resources[name].Mean) })
		t.row("  peak", func(r *simulate.Result) string { return percent(r.Resources[name].Peak) })
	}
	t.row("free cpu that is stranded", func(r *simulate.Result) string { return percent(r.Stranded) })
	t.row("nodes in use, mean", func(r *simulate.Result) string { return fmt.Sprintf("%.1f", r.Nodes.Mean) })
	t.row("  peak", func(r *simulate.Result) string { return number(r.Nodes.Peak) })
	t.row("  hours", func(r *simulate.Result) string { return fmt.Sprintf("%.1f", r.Nodes.Hours) })
	if slices.ContainsFunc(all, func(r *simulate.Result) bool { return r.Nodes.Cost > 0 }) {
		t.row("  cost", func(r *simulate.Result) string { return fmt.Sprintf("%.2f", r.Nodes.Cost) })
	}
	t.row("unevenness of nodes' cpu", func(r *simulate.Result) string { return percent(r.Uneven) })
	t.row("pods by zone, at the end", func(r *simulate.Result) string { return zones(r.Zones) })
	t.row("tries", func(r *simulate.Result) string { return number(r.Tries) })
	t.plugins()
	t.groups()
	if err := t.write(w); err != nil {
		return err
	}
	for _, r := range all {
		if err := pending(w, r); err != nil {
			return err
		}
	}
	return nil
}

// table of texts.
type table struct {
	all  []*simulate.Result
	rows [][]string
}

func (t *table) head(what string, of func(*simulate.Result) string) { t.row(what, of) }

func (t *table) row(what string, of func(*simulate.Result) string) {
	row := []string{what}
	for _, r := range t.all {
		row = append(row, of(r))
	}
	t.rows = append(t.rows, row)
}

// plugins: what each refused, and how often its scores decided.
func (t *table) plugins() {
	names := map[string]bool{}
	for _, r := range t.all {
		for _, p := range r.Plugins {
			names[p.Name] = true
		}
	}
	use := func(r *simulate.Result, name string) simulate.PluginUse {
		if i := slices.IndexFunc(r.Plugins, func(p simulate.PluginUse) bool { return p.Name == name }); i >= 0 {
			return r.Plugins[i]
		}
		return simulate.PluginUse{}
	}
	for _, block := range []struct {
		title string
		of    func(simulate.PluginUse) int
	}{
		{"nodes refused by", func(p simulate.PluginUse) int { return p.RefusedNodes }},
		{"decided by the scores of", func(p simulate.PluginUse) int { return p.Decided }},
	} {
		begun := false
		for _, name := range slices.Sorted(maps.Keys(names)) {
			if !slices.ContainsFunc(t.all, func(r *simulate.Result) bool { return block.of(use(r, name)) > 0 }) {
				continue
			}
			if !begun {
				t.row(block.title, func(*simulate.Result) string { return "" })
				begun = true
			}
			t.row("  "+name, func(r *simulate.Result) string { return number(block.of(use(r, name))) })
		}
	}
}

// groups is a block for each group of pods.
func (t *table) groups() {
	names := map[string]bool{}
	for _, r := range t.all {
		for i := range r.Groups {
			names[r.Groups[i].Name] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		of := func(cell func(*simulate.Group) string) func(*simulate.Result) string {
			return func(r *simulate.Result) string {
				for i := range r.Groups {
					if r.Groups[i].Name == name {
						return cell(&r.Groups[i])
					}
				}
				return "-"
			}
		}
		t.row(cmp.Or(name, "(none)")+", placed", of(func(g *simulate.Group) string { return number(g.Pods.Placed) }))
		t.row("  pending at the end", of(func(g *simulate.Group) string { return number(g.Pods.Pending) }))
		t.row("  preempted", of(func(g *simulate.Group) string { return number(g.Pods.Preempted) }))
		t.row("  waiting, median", of(func(g *simulate.Group) string { return seconds(g.Waiting.P50) }))
		t.row("  90 of 100 at most", of(func(g *simulate.Group) string { return seconds(g.Waiting.P90) }))
		t.row("  99 of 100 at most", of(func(g *simulate.Group) string { return seconds(g.Waiting.P99) }))
		for _, resource := range resources(t.all) {
			t.row("  "+string(resource)+" of the cluster's, mean", of(func(g *simulate.Group) string { return percent(g.Resources[resource].Mean) }))
			t.row("    peak", of(func(g *simulate.Group) string { return percent(g.Resources[resource].Peak) }))
		}
	}
}

func (t *table) write(w io.Writer) error {
	widths := make([]int, len(t.all)+1)
	for _, row := range t.rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range t.rows {
		line := row[0] + strings.Repeat(" ", widths[0]-utf8.RuneCountInString(row[0]))
		for i, cell := range row[1:] {
			line += "  " + strings.Repeat(" ", widths[i+1]-utf8.RuneCountInString(cell)) + cell
		}
		if _, err := fmt.Fprintln(w, strings.TrimRight(line, " ")); err != nil {
			return err
		}
	}
	return nil
}

// mostReasons bounds how many reasons of pending pods are shown.
const mostReasons = 5

func pending(w io.Writer, r *simulate.Result) error {
	for i, why := range r.Pending {
		if i == 0 {
			if _, err := fmt.Fprintf(w, "\nWhat keeps the %s pods that are pending (%s):\n", number(r.Pods.Pending), r.Policy); err != nil {
				return err
			}
		}
		if i == mostReasons {
			_, err := fmt.Fprintf(w, "  and %d more reasons\n", len(r.Pending)-i)
			return err
		}
		by := ""
		if why.Plugin != "" {
			by = " (" + why.Plugin + ")"
		}
		if _, err := fmt.Fprintf(w, "  %s: %s%s\n", number(why.Pods), why.Reason, by); err != nil {
			return err
		}
	}
	return nil
}

// resources that any of the results has, cpu and memory first.
func resources(all []*simulate.Result) []corev1.ResourceName {
	names := map[corev1.ResourceName]bool{}
	for _, r := range all {
		for name := range r.Resources {
			names[name] = true
		}
	}
	delete(names, corev1.ResourceCPU)
	delete(names, corev1.ResourceMemory)
	return append([]corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory}, slices.Sorted(maps.Keys(names))...)
}

func zones(by map[string]int) string {
	if len(by) == 0 {
		return "-"
	}
	if len(by) > 4 {
		most := 0
		for _, n := range by {
			most = max(most, n)
		}
		return fmt.Sprintf("%d zones, at most %s", len(by), number(most))
	}
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(by)) {
		parts = append(parts, name+":"+number(by[name]))
	}
	return strings.Join(parts, " ")
}

func percent(share float64) string { return fmt.Sprintf("%.1f%%", share*100) }

// seconds as people say them.
func seconds(s float64) string {
	d := time.Duration(s * float64(time.Second))
	switch {
	case d >= time.Hour:
		return fmt.Sprintf("%.1fh", d.Hours())
	case d >= time.Minute:
		return fmt.Sprintf("%.1fm", d.Minutes())
	case d == 0:
		return "0s"
	case d >= time.Second:
		return fmt.Sprintf("%.1fs", d.Seconds())
	}
	return fmt.Sprintf("%dms", d.Milliseconds())
}

// number with commas: 10,000.
func number(n int) string {
	s := strconv.Itoa(n)
	for at := len(s) - 3; at > 0; at -= 3 {
		s = s[:at] + "," + s[at:]
	}
	return s
}
