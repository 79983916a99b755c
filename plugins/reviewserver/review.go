// SPDX-License-Identifier: Apache-2.0

package reviewserver

import (
	"encoding/json"
	"fmt"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/plugins/foreign/kubewarden"
)

// newRequest is a review's request as our plugins see it. Objects are JSON trees:
// what kinds there are is the other API server's business.
func newRequest(q *admissionv1.AdmissionRequest) (*admission.Request, error) {
	kind := schema.GroupVersionKind(q.Kind)
	r := &admission.Request{
		UID: q.UID, Operation: admission.Operation(q.Operation), Kind: kind, Resource: schema.GroupVersionResource(q.Resource),
		Subresource: q.SubResource, Namespace: q.Namespace, Name: q.Name, DryRun: q.DryRun != nil && *q.DryRun,
		User: &user.DefaultInfo{Name: q.UserInfo.Username, UID: q.UserInfo.UID, Groups: q.UserInfo.Groups, Extra: extra(&q.UserInfo)},
	}
	var err error
	if r.Object, err = newObject(kind, q.Object.Raw); err != nil {
		return nil, fmt.Errorf("object: %w", err)
	}
	if r.OldObject, err = newObject(kind, q.OldObject.Raw); err != nil {
		return nil, fmt.Errorf("oldObject: %w", err)
	}
	if len(q.Options.Raw) > 0 {
		var o unstructured.Unstructured
		if err := utiljson.Unmarshal(q.Options.Raw, &o.Object); err != nil {
			return nil, fmt.Errorf("options: %w", err)
		}
		r.Options = &o
	}
	return r, nil
}

func extra(u *authenticationv1.UserInfo) map[string][]string {
	out := map[string][]string{}
	for k, v := range u.Extra {
		out[k] = v
	}
	return out
}

func newObject(kind schema.GroupVersionKind, raw []byte) (*object.Object, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	var content map[string]any
	if err := utiljson.Unmarshal(raw, &content); err != nil {
		return nil, err
	}
	return object.FromTree(codec{kind}, content), nil
}

// tree is the object before a plugin has changed it; plugins change copies.
func tree(r *admission.Request) (map[string]any, error) {
	if r.Object == nil {
		return nil, nil
	}
	return r.Object.Tree()
}

// patch puts what the plugin changed into the response.
func patch(out *admissionv1.AdmissionResponse, r *admission.Request, before map[string]any) error {
	after, err := tree(r)
	if err != nil || after == nil {
		return err
	}
	changes := kubewarden.Diff(before, after)
	if len(changes) == 0 {
		return nil
	}
	if out.Patch, err = json.Marshal(changes); err != nil {
		return fmt.Errorf("encode the patch: %w", err)
	}
	kind := admissionv1.PatchTypeJSONPatch
	out.PatchType = &kind
	return nil
}

// annotations are the plugin's audit annotations; the API server puts its own prefix before their keys.
func annotations(r *admission.Request, plugin string) map[string]string {
	out := map[string]string{}
	for k, v := range r.Annotations() {
		out[strings.ReplaceAll(strings.TrimPrefix(k, plugin+"/"), "/", ".")] = v
	}
	return out
}

// codec is object.Codec over JSON trees.
type codec struct{ kind schema.GroupVersionKind }

// Kind implements object.Codec.
func (c codec) Kind() schema.GroupVersionKind { return c.kind }

// Decode implements object.Codec.
func (c codec) Decode(data []byte, mediaType string) (runtime.Object, error) {
	if mediaType != object.JSON {
		return nil, fmt.Errorf("objects of reviews are JSON, not %s", mediaType)
	}
	var content map[string]any
	if err := utiljson.Unmarshal(data, &content); err != nil {
		return nil, err
	}
	return c.FromTree(content)
}

// Default implements object.Codec: the API server fills defaults in itself.
func (codec) Default(runtime.Object) {}

// Internal implements object.Codec.
func (codec) Internal(o runtime.Object) (runtime.Object, error) { return o, nil }

// Versioned implements object.Codec.
func (codec) Versioned(o runtime.Object) (runtime.Object, error) { return o, nil }

// Encode implements object.Codec.
func (c codec) Encode(o runtime.Object, mediaType string) ([]byte, error) {
	if mediaType != object.JSON {
		return nil, fmt.Errorf("objects of reviews are JSON, not %s", mediaType)
	}
	t, err := c.ToTree(o)
	if err != nil {
		return nil, err
	}
	return json.Marshal(t)
}

// FromTree implements object.Codec.
func (codec) FromTree(t map[string]any) (runtime.Object, error) {
	return &unstructured.Unstructured{Object: t}, nil
}

// ToTree implements object.Codec.
func (codec) ToTree(o runtime.Object) (map[string]any, error) {
	u, ok := o.(*unstructured.Unstructured)
	if !ok {
		return nil, fmt.Errorf("a %T is no JSON tree", o)
	}
	return u.Object, nil
}
