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
		{false, `[{"result":[]}]`, "neither a review"},
		{false, `[{"result":null}]`, "neither a review"},
		{false, `[{"result":true}]`, "neither a review"},
		{false, `[{"result":{}}]`, "no response.allowed"},
		{false, `[{"result":{"allow":"yes"}}]`, "neither true nor false"},
		{false, `[{"result":{"deny":"yes"}}]`, "the policy's deny: expected a set of messages"},
		{false, `[{"result":{"deny":null}}]`, "the policy's deny"},
		{false, `[{"result":{"response":{"allowed":true}}}]`, ""},
	} {
		p := &Policy{cfg: Config{Gatekeeper: c.gatekeeper}}
		answer, err := p.answer([]byte(c.dumped), abi.AdmissionValidate)
		if (err == nil) != (c.fails == "") || err != nil && !strings.Contains(err.Error(), c.fails) {
			t.Errorf("gatekeeper %v, %s: %s, %v, want %q", c.gatekeeper, c.dumped, answer, err, c.fails)
		}
	}
}

// TestDocumentsOfPolicies: what policies say without writing a review.
func TestDocumentsOfPolicies(t *testing.T) {
	for _, c := range []struct {
		rule, result string
		at           abi.Point
		want         string
	}{
		{"deny", `[]`, abi.AdmissionValidate, `{"allowed":true}`},
		{"deny", `["a",{"msg":"b"},{"message":"c"}]`, abi.AdmissionValidate, `{"allowed":false,"message":"a","causes":[{"message":"b"},{"message":"c"}]}`},
		{"deny", `true`, abi.AdmissionValidate, `{"allowed":false}`},
		{"deny", `false`, abi.AdmissionValidate, `{"allowed":true}`},
		{"allow", `true`, abi.AdmissionValidate, `{"allowed":true}`},
		{"allow", `false`, abi.AdmissionValidate, `{"allowed":false}`},
		{"admission", `{"deny":[],"warn":["old"],"other":1}`, abi.AdmissionValidate, `{"allowed":true,"warnings":["old"]}`},
		{"admission", `{"allow":true,"deny":["no"]}`, abi.AdmissionValidate, `{"allowed":false,"message":"no"}`},
		{"admission", `{"allow":false,"violation":[{"msg":"v"}]}`, abi.AdmissionMutate, `{"allowed":false,"message":"v"}`},
		{"authz", `{"deny":["night"]}`, abi.Authorization, `{"decision":"deny","reason":"night"}`},
		{"authz", `{"deny":[]}`, abi.Authorization, `{"decision":"noOpinion"}`},
		{"authz", `{"allow":true,"deny":["night"]}`, abi.Authorization, `{"decision":"deny","reason":"night"}`},
		{"allow", `true`, abi.Authorization, `{"decision":"allow"}`},
		{"allow", `false`, abi.Authorization, `{"decision":"noOpinion"}`},
		{"allow", ``, abi.Authorization, `{"decision":"noOpinion"}`},
		{"deny", ``, abi.Authorization, "undefined"},
		{"decision", `{"status":{"allowed":true}}`, abi.Authorization, `{"decision":"allow"}`},
		{"decision", `{"status":{"allowed":false,"denied":true,"reason":"no"}}`, abi.Authorization, `{"decision":"deny","reason":"no"}`},
		{"decision", `{"status":{"allowed":false,"reason":"who knows"}}`, abi.Authorization, `{"decision":"noOpinion","reason":"who knows"}`},
		{"decision", `{"status":{"allowed":true,"denied":true}}`, abi.Authorization, "allowed and denied at once"},
		{"decision", `{"status":{}}`, abi.Authorization, "no status.allowed"},
		{"decision", `{"status":{"allowed":true,"evaluationError":"boom"}}`, abi.Authorization, "boom"},
		{"decision", `{"response":{"allowed":true}}`, abi.Authorization, "neither a review"},
	} {
		dumped := `[{"result":` + c.result + `}]`
		if c.result == "" {
			dumped = `[]`
		}
		answer, err := (&Policy{rule: c.rule}).answer([]byte(dumped), c.at)
		got := string(answer)
		if err != nil {
			got = err.Error()
		}
		if (err == nil) != strings.HasPrefix(c.want, "{") || !strings.Contains(got, c.want) {
			t.Errorf("%s %s at %s: %s, want %s", c.rule, c.result, c.at, got, c.want)
		}
	}
}
