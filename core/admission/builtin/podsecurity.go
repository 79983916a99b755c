// SPDX-License-Identifier: Apache-2.0

package builtin

import (
	"context"
	"errors"
	"fmt"

	admissionv1 "k8s.io/api/admission/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	psa "k8s.io/pod-security-admission/admission"
	"k8s.io/pod-security-admission/admission/api/load"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/metrics"
	"k8s.io/pod-security-admission/policy"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/reading"
	"github.com/wasmplane/wasmplane/core/object"
)

// podSecurity enforces the Pod Security Standards that a namespace's labels name.
type podSecurity struct {
	inner *psa.Admission
	warm  reading.Warm
}

func newPodSecurity(d Deps) (*podSecurity, error) {
	config := d.Settings.PodSecurity
	if config == nil {
		var err error
		if config, err = load.LoadFromData(nil); err != nil {
			return nil, fmt.Errorf("pod security: load the default configuration: %w", err)
		}
	}
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		return nil, fmt.Errorf("pod security: %w", err)
	}
	core := d.Informers.Core().V1()
	inner := &psa.Admission{
		Configuration: config, Evaluator: evaluator, Metrics: unrecorded{}, PodSpecExtractor: psa.DefaultPodSpecExtractor{},
		PodLister:       psa.PodListerFromInformer(core.Pods().Lister()),
		NamespaceGetter: psa.NamespaceGetterFromListerAndClient(core.Namespaces().Lister(), d.Client),
	}
	if err := errors.Join(inner.CompleteConfiguration(), inner.ValidateConfiguration()); err != nil {
		return nil, fmt.Errorf("pod security: %w", err)
	}
	return &podSecurity{inner, reading.WarmOf(d.Warm, core.Namespaces().Informer())}, nil
}

func (*podSecurity) Name() string { return "PodSecurity" }

func (p *podSecurity) Handles(r *admission.Request) bool {
	if r.Operation != admission.Create && r.Operation != admission.Update {
		return false
	}
	gr := r.Resource.GroupResource()
	switch gr {
	case schema.GroupResource{Resource: "pods"}:
		// Nothing that pod security looks at can change here, and kubelets write it all the time.
		return r.Subresource != "status" && r.Subresource != "binding" && r.Subresource != "eviction"
	case schema.GroupResource{Resource: "namespaces"}:
		return r.Subresource == ""
	}
	return r.Subresource == "" && p.inner.PodSpecExtractor.HasPodSpec(gr)
}

func (p *podSecurity) Validate(ctx context.Context, r *admission.Request) error {
	if err := p.warm.Wait(ctx, r); err != nil {
		return err
	}
	answer := p.inner.Validate(ctx, securityRequest{r})
	for _, w := range answer.Warnings {
		r.Warn(w)
	}
	for k, v := range answer.AuditAnnotations {
		r.Annotate(api.AuditAnnotationPrefix+k, v)
	}
	if answer.Allowed {
		return nil
	}
	return securityRefusal(r, answer)
}

func securityRefusal(r *admission.Request, answer *admissionv1.AdmissionResponse) error {
	err := admission.Forbidden(r, errors.New("Not allowed by PodSecurity")) //nolint:staticcheck // upstream's words
	var status *apierrors.StatusError
	if answer.Result == nil || !errors.As(err, &status) {
		return err
	}
	s := &status.ErrStatus
	if answer.Result.Message != "" {
		s.Message = answer.Result.Message
	}
	if answer.Result.Reason != "" {
		s.Reason = answer.Result.Reason
	}
	if answer.Result.Details != nil {
		s.Details = answer.Result.Details
	}
	if answer.Result.Code != 0 {
		s.Code = answer.Result.Code
	}
	return err
}

// securityRequest is a request as the library wants to see it.
type securityRequest struct{ r *admission.Request }

func (s securityRequest) GetName() string                          { return s.r.Name }
func (s securityRequest) GetNamespace() string                     { return s.r.Namespace }
func (s securityRequest) GetResource() schema.GroupVersionResource { return s.r.Resource }
func (s securityRequest) GetKind() schema.GroupVersionKind         { return s.r.Kind }
func (s securityRequest) GetSubresource() string                   { return s.r.Subresource }
func (s securityRequest) GetOperation() admissionv1.Operation {
	return admissionv1.Operation(s.r.Operation)
}

func (s securityRequest) GetObject() (runtime.Object, error) { return versionedOrNil(s.r.Object) }

func (s securityRequest) GetOldObject() (runtime.Object, error) { return versionedOrNil(s.r.OldObject) }

func (s securityRequest) GetUserName() string {
	if s.r.User == nil {
		return ""
	}
	return s.r.User.GetName()
}

func versionedOrNil(o *object.Object) (runtime.Object, error) {
	if o == nil {
		return nil, nil
	}
	return o.Versioned()
}

// unrecorded: the chain measures every plugin alike.
type unrecorded struct{}

func (unrecorded) RecordEvaluation(metrics.Decision, api.LevelVersion, metrics.Mode, api.Attributes) {
}
func (unrecorded) RecordExemption(api.Attributes)   {}
func (unrecorded) RecordError(bool, api.Attributes) {}
