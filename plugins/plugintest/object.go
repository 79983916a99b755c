// SPDX-License-Identifier: Apache-2.0

package plugintest

import (
	"testing"

	utiljson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"
)

// Object reads an object of YAML with the types that the API's objects have in memory.
func Object(tb testing.TB, text string) map[string]any {
	tb.Helper()
	b, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		tb.Fatal(err)
	}
	out := map[string]any{}
	if err := utiljson.Unmarshal(b, &out); err != nil {
		tb.Fatal(err)
	}
	return out
}
