// SPDX-License-Identifier: Apache-2.0

// Package sign makes and checks signatures of modules and images by key, as cosign
// makes them: a signature is over a small payload that names the digest of a
// manifest, and lies beside the image in its registry, under the tag
// sha256-DIGEST.sig or as a referrer of the manifest. A file is signed by a
// signature of its bytes, in base64.
//
// Keys are ECDSA P-256 (and P-384, P-521), Ed25519 and RSA, public ones in PEM,
// private ones in PKCS#8 PEM or in cosign's encrypted form.
//
// Guarantees: a signature counts only for the manifest whose digest its payload
// names, whatever it lies beside; a payload of another type, or with other
// annotations than were asked for, does not count. An Error says what was wrong with each signature that
// was found. Certificates and transparency logs are not looked at: trust is in the key.
package sign

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/crypto/nacl/secretbox"
	"golang.org/x/crypto/scrypt"
)

// payloadType is what payloads of signatures of images say of themselves.
const payloadType = "cosign container image signature"

// Payload is what is signed: cosign's simple signing payload.
type Payload struct {
	Critical struct {
		Identity struct {
			Reference string `json:"docker-reference"`
		} `json:"identity"`
		Image struct {
			Digest string `json:"docker-manifest-digest"`
		} `json:"image"`
		Type string `json:"type"`
	} `json:"critical"`
	Optional map[string]any `json:"optional"`
}

// NewPayload is the payload for a manifest. reference is the image's name without
// tag, for people; annotations are what its maker wants to say with it.
func NewPayload(digest, reference string, annotations map[string]string) ([]byte, error) {
	var p Payload
	p.Critical.Identity.Reference, p.Critical.Image.Digest, p.Critical.Type = reference, digest, payloadType
	for k, v := range annotations {
		if p.Optional == nil {
			p.Optional = map[string]any{}
		}
		p.Optional[k] = v
	}
	return json.Marshal(p)
}

// check holds a payload, whose signature is good, against what it has to say.
func (p *Payload) check(digest string, annotations map[string]string) error {
	if p.Critical.Type != payloadType {
		return fmt.Errorf("its payload is of type %q: %q was expected", p.Critical.Type, payloadType)
	}
	if p.Critical.Image.Digest != digest {
		return fmt.Errorf("it is for the manifest %s", p.Critical.Image.Digest)
	}
	for k, v := range annotations {
		if got, ok := p.Optional[k]; !ok || fmt.Sprint(got) != v {
			return fmt.Errorf("its annotation %s is not %q", k, v)
		}
	}
	return nil
}

// CheckPayload holds a payload, whose signature is good, against what it has to say.
func CheckPayload(payload []byte, digest string, annotations map[string]string) error {
	var p Payload
	if err := json.Unmarshal(payload, &p); err != nil {
		return fmt.Errorf("its payload is no JSON: %w", err)
	}
	return p.check(digest, annotations)
}

// Signature is a signature of a payload.
type Signature struct {
	Payload   []byte
	Signature []byte
}

// Error says why none of the signatures of something counts.
type Error struct {
	Of     string // what was to be signed
	Reason string
}

func (e *Error) Error() string { return fmt.Sprintf("signature of %s: %s", e.Of, e.Reason) }

// mostSignatures bounds how many signatures are looked at.
const mostSignatures = 64

// Verify finds among signatures one by any of the keys that is for digest and has
// the annotations. of is what is verified, for messages.
func Verify(of, digest string, signatures []Signature, keys []crypto.PublicKey, annotations map[string]string) error {
	if len(keys) == 0 {
		return &Error{of, "no key was given to check it with"}
	}
	if len(signatures) == 0 {
		return &Error{of, "there is none; sign it, or take signatures out of the entry"}
	}
	if len(signatures) > mostSignatures {
		return &Error{of, fmt.Sprintf("there are %d: at most %d are looked at", len(signatures), mostSignatures)}
	}
	var why []string
	for i, s := range signatures {
		err := verifyOne(digest, s, keys, annotations)
		if err == nil {
			return nil
		}
		if text := fmt.Sprintf("signature %d: %s", i+1, err); len(why) < 5 {
			why = append(why, text)
		}
	}
	return &Error{of, "none counts: " + strings.Join(why, "; ")}
}

func verifyOne(digest string, s Signature, keys []crypto.PublicKey, annotations map[string]string) error {
	err := errors.New("it was made by another key, or its payload was changed")
	for _, k := range keys {
		if VerifyBytes(k, s.Payload, s.Signature) == nil {
			err = nil
			break
		}
	}
	if err != nil {
		return err
	}
	return CheckPayload(s.Payload, digest, annotations)
}

// ErrBadSignature is a signature that the key did not make of these bytes.
var ErrBadSignature = errors.New("the signature does not fit key and content")

// VerifyBytes checks a signature of data itself.
func VerifyBytes(key crypto.PublicKey, data, signature []byte) error {
	sum := sha256.Sum256(data)
	ok := false
	switch k := key.(type) {
	case *ecdsa.PublicKey:
		ok = ecdsa.VerifyASN1(k, sum[:], signature)
	case ed25519.PublicKey:
		ok = ed25519.Verify(k, data, signature)
	case *rsa.PublicKey:
		ok = rsa.VerifyPKCS1v15(k, crypto.SHA256, sum[:], signature) == nil
	default:
		return fmt.Errorf("keys of type %T cannot check signatures", key)
	}
	if !ok {
		return ErrBadSignature
	}
	return nil
}

// SignBytes signs data itself. A key of ours makes the same signature of the same data each time: that
// of ECDSA is deterministic without a source of randomness (RFC 6979), and the others are anyway.
func SignBytes(key crypto.Signer, data []byte) ([]byte, error) {
	if _, plain := key.(ed25519.PrivateKey); plain {
		return key.Sign(nil, data, crypto.Hash(0))
	}
	sum := sha256.Sum256(data)
	return key.Sign(nil, sum[:], crypto.SHA256)
}

// SignFile signs a file as VerifyFile reads it.
func SignFile(key crypto.Signer, content []byte) ([]byte, error) {
	raw, err := SignBytes(key, content)
	if err != nil {
		return nil, err
	}
	return []byte(base64.StdEncoding.EncodeToString(raw)), nil
}

// VerifyFile checks the signature of a file, in base64 as cosign's sign-blob writes it.
func VerifyFile(of string, content, signature []byte, keys []crypto.PublicKey) error {
	raw, err := base64.StdEncoding.DecodeString(string(bytes.TrimSpace(signature)))
	if err != nil {
		return &Error{of, "it is no base64: " + err.Error()}
	}
	for _, k := range keys {
		if VerifyBytes(k, content, raw) == nil {
			return nil
		}
	}
	return &Error{of, "it was made by another key, or the content was changed"}
}

// smallestRSA is the smallest RSA key that is trusted, in bits.
const smallestRSA = 2048

// ParsePublicKeys reads the public keys of PEM text.
func ParsePublicKeys(text []byte) ([]crypto.PublicKey, error) {
	var out []crypto.PublicKey
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			break
		}
		key, err := publicKey(block)
		if err != nil {
			return nil, err
		}
		out = append(out, key)
	}
	if len(out) == 0 {
		return nil, errors.New("expected public keys in PEM (-----BEGIN PUBLIC KEY-----)")
	}
	return out, nil
}

func publicKey(block *pem.Block) (crypto.PublicKey, error) {
	var key crypto.PublicKey
	var err error
	switch block.Type {
	case "PUBLIC KEY":
		key, err = x509.ParsePKIXPublicKey(block.Bytes)
	case "RSA PUBLIC KEY":
		key, err = x509.ParsePKCS1PublicKey(block.Bytes)
	default:
		return nil, fmt.Errorf("expected a public key, found a %s", block.Type)
	}
	if err != nil {
		return nil, fmt.Errorf("read a public key: %w", err)
	}
	switch k := key.(type) {
	case *ecdsa.PublicKey, ed25519.PublicKey:
		return key, nil
	case *rsa.PublicKey:
		if k.N.BitLen() < smallestRSA {
			return nil, fmt.Errorf("an RSA key of %d bits is too short: at least %d are needed", k.N.BitLen(), smallestRSA)
		}
		return key, nil
	}
	return nil, fmt.Errorf("keys of type %T cannot check signatures: ECDSA, Ed25519 and RSA can", key)
}

// ParsePrivateKey reads a private key in PEM: PKCS#8, SEC 1, or cosign's form,
// which password decrypts.
func ParsePrivateKey(text, password []byte) (crypto.Signer, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("expected a private key in PEM")
	}
	der, err := block.Bytes, error(nil)
	switch block.Type {
	case "PRIVATE KEY":
	case "EC PRIVATE KEY":
		return x509.ParseECPrivateKey(der)
	case "ENCRYPTED SIGSTORE PRIVATE KEY", "ENCRYPTED COSIGN PRIVATE KEY":
		if der, err = decrypt(block.Bytes, password); err != nil {
			return nil, err
		}
	default:
		return nil, fmt.Errorf("expected a private key, found a %s", block.Type)
	}
	key, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, fmt.Errorf("read the private key: %w", err)
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("keys of type %T cannot sign", key)
	}
	return signer, nil
}

// mostScrypt bounds the memory that a key's own parameters can ask for: 128 * N * r bytes.
const mostScrypt = 256 << 20

// decrypt opens cosign's form of a private key: scrypt and NaCl's secretbox.
func decrypt(data, password []byte) ([]byte, error) {
	var box struct {
		KDF struct {
			Name   string `json:"name"`
			Params struct {
				N int `json:"N"`
				R int `json:"r"`
				P int `json:"p"`
			} `json:"params"`
			Salt []byte `json:"salt"`
		} `json:"kdf"`
		Cipher struct {
			Name  string `json:"name"`
			Nonce []byte `json:"nonce"`
		} `json:"cipher"`
		Ciphertext []byte `json:"ciphertext"`
	}
	if err := json.Unmarshal(data, &box); err != nil {
		return nil, fmt.Errorf("read the encrypted key: %w", err)
	}
	p := box.KDF.Params
	if box.KDF.Name != "scrypt" || box.Cipher.Name != "nacl/secretbox" || len(box.Cipher.Nonce) != 24 {
		return nil, fmt.Errorf("read the encrypted key: it uses %s and %s, where scrypt and nacl/secretbox were expected", box.KDF.Name, box.Cipher.Name)
	}
	if p.N <= 0 || p.R <= 0 || p.P <= 0 || p.P > 16 || p.N > mostScrypt/128/p.R {
		return nil, errors.New("read the encrypted key: its parameters ask for too much memory")
	}
	secret, err := scrypt.Key(password, box.KDF.Salt, p.N, p.R, p.P, 32)
	if err != nil {
		return nil, fmt.Errorf("read the encrypted key: %w", err)
	}
	out, ok := secretbox.Open(nil, box.Ciphertext, (*[24]byte)(box.Cipher.Nonce), (*[32]byte)(secret))
	if !ok {
		return nil, errors.New("the password does not open the private key")
	}
	return out, nil
}
