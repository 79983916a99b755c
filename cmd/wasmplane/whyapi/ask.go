// SPDX-License-Identifier: Apache-2.0

package whyapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/core/why"
)

// ErrNotOffered is the error where the server has no such API, or does not let this user ask.
var ErrNotOffered = errors.New("the server does not answer why")

// Ask has the server answer.
func Ask(ctx context.Context, set *client.Set, q Question) (*why.Answer, error) {
	result := set.Kube.Discovery().RESTClient().Get().AbsPath(Path).Param("kind", q.Word).Param("namespace", q.Namespace).
		Param("name", q.Name).SetHeader("Accept", "application/json").Do(ctx)
	if err := result.Error(); err != nil { // Raw's would not have the server's Status
		return nil, asked(err)
	}
	data, err := result.Raw()
	if err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	a := &why.Answer{}
	if err := json.Unmarshal(data, a); err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	return a, nil
}

// asked tells a server's answer from that of one that does not know the question.
func asked(err error) error {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return err
	}
	s := status.Status()
	if s.Details != nil && s.Details.Group == Group && s.Code != http.StatusForbidden {
		return errors.New(s.Message)
	}
	switch s.Code {
	case http.StatusNotFound, http.StatusForbidden, http.StatusMethodNotAllowed, http.StatusNotAcceptable:
		return ErrNotOffered
	}
	return err
}
