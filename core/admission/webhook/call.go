// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/matching"
	"github.com/wasmplane/wasmplane/core/attempts"
)

// maxAnswer bounds a webhook's answer, in bytes: a patch that replaces the
// largest object the store takes, in base64, with room to spare.
const maxAnswer = 8 << 20

// callError: the webhook could not be asked, or its answer made no sense. The
// failure policy decides what that means.
type callError struct {
	name   string
	reason error
	status *apierrors.StatusError
}

func (e *callError) Error() string {
	return fmt.Sprintf("failed calling webhook %q: %v", e.name, e.reason)
}
func (e *callError) Unwrap() error { return e.reason }

// rejection: the webhook said no.
type rejection struct{ status *apierrors.StatusError }

func (e *rejection) Error() string { return e.status.Error() }

// invocation is one webhook with what it is going to be asked.
type invocation struct {
	hook   *hook
	target matching.Target
	view   *matching.View
}

// choose decides whether a webhook is asked about the request, and as what.
func (w *Webhooks) choose(ctx context.Context, h *hook, r *admission.Request) (*invocation, error) {
	target, ok, err := h.criteria.Match(ctx, r, w.namespaces, w.cfg.Resources)
	if err != nil || !ok {
		return nil, err
	}
	view, err := target.In(ctx, r)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	if h.conditions == nil {
		return &invocation{h, target, view}, nil
	}
	attributes, err := view.CEL(r)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	switch result := h.conditions.Match(ctx, attributes, nil, w.cfg.Authorizer); {
	case result.Error != nil:
		w.cfg.Log.WarnContext(ctx, "the match conditions of a webhook could not be evaluated; the request is refused", "webhook", h.name, "error", result.Error)
		return nil, apierrors.NewForbidden(r.Resource.GroupResource(), r.Name, result.Error)
	case !result.Matches:
		return nil, nil
	}
	return &invocation{h, target, view}, nil
}

// ask sends the review and reads the answer. A refusal is a *rejection, a
// failure a *callError.
func (w *Webhooks) ask(ctx context.Context, k *invocation, r *admission.Request, mutates bool) (*answer, error) {
	h := k.hook
	if err := h.mayDryRun(r); err != nil {
		return nil, err
	}
	uid := uuid.NewUUID()
	version, err := reviewVersion(h.versions)
	if err != nil {
		return nil, &callError{
			h.name, fmt.Errorf("could not create admission objects: %w", err),
			apierrors.NewBadRequest("error creating admission objects"),
		}
	}
	body, err := review(version, uid, r, k.target, k.view)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	asker := ValidatingName
	if mutates {
		asker = MutatingName
	}
	c, err := w.clients[asker].of(&h.client)
	if err != nil {
		return nil, &callError{h.name, fmt.Errorf("could not get REST client: %w", err), apierrors.NewInternalError(err)}
	}
	reply, err := c.post(attempts.With(ctx, h.subject(mutates)), h.timeout, body)
	if err != nil {
		status := &apierrors.StatusError{}
		if !errors.As(err, &status) {
			status = apierrors.NewServiceUnavailable("error calling webhook")
		}
		return nil, &callError{h.name, fmt.Errorf("failed to call webhook: %w", err), status}
	}
	return h.read(r, version, uid, mutates, reply)
}

// read verifies the answer and passes on what it says beside yes or no.
func (h *hook) read(r *admission.Request, version string, uid types.UID, mutates bool, reply []byte) (*answer, error) {
	a, err := verify(version, uid, mutates, reply)
	if err != nil {
		return nil, &callError{
			h.name, fmt.Errorf("received invalid webhook response: %w", err),
			apierrors.NewServiceUnavailable("error validating webhook response"),
		}
	}
	for k, v := range a.annotations {
		r.Annotate(h.name+"/"+k, v)
	}
	for _, text := range a.warnings {
		r.Warn(text)
	}
	if !a.allowed {
		return nil, &rejection{refused(h.name, a.result)}
	}
	return a, nil
}

func (h *hook) mayDryRun(r *admission.Request) error {
	switch {
	case !r.DryRun:
		return nil
	case h.sideEffects == nil:
		return &callError{h.name, errors.New("Webhook SideEffects is nil"), apierrors.NewBadRequest("Webhook SideEffects is nil")} //nolint:staticcheck // upstream's words
	case *h.sideEffects == admissionregistrationv1.SideEffectClassNone, *h.sideEffects == admissionregistrationv1.SideEffectClassNoneOnDryRun:
		return nil
	}
	return apierrors.NewBadRequest(fmt.Sprintf("admission webhook %q does not support dry run", h.name))
}

// refused is the status of a refusal. Whatever the webhook says, it is one.
func refused(name string, given *metav1.Status) *apierrors.StatusError {
	status := metav1.Status{}
	if given != nil {
		status = *given
	}
	if status.Code < http.StatusBadRequest {
		status.Code = http.StatusBadRequest
	}
	if status.Status == "" || status.Status == metav1.StatusSuccess {
		status.Status = metav1.StatusFailure
	}
	by := fmt.Sprintf("admission webhook %q denied the request", name)
	switch {
	case status.Message != "":
		status.Message = by + ": " + status.Message
	case status.Reason != "":
		status.Message = fmt.Sprintf("%s: %s", by, status.Reason)
	default:
		status.Message = by + " without explanation"
	}
	return &apierrors.StatusError{ErrStatus: status}
}

// post sends one review, within timeout (0: as long as ctx lasts), and returns the body.
func (c *client) post(ctx context.Context, timeout time.Duration, body []byte) ([]byte, error) {
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	url := c.url
	if deadline, ok := ctx.Deadline(); ok {
		// The webhook is told, in full seconds, how long anybody will listen.
		if left := time.Until(deadline); left > 0 {
			url += "?timeout=" + strconv.Itoa(int((left+time.Second-1)/time.Second)) + "s"
		}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, */*")
	req.Header.Set("User-Agent", "wasmplane-admission")
	res, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode >= 300 && res.StatusCode < 400 {
		return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("the webhook answered with a redirect (%s), which is not followed: its configuration must name the place itself", res.Status))
	}
	reply, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	switch {
	case err != nil:
		return nil, err
	case len(reply) > maxAnswer:
		return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("the webhook's answer is larger than %d bytes", maxAnswer))
	case res.StatusCode < 200 || res.StatusCode > 206:
		return nil, apierrors.NewGenericServerResponse(res.StatusCode, http.MethodPost, schema.GroupResource{}, "", printable(reply), 0, true)
	}
	return reply, nil
}

// printable is the beginning of an error page.
func printable(b []byte) string {
	const limit = 2048
	if len(b) > limit {
		return string(bytes.ToValidUTF8(b[:limit], []byte("?"))) + "..."
	}
	return string(bytes.ToValidUTF8(b, []byte("?")))
}
