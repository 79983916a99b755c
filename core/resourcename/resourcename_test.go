// SPDX-License-Identifier: Apache-2.0

package resourcename_test

import (
	"strings"
	"testing"

	"github.com/wasmplane/wasmplane/core/resourcename"
)

func TestNames(t *testing.T) {
	for name, want := range map[string]struct{ native, extended bool }{
		"cpu":                                    {true, false},
		"hugepages-2Mi":                          {true, false},
		"pod.alpha.kubernetes.io/x":              {true, false},
		"kubernetes.io/x":                        {true, false},
		"example.com/gpu":                        {false, true},
		"kubernetes.io.example.com/x":            {false, true}, // a domain of somebody else
		"requests.example.com/gpu":               {false, false},
		"example.com/a/b":                        {false, false},
		"example.com/":                           {false, false},
		"/gpu":                                   {false, false},
		"example.com/" + strings.Repeat("x", 64): {false, false},
	} {
		if native, extended := resourcename.Native(name), resourcename.Extended(name); native != want.native || extended != want.extended {
			t.Errorf("%q: native %v, extended %v", name, native, extended)
		}
	}
}
