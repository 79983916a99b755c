// SPDX-License-Identifier: Apache-2.0

package schemacheck

import (
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/wasmplane/wasmplane/core/api/pathlength"
)

// CheckPaths refuses an object of too long paths.
func CheckPaths(object map[string]any) error {
	var sum pathlength.Sum
	addPaths(&sum, object, 0)
	if !sum.Over() {
		return nil
	}
	return apierrors.NewRequestEntityTooLargeError(pathlength.Refusal("the object's fields, such as spec.a[0].b,"))
}

// addPaths adds the path of a value, which has so many bytes, and those of all that is in it.
func addPaths(sum *pathlength.Sum, value any, length int) {
	sum.Add(length, 1)
	if sum.Over() {
		return
	}
	switch v := value.(type) {
	case map[string]any:
		for name, within := range v {
			addPaths(sum, within, length+1+len(name))
		}
	case []any:
		for i, within := range v {
			addPaths(sum, within, length+2+len(strconv.Itoa(i)))
		}
	}
}
