// SPDX-License-Identifier: Apache-2.0

package opa

import (
	"strings"
	"testing"

	"github.com/wasmplane/wasmplane/plugins/abi"
)

// TestAnUndefinedResultIsAFailure: a rule that a policy does not have, or one of another
// ABI, used to allow everything under abi: gatekeeper.
func TestAnUndefinedResultIsAFailure(t *testing.T) {
	for _, c := range []struct {
		gatekeeper    bool
		dumped, fails string
	}{
		{true, `[]`, "is undefined for this request"},
		{true, `[{}]`, "is undefined for this request"},
		{true, `[{"result":null}]`, "is undefined for this request"},
		{true, `[{"result":true}]`, "no set of violations"},
		{true, `[{"result":{"response":{"allowed":true}}}]`, "no set of violations"},
		{true, `[{"result":["no"]}]`, "no set of violations"},
		{true, `[{"result":[]}]`, ""},
		{true, `[{"result":[{"msg":"no"}]}]`, ""},
		{false, `[]`, "is undefined for this request"},
		{false, `[{"result":[]}]`, "no AdmissionReview"},
		{false, `[{"result":null}]`, "no response.allowed"},
		{false, `[{"result":{"allow":true}}]`, "no response.allowed"},
		{false, `[{"result":{"response":{"allowed":true}}}]`, ""},
	} {
		p := &Policy{cfg: Config{Gatekeeper: c.gatekeeper}}
		answer, err := p.answer([]byte(c.dumped), abi.AdmissionValidate)
		if (err == nil) != (c.fails == "") || err != nil && !strings.Contains(err.Error(), c.fails) {
			t.Errorf("gatekeeper %v, %s: %s, %v, want %q", c.gatekeeper, c.dumped, answer, err, c.fails)
		}
	}
}
