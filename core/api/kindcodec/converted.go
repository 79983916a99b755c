// SPDX-License-Identifier: Apache-2.0

package kindcodec

import (
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// converted are the kinds that conversion to the internal form and back does not
// leave as they were: it fills one field from another, or moves one into another.
// Upstream converts whatever it decodes, so the managed fields, which record who
// wrote a field, are those of the object after conversion.
var converted = map[schema.GroupVersionKind]bool{
	{Version: "v1", Kind: "Node"}:                                          true, // podCIDR into podCIDRs
	{Version: "v1", Kind: "Secret"}:                                        true, // stringData into data
	{Group: "apps", Version: "v1", Kind: "DaemonSet"}:                      true, // the template's generation into an annotation
	{Group: "autoscaling", Version: "v1", Kind: "HorizontalPodAutoscaler"}: true, // all that v1 has no field for into annotations
}

// fill gives an object read from protobuf back what that has no room for: the
// claims of a StatefulSet say what they are.
func fill(o runtime.Object) {
	set, ok := o.(*appsv1.StatefulSet)
	if !ok {
		return
	}
	for i := range set.Spec.VolumeClaimTemplates {
		if claim := &set.Spec.VolumeClaimTemplates[i]; claim.APIVersion == "" && claim.Kind == "" {
			claim.APIVersion, claim.Kind = "v1", "PersistentVolumeClaim"
		}
	}
}

// AsConverted returns a decoded object as conversion leaves it. It may change o.
func (c *Codec) AsConverted(o runtime.Object) (runtime.Object, error) {
	if !converted[c.gvk] {
		return o, nil
	}
	internal, err := c.Internal(o)
	if err != nil {
		return nil, err
	}
	versioned, err := c.Versioned(internal)
	if err != nil {
		return nil, err
	}
	return c.Named(versioned), nil
}
