// SPDX-License-Identifier: Apache-2.0

package apiobject

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/wasmplane/wasmplane/core/admission"
	carrier "github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/plugins/apiobject/plugindefinition"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/rights"
)

// Guard refuses Plugins that could never be loaded, when they are written: whoever
// writes one learns at once what is wrong with it, by the same words as in the file.
// It also keeps the objects that show what the configuration file holds as they are.
// It records who wrote an object, and refuses what goes beyond that user's rights.
// It implements core's admission.Mutator and Validator.
type Guard struct {
	Rules  Rules
	Rights *rights.Checker
	// Policies are objects of other kinds of which plugins are made; nil = there are none.
	Policies Policies
	// Settings holds an entry's settings against what their module's schema is known to be, and fetches nothing; nil = that
	// is left to loading. What it says begins with the field ("settings.label is required").
	Settings func(*manifest.Entry) error
	// Count says how many objects of a kind a namespace has; nil = they are not counted.
	Count func(ctx context.Context, kind schema.GroupVersionKind, namespace string) (int, error)
}

// mostInNamespace bounds what one namespace has of each kind: every one of them takes the
// server up to a MiB, and a moment of each request that it might be about.
const mostInNamespace = 100

// Policies know the objects of which a controller makes Plugins on behalf of their writers.
type Policies interface {
	// Handles says whether Plugins are made of objects of a resource.
	Handles(schema.GroupResource) bool
	// Check says what is wrong with an object, with its field. What its plugin will ask
	// for is held against its writer's rights; nil = that is not known yet. So are needs, of what
	// becomes no plugin.
	Check(ctx context.Context, o *unstructured.Unstructured) (e *manifest.Entry, needs []rights.Need, err error)
}

// Name implements admission.Plugin.
func (Guard) Name() string { return "PluginObject" }

// Handles implements admission.Plugin.
func (g Guard) Handles(r *admission.Request) bool {
	if r.Subresource != "" {
		return false
	}
	if g.policy(r) {
		return r.Operation == admission.Create || r.Operation == admission.Update
	}
	if r.Resource.Group != plugindefinition.Group {
		return false
	}
	switch r.Resource.Resource {
	case plugindefinition.Resource().Resource:
		return r.Operation == admission.Create || r.Operation == admission.Update || r.Operation == admission.Delete
	case plugindefinition.TenantResource().Resource:
		return r.Operation == admission.Create || r.Operation == admission.Update
	}
	return false
}

// policy says whether a request is about an object of which a Plugin is made.
func (g Guard) policy(r *admission.Request) bool {
	return g.Policies != nil && g.Policies.Handles(r.Resource.GroupResource())
}

// Validate implements admission.Validator.
func (g Guard) Validate(ctx context.Context, r *admission.Request) error {
	old, err := read(r.OldObject)
	if err != nil {
		return err
	}
	if old != nil && mirrored(old) && r.Resource.Resource == plugindefinition.Resource().Resource && !byServer(r) {
		return apierrors.NewForbidden(plugindefinition.Resource().GroupResource(), old.GetName(),
			errors.New("the object shows a plugin of the server's configuration file, which is not changed through the API; change the file, which is followed, or switch the plugin off with `wasmplane plugin disable`"))
	}
	if r.Operation == admission.Delete {
		return nil
	}
	o, err := read(r.Object)
	if err != nil || o == nil {
		return err
	}
	if mirrored(o) {
		if byServer(r) && o.GetNamespace() == "" {
			return nil
		}
		return apierrors.NewForbidden(r.Resource.GroupResource(), o.GetName(),
			fmt.Errorf("metadata.labels[%s]: %s marks what the server's configuration file holds, and is set by the server only", OriginLabel, FromFile))
	}
	if o.GetDeletionTimestamp() != nil {
		return nil // what is on its way out may be as wrong as it likes
	}
	if err := g.room(ctx, r); err != nil {
		return err
	}
	if g.policy(r) {
		e, needs, err := g.Policies.Check(ctx, o)
		if err != nil {
			return invalid(r.Kind.GroupKind(), o.GetName(), err)
		}
		if e == nil && len(needs) > 0 {
			e = Bare(o)
		}
		return g.withinRights(ctx, r, e, o, old, needs...)
	}
	e, err := g.Rules.Entry(o)
	if err != nil {
		return invalid(r.Kind.GroupKind(), o.GetName(), err)
	}
	if err := g.settings(&e, old); err != nil {
		return invalid(r.Kind.GroupKind(), o.GetName(), err)
	}
	return g.withinRights(ctx, r, &e, o, old)
}

// settings checks the settings of an entry and of its candidate. Those that a write leaves as they were are not looked at: labels
// and the like of an object that was written before its schema was known can still be changed.
func (g Guard) settings(e *manifest.Entry, old *unstructured.Unstructured) error {
	if g.Settings == nil {
		return nil
	}
	var was manifest.Entry
	if old != nil {
		was, _ = g.Rules.Entry(old) // where it was wrong, nothing was as it is now
	}
	return errors.Join(g.changedSettings("spec.", e, &was), g.changedSettings("spec.candidate.", e.CandidateEntry(), was.CandidateEntry()))
}

func (g Guard) changedSettings(at string, e, was *manifest.Entry) error {
	if e == nil {
		return nil
	}
	if was != nil && was.Digest == e.Digest {
		now, err := e.SettingsJSON()
		before, errBefore := was.SettingsJSON()
		if err == nil && errBefore == nil && bytes.Equal(now, before) {
			return nil
		}
	}
	err := g.Settings(e)
	if err == nil {
		return nil
	}
	where, problem, ok := strings.Cut(err.Error(), " ")
	if !ok || !strings.HasPrefix(where, "settings") {
		return fmt.Errorf("%ssettings: %w", at, err)
	}
	return fmt.Errorf("%s%s: %s", at, strings.TrimSuffix(where, ":"), problem)
}

// room refuses a new object of a namespace that has many. Those that are written at the same moment may all pass.
func (g Guard) room(ctx context.Context, r *admission.Request) error {
	if g.Count == nil || r.Operation != admission.Create || r.Namespace == "" {
		return nil
	}
	n, err := g.Count(ctx, r.Kind, r.Namespace)
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("count the %s of namespace %s: %w", r.Resource.Resource, r.Namespace, err))
	}
	if n >= mostInNamespace {
		return apierrors.NewForbidden(r.Resource.GroupResource(), r.Name,
			fmt.Errorf("namespace %s has %d %s already, and at most %d are allowed: delete those that are not needed, or make one of several", r.Namespace,
				n, r.Resource.Resource, mostInNamespace))
	}
	return nil
}

// Bare is the entry of a policy that becomes no plugin, to be held against its writer's rights.
func Bare(o *unstructured.Unstructured) *manifest.Entry {
	e := &manifest.Entry{Name: strings.ToLower(o.GetKind()) + "." + o.GetName(), FromAPI: true, Writer: writerOf(o)}
	if e.Namespace = o.GetNamespace(); e.Namespace != "" {
		e.Name = TenantName(e.Namespace, e.Name)
	}
	return e
}

// byServer: the server itself writes.
func byServer(r *admission.Request) bool {
	return r.User != nil && r.User.GetName() == user.APIServerUser
}

func read(o *carrier.Object) (*unstructured.Unstructured, error) {
	if o == nil {
		return nil, nil
	}
	tree, err := o.Tree()
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return &unstructured.Unstructured{Object: tree}, nil
}

// invalid words what is wrong with an entry, with its field.
func invalid(kind schema.GroupKind, name string, err error) error {
	status := apierrors.NewInvalid(kind, name, field.ErrorList{})
	status.ErrStatus.Message = fmt.Sprintf("%s %q is invalid: %s", kind, name, err)
	cause := metav1.StatusCause{Type: metav1.CauseTypeFieldValueInvalid, Field: "spec", Message: err.Error()}
	if at, problem, ok := strings.Cut(err.Error(), ": "); ok && (strings.HasPrefix(at, "spec.") || strings.HasPrefix(at, "metadata.")) {
		cause.Field, cause.Message = at, problem
	}
	status.ErrStatus.Details.Causes = []metav1.StatusCause{cause}
	return status
}
