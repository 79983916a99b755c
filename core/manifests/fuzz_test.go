// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"testing"
)

// FuzzParse: a file of the folder is objects with a kind and a name, or an error.
func FuzzParse(f *testing.F) {
	f.Add([]byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n---\n# nothing\n---\napiVersion: v1\nkind: List\nitems: []\n"))
	f.Add([]byte(`{"apiVersion":"v1","kind":"ConfigMapList","items":[{"metadata":{"name":"a"}}]}`))
	f.Add([]byte("a: &a [*a]"))
	f.Fuzz(func(t *testing.T, text []byte) {
		items, _ := files{"f.yaml": {data: text}}.items()
		for _, i := range items {
			if i.object.GetAPIVersion() == "" || i.object.GetName() == "" || i.digest() == "" {
				t.Errorf("an object without a name: %v", i.object)
			}
		}
	})
}
