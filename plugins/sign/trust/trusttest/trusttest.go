// SPDX-License-Identifier: Apache-2.0

// Package trusttest makes signatures without keys for tests, by Sigstore's own library for them, as cosign
// writes them down.
package trusttest

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"testing"
	"time"

	"github.com/sigstore/sigstore-go/pkg/testing/ca"
	"github.com/sigstore/sigstore-go/pkg/tlog"

	"github.com/wasmplane/wasmplane/plugins/sign/evidence"
	"github.com/wasmplane/wasmplane/plugins/sign/trust"
)

// Keyless is a signature of a payload by somebody whose certificate lives for some minutes.
func Keyless(tb testing.TB, s *ca.VirtualSigstore, by trust.Identity, payload []byte, at time.Time) evidence.Signature {
	tb.Helper()
	e, err := s.SignAtTime(by.Subject, by.Issuer, payload, at)
	if err != nil {
		tb.Fatal(err)
	}
	content, err := e.SignatureContent()
	if err != nil {
		tb.Fatal(err)
	}
	return evidence.Signature{Payload: payload, Signature: content.Signature(), Proof: Proof(tb, s, e)}
}

// Proof is what cosign writes beside a signature, of what Sigstore's own test library made.
func Proof(tb testing.TB, s *ca.VirtualSigstore, e *ca.TestEntity) evidence.Proof {
	tb.Helper()
	content, err := e.VerificationContent()
	if err != nil {
		tb.Fatal(err)
	}
	entries, err := e.TlogEntries()
	if err != nil || len(entries) != 1 {
		tb.Fatal(entries, err)
	}
	tle := entries[0].TransparencyLogEntry()
	id, err := s.RekorLogID()
	if err != nil {
		tb.Fatal(err)
	}
	p := tlog.RekorPayload{
		Body: base64.StdEncoding.EncodeToString(tle.GetCanonicalizedBody()), IntegratedTime: tle.GetIntegratedTime(), LogIndex: tle.GetLogIndex(),
		LogID: id,
	}
	set, err := s.RekorSignPayload(p)
	if err != nil {
		tb.Fatal(err)
	}
	log, err := json.Marshal(map[string]any{"SignedEntryTimestamp": set, "Payload": p})
	if err != nil {
		tb.Fatal(err)
	}
	return evidence.Proof{
		Certificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: content.Certificate().Raw}), Log: log,
	}
}
