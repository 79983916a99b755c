// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	admissionv1beta1 "k8s.io/api/admission/v1beta1"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	kjson "sigs.k8s.io/json"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/matching"
	"github.com/wasmplane/wasmplane/core/auth/authz"
	"github.com/wasmplane/wasmplane/core/object"
)

// question is admission/v1's AdmissionRequest without its objects, which are
// written behind it as they were encoded.
type question struct {
	UID                types.UID                    `json:"uid"`
	Kind               metav1.GroupVersionKind      `json:"kind"`
	Resource           metav1.GroupVersionResource  `json:"resource"`
	SubResource        string                       `json:"subResource,omitempty"`
	RequestKind        *metav1.GroupVersionKind     `json:"requestKind,omitempty"`
	RequestResource    *metav1.GroupVersionResource `json:"requestResource,omitempty"`
	RequestSubResource string                       `json:"requestSubResource,omitempty"`
	Name               string                       `json:"name,omitempty"`
	Namespace          string                       `json:"namespace,omitempty"`
	Operation          admissionv1.Operation        `json:"operation"`
	UserInfo           authenticationv1.UserInfo    `json:"userInfo"`
	DryRun             bool                         `json:"dryRun"`
}

// reviewVersion is the first of a webhook's versions that we speak.
func reviewVersion(versions []string) (string, error) {
	for _, v := range versions {
		if v == "v1" || v == "v1beta1" {
			return "admission.k8s.io/" + v, nil
		}
	}
	return "", errors.New("webhook does not accept known AdmissionReview versions (v1, v1beta1)")
}

// review encodes the question. The objects' bytes are those of the carrier:
// encoded once per version, whoever asks.
func review(apiVersion string, uid types.UID, r *admission.Request, t matching.Target, v *matching.View) ([]byte, error) {
	requestKind, requestResource := metav1.GroupVersionKind(r.Kind), metav1.GroupVersionResource(r.Resource)
	head, err := json.Marshal(question{
		UID: uid, Kind: metav1.GroupVersionKind(t.Kind), Resource: metav1.GroupVersionResource(t.Resource), SubResource: r.Subresource,
		RequestKind: &requestKind, RequestResource: &requestResource, RequestSubResource: r.Subresource,
		Name: r.Name, Namespace: matching.Namespace(r), Operation: admissionv1.Operation(r.Operation), UserInfo: authz.UserInfo(r.User),
		DryRun: r.DryRun,
	})
	if err != nil {
		return nil, err
	}
	obj, err := encoded(v.Object)
	if err != nil {
		return nil, err
	}
	old, err := encoded(v.Old)
	if err != nil {
		return nil, err
	}
	options, err := encodedOptions(r.Options)
	if err != nil {
		return nil, err
	}
	out := make([]byte, 0, len(head)+len(obj)+len(old)+len(options)+160)
	out = append(out, `{"kind":"AdmissionReview","apiVersion":"`...)
	out = append(out, apiVersion...)
	out = append(out, `","request":`...)
	out = append(out, head[:len(head)-1]...)
	for _, part := range []struct {
		name string
		b    []byte
	}{{`,"object":`, obj}, {`,"oldObject":`, old}, {`,"options":`, options}} {
		out = append(append(out, part.name...), part.b...)
	}
	return append(out, `}}`...), nil
}

func encoded(o *object.Object) ([]byte, error) {
	if o == nil {
		return []byte("null"), nil
	}
	return o.Encoded(object.JSON)
}

func encodedOptions(o runtime.Object) ([]byte, error) {
	if o == nil {
		return []byte("null"), nil
	}
	kind := o.GetObjectKind().GroupVersionKind()
	if kind.Empty() { // the options of meta.k8s.io/v1, made by the server itself
		name := fmt.Sprintf("%T", o)
		kind = metav1.SchemeGroupVersion.WithKind(name[strings.LastIndexByte(name, '.')+1:])
		if !slices.Contains([]string{"CreateOptions", "UpdateOptions", "PatchOptions", "DeleteOptions"}, kind.Kind) {
			return json.Marshal(o)
		}
		kind.Group = "meta.k8s.io"
	}
	return json.Marshal(object.Named(o, kind))
}

// answer is what a webhook said, whichever version of the review it speaks.
type answer struct {
	allowed     bool
	result      *metav1.Status
	patch       []byte
	patchType   admissionv1.PatchType
	annotations map[string]string
	warnings    []string
}

// verify reads a review and holds it against the question.
func verify(apiVersion string, uid types.UID, mutates bool, body []byte) (*answer, error) {
	if apiVersion == "admission.k8s.io/v1beta1" {
		return verifyBeta(mutates, body)
	}
	var got admissionv1.AdmissionReview
	if err := kjson.UnmarshalCaseSensitivePreserveInts(body, &got); err != nil {
		return nil, fmt.Errorf("couldn't get the AdmissionReview: %w", err)
	}
	want := admissionv1.SchemeGroupVersion.WithKind("AdmissionReview")
	res := got.Response
	switch {
	case res == nil:
		return nil, errors.New("webhook response was absent")
	case res.UID != uid:
		return nil, fmt.Errorf("expected response.uid=%q, got %q", uid, res.UID)
	case got.GroupVersionKind() != want:
		return nil, fmt.Errorf("expected webhook response of %v, got %v", want.String(), got.GroupVersionKind().String())
	}
	out := &answer{allowed: res.Allowed, result: res.Result, annotations: res.AuditAnnotations, warnings: res.Warnings}
	switch {
	case !mutates && len(res.Patch) > 0:
		return nil, errors.New("validating webhook may not return response.patch")
	case !mutates && res.PatchType != nil:
		return nil, errors.New("validating webhook may not return response.patchType")
	case len(res.Patch) > 0 && res.PatchType == nil:
		return nil, errors.New("webhook returned response.patch but not response.patchType")
	case len(res.Patch) == 0 && res.PatchType != nil:
		return nil, errors.New("webhook returned response.patchType but not response.patch")
	case res.PatchType != nil && *res.PatchType == "":
		return nil, fmt.Errorf("webhook returned invalid response.patchType of %q", *res.PatchType)
	case res.PatchType != nil:
		out.patch, out.patchType = res.Patch, *res.PatchType
	}
	return out, nil
}

// verifyBeta: v1beta1 never asked for a uid or a patch type.
func verifyBeta(mutates bool, body []byte) (*answer, error) {
	var got admissionv1beta1.AdmissionReview
	if err := kjson.UnmarshalCaseSensitivePreserveInts(body, &got); err != nil {
		return nil, fmt.Errorf("couldn't get the AdmissionReview: %w", err)
	}
	res := got.Response
	if res == nil {
		return nil, errors.New("webhook response was absent")
	}
	out := &answer{allowed: res.Allowed, result: res.Result, annotations: res.AuditAnnotations, warnings: res.Warnings}
	if mutates && len(res.Patch) > 0 {
		out.patch, out.patchType = res.Patch, admissionv1.PatchTypeJSONPatch
	}
	return out, nil
}
