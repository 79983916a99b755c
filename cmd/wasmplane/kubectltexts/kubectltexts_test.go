// SPDX-License-Identifier: Apache-2.0

package kubectltexts_test

import (
	"testing"

	_ "k8s.io/kubectl/pkg/cmd/options" // asks for texts while it is initialized
	"k8s.io/kubectl/pkg/util/i18n"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/kubectltexts"
)

// A process that is not kubectl reads no translations, and has kubectl's texts as they are written.
func TestNobodyElseReadsTranslations(t *testing.T) {
	if *kubectltexts.Late != nil {
		t.Error(*kubectltexts.Late)
	}
	const text = "Drain node in preparation for maintenance"
	if got := i18n.T(text); got != text {
		t.Errorf("%q is %q", text, got)
	}
}

func TestKubectlReadsThem(t *testing.T) {
	for _, c := range []struct {
		line []string
		want bool
	}{
		{[]string{"/usr/bin/kubectl", "get"}, true},
		{[]string{"wasmplane", "kubectl", "get"}, true},
		{[]string{"wasmplane", "up", "kubectl"}, false},
		{[]string{"wasmplane"}, false},
		{nil, false},
	} {
		if got := kubectltexts.IsKubectl(kubectltexts.Args(c.line)); got != c.want {
			t.Errorf("%q: %v", c.line, got)
		}
	}
}
