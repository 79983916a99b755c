// SPDX-License-Identifier: Apache-2.0

// Package reviewserver serves admission, conversion and authorization plugins to a cluster whose
// API server is not ours: the same plugins, with the same entries.
//
// Admission comes as AdmissionReview, at a path for each plugin; Registration keeps
// the cluster's webhook configurations as the entries say. Conversion comes as ConversionReview,
// where a definition of custom resources names the plugin's path. Authorization comes as
// SubjectAccessReview; it is answered only to who shows the client certificate that goes with
// the file for the API server (AuthorizationFiles).
//
// A request that cannot be read is an error of the review, never an approval.
package reviewserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"

	admissionv1 "k8s.io/api/admission/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/auth/authz"
	"github.com/wasmplane/wasmplane/plugins/point/customresource"
)

// Config is what a server serves.
type Config struct {
	// Admission are the admission plugins now, in order.
	Admission func() []admission.Plugin
	// Converters are the plugins now that take part at custom resources.
	Converters func() []*customresource.Plugin
	// Authorizers are those that stand before the cluster's own, and those behind it.
	Authorizers func() (before, after []authz.Authorizer)
	// MayAuthorize says whether a request comes from the API server.
	MayAuthorize func(*http.Request) bool
	Logger       *slog.Logger
}

// bodyLimit bounds a review: an API server's own objects are at most 3 MiB, and there may be two.
const bodyLimit = 8 << 20

// conversionLimit bounds a review of objects to convert: a whole page of a list comes at once.
const conversionLimit = 64 << 20

// Handler serves /mutate/NAME, /validate/NAME, /convert/NAME, /authorize/before, /authorize/after and /healthz.
func Handler(cfg Config) http.Handler {
	s := &server{cfg}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /mutate/{plugin}", s.admission((*admission.Chain).Mutate))
	mux.HandleFunc("POST /validate/{plugin}", s.admission((*admission.Chain).Validate))
	mux.HandleFunc("POST /convert/{plugin}", s.convert)
	mux.HandleFunc("POST /authorize/{order}", s.authorize)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
	return mux
}

type server struct{ cfg Config }

// read decodes a review's body; what is wrong with it has been answered where it is not nil.
func (s *server) read(w http.ResponseWriter, r *http.Request, limit int64, review any) bool {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	if err != nil {
		http.Error(w, "the review is too large, or was cut off", http.StatusRequestEntityTooLarge)
		return false
	}
	if err := json.Unmarshal(body, review); err != nil {
		http.Error(w, "the body is no review: "+err.Error(), http.StatusBadRequest)
		return false
	}
	return true
}

func (s *server) write(w http.ResponseWriter, review any) {
	b, err := json.Marshal(review)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if _, err := w.Write(b); err != nil {
		s.cfg.Logger.Debug("an answer to a review was not taken", "error", err)
	}
}

// question is what a chain of one plugin is asked.
type question func(c *admission.Chain, ctx context.Context, r *admission.Request) error

// admission answers for one plugin with one of its faces.
func (s *server) admission(ask question) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if !s.read(w, r, bodyLimit, &review) {
			return
		}
		if review.Request == nil {
			http.Error(w, "the review has no request", http.StatusBadRequest)
			return
		}
		plugin := s.plugin(r.PathValue("plugin"))
		if plugin == nil {
			http.Error(w, fmt.Sprintf("there is no admission plugin %q here", r.PathValue("plugin")), http.StatusNotFound)
			return
		}
		response, err := judge(r.Context(), plugin, ask, review.Request)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		review.Request, review.Response = nil, response
		review.SetGroupVersionKind(admissionv1.SchemeGroupVersion.WithKind("AdmissionReview"))
		s.write(w, &review)
	}
}

func (s *server) plugin(name string) admission.Plugin {
	for _, p := range s.cfg.Admission() {
		if p.Name() == name {
			return p
		}
	}
	return nil
}

// judge asks the plugin; an error says that the request itself cannot be read.
func judge(ctx context.Context, p admission.Plugin, ask question, q *admissionv1.AdmissionRequest) (*admissionv1.AdmissionResponse, error) {
	r, err := newRequest(q)
	if err != nil {
		return nil, err
	}
	before, err := tree(r)
	if err != nil {
		return nil, err
	}
	chain, err := admission.NewChain(p)
	if err != nil {
		return nil, err
	}
	refusal := ask(chain, ctx, r)
	out := &admissionv1.AdmissionResponse{
		UID: q.UID, Allowed: refusal == nil, Warnings: r.Warnings(),
		AuditAnnotations: annotations(r, p.Name()),
	}
	if refusal != nil {
		out.Result = statusOf(refusal)
		return out, nil
	}
	return out, patch(out, r, before)
}

// statusOf is a refusal as the API server passes it on.
func statusOf(err error) *metav1.Status {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		s := status.Status()
		return &s
	}
	return &metav1.Status{Status: metav1.StatusFailure, Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: err.Error()}
}

// authorize answers a SubjectAccessReview.
func (s *server) authorize(w http.ResponseWriter, r *http.Request) {
	if !s.cfg.MayAuthorize(r) {
		http.Error(w, "who may do what is told only to the API server, which shows the client certificate in its kubeconfig", http.StatusUnauthorized)
		return
	}
	before, after := s.cfg.Authorizers()
	list, ok := map[string][]authz.Authorizer{"before": before, "after": after}[r.PathValue("order")]
	if !ok {
		http.NotFound(w, r)
		return
	}
	var review authorizationv1.SubjectAccessReview
	if !s.read(w, r, bodyLimit, &review) {
		return
	}
	review.Status = decide(r.Context(), list, attributes(&review.Spec))
	review.SetGroupVersionKind(authorizationv1.SchemeGroupVersion.WithKind("SubjectAccessReview"))
	s.write(w, &review)
}

// decide asks the authorizers in order until one decides.
func decide(ctx context.Context, list []authz.Authorizer, a authz.Attributes) authorizationv1.SubjectAccessReviewStatus {
	var out authorizationv1.SubjectAccessReviewStatus
	for _, one := range list {
		d, reason, err := one.Authorize(ctx, a)
		if err != nil {
			out.EvaluationError = err.Error()
		}
		switch d {
		case authz.Allow:
			out.Allowed, out.Reason = true, reason
			return out
		case authz.Deny:
			out.Denied, out.Reason = true, reason
			return out
		case authz.NoOpinion: // the next one
		}
	}
	return out
}

func attributes(spec *authorizationv1.SubjectAccessReviewSpec) authz.Attributes {
	extra := map[string][]string{}
	for k, v := range spec.Extra {
		extra[k] = v
	}
	a := authorizer.AttributesRecord{User: &user.DefaultInfo{Name: spec.User, UID: spec.UID, Groups: spec.Groups, Extra: extra}}
	if r := spec.ResourceAttributes; r != nil {
		a.ResourceRequest, a.Verb, a.Namespace, a.APIGroup, a.APIVersion = true, r.Verb, r.Namespace, r.Group, r.Version
		a.Resource, a.Subresource, a.Name = r.Resource, r.Subresource, r.Name
	}
	if r := spec.NonResourceAttributes; r != nil {
		a.Verb, a.Path = r.Verb, r.Path
	}
	return a
}
