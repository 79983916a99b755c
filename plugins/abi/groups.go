// SPDX-License-Identifier: Apache-2.0

package abi

import (
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Groups tell pods apart by what is written in them: by their namespace, a label or an annotation.
type Groups struct {
	// Value that decides: pod.metadata.namespace, pod.metadata.labels["..."] or
	// pod.metadata.annotations["..."].
	Value string `json:"of"`
	// Names of groups by the value. Several values may be one group.
	Names map[string]string `json:"names"`
	// Other is the group of pods with any other value, or with none; "" = they are in none.
	Other string `json:"other"`

	key string
	in  func(metav1.Object) map[string]string // nil = the namespace
}

// maxGroups bounds the values that a manifest names: hooks see the usage of all groups.
const maxGroups = 1024

func (g *Groups) check() error {
	p, err := ParsePath(g.Value)
	if err != nil {
		return fmt.Errorf("of: %w", err)
	}
	var names []string
	for _, s := range p.steps {
		if s.kind != stepKey {
			names = nil
			break
		}
		names = append(names, s.name)
	}
	switch {
	case len(names) < 3 || names[0] != "pod" || names[1] != "metadata":
		names = nil
	case len(names) == 3 && names[2] == "namespace":
	case len(names) == 4 && names[2] == "labels":
		g.key, g.in = names[3], metav1.Object.GetLabels
	case len(names) == 4 && names[2] == "annotations":
		g.key, g.in = names[3], metav1.Object.GetAnnotations
	default:
		names = nil
	}
	if names == nil {
		return fmt.Errorf(`of: expected pod.metadata.namespace, pod.metadata.labels["..."] or pod.metadata.annotations["..."], found %q`, g.Value)
	}
	if len(g.Names) > maxGroups {
		return fmt.Errorf("names: %d values, at most %d are allowed", len(g.Names), maxGroups)
	}
	if len(g.Names) == 0 && g.Other == "" {
		return errors.New("names: expected at least one value with the name of its group")
	}
	return nil
}

// Of is the group of a pod; "" = it is in none.
func (g *Groups) Of(pod metav1.Object) string {
	value := pod.GetNamespace()
	if g.in != nil {
		value = g.in(pod)[g.key]
	}
	if name, known := g.Names[value]; known {
		return name
	}
	return g.Other
}
