// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// answers is a driver that always answers the same.
type answers struct {
	spec.IdentityClient
	ready *wrapperspb.BoolValue
	err   error
}

func (a answers) Probe(context.Context, *spec.ProbeRequest, ...grpc.CallOption) (*spec.ProbeResponse, error) {
	return &spec.ProbeResponse{Ready: a.ready}, a.err
}

// TestHealthz: a driver that says nothing of being ready, is.
func TestHealthz(t *testing.T) {
	for name, c := range map[string]struct {
		driver answers
		want   int
	}{
		"ready":     {answers{ready: wrapperspb.Bool(true)}, http.StatusOK},
		"silent":    {answers{}, http.StatusOK},
		"not ready": {answers{ready: wrapperspb.Bool(false)}, http.StatusInternalServerError},
		"failing":   {answers{err: status.Error(codes.Unavailable, "gone")}, http.StatusInternalServerError},
	} {
		w := httptest.NewRecorder()
		healthz(c.driver, time.Minute).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/healthz", nil))
		if w.Code != c.want {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
	}
}
