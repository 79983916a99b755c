// The fewest-pods plugin prefers nodes with room for pods. One call judges all nodes.
package main

import wasmplane "github.com/wasmplane/wasmplane/sdk/go"

var _ = wasmplane.Register(wasmplane.Plugin{
	Name: "fewest-pods", Version: "0.1.0",
	Table: &wasmplane.Table{
		Columns: []wasmplane.Column{{Path: "pods", Type: wasmplane.Int}, {Path: "allocatable.pods", Type: wasmplane.Int}},
		Reasons: []string{"node(s) were full"},
		JudgeAll: func(_, nodes []int64, out []wasmplane.Judgement) {
			for i := range out {
				pods, room := nodes[2*i], nodes[2*i+1]
				if pods >= room {
					out[i] = wasmplane.Unfit(0)
					continue
				}
				out[i] = wasmplane.Fits(100 * (room - pods) / room)
			}
		},
	},
})

func main() {}
