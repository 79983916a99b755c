// SPDX-License-Identifier: Apache-2.0

package whyapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"strconv"
	"time"

	oteltrace "go.opentelemetry.io/otel/trace"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apiserver/pkg/authentication/user"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/core/why"
	"github.com/wasmplane/wasmplane/plugins/host"
)

// The API's group and where it answers: GET Path?kind=pod&namespace=shop&name=web-0, with a
// why.Answer as JSON.
const (
	Group = "why.wasmplane.dev"
	Path  = "/apis/" + Group + "/v1/answer"
)

// longest is how long one question is worked on.
const longest = 20 * time.Second

// Handler answers questions. It costs nothing while nobody asks.
type Handler struct {
	// API is the server's own, for requests within the process. Everything is read, and written, with
	// the rights of whoever asks.
	API http.Handler
	// Trials are made for one question about a pod; nil = the native plugins are all that is known here.
	Trials func() Trials
	Logger *slog.Logger

	limiter *limiter
}

// NewHandler makes one ready to serve.
func NewHandler(h Handler) *Handler {
	h.limiter = newLimiter()
	return &h
}

// ServeHTTP implements http.Handler. The server in front of it has authenticated and authorized the request.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet {
		w.Header().Set("Allow", http.MethodGet)
		http.Error(w, "ask by GET", http.StatusMethodNotAllowed)
		return
	}
	q, err := question(r)
	if err != nil {
		fail(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, err)
		return
	}
	asker, ok := genericrequest.UserFrom(r.Context())
	if !ok {
		fail(w, http.StatusInternalServerError, metav1.StatusReasonInternalError, errors.New("the request has no user: who asks is not known"))
		return
	}
	end, wait, why := h.limiter.begin(asker)
	if end == nil { // a client comes again by itself
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(wait.Seconds()))))
		fail(w, http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, errors.New(why))
		return
	}
	defer end()
	ctx, cancel := context.WithTimeout(r.Context(), longest)
	defer cancel()
	a, err := h.answer(ctx, asker, q)
	if err != nil {
		status, reason := classify(ctx, err)
		fail(w, status, reason, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(a) //nolint:errcheck // the client has gone
}

// question reads what is asked; an odd one must not get far.
func question(r *http.Request) (Question, error) {
	v := r.URL.Query()
	q := Question{Word: v.Get("kind"), Namespace: v.Get("namespace"), Name: v.Get("name")}
	switch {
	case q.Word == "" || q.Name == "":
		return q, errors.New("name the object: ?kind=KIND&namespace=NAMESPACE&name=NAME")
	case len(q.Word) > 253 || len(q.Name) > 253:
		return q, errors.New("kind and name have 253 characters at most")
	}
	if q.Namespace == "" {
		q.Namespace = metav1.NamespaceDefault
	}
	if errs := validation.IsDNS1123Label(q.Namespace); len(errs) > 0 {
		return q, fmt.Errorf("namespace %q: %s", q.Namespace, errs[0])
	}
	if errs := validation.IsDNS1123Subdomain(q.Word); len(errs) > 0 {
		return q, fmt.Errorf("kind %q: %s", q.Word, errs[0])
	}
	return q, nil
}

func (h *Handler) answer(ctx context.Context, asker user.Info, q Question) (*why.Answer, error) {
	set, err := client.New(client.InMemory(h.API, asker, "why"))
	if err != nil {
		return nil, err
	}
	t := Trials{}
	if h.Trials != nil {
		t = h.Trials()
		defer t.Release()
	}
	// What plugins do in a trial is nobody's journey, changes nothing, and is not held against them.
	trying := host.WithAside(host.WithDryRun(oteltrace.ContextWithSpanContext(ctx, oteltrace.SpanContext{})))
	a, o, err := explain(trying, set, q, t)
	if err != nil {
		return nil, err
	}
	if !a.Well {
		if err := record(ctx, set, &o, a); err != nil {
			h.Logger.DebugContext(ctx, "why an object does not get on was not written to it", "kind", o.gvk.Kind, "namespace", o.namespace,
				"name", o.name, "error", err)
		}
	}
	return a, nil
}

// classify is the status of a failure.
func classify(ctx context.Context, err error) (int, metav1.StatusReason) {
	var none *why.NotFoundError
	var bad *badQuestionError
	switch {
	case errors.As(err, &none):
		return http.StatusNotFound, metav1.StatusReasonNotFound
	case errors.As(err, &bad):
		return http.StatusBadRequest, metav1.StatusReasonBadRequest
	case ctx.Err() != nil:
		return http.StatusGatewayTimeout, metav1.StatusReasonTimeout
	case apierrors.IsForbidden(err):
		return http.StatusForbidden, metav1.StatusReasonForbidden
	}
	return http.StatusInternalServerError, metav1.StatusReasonInternalError
}

// fail answers a Status of this API's group: a client tells it from one of a server that does not
// know the path.
func fail(w http.ResponseWriter, code int, reason metav1.StatusReason, err error) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{ //nolint:errcheck // the client has gone
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: int32(code), Reason: reason,
		Message: err.Error(), Details: &metav1.StatusDetails{Group: Group},
	})
}
