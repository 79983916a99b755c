// SPDX-License-Identifier: Apache-2.0

// The least-pods plugin prefers the node with the most room for pods. It keeps a
// node table: one call rates all nodes.
package main

import wasmplane "github.com/wasmplane/wasmplane/sdk/go"

var _ = wasmplane.Register(wasmplane.Plugin{
	Name: "least-pods", Version: "1.0.0",
	Table: &wasmplane.Table{
		Columns: []wasmplane.Column{
			{Path: "pods", Type: wasmplane.Int},
			{Path: "allocatable.pods", Type: wasmplane.Int},
		},
		JudgeAll: func(_, nodes []int64, out []wasmplane.Judgement) {
			for i := range out {
				pods, room := nodes[2*i], max(nodes[2*i+1], 1)
				out[i] = wasmplane.Fits(100 * (room - pods) / room)
			}
		},
	},
})

func main() {}
