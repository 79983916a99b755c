// SPDX-License-Identifier: Apache-2.0

package journey

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.opentelemetry.io/otel/attribute"

	"github.com/wasmplane/wasmplane/core/trace"
)

// describe is a step in a few words.
func describe(s *trace.Span) string {
	get := func(k attribute.Key) string { return s.Get(k) }
	switch s.Name {
	case trace.Request:
		text := strings.TrimSpace(get(trace.VerbKey) + " " + get(trace.ResourceKey))
		text = with(text, " by ", shortUser(get(trace.UserKey)))
		return with(text, ": ", get(trace.StatusKey))
	case trace.Authenticate:
		return get(trace.UserKey)
	case trace.StoreWrite:
		return with("", "revision ", get(trace.RevisionKey))
	case trace.Reconcile:
		return with(get(trace.ControllerKey), ": ", cmp.Or(get(trace.MessageKey), events(s.Events)))
	case trace.Schedule:
		if node := get(trace.NodeKey); node != "" {
			return "on " + node
		}
		return cmp.Or(get(trace.MessageKey), get(trace.DecisionKey))
	case trace.Filter:
		return get(trace.NodesKey)
	case trace.Score:
		return scores(get(trace.ScoresKey))
	case trace.Bind:
		return with("", "to ", get(trace.NodeKey))
	case trace.Image:
		return with(get(trace.ImageKey), ": ", get(trace.MessageKey))
	case trace.ContainerCreate, trace.ContainerStart:
		return with(get(trace.ContainerKey), ": ", get(trace.MessageKey))
	}
	return decision(s)
}

// shortUser drops what goes without saying from the names of the system's own accounts.
func shortUser(name string) string {
	if account, ok := strings.CutPrefix(name, "system:serviceaccount:"); ok {
		return strings.Replace(strings.TrimPrefix(account, "kube-system:"), ":", "/", 1)
	}
	return name
}

// decision: who said what, why, and what it changed.
func decision(s *trace.Span) string {
	text := with(s.Get(trace.PluginKey), ": ", s.Get(trace.DecisionKey))
	if mode := s.Get(trace.ModeKey); mode != "" && mode != "Enforce" {
		text += " (" + mode + ")"
	}
	// Some authorizers begin their reasons with their name, which is there already.
	text = with(text, ", ", strings.TrimPrefix(s.Get(trace.MessageKey), s.Get(trace.PluginKey)+": "))
	text = with(text, " ", patch(s.Get(trace.PatchKey)))
	return with(text, ", fuel ", s.Get(trace.FuelKey))
}

// with joins two texts where there are two.
func with(text, between, more string) string {
	switch {
	case more == "":
		return text
	case text == "":
		return strings.TrimLeft(between, ":, ") + more
	}
	return text + between + more
}

func events(list []trace.SpanEvent) string {
	var parts []string
	for _, e := range list {
		parts = append(parts, e.Name)
	}
	return strings.Join(parts, "; ")
}

// patch shows a JSON patch as one reads it: "+ /metadata/labels/team=web".
func patch(text string) string {
	if text == "" {
		return ""
	}
	var ops []struct {
		Op    string          `json:"op"`
		Path  string          `json:"path"`
		Value json.RawMessage `json:"value"`
	}
	if json.Unmarshal([]byte(text), &ops) != nil {
		return text
	}
	sign := map[string]string{"add": "+", "remove": "-", "replace": "~"}
	var parts []string
	for _, op := range ops {
		part := cmp.Or(sign[op.Op], op.Op) + " " + strings.NewReplacer("~1", "/", "~0", "~").Replace(op.Path)
		if len(op.Value) > 0 && op.Op != "remove" {
			part += "=" + strings.Trim(string(op.Value), `"`)
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, "; ")
}

// scores shows the best nodes: "node-1 130 (ImageLocality 40, NodeResourcesFit 90), node-2 90 (...)".
func scores(text string) string {
	var byNode map[string]map[string]float64
	if json.Unmarshal([]byte(text), &byNode) != nil {
		return text
	}
	total := func(node string) float64 {
		row := byNode[node]
		if t, ok := row["total"]; ok {
			return t
		}
		sum := 0.0
		for _, v := range row {
			sum += v
		}
		return sum
	}
	nodes := slices.SortedFunc(maps.Keys(byNode), func(x, y string) int {
		return cmp.Or(cmp.Compare(total(y), total(x)), strings.Compare(x, y))
	})
	var parts []string
	for _, n := range nodes {
		var by []string
		for _, p := range slices.Sorted(maps.Keys(byNode[n])) {
			if p != "total" {
				by = append(by, fmt.Sprintf("%s %g", p, byNode[n][p]))
			}
		}
		part := fmt.Sprintf("%s %g", n, total(n))
		if len(by) > 0 {
			part += " (" + strings.Join(by, ", ") + ")"
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, ", ")
}
