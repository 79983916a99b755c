// SPDX-License-Identifier: Apache-2.0

package run

import "testing"

func TestEndsCancelsWhatWasNotForgotten(t *testing.T) {
	var e Ends
	var ended []string
	add := func(name string) (forget func()) {
		return e.Add(func() { ended = append(ended, name) })
	}
	add("a")
	forget := add("b")
	forget()
	forget() // calling it twice does no harm
	e.End()
	e.End()
	add("late")()
	if len(ended) != 2 || ended[0] != "a" || ended[1] != "late" {
		t.Errorf("ended: %v", ended)
	}
}
