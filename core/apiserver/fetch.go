// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"net/http"
	"time"

	genericrequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/wasmplane/wasmplane/core/api/decodedsize"
	"github.com/wasmplane/wasmplane/core/apiserver/body"
)

// bodyWait bounds how long all of a body may be on its way.
const bodyWait = 30 * time.Second

// fetch reads the body before the request asks for a seat: no seat is held over
// what the client does. What comes too slowly is given up.
func (s *Server) fetch(w http.ResponseWriter, req *http.Request, info *genericrequest.RequestInfo, account *body.Account) error {
	if req.ContentLength == 0 || req.Body == nil || longRunning(info) || s.longMount(info) ||
		req.Context().Value(http.ServerContextKey) == nil {
		return nil // nothing to wait for, or a stream, or a caller within the process
	}
	if s.cfg.Aggregator == nil {
		if err := body.CheckLength(req); err != nil {
			return err
		}
	}
	if err := account.Need(decodedsize.Sent, body.Need(req)); err != nil {
		return err
	}
	_ = http.NewResponseController(w).SetReadDeadline(
		s.cfg.Now().Add(min(bodyWait, s.cfg.RequestTimeout))) // what cannot have one is within the process
	return body.Fetch(req)
}
