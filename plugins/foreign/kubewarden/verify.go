// SPDX-License-Identifier: Apache-2.0

package kubewarden

import (
	"context"
	"crypto/x509"
	"fmt"
	"strings"
	"time"

	"github.com/wasmplane/wasmplane/plugins/hostfn"
)

func notBefore(der []byte) (time.Time, error) {
	c, err := x509.ParseCertificate(der)
	if err != nil {
		return time.Time{}, err
	}
	return c.NotBefore, nil
}

// verifyRequest asks whether an image is signed: by all of some keys, or of those whom an authority knows. The fields say which; a
// type is named by the second version alone.
type verifyRequest struct {
	Type        string            `json:"type"`
	Image       string            `json:"image"`
	PubKeys     []string          `json:"pub_keys"`
	Keyless     []keylessSigner   `json:"keyless"`
	Prefixes    []keylessSigner   `json:"keyless_prefix"`
	Owner       string            `json:"owner"` // of a repository at GitHub, whose actions have signed
	Repository  string            `json:"repo"`  // "" = any of the owner's
	Annotations map[string]string `json:"annotations"`
}

type keylessSigner struct {
	Issuer  string `json:"issuer"`
	Subject string `json:"subject"`
	Prefix  string `json:"url_prefix"`
}

// Whom GitHub vouches for, and where they are.
const (
	githubIssuer = "https://token.actions.githubusercontent.com"
	github       = "https://github.com/"
)

func (c *Calls) verify(ctx context.Context, payload []byte) (any, error) {
	var q verifyRequest
	if err := decode(payload, &q); err != nil {
		return nil, err
	}
	by, err := q.signers()
	if err != nil {
		return nil, err
	}
	var digest string
	if by != nil {
		digest, err = c.caller.VerifyImageSigners(ctx, q.Image, by, q.Annotations)
	} else {
		digest, err = c.caller.VerifyImage(ctx, q.Image, q.PubKeys, q.Annotations)
	}
	return map[string]any{"is_trusted": err == nil, "digest": digest}, err
}

// signers are those who have to have signed; nil = holders of keys.
func (q *verifyRequest) signers() (out []hostfn.Identity, err error) {
	for _, s := range q.Keyless {
		out = append(out, hostfn.Identity{Issuer: s.Issuer, Subject: s.Subject})
	}
	for _, s := range q.Prefixes {
		out = append(out, hostfn.Identity{Issuer: s.Issuer, Prefix: folder(s.Prefix)})
	}
	if q.Owner != "" {
		if strings.Contains(q.Owner+q.Repository, "/") {
			return nil, fmt.Errorf("the owner and the repository at GitHub are names, not paths: %s, %s", short(q.Owner), short(q.Repository))
		}
		out = append(out, hostfn.Identity{Issuer: githubIssuer, Prefix: folder(github + folder(q.Owner) + q.Repository)})
	}
	given := 0
	for _, n := range []int{len(q.PubKeys), len(q.Keyless), len(q.Prefixes), len(q.Owner)} {
		given += min(n, 1)
	}
	if given != 1 {
		return nil, fmt.Errorf("a signature of kind %q cannot be checked here: those by public keys (pub_keys), without a key (keyless, "+
			"keyless_prefix) and by GitHub's actions (owner) can, one kind at a time", short(q.Type))
	}
	return out, nil
}

// folder ends a prefix where a name does: another one may begin with the same letters.
func folder(prefix string) string {
	if prefix == "" || strings.HasSuffix(prefix, "/") {
		return prefix
	}
	return prefix + "/"
}
