// SPDX-License-Identifier: Apache-2.0

package kubewarden

import (
	"context"
	"crypto/x509"
	"fmt"
	"time"
)

func notBefore(der []byte) (time.Time, error) {
	c, err := x509.ParseCertificate(der)
	if err != nil {
		return time.Time{}, err
	}
	return c.NotBefore, nil
}

// verifyRequest asks whether an image is signed. Kinds other than by public keys
// need a transparency log and its roots.
type verifyRequest struct {
	Type        string            `json:"type"`
	Image       string            `json:"image"`
	PubKeys     []string          `json:"pub_keys"`
	Annotations map[string]string `json:"annotations"`
}

func (c *Calls) verify(ctx context.Context, payload []byte) (any, error) {
	var q verifyRequest
	if err := decode(payload, &q); err != nil {
		return nil, err
	}
	if len(q.PubKeys) == 0 {
		return nil, fmt.Errorf("a signature of kind %q cannot be checked here: only those by public keys (pub_keys) can", short(q.Type))
	}
	digest, err := c.caller.VerifyImage(ctx, q.Image, q.PubKeys, q.Annotations)
	return map[string]any{"is_trusted": err == nil, "digest": digest}, err
}
