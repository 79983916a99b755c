// SPDX-License-Identifier: Apache-2.0

// Package conversion brings custom resources from one version to another: by
// changing nothing but their apiVersion, by a webhook, or by an extension.
//
// It guarantees that what comes back is the same object: kind, name, namespace
// and UID have to be as they were, and all metadata but labels and annotations is
// put back. It refuses answers that are not in the version that was asked for.
// The words of its errors are upstream's, since clients and operators know them.
package conversion

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/customresource/extension"
)

// callTimeout bounds one call of a webhook or an extension.
const callTimeout = 30 * time.Second

// None converts by naming another version.
type None struct{}

// Convert implements extension.Converter.
func (None) Convert(_ context.Context, objects []*unstructured.Unstructured, to schema.GroupVersion) ([]*unstructured.Unstructured, error) {
	out := make([]*unstructured.Unstructured, len(objects))
	for i, o := range objects {
		out[i] = o.DeepCopy()
		out[i].SetAPIVersion(to.String())
	}
	return out, nil
}

// Named asks whom a definition names, as the extension knows it at the moment of
// each call.
type Named struct {
	Extension extension.Extension
	Name      string
	Resource  schema.GroupResource
}

// Convert implements extension.Converter.
func (e Named) Convert(ctx context.Context, objects []*unstructured.Unstructured,
	to schema.GroupVersion,
) ([]*unstructured.Unstructured, error) {
	if len(objects) == 1 && bare(objects[0]) {
		return None{}.Convert(ctx, objects, to)
	}
	c := e.Extension.Converter(e.Name, e.Resource)
	if c == nil {
		return nil, fmt.Errorf("conversion plugin for %v failed: no plugin %q is loaded, which the definition names in its annotation %s",
			objects[0].GroupVersionKind(), e.Name, extension.ConverterAnnotation)
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	out, err := c.Convert(ctx, objects, to)
	if err != nil {
		return nil, fmt.Errorf("conversion plugin for %v failed: %w", objects[0].GroupVersionKind(), err)
	}
	return same("plugin", objects, out, to)
}
