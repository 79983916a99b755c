// SPDX-License-Identifier: Apache-2.0

package kinds

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Subresource is one row below a resource.
type Subresource struct {
	Name string
	// Kind that the endpoint reads and writes: the parent's for status,
	// autoscaling/v1 Scale for scale, authentication.k8s.io/v1 TokenRequest for token.
	Kind schema.GroupVersionKind
	// Strategy governs updates that write the parent (status, approval,
	// ephemeralcontainers, resize, finalize); nil for those that the server does itself
	// (scale, binding, eviction, token, log, exec, attach, portforward, proxy).
	Strategy Strategy
	Verbs    []string
	// ConnectMethods are the HTTP methods of a connecting subresource (exec, proxy).
	ConnectMethods []string

	custom bool // it writes the parent, by a strategy that differs between versions
}

// WritesParent says whether the subresource is a part of its object: what is
// read and written is the object.
func (s *Subresource) WritesParent() bool { return s.Strategy != nil || s.custom }

// CustomStatus is the status subresource of a custom resource; its strategy is
// the version's, see the resource's Writer.
func CustomStatus(kind schema.GroupVersionKind) *Subresource {
	return &Subresource{Name: "status", Kind: kind, Verbs: []string{"get", "patch", "update"}, custom: true}
}

// Subresources of the usual shapes.

func statusOf(s Strategy) *Subresource {
	return &Subresource{Name: "status", Strategy: s, Verbs: []string{"get", "patch", "update"}}
}

// Scale is the scale subresource, of built-in and custom resources alike.
func Scale() *Subresource {
	return &Subresource{
		Name: "scale", Kind: schema.GroupVersionKind{Group: "autoscaling", Version: "v1", Kind: "Scale"},
		Verbs: []string{"get", "patch", "update"},
	}
}

func part(name string, s Strategy, verbs ...string) *Subresource {
	return &Subresource{Name: name, Strategy: s, Verbs: verbs}
}

func action(name string, kind schema.GroupVersionKind, verbs ...string) *Subresource {
	return &Subresource{Name: name, Kind: kind, Verbs: verbs}
}

// connecting subresources hand the connection over; the options of kind come in the query.
func connecting(name, kind string, methods ...string) *Subresource {
	return &Subresource{
		Name:           name,
		Kind:           schema.GroupVersionKind{Version: "v1", Kind: kind},
		Verbs:          verbsOf(methods),
		ConnectMethods: methods,
	}
}

// verbsOf is what discovery says of a connecting subresource.
func verbsOf(methods []string) []string {
	verb := map[string]string{"POST": "create", "GET": "get", "DELETE": "delete", "PATCH": "patch", "PUT": "update"}
	var out []string
	for _, m := range methods {
		if v := verb[m]; v != "" {
			out = append(out, v)
		}
	}
	slices.Sort(out)
	return out
}
