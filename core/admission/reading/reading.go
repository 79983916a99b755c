// SPDX-License-Identifier: Apache-2.0

// Package reading is how admission plugins of this tree read what they are asked about:
// which requests they want, the object as a Go type, a copy that may be changed, and
// informers that have been filled.
package reading

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/object"
)

// Rule says which requests a plugin wants: one resource, one subresource ("" =
// the resource itself), some operations.
type Rule struct {
	resource    schema.GroupResource
	subresource string
	operations  []admission.Operation
}

// Handles says whether the plugin wants a request.
func (m Rule) Handles(r *admission.Request) bool {
	return r.Resource.Resource == m.resource.Resource && r.Resource.Group == m.resource.Group &&
		r.Subresource == m.subresource && slices.Contains(m.operations, r.Operation)
}

// On is a rule.
func On(group, resource, subresource string, operations ...admission.Operation) Rule {
	return Rule{schema.GroupResource{Group: group, Resource: resource}, subresource, operations}
}

// Typed is o as the Go type of the version that the plugins know.
func Typed[T runtime.Object](o *object.Object) (T, error) {
	var none T
	if o == nil {
		return none, apierrors.NewBadRequest(fmt.Sprintf("expected an object of type %T, found none", none))
	}
	v, err := o.Versioned()
	if err != nil {
		return none, apierrors.NewBadRequest(err.Error())
	}
	t, ok := v.(T)
	if !ok {
		return none, apierrors.NewBadRequest(fmt.Sprintf("expected an object of type %T, found %T", none, v))
	}
	return t, nil
}

// Both are the object before and after an update.
func Both[T runtime.Object](r *admission.Request) (old, updated T, err error) {
	if old, err = Typed[T](r.OldObject); err == nil {
		updated, err = Typed[T](r.Object)
	}
	return old, updated, err
}

// Copied is a deep copy of o, to be changed and set.
func Copied[T runtime.Object](o T) T { return o.DeepCopyObject().(T) }

// WithSpec is a copy of a pod that shares everything with it that its spec points
// to: fields of the spec may be set in it, and lists replaced, but nothing may be
// changed where it lies. What nobody touches is then found to be the same by its address.
func WithSpec(p *corev1.Pod) *corev1.Pod {
	c := *p
	return &c
}

// Warm waits for informers that were just started.
type Warm struct {
	within   time.Duration
	checkers []cache.DoneChecker
}

// WarmOf waits for informers, for as long as within.
func WarmOf(within time.Duration, informers ...cache.SharedIndexInformer) Warm {
	w := Warm{within: within}
	for _, i := range informers {
		w.checkers = append(w.checkers, i.HasSyncedChecker())
	}
	return w
}

// Wait returns nil once the informers are filled, and else the refusal.
func (w Warm) Wait(ctx context.Context, r *admission.Request) error {
	return Await(ctx, r, w.within, w.checkers...)
}

// Await returns nil once all that the checkers check is done, and the refusal of the
// request where one of them takes longer than within.
func Await(ctx context.Context, r *admission.Request, within time.Duration, checkers ...cache.DoneChecker) error {
	for _, c := range checkers {
		if cache.IsDone(c) {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, within)
		select {
		case <-c.Done():
			cancel()
		case <-ctx.Done():
			cancel()
			return admission.Forbidden(r, errors.New("not yet ready to handle request"))
		}
	}
	return nil
}

// Cached asks the lister, and the server where the lister has not seen the object.
func Cached[T any](lister func() (T, error), live func() (T, error)) (T, error) {
	o, err := lister()
	if apierrors.IsNotFound(err) {
		return live()
	}
	return o, err
}

// SetIfChanged hands the changed copy over, unless nothing was changed: an
// unchanged object spares the plugins before from being asked again.
func SetIfChanged(r *admission.Request, given, changed *corev1.Pod) {
	if !equality.Semantic.DeepEqual(given, changed) {
		r.Object.SetVersioned(changed)
	}
}

// CSR is the certificate request in the PEM of an object.
func CSR(data []byte) (*x509.CertificateRequest, error) {
	block, _ := pem.Decode(data)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return nil, errors.New("PEM block type must be CERTIFICATE REQUEST")
	}
	return x509.ParseCertificateRequest(block.Bytes)
}
