// SPDX-License-Identifier: Apache-2.0

// Package options reads what the options of all verbs that write have in common, and
// shows those of one verb as another's.
package options

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Options is what the options of all writing verbs have in common.
type Options struct {
	DryRun     []string
	Manager    string
	Validation string // of fields: one of metav1.FieldValidation
	Force      bool
}

// Of are the options of a verb.
func Of(o runtime.Object) Options {
	switch o := o.(type) {
	case *metav1.CreateOptions:
		return Options{DryRun: o.DryRun, Manager: o.FieldManager, Validation: o.FieldValidation}
	case *metav1.UpdateOptions:
		return Options{DryRun: o.DryRun, Manager: o.FieldManager, Validation: o.FieldValidation}
	case *metav1.PatchOptions:
		return Options{DryRun: o.DryRun, Manager: o.FieldManager, Validation: o.FieldValidation, Force: o.Force != nil && *o.Force}
	case *metav1.DeleteOptions:
		return Options{DryRun: o.DryRun}
	}
	return Options{}
}

// IsDryRun says whether nothing is to be written.
func (o Options) IsDryRun() bool { return len(o.DryRun) > 0 }

// Create shows admission the options of a write as those of a create, which the write
// turned out to be.
func Create(o runtime.Object) *metav1.CreateOptions {
	if same, ok := o.(*metav1.CreateOptions); ok {
		return same
	}
	from := Of(o)
	out := &metav1.CreateOptions{DryRun: from.DryRun, FieldManager: from.Manager, FieldValidation: from.Validation}
	out.SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind("CreateOptions"))
	return out
}

// Update shows them as those of an update.
func Update(o runtime.Object) *metav1.UpdateOptions {
	if same, ok := o.(*metav1.UpdateOptions); ok {
		return same
	}
	from := Of(o)
	out := &metav1.UpdateOptions{DryRun: from.DryRun, FieldManager: from.Manager, FieldValidation: from.Validation}
	out.SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind("UpdateOptions"))
	return out
}

// Delete is a copy of the options of a delete, the defaults where there are none.
func Delete(o runtime.Object) *metav1.DeleteOptions {
	if options, ok := o.(*metav1.DeleteOptions); ok && options != nil {
		return options.DeepCopy() // strategies change it, and there may be another attempt
	}
	return &metav1.DeleteOptions{}
}

// Unsafe says whether a delete asks for an object to be deleted unread.
func Unsafe(options runtime.Object) bool {
	o, ok := options.(*metav1.DeleteOptions)
	return ok && o.IgnoreStoreReadErrorWithClusterBreakingPotential != nil && *o.IgnoreStoreReadErrorWithClusterBreakingPotential
}
