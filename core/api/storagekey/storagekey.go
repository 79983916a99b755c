// SPDX-License-Identifier: Apache-2.0

// Package storagekey knows which resource a key of the store belongs to, for those
// that see keys and no objects: encryption at rest and metrics. It decides by the key
// alone, so it also knows the keys of definitions that were deleted.
package storagekey

import (
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/api"
)

// Resources answers the resource of a key, as upstream's encryption names it:
// built-in resources by their prefixes, custom ones by /registry/GROUP/RESOURCE/.
func Resources(contract *api.Contract) func(key string) (schema.GroupResource, bool) {
	known := map[string]schema.GroupResource{
		"ranges/serviceips":       {Resource: "serviceipallocations"},
		"ranges/servicenodeports": {Resource: "servicenodeportallocations"},
	}
	for _, r := range contract.Resources() {
		// Events and some others are served by two groups; the first one is where they are stored.
		if _, twice := known[r.StoragePrefix]; !twice && !r.Virtual {
			known[r.StoragePrefix] = r.GroupResource
		}
	}
	return func(key string) (schema.GroupResource, bool) {
		rest, ok := strings.CutPrefix(key, "/registry/")
		if !ok {
			return schema.GroupResource{}, false
		}
		first, rest, _ := strings.Cut(rest, "/")
		second, _, _ := strings.Cut(rest, "/")
		if gr, ok := known[first+"/"+second]; ok {
			return gr, true
		}
		if gr, ok := known[first]; ok {
			return gr, true
		}
		if strings.Contains(first, ".") && second != "" {
			return schema.GroupResource{Group: first, Resource: second}, true
		}
		return schema.GroupResource{}, false
	}
}
