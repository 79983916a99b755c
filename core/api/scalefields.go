// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/kube-openapi/pkg/builder3"
	"k8s.io/kubernetes/pkg/apis/autoscaling"
	"k8s.io/kubernetes/pkg/printers"
)

// ScaleFieldManager manages the fields of autoscaling/v1 Scale, whose managed
// fields are a view of the scaled object's: see ScaleFrom and ApplyScale.
func (c *Contract) ScaleFieldManager() (*managedfields.FieldManager, error) {
	m := c.models
	gvk := autoscalingv1.SchemeGroupVersion.WithKind("Scale")
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.scale != nil {
		return m.scale, nil
	}
	scheme := c.schemes.Builtin
	name, err := scheme.ToOpenAPIDefinitionName(gvk)
	if err != nil {
		return nil, fmt.Errorf("OpenAPI name of Scale: %w", err)
	}
	schemas, err := builder3.BuildOpenAPIDefinitionsForResources(m.config(), name)
	if err != nil {
		return nil, fmt.Errorf("schema of Scale: %w", err)
	}
	tc, err := managedfields.NewTypeConverter(schemas, false)
	if err != nil {
		return nil, fmt.Errorf("type converter of Scale: %w", err)
	}
	hub := schema.GroupVersion{Group: gvk.Group, Version: runtime.APIVersionInternal}
	fm, err := managedfields.NewDefaultFieldManager(tc, scheme, scheme, scheme, gvk, hub, "scale", nil)
	if err != nil {
		return nil, fmt.Errorf("field manager of Scale: %w", err)
	}
	m.scale = fm
	return fm, nil
}

// ScaleTable prints a Scale as upstream's printers do.
func (c *Contract) ScaleTable(scale *autoscalingv1.Scale, o metav1.TableOptions) (*metav1.Table, error) {
	internal := &autoscaling.Scale{}
	if err := c.schemes.Builtin.Convert(scale, internal, nil); err != nil {
		return nil, fmt.Errorf("convert Scale: %w", err)
	}
	table, err := c.printer().GenerateTable(internal, printers.GenerateOptions{Wide: true, NoHeaders: o.NoHeaders})
	if err != nil {
		return nil, fmt.Errorf("print Scale: %w", err)
	}
	for i := range table.Rows {
		switch o.IncludeObject {
		case metav1.IncludeNone:
			table.Rows[i].Object.Object = nil
		case metav1.IncludeObject:
			table.Rows[i].Object.Object = scale
		default:
			p, err := Partial(scale)
			if err != nil {
				return nil, err
			}
			table.Rows[i].Object.Object = p
		}
	}
	table.ResourceVersion = scale.ResourceVersion
	return table, nil
}

// ScaleOf is the v1 form of a Scale that field management may have left internal.
func (c *Contract) ScaleOf(o runtime.Object) (*autoscalingv1.Scale, error) {
	if scale, ok := o.(*autoscalingv1.Scale); ok {
		return scale, nil
	}
	scale := &autoscalingv1.Scale{}
	if err := c.schemes.Builtin.Convert(o, scale, nil); err != nil {
		return nil, fmt.Errorf("convert %T to a Scale: %w", o, err)
	}
	scale.SetGroupVersionKind(autoscalingv1.SchemeGroupVersion.WithKind("Scale"))
	return scale, nil
}
