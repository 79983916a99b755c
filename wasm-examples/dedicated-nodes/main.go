// SPDX-License-Identifier: Apache-2.0

// The dedicated-nodes plugin keeps nodes for the teams that they are labelled
// with, and prefers a team's own nodes. It is asked for each node: the simple form.
package main

import wasmplane "github.com/wasmplane/wasmplane/sdk/go"

var label = "dedicated"

var fields = []string{"pod.metadata.labels", "node.metadata.labels"}

func teams(in wasmplane.Input) (pod, node string) {
	return in.Get(fields[0]).Get(label).String(), in.Get(fields[1]).Get(label).String()
}

var _ = wasmplane.Register(wasmplane.Plugin{
	Name: "dedicated-nodes", Version: "1.0.0",
	Settings: func(s wasmplane.Value) error {
		if l := s.Get("label").String(); l != "" {
			label = l
		}
		return nil
	},
	Filter: &wasmplane.Filter{Fields: fields, Fits: func(in wasmplane.Input) string {
		if pod, node := teams(in); node != "" && node != pod {
			return "node(s) were kept for another team"
		}
		return ""
	}},
	Score: &wasmplane.Score{Fields: fields, Rate: func(in wasmplane.Input) int {
		if pod, node := teams(in); node != "" && node == pod {
			return 100
		}
		return 0
	}},
})

func main() {}
