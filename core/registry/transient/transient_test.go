// SPDX-License-Identifier: Apache-2.0

package transient

import (
	"strings"
	"testing"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/wasmplane/wasmplane/core/object"
)

func TestEvictionsAreReadFromBothVersions(t *testing.T) {
	c := Codec{GVK: policyv1.SchemeGroupVersion.WithKind("Eviction")}
	for _, kind := range []string{``, `"apiVersion":"policy/v1","kind":"Eviction",`, `"apiVersion":"policy/v1beta1","kind":"Eviction",`} {
		for _, strict := range []bool{false, true} {
			body := []byte(`{` + kind + `"metadata":{"name":"p"},"deleteOptions":{"dryRun":["All"]},"extra":1}`)
			o, unknown, err := c.DecodeStrict(body, object.JSON, strict)
			if err != nil {
				t.Fatalf("%s: %v", kind, err)
			}
			if e, ok := o.(*policyv1.Eviction); !ok || e.Name != "p" || e.DeleteOptions.DryRun[0] != "All" || e.GroupVersionKind() != c.GVK {
				t.Errorf("%s: decoded as %#v", kind, o)
			}
			if strict != (len(unknown) == 1) {
				t.Errorf("%s: unknown fields are %v", kind, unknown)
			}
		}
	}
}

func TestOtherKindsAreRefused(t *testing.T) {
	eviction := Codec{GVK: policyv1.SchemeGroupVersion.WithKind("Eviction")}
	budget := Codec{GVK: policyv1.SchemeGroupVersion.WithKind("PodDisruptionBudget")}
	for name, c := range map[string]struct {
		codec      Codec
		body, want string
	}{
		"unknown version":    {eviction, `{"apiVersion":"policy/v2","kind":"Eviction"}`, "policy/v2"},
		"another kind":       {eviction, `{"apiVersion":"v1","kind":"Pod"}`, "does not match the expected kind"},
		"an Eviction, there": {budget, `{"apiVersion":"policy/v1beta1","kind":"Eviction"}`, "does not match the expected kind"},
		"no object":          {eviction, `[]`, "unrecognized"},
	} {
		o, err := c.codec.Decode([]byte(c.body), object.JSON)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: decoded %v, error %v, want one with %q", name, o, err, c.want)
		}
	}
}

// TestManyEntriesAreNotDecoded: of three bytes, which would become 112 each.
func TestManyEntriesAreNotDecoded(t *testing.T) {
	c := Codec{GVK: policyv1.SchemeGroupVersion.WithKind("Eviction")}
	body := []byte(`{"metadata":{"managedFields":[` + strings.Repeat("{},", 1<<20) + `{}]}}`)
	if _, err := c.Decode(body, object.JSON); !apierrors.IsRequestEntityTooLargeError(err) {
		t.Errorf("%.200v", err)
	}
}
