package apiobject

import (
	"context"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/wasmplane/wasmplane/core/admission"
)

// Guard refuses Plugins that could never be loaded, when they are written: whoever
// writes one learns at once what is wrong with it, by the same words as in the file.
// It implements core's admission.Validator.
type Guard struct{ Rules Rules }

// Name implements admission.Plugin.
func (Guard) Name() string { return "PluginObject" }

// Handles implements admission.Plugin.
func (Guard) Handles(r *admission.Request) bool {
	return r.Resource.Group == Group && (r.Resource.Resource == Resource().Resource || r.Resource.Resource == TenantResource().Resource) && r.Subresource == "" &&
		(r.Operation == admission.Create || r.Operation == admission.Update)
}

// Validate implements admission.Validator.
func (g Guard) Validate(_ context.Context, r *admission.Request) error {
	tree, err := r.Object.Tree()
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	o := &unstructured.Unstructured{Object: tree}
	if o.GetDeletionTimestamp() != nil {
		return nil // what is on its way out may be as wrong as it likes
	}
	if _, err := g.Rules.Entry(o); err != nil {
		status := apierrors.NewInvalid(schema.GroupKind{Group: Group, Kind: r.Kind.Kind}, o.GetName(), field.ErrorList{})
		status.ErrStatus.Message = fmt.Sprintf("%s.%s %q is invalid: %s", r.Kind.Kind, Group, o.GetName(), err)
		cause := metav1.StatusCause{Type: metav1.CauseTypeFieldValueInvalid, Field: "spec", Message: err.Error()}
		if at, problem, ok := strings.Cut(err.Error(), ": "); ok && (strings.HasPrefix(at, "spec.") || strings.HasPrefix(at, "metadata.")) {
			cause.Field, cause.Message = at, problem
		}
		status.ErrStatus.Details.Causes = []metav1.StatusCause{cause}
		return status
	}
	return nil
}
