// SPDX-License-Identifier: Apache-2.0

package hostfn

import (
	"context"
	"fmt"

	"github.com/wasmplane/wasmplane/plugins/host"
	"github.com/wasmplane/wasmplane/plugins/sign"
)

// Signatures finds the signatures of images. Images that can implement it.
type Signatures interface {
	// Signatures of what an image's reference points at now, and its digest.
	Signatures(ctx context.Context, image string, a ImageAccess) (digest string, found []sign.Signature, err error)
}

// mostKeys bounds the keys of one verification.
const mostKeys = 16

// VerifyImage checks that an image is signed by every one of some public keys (PEM),
// with the annotations, and returns its digest. It is granted with the images.
func (c *Caller) VerifyImage(ctx context.Context, image string, keys []string, annotations map[string]string) (string, error) {
	if len(keys) == 0 || len(keys) > mostKeys {
		return "", fmt.Errorf("expected 1 to %d keys, found %d", mostKeys, len(keys))
	}
	a, err := c.imageAccess(ctx, image)
	if err != nil {
		return "", err
	}
	signatures, ok := c.f.backend.Images.(Signatures)
	if !ok {
		return "", notHere("way to look up signatures of images")
	}
	digest, found, err := signatures.Signatures(ctx, image, a)
	if err != nil {
		return "", err
	}
	if err := host.Charge(ctx, costOfSignature*int64(1+len(keys)*len(found))); err != nil {
		return "", err
	}
	for i, text := range keys {
		list, err := sign.ParsePublicKeys([]byte(text))
		if err != nil {
			return "", fmt.Errorf("key %d: %w", i+1, err)
		}
		if err := sign.Verify(image, digest, found, list, annotations); err != nil {
			return "", err
		}
	}
	return digest, nil
}

// Identity is somebody to whom an authority gave a certificate for some minutes: who vouches for them, and their name, or how it begins.
type Identity struct{ Issuer, Subject, Prefix string }

// String names it as errors do.
func (i Identity) String() string {
	if i.Prefix != "" {
		return fmt.Sprintf("%s... (%s)", i.Prefix, i.Issuer)
	}
	return fmt.Sprintf("%s (%s)", i.Subject, i.Issuer)
}

// Signers says who has signed images without a key; package keyless has one.
type Signers interface {
	// Signed is the digest of what an image's reference points at, if every one of these has signed it with the annotations.
	Signed(ctx context.Context, image string, a ImageAccess, by []Identity, annotations map[string]string) (digest string, err error)
}

// VerifyImageSigners is VerifyImage for signatures without a key.
func (c *Caller) VerifyImageSigners(ctx context.Context, image string, by []Identity, annotations map[string]string) (string, error) {
	if len(by) == 0 || len(by) > mostKeys {
		return "", fmt.Errorf("expected 1 to %d signers, found %d", mostKeys, len(by))
	}
	for i, id := range by {
		if id.Issuer == "" || (id.Subject == "") == (id.Prefix == "") {
			return "", fmt.Errorf("signer %d: an issuer and a subject are needed", i+1)
		}
	}
	a, err := c.imageAccess(ctx, image)
	if err != nil {
		return "", err
	}
	if c.f.backend.Signers == nil {
		return "", notHere("way to look up who signed images")
	}
	if err := host.Charge(ctx, costOfSignature*int64(1+len(by))); err != nil {
		return "", err
	}
	return c.f.backend.Signers.Signed(ctx, image, a, by, annotations)
}

// signed is what a look-up of signatures finds.
type signed struct {
	digest string
	found  []sign.Signature
}

// Signatures implements Signatures.
func (i *images) Signatures(ctx context.Context, image string, a ImageAccess) (string, []sign.Signature, error) {
	digest, err := i.Digest(ctx, image, a)
	if err != nil {
		return "", nil, err
	}
	s, err := remember(i, imageKey{"signatures", image + "@" + digest, a}, func() (signed, error) {
		ref, options, err := i.open(ctx, image, a)
		if err != nil {
			return signed{}, err
		}
		found, err := sign.Find(ctx, ref.Context().Digest(digest), options...)
		return signed{digest, found}, err
	})
	return s.digest, s.found, err
}
