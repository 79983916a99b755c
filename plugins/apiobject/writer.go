// SPDX-License-Identifier: Apache-2.0

package apiobject

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/rights"
)

// WriterAnnotation records who wrote an object's spec last, as JSON. The server sets it
// whenever the spec changes, puts it back whenever somebody else tries to, and holds the plugin
// against this user's rights.
const WriterAnnotation = "plugins.wasmplane.dev/writer"

// PolicyController makes Plugins of policies (PolicyLabel): they are written by whoever wrote the
// policy, and this account alone may say who that was.
const PolicyController = "system:serviceaccount:" + PolicyControllerNamespace + ":" + PolicyControllerAccount

// The account's name.
const (
	PolicyControllerNamespace = metav1.NamespaceSystem
	PolicyControllerAccount   = "policy-controller"
)

// PolicyLabel marks the Plugins that are made of policies. They follow their policy, whatever
// others change.
const PolicyLabel = "plugins.wasmplane.dev/policy"

// writer is a user as the annotation has it.
type writer struct {
	Username string              `json:"username"`
	UID      string              `json:"uid,omitempty"`
	Groups   []string            `json:"groups,omitempty"`
	Extra    map[string][]string `json:"extra,omitempty"`
}

// writerText is what the annotation says of a user.
func writerText(u user.Info) (string, error) {
	b, err := json.Marshal(writer{u.GetName(), u.GetUID(), u.GetGroups(), u.GetExtra()})
	return string(b), err
}

// writerOf is who wrote an object; nil where that is not recorded.
func writerOf(o *unstructured.Unstructured) *user.DefaultInfo {
	var w writer
	text := o.GetAnnotations()[WriterAnnotation]
	if text == "" || json.Unmarshal([]byte(text), &w) != nil || w.Username == "" {
		return nil
	}
	return &user.DefaultInfo{Name: w.Username, UID: w.UID, Groups: w.Groups, Extra: w.Extra}
}

// writtenBy is the annotation that the object has to have: the request's user where it
// is new, changes the spec, or was never recorded; else the one before.
func writtenBy(r *admission.Request, o, old *unstructured.Unstructured) (string, error) {
	if old != nil && writerOf(old) != nil && equality.Semantic.DeepEqual(o.Object["spec"], old.Object["spec"]) {
		return old.GetAnnotations()[WriterAnnotation], nil
	}
	if r.User == nil {
		return "", errors.New("nobody is known to write it")
	}
	if r.User.GetName() == PolicyController && o.GetLabels()[PolicyLabel] != "" && writerOf(o) != nil {
		return o.GetAnnotations()[WriterAnnotation], nil
	}
	return writerText(r.User)
}

// Mutate implements admission.Mutator: it records who writes.
func (g Guard) Mutate(_ context.Context, r *admission.Request) error {
	o, want, err := g.recorded(r)
	if err != nil || o == nil || o.GetAnnotations()[WriterAnnotation] == want {
		return err
	}
	o = o.DeepCopy()
	annotations := o.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[WriterAnnotation] = want
	o.SetAnnotations(annotations)
	v, err := r.Object.Codec().FromTree(o.Object)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	r.Object.SetVersioned(v)
	return nil
}

// recorded is the object and who wrote it; nil where nobody is recorded: for what is
// deleted, and for what the server shows of its file.
func (g Guard) recorded(r *admission.Request) (*unstructured.Unstructured, string, error) {
	if r.Operation == admission.Delete {
		return nil, "", nil
	}
	o, err := read(r.Object)
	if err != nil || o == nil || mirrored(o) && byServer(r) {
		return nil, "", err
	}
	old, err := read(r.OldObject)
	if err != nil {
		return nil, "", err
	}
	want, err := writtenBy(r, o, old)
	if err != nil {
		return nil, "", apierrors.NewInternalError(err)
	}
	return o, want, nil
}

// withinRights refuses an object whose writer is not who writes, because somebody changed
// that after it was recorded, and one that asks for more than its writer has.
func (g Guard) withinRights(ctx context.Context, r *admission.Request, e *manifest.Entry, o *unstructured.Unstructured,
	old *unstructured.Unstructured, needs ...rights.Need,
) error {
	want, err := writtenBy(r, o, old)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	if o.GetAnnotations()[WriterAnnotation] != want {
		return apierrors.NewForbidden(r.Resource.GroupResource(), o.GetName(),
			fmt.Errorf("metadata.annotations[%s]: it is set by the server only, and something changed it after the server did", WriterAnnotation))
	}
	if old != nil && want == old.GetAnnotations()[WriterAnnotation] && equality.Semantic.DeepEqual(o.Object["spec"], old.Object["spec"]) {
		return nil // nothing new is asked for, perhaps to take it away
	}
	if e == nil {
		return nil
	}
	err = g.Rights.Check(ctx, e, e.Points, needs...)
	var lacking *rights.LackingError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &lacking):
		return apierrors.NewForbidden(r.Resource.GroupResource(), o.GetName(), err)
	}
	return apierrors.NewInternalError(err)
}
