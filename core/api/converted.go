// SPDX-License-Identifier: Apache-2.0

package api

import (
	"reflect"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/core/structural"
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
func (c *codec) AsConverted(o runtime.Object) (runtime.Object, error) {
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
	return c.named(versioned), nil
}

// AsStored makes of the versioned object that was written what readers of it will
// find: with the defaults of fields that the strategy filled or emptied, and
// without the empty lists and maps that protobuf does not keep.
func (c *Contract) AsStored(r *Resource, o runtime.Object) {
	if r.Custom != nil {
		return
	}
	if r.storageMedia == object.Protobuf {
		v := reflect.ValueOf(o).Elem()
		dropEmpty(c.models.structure.Of(v.Type()), v)
	}
	r.scheme.Default(o)
}

// dropEmpty makes nil of every empty list and map below v. The values of maps are
// left alone: none of the API's types has lists there that may be empty.
func dropEmpty(t *structural.Type, v reflect.Value) {
	if t.Own {
		return
	}
	switch t.Kind {
	case reflect.Struct:
		for i := range t.Members {
			m := &t.Members[i]
			dropEmpty(m.Type, v.Field(m.Index))
		}
	case reflect.Pointer:
		if !v.IsNil() {
			dropEmpty(t.Elem, v.Elem())
		}
	case reflect.Map:
		if !v.IsNil() && v.Len() == 0 {
			v.SetZero()
		}
	case reflect.Slice:
		switch {
		case v.IsNil() || t.Elem.Kind == reflect.Uint8: // bytes are kept
		case v.Len() == 0:
			v.SetZero()
		case holdsLists(t.Elem.Kind):
			for i := range v.Len() {
				dropEmpty(t.Elem, v.Index(i))
			}
		}
	default: // has nothing below it
	}
}

func holdsLists(k reflect.Kind) bool {
	return k == reflect.Struct || k == reflect.Pointer || k == reflect.Slice || k == reflect.Map
}
