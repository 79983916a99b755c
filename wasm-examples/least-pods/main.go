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
		Judge: func(_, node []int64) wasmplane.Judgement {
			pods, room := node[0], max(node[1], 1)
			return wasmplane.Fits(100 * (room - pods) / room)
		},
	},
})

func main() {}
