// SPDX-License-Identifier: Apache-2.0

package conversion

import (
	"fmt"

	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// same holds what a converter answered against what it was given, and puts the
// metadata back. who is named in errors.
func same(who string, in, out []*unstructured.Unstructured, to schema.GroupVersion) ([]*unstructured.Unstructured, error) {
	kind := in[0].GroupVersionKind()
	if len(out) != len(in) {
		return nil, fmt.Errorf("conversion %s for %v returned %d objects, expected %d", who, kind, len(out), len(in))
	}
	for i := range in {
		if err := checkKind(in[i], out[i], to); err != nil {
			return nil, fmt.Errorf("conversion %s for %v returned invalid object at index %d: %w", who, kind, i, err)
		}
		if err := checkIdentity(in[i], out[i]); err != nil {
			return nil, fmt.Errorf("conversion %s for %v returned invalid object: %w", who, kind, err)
		}
		if err := restoreMeta(in[i], out[i]); err != nil {
			return nil, fmt.Errorf("conversion %s for %v returned invalid metadata: %w", who, kind, err)
		}
	}
	return out, nil
}

func checkKind(in, out *unstructured.Unstructured, to schema.GroupVersion) error {
	if got := out.GroupVersionKind().GroupVersion(); got != to {
		return fmt.Errorf("invalid groupVersion (expected %v, received %v)", to, got)
	}
	if want, got := in.GetKind(), out.GetKind(); want != got {
		return fmt.Errorf("invalid kind (expected %v, received %v)", want, got)
	}
	return nil
}

func checkIdentity(in, out *unstructured.Unstructured) error {
	for _, same := range []struct{ what, want, got string }{
		{"kind", in.GetKind(), out.GetKind()},
		{"name", in.GetName(), out.GetName()},
		{"namespace", in.GetNamespace(), out.GetNamespace()},
		{"UID", string(in.GetUID()), string(out.GetUID())},
	} {
		if same.want != same.got {
			return fmt.Errorf("must have the same %s: %v != %v", same.what, same.want, same.got)
		}
	}
	return nil
}

// restoreMeta gives the converted object the metadata of the original, with the
// labels and annotations that the converter answered.
func restoreMeta(original, converted *unstructured.Unstructured) error {
	found, ok := converted.Object["metadata"]
	if !ok {
		return fmt.Errorf("missing metadata in converted object")
	}
	answered, ok := found.(map[string]any)
	if !ok {
		return fmt.Errorf("invalid metadata of type %T in converted object", found)
	}
	restored := map[string]any{}
	if was, ok := original.Object["metadata"]; ok {
		if restored, ok = runtime.DeepCopyJSONValue(was).(map[string]any); !ok {
			return fmt.Errorf("invalid metadata of type %T in input object", was)
		}
	}
	for _, name := range []string{"labels", "annotations"} {
		if err := takeOver(name, answered, restored); err != nil {
			return err
		}
	}
	converted.Object["metadata"] = restored
	return nil
}

// takeOver puts the answered labels or annotations into the restored metadata.
func takeOver(name string, answered, restored map[string]any) error {
	value := answered[name]
	if value == nil {
		delete(restored, name)
		return nil
	}
	next, ok := value.(map[string]any)
	if !ok {
		return fmt.Errorf("invalid metadata.%s of type %T in converted object", name, value)
	}
	was, ok := restored[name].(map[string]any)
	if !ok && restored[name] != nil {
		return fmt.Errorf("invalid metadata.%s of type %T in original object", name, restored[name])
	}
	changed := len(was) != len(next)
	texts := make(map[string]string, len(next))
	for k, v := range next {
		text, ok := v.(string)
		if !ok {
			return fmt.Errorf("metadata.%s[%s] must be a string, but is %T in converted object", name, k, v)
		}
		texts[k] = text
		changed = changed || was[k] != v
	}
	restored[name] = next
	if !changed {
		return nil
	}
	if name == "labels" {
		return aggregate(metavalidation.ValidateLabels(texts, field.NewPath("metadata", "labels")))
	}
	return aggregate(apivalidation.ValidateAnnotations(texts, field.NewPath("metadata", "annotation")))
}

func aggregate(errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	return errs.ToAggregate()
}
