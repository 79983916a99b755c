// SPDX-License-Identifier: Apache-2.0

// Package kubectltexts tells which processes of this binary are kubectl, and keeps kubectl's translations out of the others. kubectl reads them while its packages are
// initialized, which takes 17 ms and 4.4 MB in each process of this binary: servers, containerd, compilers of plugins. Whoever imports
// kubectl imports this package.
package kubectltexts

import (
	"os"
	"path/filepath"

	"k8s.io/kubectl/pkg/util/i18n"
)

const kubectl = "kubectl"

// late says that somebody has read them before this package could say anything about it.
var late error

// Packages that are ready to be initialized are so in the order of their paths (Go specification, "Program initialization"): this one
// comes before k8s.io/kubectl/pkg/cmd, which asks for the first text.
func init() { //nolint:gochecknoinits // kubectl has no other way
	if !IsKubectl(Args(os.Args)) {
		late = i18n.SetLoadTranslationsFunc(func() error { return nil })
	}
}

// Args are the arguments of a command line: a program that is called kubectl, by a link or a copy, is
// kubectl.
func Args(line []string) []string {
	if len(line) > 0 && filepath.Base(line[0]) == kubectl {
		return append([]string{kubectl}, line[1:]...)
	}
	return line[min(1, len(line)):]
}

// IsKubectl says whether arguments are for kubectl.
func IsKubectl(args []string) bool { return len(args) > 0 && args[0] == kubectl }
