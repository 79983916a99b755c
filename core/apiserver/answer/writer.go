// SPDX-License-Identifier: Apache-2.0

// Package answer writes the server's answers, in the form that the client requests: JSON,
// YAML or protobuf, pretty or not, compressed or not, an object as it is, as a row of a
// Table or as its metadata alone, a list, or the events of a watch.
//
// It guarantees that the bytes of an object are encoded once and shared by all
// answers that contain it, lists, Tables and watches included, and that the Status
// of an error is answered in upstream's words, with its code. It refuses forms that
// an object does not have. It decides nothing about a request but its form.
package answer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/wasmplane/wasmplane/core/api"
	"github.com/wasmplane/wasmplane/core/auth/audit"
	"github.com/wasmplane/wasmplane/core/object"
)

// Writer writes answers. It is safe for concurrent use.
type Writer struct {
	contract *api.Contract
	logger   *slog.Logger
	now      func() time.Time
	compress func(http.Handler) http.HandlerFunc
	frames   sync.Pool // of *bytes.Buffer, for the events of watches
}

// New makes a writer. now is the time that the ages in Tables are counted from.
func New(contract *api.Contract, logger *slog.Logger, now func() time.Time) (*Writer, error) {
	compress, err := newCompressor()
	if err != nil {
		return nil, fmt.Errorf("answer: %w", err)
	}
	return &Writer{contract: contract, logger: logger, now: now, compress: compress}, nil
}

// Fail answers with the Status of err. Errors are JSON whatever the client
// accepts, except YAML: clients read the content type.
func (a *Writer) Fail(w http.ResponseWriter, req *http.Request, err error) {
	status := StatusOf(err)
	audit.From(req.Context()).Status(status)
	if status.Code >= http.StatusInternalServerError && status.Reason == metav1.StatusReasonInternalError {
		a.logger.ErrorContext(req.Context(), "a request failed", "method", req.Method, "path", req.URL.Path, "error", err)
	} else if status.Code == http.StatusServiceUnavailable {
		// Every request fails while the store is away: the store has its own lines in the log.
		a.logger.DebugContext(req.Context(), "a request cannot be answered now", "method", req.Method, "path", req.URL.Path, "error", err)
	}
	if status.Details != nil && status.Details.RetryAfterSeconds > 0 && (status.Code == http.StatusTooManyRequests || status.Code >= 500) {
		w.Header().Set("Retry-After", strconv.Itoa(int(status.Details.RetryAfterSeconds)))
	}
	f, negotiateErr := Negotiate(req, true)
	if negotiateErr != nil || f.MediaType != object.YAML {
		f.MediaType = object.JSON
	}
	a.JSON(w, req, f, int(status.Code), status)
}

// StatusOf is the Status that an error is answered with.
func StatusOf(err error) *metav1.Status {
	var known apierrors.APIStatus
	var status metav1.Status
	switch {
	case errors.As(err, &known):
		status = known.Status()
	case errors.Is(err, context.DeadlineExceeded):
		status = apierrors.NewTimeoutError("request did not complete within the allotted timeout", 0).Status()
	default:
		status = apierrors.NewInternalError(err).Status()
	}
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	if status.Status == "" {
		status.Status = metav1.StatusFailure
	}
	if status.Code == 0 {
		status.Code = http.StatusInternalServerError
	}
	return &status
}

// JSON answers with v as JSON, or as YAML where f says so.
func (a *Writer) JSON(w http.ResponseWriter, req *http.Request, f Format, code int, v any) {
	data, err := json.Marshal(v)
	if err != nil {
		a.logger.ErrorContext(req.Context(), "an answer could not be encoded", "path", req.URL.Path, "error", err)
		http.Error(w, "the answer could not be encoded", http.StatusInternalServerError)
		return
	}
	a.Text(w, req, f, code, append(data, '\n'))
}

// Text answers with JSON, made pretty or YAML as f says.
func (a *Writer) Text(w http.ResponseWriter, req *http.Request, f Format, code int, data []byte) {
	switch {
	case f.MediaType == object.YAML:
		if y, err := yaml.JSONToYAML(data); err == nil {
			data = y
		}
	case f.Pretty:
		var b bytes.Buffer
		if err := json.Indent(&b, data, "", "  "); err == nil {
			data = b.Bytes()
		}
	}
	mediaType := object.JSON
	if f.MediaType == object.YAML {
		mediaType = object.YAML
	}
	a.Bytes(w, req, mediaType, code, data)
}
