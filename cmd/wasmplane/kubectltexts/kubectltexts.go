// SPDX-License-Identifier: Apache-2.0

// Package kubectltexts keeps kubectl's translations out of processes that are not kubectl. kubectl reads them while its packages are
// initialized, which takes 17 ms and 4.4 MB in each process of this binary: servers, containerd, compilers of plugins. Whoever imports
// kubectl imports this package.
package kubectltexts

import (
	"os"
	"path/filepath"

	"k8s.io/kubectl/pkg/util/i18n"
)

// late says that somebody has read them before this package could say anything about it.
var late error

// Packages that are ready to be initialized are so in the order of their paths (Go specification, "Program initialization"): this one
// comes before k8s.io/kubectl/pkg/cmd, which asks for the first text.
func init() { //nolint:gochecknoinits // kubectl has no other way
	if !isKubectl(os.Args) {
		late = i18n.SetLoadTranslationsFunc(func() error { return nil })
	}
}

// isKubectl is how package command decides it.
func isKubectl(line []string) bool {
	return len(line) > 0 && filepath.Base(line[0]) == "kubectl" || len(line) > 1 && line[1] == "kubectl"
}
