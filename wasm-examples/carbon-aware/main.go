// SPDX-License-Identifier: Apache-2.0

// The carbon-aware plugin prefers nodes whose electricity is clean and whose hour
// is cheap, as labels on the nodes say. Who keeps the labels current (a script that asks
// the grid's operator, a cloud's price list) is no matter of the plugin's.
package main

import (
	"errors"
	"strconv"

	wasmplane "github.com/wasmplane/wasmplane/sdk/go"
)

var (
	carbonLabel, costLabel   = "carbon.example.com/grams-per-kwh", "cost.example.com/cents-per-hour"
	dirtiest, dearest        = 800.0, 100.0
	carbonWeight, costWeight = 1.0, 0.0
)

func settings(s wasmplane.Value) error {
	text := func(key string, v *string) {
		if s.Get(key).Exists() {
			*v = s.Get(key).String()
		}
	}
	number := func(key string, v *float64) {
		if s.Get(key).Exists() {
			*v = s.Get(key).Float()
		}
	}
	text("carbonLabel", &carbonLabel)
	text("costLabel", &costLabel)
	number("dirtiest", &dirtiest)
	number("dearest", &dearest)
	number("carbonWeight", &carbonWeight)
	number("costWeight", &costWeight)
	if dirtiest <= 0 || dearest <= 0 || carbonWeight < 0 || costWeight < 0 || carbonWeight+costWeight == 0 {
		return errors.New("dirtiest and dearest have to be above zero, the weights not below, and one of them above")
	}
	return nil
}

// goodness is 1 for nothing and 0 for the worst; a node that says nothing is in the middle.
func goodness(label string, worst float64) float64 {
	v, err := strconv.ParseFloat(label, 64)
	if err != nil {
		return 0.5
	}
	return 1 - min(max(v/worst, 0), 1)
}

var _ = wasmplane.Register(wasmplane.Plugin{
	Name: "carbon-aware", Version: "1.0.0", Settings: settings,
	Score: &wasmplane.Score{Fields: []string{"node.metadata.labels"}, Rate: func(in wasmplane.Input) int {
		labels := in.Get("node.metadata.labels")
		carbon := goodness(labels.Get(carbonLabel).String(), dirtiest)
		cost := goodness(labels.Get(costLabel).String(), dearest)
		return int(100*(carbonWeight*carbon+costWeight*cost)/(carbonWeight+costWeight) + 0.5)
	}},
})

func main() {}
