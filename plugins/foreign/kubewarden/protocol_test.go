// SPDX-License-Identifier: Apache-2.0

package kubewarden

import (
	"strings"
	"testing"
)

// TestWrongAnswersAreNamedByTheirFields, not by the types of this program.
func TestWrongAnswersAreNamedByTheirFields(t *testing.T) {
	for answer, want := range map[string]string{
		`{"accepted": "yes"}`:                    "the policy's answer cannot be read: field accepted: expected true or false, found string",
		`[]`:                                     "the policy's answer cannot be read: expected an object, found array",
		`{"accepted": true, "code": "x"}`:        "field code: expected a number, found string",
		`{"accepted": true, "warnings": "x"}`:    "field warnings: expected a list, found string",
		`{"accepted": true, "message": {}}`:      "field message: expected a text, found object",
		`{"accepted": true, "warnings": [true]}`: "field warnings: expected a text, found bool",
		`{"accepted"`:                            "unexpected end of JSON input",
		`{}`:                                     "has no field accepted: {}",
	} {
		_, err := Answer([]byte(answer), []byte("{}"), "admission.validate")
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "Go ") {
			t.Errorf("%s: %v, want %q", answer, err, want)
		}
	}
	if _, err := ParseMetadata([]byte(`{"rules": {}}`)); err == nil || !strings.HasSuffix(err.Error(), "field rules: expected a list, found object") {
		t.Errorf("metadata: %v", err)
	}
}
