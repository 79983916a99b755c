// SPDX-License-Identifier: Apache-2.0

package point

import (
	"errors"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wasmplane/wasmplane/plugins/abi"
)

// A plugin that has no version fails, and the failure policy decides; one that was
// removed takes no part in what began before.
func TestARemovedPluginTakesNoPart(t *testing.T) {
	m, err := NewMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	p := NewPlugin("p", m)
	if c := p.Ask(t.Context(), abi.AdmissionValidate, "Pod", nil); c == nil || !errors.Is(c.Err, ErrNotLoaded) {
		t.Errorf("without a version: %+v", c)
	}
	p.Remove()
	if c := p.Ask(t.Context(), abi.AdmissionValidate, "Pod", nil); c != nil {
		t.Errorf("removed: %+v", c)
	}
}
