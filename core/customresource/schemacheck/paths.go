// SPDX-License-Identifier: Apache-2.0

package schemacheck

import (
	"fmt"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Unknown fields and errors are told by their paths, such as spec.a[0].b. Below a name of 500 KB each of 5,000 fields had it in its
// path, and in each text that was made of that: 13 GB for a body of half a MiB.
const (
	// MaxPath is how many bytes a path has. Texts are made of many errors by adding one after the other, so this is for their square.
	MaxPath = 16 << 10
	// MaxPaths is how many bytes those of all values of an object have together. An object of a MiB that people use has some 10 MB.
	MaxPaths = 64 << 20
)

// CheckPaths refuses an object that has a longer path than MaxPath, or more than MaxPaths bytes in all its paths.
func CheckPaths(object map[string]any) error {
	var p paths
	p.below(object, 0)
	if !p.over() {
		return nil
	}
	return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("the paths of the object's fields, such as spec.a[0].b, are too long: one may have %d bytes, "+
		"and all together %d; shorten the names of fields that have others in them", MaxPath, MaxPaths))
}

// paths are the lengths of an object's paths.
type paths struct{ longest, all int }

func (p *paths) over() bool { return p.longest > MaxPath || p.all > MaxPaths }

// below adds the path of a value, which has so many bytes, and those of all that is in it.
func (p *paths) below(value any, length int) {
	p.longest, p.all = max(p.longest, length), p.all+length
	if p.over() {
		return
	}
	switch v := value.(type) {
	case map[string]any:
		for name, within := range v {
			p.below(within, length+1+len(name))
		}
	case []any:
		for i, within := range v {
			p.below(within, length+2+len(strconv.Itoa(i)))
		}
	}
}
