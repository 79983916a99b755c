// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

func TestCompare(t *testing.T) {
	for _, c := range []struct{ name, was, is, wants string }{
		{"the same", `{"a": {"spec": {"n": 1, "l": [1, {"x": "y"}]}}}`, `{"a": {"spec": {"n": 1, "l": [1, {"x": "y"}]}}}`, ""},
		{"what was added", `{"a": {"spec": {"n": 1}}}`, `{"a": {"spec": {"n": 1, "m": 2}}, "b": {}}`, ""},
		{"a lost object", `{"a": {}, "b": {}}`, `{"a": {}}`, "b is lost"},
		{"another under its name", `{"a": {"metadata": {"uid": "1"}}}`, `{"a": {"metadata": {"uid": "2"}}}`, `a: .metadata.uid was "1" and is "2"`},
		{"a lost field", `{"a": {"data": {"k": "v"}}}`, `{"a": {"data": {}}}`, `a: .data.k was "v" and is null`},
		{"a lost item", `{"a": {"l": [1, 2]}}`, `{"a": {"l": [1]}}`, "a: .l was [1,2] and is [1]"},
		{"a changed item", `{"a": {"l": [{"n": true}]}}`, `{"a": {"l": [{"n": false}]}}`, "a: .l[0].n was true and is false"},
		{"another type", `{"a": {"l": {"n": 1}}}`, `{"a": {"l": "n"}}`, `a: .l was {"n":1} and is "n"`},
	} {
		var was, is Inventory
		if err := errors.Join(json.Unmarshal([]byte(c.was), &was), json.Unmarshal([]byte(c.is), &is)); err != nil {
			t.Fatal(err)
		}
		switch err := was.Compare(is); {
		case c.wants == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.wants != "" && (!errors.Is(err, ErrDiffers) || !strings.HasSuffix(err.Error(), ":\n"+c.wants)):
			t.Errorf("%s: %v, wanted %q", c.name, err, c.wants)
		}
	}
}
