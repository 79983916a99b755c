// SPDX-License-Identifier: Apache-2.0

// Package builtin holds the built-in admission plugins: those that upstream
// switches on by default, NodeRestriction, and, for who asks for them, those that
// are off by default. Each behaves and words its
// refusals as its upstream namesake does; Default lists them in upstream's order.
//
// Plugins read through shared informers. Where an informer has not seen an
// object yet, and a refusal would be wrong, they ask the server itself; where
// the informer has not been filled at all, they wait for it, for 10 s at most.
// They judge the versioned object and change copies of it only.
package builtin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/eventrate"
	"github.com/wasmplane/wasmplane/core/admission/pluginconfig"
	"github.com/wasmplane/wasmplane/core/auth/authz"
	"github.com/wasmplane/wasmplane/core/dial"
	"github.com/wasmplane/wasmplane/core/object"
)

// Deps are what the plugins read.
type Deps struct {
	// Client asks the server what informers have not seen yet.
	Client kubernetes.Interface
	// Informers are shared with the rest of the server; the caller starts them,
	// after Default has registered what it needs.
	Informers informers.SharedInformerFactory
	// Authorizer is asked who may approve, sign and own.
	Authorizer authz.Authorizer
	// Mapper finds the resources of owners' kinds; needed only by
	// OwnerReferencesPermissionEnforcement.
	Mapper meta.RESTMapper
	// Warm bounds how long a request waits for an informer that was just started; default 10 s.
	Warm time.Duration
	// Off switches plugins off by name, On adds those that are off by default.
	Off, On []string
	// Others are names that On and Off may have besides: of plugins that stand
	// elsewhere in the chain.
	Others []string
	// Settings of the plugins that have any; nil: the defaults.
	Settings *pluginconfig.Settings
	Dial     *dial.Policy // where ImagePolicyWebhook's service may be; nil: as operators say
}

// Default is the list, in the order in which they are asked.
func Default(d Deps) ([]admission.Plugin, error) {
	if d.Client == nil || d.Informers == nil || d.Authorizer == nil {
		return nil, errors.New("built-in admission plugins: Client, Informers and Authorizer are all needed")
	}
	if d.Mapper == nil && slices.Contains(d.On, ownerReferencesName) {
		return nil, fmt.Errorf("built-in admission plugins: %s needs a Mapper", ownerReferencesName)
	}
	if d.Warm <= 0 {
		d.Warm = 10 * time.Second
	}
	if d.Settings == nil {
		d.Settings = &pluginconfig.Settings{}
	}
	security, err := newPodSecurity(d)
	if err != nil {
		return nil, err
	}
	images, events, err := configured(d)
	if err != nil {
		return nil, err
	}
	all := []admission.Plugin{
		autoProvision{newNamespaces(d)}, // off by default
		newNamespaceLifecycle(d),
		namespaceExists{newNamespaces(d)}, // off by default
		antiAffinity{},                    // off by default
		newLimitRanger(d),
		newServiceAccount(d),
		newNodeRestriction(d),
		taintNodesByCondition{},
		alwaysPullImages{}, // off by default
		images,             // off by default
		security,
		podNodeSelector{newNamespaces(d), d.Settings.NodeSelectors}, // off by default
		newPriority(d),
		defaultTolerationSeconds{},
		podTolerations{newNamespaces(d), d.Settings.Tolerations}, // off by default
		events,               // off by default
		extendedToleration{}, // off by default
		newDefaultStorageClass(d),
		storageObjectInUseProtection{},
		newOwnerReferences(d), // off by default
		newPersistentVolumeClaimResize(d),
		newRuntimeClass(d),
		certificateApproval{d.Authorizer},
		certificateSigning{d.Authorizer},
		trustBundleAttest{d.Authorizer},
		certificateSubjectRestriction{},
		newDefaultIngressClass(d),
		denyServiceExternals{}, // off by default
		newPodTopologyLabels(d),
		newPodResize(d),
	}
	return choose(all, d)
}

// configured are the plugins that cannot do without settings; where they are off
// they need none.
func configured(d Deps) (images *imagePolicy, events *eventrate.Plugin, err error) {
	images, events = &imagePolicy{}, &eventrate.Plugin{}
	if slices.Contains(d.On, imagePolicyName) {
		images, err = newImagePolicy(d.Settings.ImagePolicy, d.Dial.Or())
	}
	if err == nil && slices.Contains(d.On, eventrate.Name) {
		events, err = eventrate.New(d.Settings.EventLimits, clock.RealClock{})
	}
	return images, events, err
}

// choose applies On and Off; a name that no plugin has is a mistake to tell about.
func choose(all []admission.Plugin, d Deps) ([]admission.Plugin, error) {
	names := make([]string, len(all))
	for i, p := range all {
		names[i] = p.Name()
	}
	names = append(names, d.Others...)
	for _, n := range slices.Concat(d.On, d.Off) {
		if !slices.Contains(names, n) {
			return nil, fmt.Errorf("admission plugin %q does not exist; there are %s", n, strings.Join(names, ", "))
		}
	}
	for _, n := range d.Off {
		if why, must := needed()[n]; must {
			return nil, fmt.Errorf("admission plugin %s cannot be disabled: %s", n, why)
		}
		if slices.Contains(d.On, n) {
			return nil, fmt.Errorf("admission plugin %s is both enabled and disabled; take it out of one list", n)
		}
	}
	optional := offByDefault()
	return slices.DeleteFunc(all, func(p admission.Plugin) bool {
		return slices.Contains(d.Off, p.Name()) || slices.Contains(optional, p.Name()) && !slices.Contains(d.On, p.Name())
	}), nil
}

// rule says which requests a plugin wants: one resource, one subresource ("" =
// the resource itself), some operations.
type rule struct {
	resource    schema.GroupResource
	subresource string
	operations  []admission.Operation
}

func (m rule) Handles(r *admission.Request) bool {
	return r.Resource.Resource == m.resource.Resource && r.Resource.Group == m.resource.Group &&
		r.Subresource == m.subresource && slices.Contains(m.operations, r.Operation)
}

func on(group, resource, subresource string, operations ...admission.Operation) rule {
	return rule{schema.GroupResource{Group: group, Resource: resource}, subresource, operations}
}

// typed is o as the Go type of the version that the plugins know.
func typed[T runtime.Object](o *object.Object) (T, error) {
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

// both are the object before and after an update.
func both[T runtime.Object](r *admission.Request) (old, updated T, err error) {
	if old, err = typed[T](r.OldObject); err == nil {
		updated, err = typed[T](r.Object)
	}
	return old, updated, err
}

// copied is a deep copy of o, to be changed and set.
func copied[T runtime.Object](o T) T { return o.DeepCopyObject().(T) }

// withSpec is a copy of a pod that shares everything with it that its spec points
// to: fields of the spec may be set in it, and lists replaced, but nothing may be
// changed where it lies. What nobody touches is then found to be the same by its address.
func withSpec(p *corev1.Pod) *corev1.Pod {
	c := *p
	return &c
}

// warm waits for informers that were just started.
type warm struct {
	within   time.Duration
	checkers []cache.DoneChecker
}

func warmOf(d Deps, informers ...cache.SharedIndexInformer) warm {
	w := warm{within: d.Warm}
	for _, i := range informers {
		w.checkers = append(w.checkers, i.HasSyncedChecker())
	}
	return w
}

// wait returns nil once the informers are filled, and else the refusal.
func (w warm) wait(ctx context.Context, r *admission.Request) error {
	for _, c := range w.checkers {
		select {
		case <-c.Done():
			continue
		default:
		}
		ctx, cancel := context.WithTimeout(ctx, w.within)
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

// cached asks the lister, and the server where the lister has not seen the object.
func cached[T any](lister func() (T, error), live func() (T, error)) (T, error) {
	o, err := lister()
	if apierrors.IsNotFound(err) {
		return live()
	}
	return o, err
}
