// SPDX-License-Identifier: Apache-2.0

package aggregator

import (
	"context"
	"fmt"
	"maps"

	extensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"
)

// managedLabel marks the APIServices that this package writes. Those without it
// are somebody's, and left alone.
const (
	managedLabel = "kube-aggregator.kubernetes.io/automanaged"
	always       = "true"    // kept while there is a definition
	onStart      = "onstart" // built in: written once at each start, and then left to administrators
)

// Priorities of groups that come from definitions, as upstream has them: behind
// everything built in.
const (
	definedGroupPriority   = 1000
	definedVersionPriority = 100
)

func indexByGroup(o any) ([]string, error) {
	d, ok := o.(*extensionsv1.CustomResourceDefinition)
	if !ok {
		return nil, nil
	}
	return []string{d.Spec.Group}, nil
}

// definitionChanged queues the versions that a definition serves, or did.
func (a *Aggregator) definitionChanged(old, current metav1.Object) {
	for _, o := range []metav1.Object{old, current} {
		d, ok := o.(*extensionsv1.CustomResourceDefinition)
		if !ok || d == nil {
			continue
		}
		for _, v := range d.Spec.Versions {
			a.registering.Add(nameOf(schema.GroupVersion{Group: d.Spec.Group, Version: v.Name}))
		}
	}
}

// register brings one APIService to what it should be, if it is ours to write.
func (a *Aggregator) register(ctx context.Context, name string) error {
	want := a.wanted(name)
	var has *apiregistrationv1.APIService
	if o, ok, err := a.apiServices.GetIndexer().GetByKey(name); err != nil {
		return err
	} else if ok {
		has = o.(*apiregistrationv1.APIService)
	}
	step := decide(has, want, a.doneAtStart(name))
	err := a.carryOut(ctx, step, has, want)
	switch {
	case apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err):
		return nil // the informer will tell
	case err != nil:
		return fmt.Errorf("%s APIService %s: %w", step, name, err)
	}
	if want != nil && want.Labels[managedLabel] == onStart {
		a.mu.Lock()
		a.builtIn[name] = true
		a.mu.Unlock()
	}
	return nil
}

func (a *Aggregator) doneAtStart(name string) bool {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.builtIn[name]
}

// wanted is the APIService that should be there; nil = none.
func (a *Aggregator) wanted(name string) *apiregistrationv1.APIService {
	for _, gv := range a.cfg.BuiltIn {
		if nameOf(gv) == name {
			p := priorities(gv)
			return local(gv, onStart, p.group, p.version)
		}
	}
	gv := helper.APIServiceNameToGroupVersion(name)
	objects, err := a.definitions.GetIndexer().ByIndex(byGroup, gv.Group)
	if err != nil {
		return nil
	}
	for _, o := range objects {
		d, ok := o.(*extensionsv1.CustomResourceDefinition)
		if !ok {
			continue
		}
		for _, v := range d.Spec.Versions {
			if v.Name == gv.Version && v.Served {
				return local(gv, always, definedGroupPriority, definedVersionPriority)
			}
		}
	}
	return nil
}

func local(gv schema.GroupVersion, managed string, group, version int32) *apiregistrationv1.APIService {
	return &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: nameOf(gv), Labels: map[string]string{managedLabel: managed}},
		Spec:       apiregistrationv1.APIServiceSpec{Group: gv.Group, Version: gv.Version, GroupPriorityMinimum: group, VersionPriority: version},
	}
}

type step string

const (
	leave  step = "leave"
	create step = "create"
	update step = "update"
	remove step = "remove"
)

// decide says what is to be done: has is nil where there is none, want is nil
// where there should be none.
func decide(has, want *apiregistrationv1.APIService, doneAtStart bool) step {
	wantedOnStart := want != nil && want.Labels[managedLabel] == onStart
	switch {
	case wantedOnStart && doneAtStart:
		return leave
	case has == nil && want == nil:
		return leave
	case has == nil:
		return create
	case has.Labels[managedLabel] != always && has.Labels[managedLabel] != onStart:
		return leave // somebody's
	case want == nil:
		return remove
	case sameRegistration(has, want):
		return leave
	}
	return update
}

func sameRegistration(has, want *apiregistrationv1.APIService) bool {
	h, w := has.Spec, want.Spec
	return has.Labels[managedLabel] == want.Labels[managedLabel] && h.Service == nil && !h.InsecureSkipTLSVerify && len(h.CABundle) == 0 &&
		h.Group == w.Group && h.Version == w.Version && h.GroupPriorityMinimum == w.GroupPriorityMinimum && h.VersionPriority == w.VersionPriority
}

func (a *Aggregator) carryOut(ctx context.Context, s step, has, want *apiregistrationv1.APIService) error {
	var err error
	switch s {
	case create:
		_, err = a.client.Create(ctx, want, metav1.CreateOptions{})
	case update:
		changed := has.DeepCopy()
		changed.Labels = maps.Clone(has.Labels)
		changed.Labels[managedLabel] = want.Labels[managedLabel]
		changed.Spec = want.Spec
		_, err = a.client.Update(ctx, changed, metav1.UpdateOptions{})
	case remove:
		err = a.client.Delete(ctx, has.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(has.UID))})
	case leave:
	}
	return err
}
