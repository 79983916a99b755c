// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// key of an object, whichever version of its kind a manifest has. The namespace is empty
// for the default one too, which a manifest need not name.
type key struct{ group, kind, namespace, name string }

func keyOf(gvk schema.GroupVersionKind, namespace, name string) key {
	if namespace == metav1.NamespaceDefault {
		namespace = ""
	}
	return key{gvk.Group, gvk.Kind, namespace, name}
}

// String implements fmt.Stringer.
func (k key) String() string {
	name := k.name
	if k.namespace != "" {
		name = k.namespace + "/" + name
	}
	return k.kind + " " + name
}

// record is what the ConfigMap holds.
type record struct {
	// Server that wrote it, and its files with their digests.
	Server  string            `json:"server"`
	Files   map[string]string `json:"files"`
	Objects []applied         `json:"objects"`
}

// applied is an object that is, or was about to be, applied.
type applied struct {
	File       string `json:"file"`
	Server     string `json:"server"`
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace,omitempty"`
	Name       string `json:"name"`
}

func (a applied) key() key {
	return keyOf(schema.FromAPIVersionAndKind(a.APIVersion, a.Kind), a.Namespace, a.Name)
}

// plan says what becomes of the objects: wanted are the folder's, gone those to delete,
// kept those that stay though the folder does not have them; orphans are the kept ones that
// only another server would delete.
type plan struct{ wanted, gone, kept, orphans []applied }

// planFor compares what was applied with what the files have. What a wrong file had stays.
func planFor(before record, items []item, wrong map[string]error, server string) plan {
	var p plan
	now := map[key]bool{}
	for _, it := range items {
		now[it.key()] = true
		p.wanted = append(p.wanted, applied{
			File: it.file, Server: server, APIVersion: it.object.GetAPIVersion(), Kind: it.object.GetKind(),
			Namespace: it.object.GetNamespace(), Name: it.object.GetName(),
		})
	}
	for _, o := range before.Objects {
		switch {
		case now[o.key()]:
		case o.Server != server:
			p.kept, p.orphans = append(p.kept, o), append(p.orphans, o)
		case wrong[o.File] != nil:
			p.kept = append(p.kept, o)
		default:
			p.gone = append(p.gone, o)
		}
	}
	return p
}

// difference says which files differ, in words; "" = none.
func difference(mine, theirs map[string]string) string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(mine)) {
		switch digest, ok := theirs[name]; {
		case !ok:
			out = append(out, name+" is only here")
		case digest != mine[name]:
			out = append(out, name+" is another one")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(theirs)) {
		if _, ok := mine[name]; !ok {
			out = append(out, name+" is only there")
		}
	}
	const most = 10
	if len(out) > most {
		out = append(out[:most], "and more")
	}
	return strings.Join(out, ", ")
}
