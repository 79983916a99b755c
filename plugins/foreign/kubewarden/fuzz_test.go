// SPDX-License-Identifier: Apache-2.0

package kubewarden

import (
	"encoding/json"
	"testing"

	"github.com/wasmplane/wasmplane/plugins/abi"
)

// FuzzAnswer: whatever a policy answers to whatever it was asked is an error or an answer
// that can be written; a validating policy changes nothing.
func FuzzAnswer(f *testing.F) {
	const pod = `{"request":{"object":{"kind":"Pod","metadata":{"name":"a"},"spec":{"containers":[{"name":"c"}]}}}}`
	f.Add([]byte(`{"accepted":true,"mutated_object":{"kind":"Pod","metadata":{"name":"b"}}}`), []byte(pod))
	f.Add([]byte(`{"accepted":false,"message":"no","code":403}`), []byte(pod))
	f.Add([]byte(`{"accepted":true,"mutated_object":[]}`), []byte(`{}`))
	f.Fuzz(func(t *testing.T, response, request []byte) {
		for _, at := range []abi.Point{abi.AdmissionMutate, abi.AdmissionValidate} {
			out, err := Reply("p", response, request, at)
			if err != nil {
				continue
			}
			var a struct {
				Allowed *bool
				Patch   []any
			}
			if err := json.Unmarshal(out, &a); err != nil || a.Allowed == nil {
				t.Errorf("%s: %v", out, err)
			}
			if at == abi.AdmissionValidate && len(a.Patch) > 0 {
				t.Errorf("a validating policy changes: %s", out)
			}
		}
		_ = CheckSettings(response)
	})
}

// FuzzMetadata: what a module says of itself is an error or can be checked.
func FuzzMetadata(f *testing.F) {
	f.Add([]byte(`{"protocolVersion":"v1","rules":[{"apiGroups":[""],"apiVersions":["v1"],"resources":["pods"],"operations":["CREATE"]}],"mutating":true}`))
	f.Fuzz(func(_ *testing.T, section []byte) {
		m, err := ParseMetadata(section)
		if err != nil {
			return
		}
		_ = m.Check()
		_, _ = m.ABI()
	})
}
