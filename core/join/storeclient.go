// SPDX-License-Identifier: Apache-2.0

package join

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/wasmplane/wasmplane/core/join/handover"
	"github.com/wasmplane/wasmplane/core/pki"
	"github.com/wasmplane/wasmplane/core/run"
)

// looking is how often a light server looks at its certificate.
const looking = 12 * time.Hour

// StoreClient has the certificate signed again by which a light server uses the stores of others.
type StoreClient struct {
	// Name of the server, PKI its folder of keys.
	Name, PKI string
	// Servers are the addresses of all servers' APIs, HOST:PORT. Own is an administrator's client of this server.
	Servers func(context.Context) ([]string, error)
	Own     func() (*rest.Config, error)
	Log     *slog.Logger
}

// Run renews in the last third of the certificate's life, until ctx ends. A failure is logged, and it is tried again.
func (s *StoreClient) Run(ctx context.Context) error {
	failed := run.Backoff{First: time.Minute, Longest: time.Hour}
	for {
		due, err := pki.StoreClientDue(s.PKI, time.Now())
		if err == nil && due {
			if err = s.Renew(ctx); err == nil {
				s.Log.InfoContext(ctx, "this light server's certificate for the store was signed again")
			}
		}
		wait := looking
		if err != nil {
			wait = failed.Next()
			s.Log.ErrorContext(ctx, "this light server's certificate for the store was not signed again; trying again", "error", err)
		} else {
			failed.Reset()
		}
		if !run.Sleep(ctx, wait) {
			return nil
		}
	}
}

// Renew makes a new key, and has a server that keeps the store sign its certificate. Connections from then on show it.
func (s *StoreClient) Renew(ctx context.Context) error {
	request, err := pki.NewStoreClientRequest(s.Name)
	if err != nil {
		return err
	}
	servers, err := s.Servers(ctx)
	if err != nil {
		return err
	}
	body, err := json.Marshal(handover.StoreRequest{Name: s.Name, CSR: request.CSR})
	if err != nil {
		return fmt.Errorf("encode the request for a certificate: %w", err)
	}
	failures := []error{errors.New("no server that keeps the store has signed this light server's certificate")}
	for _, address := range servers {
		cert, err := s.ask(ctx, address, body)
		if err == nil {
			return request.Keep(s.PKI, cert)
		}
		failures = append(failures, fmt.Errorf("%s: %w", address, err))
	}
	return errors.Join(failures...)
}

func (s *StoreClient) ask(ctx context.Context, address string, body []byte) ([]byte, error) {
	own, err := s.Own()
	if err != nil {
		return nil, err
	}
	kube, err := kubernetes.NewForConfig(ToServer(own, address))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	data, err := kube.Discovery().RESTClient().Post().AbsPath(handover.StorePath).SetHeader("Content-Type", "application/json").
		Body(body).MaxRetries(0).Do(ctx).Raw()
	if err != nil {
		return nil, err
	}
	var signed handover.StoreCertificate
	return signed.Certificate, json.Unmarshal(data, &signed)
}
