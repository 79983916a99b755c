// SPDX-License-Identifier: Apache-2.0

package apiobject_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/plugins/apiobject"
	"github.com/wasmplane/wasmplane/plugins/apiobject/plugindefinition"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/rights"
)

const root = `{"username":"root","groups":["system:masters"]}`

// TestWhoseThePluginOfAPolicyIs: the account that makes plugins of policies says who wrote the policy,
// of what carries the policies' label; from nobody else is that taken.
func TestWhoseThePluginOfAPolicyIs(t *testing.T) {
	guard := apiobject.Guard{Rights: rights.New(may{})}
	for _, c := range []struct {
		name, who, label, annotation, want string
	}{
		{"by the account", apiobject.PolicyController, "gatekeeper", root, "root"},
		{"by the account, without a writer", apiobject.PolicyController, "gatekeeper", "", apiobject.PolicyController},
		{"by the account, of no policy", apiobject.PolicyController, "", root, apiobject.PolicyController},
		{"by somebody", "tina", "gatekeeper", root, "tina"},
		{"by an account of the same name elsewhere", "system:serviceaccount:red:policy-controller", "gatekeeper", root, "system:serviceaccount:red:policy-controller"},
	} {
		o := plugin(t, "p", "source: oci://a.example/b:1\ndigest: "+digest)
		if c.label != "" {
			o.SetLabels(map[string]string{apiobject.PolicyLabel: c.label})
		}
		if c.annotation != "" {
			o.SetAnnotations(map[string]string{apiobject.WriterAnnotation: c.annotation})
		}
		made, err := write(t, guard, c.who, o, nil)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		e, err := apiobject.Rules{}.Entry(made)
		if err != nil || e.Writer == nil || e.Writer.Name != c.want {
			t.Errorf("%s: the writer is %v (%v), want %s", c.name, e.Writer, err, c.want)
		}
	}
}

// policies takes every object of its group, and asks for what the object says.
type policies struct{}

func (policies) Handles(r schema.GroupResource) bool { return r.Group == "policies.example.com" }

func (policies) Check(_ context.Context, o *unstructured.Unstructured) (*manifest.Entry, []rights.Need, error) {
	if o.GetName() == "wrong" {
		return nil, nil, errors.New("spec.text:3: it is wrong")
	}
	e, err := apiobject.Rules{}.Entry(o)
	return &e, nil, err
}

// TestAPolicyIsHeldAgainstItsWritersRights, and records him, as a Plugin does.
func TestAPolicyIsHeldAgainstItsWritersRights(t *testing.T) {
	guard := apiobject.Guard{Rights: rights.New(may{"ann": {"list secrets ", "get secrets "}}), Policies: policies{}}
	policy := func(name string) *unstructured.Unstructured {
		o := plugin(t, name, "source: oci://a.example/b:1\ndigest: "+digest+"\ngrants: {read: [{resources: [secrets]}]}")
		o.SetAPIVersion("policies.example.com/v1")
		o.SetAnnotations(map[string]string{apiobject.WriterAnnotation: root})
		return o
	}
	resource := schema.GroupVersionResource{Group: "policies.example.com", Version: "v1", Resource: "plugins"}
	made, err := writeAs(t, guard, "ann", resource, policy("p"), nil)
	if err != nil || !strings.Contains(made.GetAnnotations()[apiobject.WriterAnnotation], `"ann"`) {
		t.Errorf("by who may: %v, %v", err, made.GetAnnotations())
	}
	if _, err := writeAs(t, guard, "tina", resource, policy("p"), nil); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(),
		`"tina" may not get secrets`) {
		t.Errorf("by who may not: %v", err)
	}
	if _, err := writeAs(t, guard, "ann", resource, policy("wrong"), nil); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(),
		"policies.example.com") || !strings.Contains(err.Error(), "spec.text:3: it is wrong") {
		t.Errorf("a wrong one: %v", err)
	}
}

// A namespace has so many plugins and policies of each kind, whoever writes them. What is there can be changed.
func TestANamespaceHasSoManyPlugins(t *testing.T) {
	has := map[string]int{"red": 99, "blue": 100}
	guard := apiobject.Guard{Rights: rights.New(may{}), Count: func(_ context.Context, kind schema.GroupVersionKind, namespace string) (int,
		error,
	) {
		if kind.Kind != "TenantPlugin" {
			t.Errorf("counts %s", kind)
		}
		return has[namespace], nil
	}}
	for _, c := range []struct {
		namespace string
		operation admission.Operation
		refused   bool
	}{
		{"red", admission.Create, false}, {"blue", admission.Create, true}, {"blue", admission.Update, false},
	} {
		o := plugin(t, "p", "source: oci://a.example/b:1\ndigest: "+digest+"\npoints: [admission.validate]")
		o.SetKind("TenantPlugin")
		o.SetNamespace(c.namespace)
		r := &admission.Request{
			Operation: c.operation, Resource: plugindefinition.TenantResource(), Kind: o.GroupVersionKind(), Namespace: c.namespace, Name: "p",
			User: &user.DefaultInfo{Name: "tina"}, Object: object.FromTree(object.Unstructured{GVK: o.GroupVersionKind()}, o.Object),
		}
		if c.operation == admission.Update {
			r.OldObject = r.Object
		}
		err := guard.Mutate(t.Context(), r)
		if err == nil {
			err = guard.Validate(t.Context(), r)
		}
		if refused := err != nil; refused != c.refused || refused && (!apierrors.IsForbidden(err) ||
			!strings.Contains(err.Error(), "namespace blue has 100 tenantplugins already, and at most 100 are allowed")) {
			t.Errorf("%s in %s: %v", c.operation, c.namespace, err)
		}
	}
}
