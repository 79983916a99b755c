// SPDX-License-Identifier: Apache-2.0

package kubewarden

import "testing"

// TestTheProtocolsThatKwctlWrites: it annotates policies that are asked in no protocol
// of its own, from Rego and as commands, with "Unknown".
func TestTheProtocolsThatKwctlWrites(t *testing.T) {
	for _, c := range []struct {
		mode, protocol string
		good           bool
	}{
		{"kubewarden-wapc", "v1", true},
		{"kubewarden-wapc", "", true},
		{"kubewarden-wapc", "Unknown", false},
		{"kubewarden-wapc", "v2", false},
		{"opa", "Unknown", true},
		{"gatekeeper", "Unknown", true},
		{"wasi", "Unknown", true},
		{"wasi", "v1", true},
		{"opa", "v2", false},
	} {
		m := &Metadata{ExecutionMode: c.mode, ProtocolVersion: c.protocol}
		if err := m.Check(); (err == nil) != c.good {
			t.Errorf("%s %s: %v", c.mode, c.protocol, err)
		}
	}
}
