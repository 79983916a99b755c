// SPDX-License-Identifier: Apache-2.0

// Package objectmeta holds what the registries demand of objects' metadata, whatever
// their kind: bounds of its lists, owners that are named once, managed fields that can
// be read.
package objectmeta

import (
	"context"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/warning"

	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/core/registry/compare"
)

// Bounds of lists in metadata, whose entries are compared with each other: 15,000
// owners took 13 seconds of a processor. No real object has a hundredth as many.
const (
	maxOwners     = 1000
	maxFinalizers = 1000
)

// Bound refuses lists above their bounds. An object that has more of them from
// before, old, may keep what it has, and never gets more.
func Bound(kind schema.GroupKind, m metav1.Object, old *object.Object) error {
	owners, finalizers := len(m.GetOwnerReferences()), len(m.GetFinalizers())
	if owners <= maxOwners && finalizers <= maxFinalizers {
		return nil
	}
	path := field.NewPath("metadata")
	hadOwners, hadFinalizers := 0, 0
	if old != nil {
		was, err := old.Meta()
		if err != nil {
			var status apierrors.APIStatus
			if errors.As(err, &status) {
				return err
			}
			return apierrors.NewBadRequest(err.Error())
		}
		hadOwners, hadFinalizers = len(was.GetOwnerReferences()), len(was.GetFinalizers())
	}
	if owners > max(maxOwners, hadOwners) {
		return apierrors.NewInvalid(kind, m.GetName(), field.ErrorList{field.TooMany(path.Child("ownerReferences"), owners, maxOwners)})
	}
	if finalizers > max(maxFinalizers, hadFinalizers) {
		return apierrors.NewInvalid(kind, m.GetName(), field.ErrorList{field.TooMany(path.Child("finalizers"), finalizers, maxFinalizers)})
	}
	return nil
}

// NeedsName says whether a create has to make a name.
func NeedsName(o runtime.Object) (bool, metav1.Object) {
	m, err := meta.Accessor(o)
	if err != nil {
		return false, nil
	}
	return m.GetName() == "" && m.GetGenerateName() != "", m
}

// Warnings of owners that DedupOwners dropped, whose UIDs follow, in upstream's words: of a request, and of what admission made of it.
const (
	DuplicateOwners      = ".metadata.ownerReferences contains duplicate entries" + dedups
	DuplicateOwnersAfter = ".metadata.ownerReferences contains duplicate entries after mutating admission happens" + dedups
	dedups               = "; API server dedups owner references in 1.20+, and may reject such requests as early as 1.24; " +
		"please fix your requests; duplicate UID(s) observed: "
)

// DedupOwners drops owner references that name an owner twice, and answers their UIDs.
func DedupOwners(o runtime.Object) (twice []string) {
	m, err := meta.Accessor(o)
	if err != nil {
		return nil
	}
	refs := m.GetOwnerReferences()
	if len(refs) < 2 {
		return nil
	}
	kept := make([]metav1.OwnerReference, 0, len(refs))
	type flag struct{ given, value bool }
	type identity struct {
		ref                            metav1.OwnerReference // without its pointers
		controller, blockOwnerDeletion flag
	}
	seen := make(map[identity]bool, len(refs))
	flagOf := func(p *bool) flag { return flag{given: p != nil, value: p != nil && *p} }
	for _, ref := range refs {
		id := identity{ref: ref, controller: flagOf(ref.Controller), blockOwnerDeletion: flagOf(ref.BlockOwnerDeletion)}
		id.ref.Controller, id.ref.BlockOwnerDeletion = nil, nil
		if seen[id] {
			twice = append(twice, string(ref.UID))
			continue
		}
		seen[id] = true
		kept = append(kept, ref)
	}
	if len(twice) > 0 {
		m.SetOwnerReferences(kept)
	}
	return twice
}

// KeepManagers puts the managed fields back that a plugin has made unreadable: an
// old webhook that doesn't know them must not make the object unwritable.
func KeepManagers(ctx context.Context, before, after runtime.Object) bool {
	was, err1 := meta.Accessor(before)
	now, err2 := meta.Accessor(after)
	if errors.Join(err1, err2) != nil {
		return false // what has no metadata has no managers
	}
	if compare.SameManagers(was.GetManagedFields(), now.GetManagedFields()) {
		return false // they are the field manager's own
	}
	invalid := managedfields.ValidateManagedFields(now.GetManagedFields())
	if invalid == nil {
		return false
	}
	now.SetManagedFields(was.GetManagedFields())
	warning.AddWarning(ctx, "", fmt.Sprintf(".metadata.managedFields was in an invalid state after admission; this could be caused by an outdated mutating admission controller; please fix your requests: %v", invalid))
	return true
}

// DropManagers takes the managed fields of an object that is too large for the
// store: they can be most of it, and are worth less than the write.
func DropManagers(obj *object.Object) bool {
	internal, err := obj.Internal()
	if err != nil {
		return false
	}
	m, err := meta.Accessor(internal)
	if err != nil || len(m.GetManagedFields()) == 0 {
		return false
	}
	m.SetManagedFields(nil)
	obj.SetInternal(internal)
	return true
}

// UniqueOwners is DedupOwners with a warning to the client where an owner is named twice, and says whether one was.
func UniqueOwners(ctx context.Context, o runtime.Object, text string) bool {
	twice := DedupOwners(o)
	if len(twice) > 0 {
		warning.AddWarning(ctx, "", text+strings.Join(twice, ","))
	}
	return len(twice) > 0
}
