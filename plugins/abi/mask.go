// SPDX-License-Identifier: Apache-2.0

package abi

// NewMask is a projection onto paths outside of any hook: what it writes is the
// document pruned to them, as JSON. No paths are the whole document. Paths know the
// built-in alternatives.
func NewMask(paths []string) (*Projection, error) {
	aliases := BuiltinAliases()
	parsed, err := parsePaths(paths, aliases)
	if err != nil {
		return nil, err
	}
	return &Projection{encoding: JSON, paths: parsed, aliases: aliases}, nil
}

// Within says whether everything that p selects is selected by outer too: outer
// is p or stands above it.
func (p Path) Within(outer Path) bool {
	if len(outer.steps) > len(p.steps) {
		return false
	}
	for i, s := range outer.steps {
		if s != p.steps[i] {
			return false
		}
	}
	return true
}
