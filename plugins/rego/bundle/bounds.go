// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"fmt"
	"path"
)

// Bounds of what is parsed in this process, before it is: a few kilobytes of an archive may be
// millions of values, each of which takes a hundred times its text.
const (
	mostManifest   = 1 << 20 // bytes
	mostSignatures = 4 << 20
	mostData       = 16 << 20
	mostYAML       = 1 << 20
	mostValues     = 500_000 // of all JSON
	mostRoots      = 512     // which are compared with each other
)

// kind is what a file is by its name.
type kind int

const (
	unparsed kind = iota
	manifest
	signatures
	inJSON
	inYAML
)

func kindOf(name string) kind {
	switch path.Base(name) {
	case manifestFile:
		return manifest
	case signaturesFile:
		return signatures
	case "data.json":
		return inJSON
	case "data.yaml", "data.yml":
		return inYAML
	}
	return unparsed
}

// bounded refuses files that would take much to parse, all of a kind together.
func bounded(files map[string][]byte) error {
	size, seen := map[kind]int{}, 0
	for _, name := range names(files) {
		k := kindOf(name)
		if size[k] += len(files[name]); k == inJSON || k == manifest {
			seen += values(files[name])
		}
		switch {
		case size[manifest] > mostManifest:
			return fmt.Errorf("%s: it has more than %d bytes", name, mostManifest)
		case size[signatures] > mostSignatures:
			return fmt.Errorf("%s: it has more than %d bytes", name, mostSignatures)
		case size[inJSON]+size[inYAML] > mostData:
			return fmt.Errorf("%s: the data have more than %d bytes", name, mostData)
		case size[inYAML] > mostYAML:
			return fmt.Errorf("%s: the data in YAML have more than %d bytes: write them in JSON", name, mostYAML)
		case seen > mostValues:
			return fmt.Errorf("%s: the data have more than %d values", name, mostValues)
		}
	}
	return nil
}

// values are at least as many as a JSON text holds: each but the first comes behind one of these characters.
func values(text []byte) int {
	n, quoted := 1, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case !quoted && (c == ',' || c == '[' || c == '{'):
			n++
		}
	}
	return n
}
