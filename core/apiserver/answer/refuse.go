// SPDX-License-Identifier: Apache-2.0

package answer

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
)

// statusError is a refusal that apierrors has no constructor for.
type statusError struct{ status metav1.Status }

func (e *statusError) Error() string         { return e.status.Message }
func (e *statusError) Status() metav1.Status { return e.status }

func refusal(code int32, reason metav1.StatusReason, format string, args ...any) error {
	return &statusError{metav1.Status{Status: metav1.StatusFailure, Code: code, Reason: reason, Message: fmt.Sprintf(format, args...)}}
}

// unrouted is a refusal of a request that led nowhere. Like upstream's it has
// details with nothing in them, which some clients look for.
func unrouted(code int32, reason metav1.StatusReason, message string) error {
	return &statusError{metav1.Status{
		Status: metav1.StatusFailure, Code: code, Reason: reason, Message: message,
		Details: &metav1.StatusDetails{},
	}}
}

// NotAcceptable refuses a request for an answer in another form than those.
func NotAcceptable(accepted []string) error {
	return refusal(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable,
		"only the following media types are accepted: %v", strings.Join(accepted, ", "))
}

// UnsupportedMediaType refuses a body in another form than those.
func UnsupportedMediaType(accepted []string) error {
	return refusal(http.StatusUnsupportedMediaType, metav1.StatusReasonUnsupportedMediaType,
		"the body of the request was in an unknown format - accepted media types include: %v", strings.Join(accepted, ", "))
}

// NotFound answers a request that no route leads to.
func (a *Writer) NotFound(w http.ResponseWriter, req *http.Request) {
	a.Fail(w, req, unrouted(http.StatusNotFound, metav1.StatusReasonNotFound, "the server could not find the requested resource"))
}

// MethodNotAllowed answers a request whose path has no route for its method.
func (a *Writer) MethodNotAllowed(w http.ResponseWriter, req *http.Request) {
	a.Fail(w, req, unrouted(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed,
		"the server does not allow this method on the requested resource"))
}

// Unauthorized answers a request whose sender is not known. It says no more than
// that: which credential failed and why is not the client's to know.
func (a *Writer) Unauthorized(w http.ResponseWriter, req *http.Request, err error) {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		err = apierrors.NewUnauthorized("Unauthorized")
	}
	CloseUnlessKnown(w, req, nil)
	a.Fail(w, req, err)
}

// CloseUnlessKnown ends the HTTP/2 connection of a sender whom nobody knows (nil, or
// anonymous) after the answer, as upstream does: one connection of many streams
// would let a stranger open and reset them faster than the server can answer.
// net/http sends a GOAWAY for the header, and takes no more streams.
func CloseUnlessKnown(w http.ResponseWriter, req *http.Request, who user.Info) {
	if req.ProtoMajor == 2 && (who == nil || who.GetName() == user.Anonymous) {
		w.Header().Set("Connection", "close")
	}
}
