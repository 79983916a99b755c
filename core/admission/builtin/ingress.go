// SPDX-License-Identifier: Apache-2.0

package builtin

import (
	"context"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"
	listers "k8s.io/client-go/listers/networking/v1"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/reading"
	"github.com/wasmplane/wasmplane/core/defaultclass"
)

// defaultIngressClass names the default class in ingresses that name none.
type defaultIngressClass struct {
	lister listers.IngressClassLister
	warm   reading.Warm
}

func newDefaultIngressClass(d Deps) *defaultIngressClass {
	classes := d.Informers.Networking().V1().IngressClasses()
	return &defaultIngressClass{classes.Lister(), reading.WarmOf(d.Warm, classes.Informer())}
}

func (*defaultIngressClass) Name() string { return "DefaultIngressClass" }

func (*defaultIngressClass) Handles(r *admission.Request) bool {
	return reading.On("networking.k8s.io", "ingresses", "", admission.Create).Handles(r)
}

func (p *defaultIngressClass) Mutate(ctx context.Context, r *admission.Request) error {
	given, err := reading.Typed[*networkingv1.Ingress](r.Object)
	if err != nil {
		return err
	}
	if _, ok := given.Annotations["kubernetes.io/ingress.class"]; ok || given.Spec.IngressClassName != nil {
		return nil
	}
	if err := p.warm.Wait(ctx, r); err != nil {
		return err
	}
	all, err := p.lister.List(labels.Everything())
	if err != nil {
		return admission.Forbidden(r, err)
	}
	class := defaultclass.Ingress(all)
	if class == nil {
		return nil
	}
	ingress, name := reading.Copied(given), class.Name
	ingress.Spec.IngressClassName = &name
	r.Object.SetVersioned(ingress)
	return nil
}
