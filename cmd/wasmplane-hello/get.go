// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// accountDir is where a pod finds its service account's token and the cluster's authority.
const accountDir = "/var/run/secrets/kubernetes.io/serviceaccount"

const getTimeout = 10 * time.Second

// get prints what a URL answers: `hello get http://web/`. With https it speaks to
// the cluster's API as the pod's service account.
func get(ctx context.Context, w io.Writer, address string) error {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" {
		return fmt.Errorf("expected a URL such as http://web/, found %q", address)
	}
	ctx, cancel := context.WithTimeout(ctx, getTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return err
	}
	client := http.DefaultClient
	if u.Scheme == "https" {
		if client, err = accountClient(req); err != nil {
			return err
		}
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if _, err := io.Copy(w, io.LimitReader(resp.Body, 16<<20)); err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	if resp.StatusCode >= http.StatusBadRequest {
		return errors.New(resp.Status)
	}
	return nil
}

// accountClient trusts the cluster's authority, and puts the account's token on req.
func accountClient(req *http.Request) (*http.Client, error) {
	token, err := os.ReadFile(filepath.Join(accountDir, "token"))
	if err != nil {
		return nil, fmt.Errorf("read the service account's token: %w", err)
	}
	ca, err := os.ReadFile(filepath.Join(accountDir, "ca.crt"))
	if err != nil {
		return nil, fmt.Errorf("read the cluster's authority: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return nil, errors.New("the cluster's authority is no certificate in PEM")
	}
	req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	return &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}}}, nil
}
