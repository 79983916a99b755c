// SPDX-License-Identifier: Apache-2.0

// Package unitgraph serves the units of a process (run.Group) as they are now: each
// one's name and state, since when, and the unit that it waits for.
//
// The handler asks nobody who they are: what mounts it has to authorize the path as it
// does /debug/pprof. It shows names and errors of parts, and nothing of objects.
package unitgraph

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"text/tabwriter"
	"time"

	"github.com/wasmplane/wasmplane/core/run"
)

// Path at which servers mount the handler.
const Path = "/debug/units"

// Handler of Path. It answers a table, or with ?format=dot a graph for Graphviz.
func Handler(units func() []run.Status) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "method: found "+r.Method+", expected GET", http.StatusMethodNotAllowed)
			return
		}
		write, media := table, "text/plain; charset=utf-8"
		switch format := r.URL.Query().Get("format"); format {
		case "", "text":
		case "dot":
			write, media = dot, "text/vnd.graphviz; charset=utf-8"
		default:
			http.Error(w, fmt.Sprintf("format: found %q, expected text or dot", format), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", media)
		w.Header().Set("Cache-Control", "no-store")
		write(w, units(), time.Now())
	})
}

// table has a line for each unit, in the order of start.
func table(w io.Writer, units []run.Status, now time.Time) {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "UNIT\tSTATE\tFOR\tSTARTED IN\tWAITS FOR\tERROR")
	for _, u := range units {
		took := "-"
		if u.Took > 0 {
			took = u.Took.Round(time.Millisecond).String()
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", u.Name, u.State, age(u, now), took, cmp.Or(u.After, "-"), cmp.Or(u.Error, "-"))
	}
	t.Flush()
}

// dot is a graph in which an arrow leads to what a unit waits for.
func dot(w io.Writer, units []run.Status, now time.Time) {
	fmt.Fprintln(w, "digraph units {\n\trankdir=RL\n\tnode [shape=box style=filled]")
	for _, u := range units {
		fmt.Fprintf(w, "\t%q [label=%q fillcolor=%s]\n", u.Name, fmt.Sprintf("%s\n%s %s", u.Name, u.State, age(u, now)), color(u.State))
		if u.After != "" {
			fmt.Fprintf(w, "\t%q -> %q\n", u.Name, u.After)
		}
	}
	fmt.Fprintln(w, "}")
}

// age is for how long a unit has been in its state.
func age(u run.Status, now time.Time) string {
	if u.Since.IsZero() {
		return "-"
	}
	return now.Sub(u.Since).Round(time.Second).String()
}

func color(s run.State) string {
	switch s {
	case run.Ready:
		return "palegreen"
	case run.Starting, run.Stopping:
		return "khaki"
	case run.Failed:
		return "salmon"
	default:
		return "lightgray"
	}
}
