// SPDX-License-Identifier: Apache-2.0

// Package satoken signs and checks service-account tokens as upstream does: the
// same claims, bound to the same objects, so that tokens of an upstream cluster
// with the same keys and issuer are accepted here and the other way round.
package satoken

import (
	"context"
	"crypto"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/kubernetes/pkg/apis/core"
	corev1conversion "k8s.io/kubernetes/pkg/apis/core/v1"
	"k8s.io/kubernetes/pkg/serviceaccount"
)

// Getter reads what tokens are bound to; a token whose pod, secret or node is
// gone is refused. Absent objects are answered with an API NotFound error.
type Getter = serviceaccount.ServiceAccountTokenGetter

// Keys are the public keys that tokens are checked with. The discovery
// documents of OpenID publish them.
type Keys = serviceaccount.PublicKeysGetter

// StaticKeys are public keys that do not change: *rsa.PublicKey, *ecdsa.PublicKey,
// or the private keys that have them.
func StaticKeys(keys ...any) (Keys, error) {
	k, err := serviceaccount.StaticPublicKeysGetter(keys)
	if err != nil {
		return nil, fmt.Errorf("public keys of service accounts: %w", err)
	}
	return k, nil
}

// Signer signs tokens of one issuer.
type Signer struct {
	issuer    string
	generator serviceaccount.TokenGenerator
	legacy    serviceaccount.TokenGenerator // of tokens without an end
}

// NewSigner signs with a *rsa.PrivateKey or *ecdsa.PrivateKey.
func NewSigner(issuer string, key any) (*Signer, error) {
	g, err := serviceaccount.JWTTokenGenerator(issuer, key)
	if err != nil {
		return nil, fmt.Errorf("signer of service-account tokens: %w", err)
	}
	legacy, err := serviceaccount.JWTTokenGenerator(serviceaccount.LegacyIssuer, key)
	if err != nil {
		return nil, fmt.Errorf("signer of tokens in secrets: %w", err)
	}
	return &Signer{issuer: issuer, generator: g, legacy: legacy}, nil
}

// Issuer is the iss claim of what the signer signs.
func (s *Signer) Issuer() string { return s.issuer }

// Request is one token wanted.
type Request struct {
	ServiceAccount *corev1.ServiceAccount
	// At most one of Pod, Secret and Node binds the token; with a Pod, Node may
	// also be given: it is then recorded beside the pod.
	Pod    *corev1.Pod
	Secret *corev1.Secret
	Node   *corev1.Node
	// Audiences the token is for.
	Audiences []string
	// Seconds that the token is valid. WarnAfter (0 = never) is when its use
	// begins to be reported, for tokens whose life was extended.
	Seconds, WarnAfter int64
}

// Sign makes a token.
func (s *Signer) Sign(ctx context.Context, r Request) (string, error) {
	if r.ServiceAccount == nil {
		return "", errors.New("sign a token: no service account given")
	}
	sa := core.ServiceAccount{}
	if err := corev1conversion.Convert_v1_ServiceAccount_To_core_ServiceAccount(r.ServiceAccount, &sa, nil); err != nil {
		return "", fmt.Errorf("convert ServiceAccount: %w", err)
	}
	pod, secret, node, err := bindings(r)
	if err != nil {
		return "", err
	}
	public, private, err := serviceaccount.Claims(sa, pod, secret, node, nil, nil, r.Seconds, r.WarnAfter, r.Audiences, nil)
	if err != nil {
		return "", fmt.Errorf("claims of a token for %s/%s: %w", r.ServiceAccount.Namespace, r.ServiceAccount.Name, err)
	}
	token, err := s.generator.GenerateToken(ctx, public, private)
	if err != nil {
		return "", fmt.Errorf("sign a token for %s/%s: %w", r.ServiceAccount.Namespace, r.ServiceAccount.Name, err)
	}
	return token, nil
}

func bindings(r Request) (pod *core.Pod, secret *core.Secret, node *core.Node, err error) {
	if r.Pod != nil {
		pod = &core.Pod{}
		if err := corev1conversion.Convert_v1_Pod_To_core_Pod(r.Pod, pod, nil); err != nil {
			return nil, nil, nil, fmt.Errorf("convert Pod: %w", err)
		}
	}
	if r.Secret != nil {
		secret = &core.Secret{}
		if err := corev1conversion.Convert_v1_Secret_To_core_Secret(r.Secret, secret, nil); err != nil {
			return nil, nil, nil, fmt.Errorf("convert Secret: %w", err)
		}
	}
	if r.Node != nil {
		node = &core.Node{}
		if err := corev1conversion.Convert_v1_Node_To_core_Node(r.Node, node, nil); err != nil {
			return nil, nil, nil, fmt.Errorf("convert Node: %w", err)
		}
	}
	return pod, secret, node, nil
}

// NewAuthenticator checks tokens of the issuers. A token without audience is
// taken as one for audiences. It refuses tokens whose service account, or the
// object that they are bound to, is gone or was made anew.
func NewAuthenticator(issuers []string, keys Keys, audiences []string, get Getter) authenticator.Token {
	return serviceaccount.JWTTokenAuthenticator(issuers, keys, audiences, serviceaccount.NewValidator(get))
}

// Metadata are the two documents by which others can check tokens on their own.
type Metadata = serviceaccount.OpenIDMetadataProvider

// Paths at which Metadata is served.
const (
	ConfigPath = serviceaccount.OpenIDConfigPath
	KeysPath   = serviceaccount.JWKSPath
)

// NewMetadata describes an issuer. keysURL may be "": it is then made of the
// external address ("host:port"). The issuer has to be an https URL.
func NewMetadata(issuer, keysURL, externalAddress string, keys Keys) (Metadata, error) {
	m, err := serviceaccount.NewOpenIDMetadataProvider(issuer, keysURL, externalAddress, keys)
	if err != nil {
		return nil, fmt.Errorf("OpenID discovery of issuer %s: %w", issuer, err)
	}
	return m, nil
}

// WarnOnlySeconds is the life that the kubelet's projected tokens ask for. Such
// tokens live for ExtensionSeconds instead, and their use after WarnOnlySeconds
// is reported: clients that read the file once go on working.
const (
	WarnOnlySeconds  = serviceaccount.WarnOnlyBoundTokenExpirationSeconds
	ExtensionSeconds = serviceaccount.ExpirationExtensionSeconds
)

// Extend is the life and the time of the first report for a token that was
// asked for with wanted seconds. It is extended where it is bound to a pod and
// meant for the API server itself.
func Extend(wanted int64, boundToPod, forServer bool) (seconds, warnAfter int64) {
	if boundToPod && forServer && wanted == WarnOnlySeconds {
		return ExtensionSeconds, wanted
	}
	return wanted, 0
}

// ReadKeys reads the PEM keys of files: public keys, or private keys of which the
// public half counts; several in a file.
func ReadKeys(files []string) ([]any, error) {
	var keys []any
	for _, file := range files {
		found, err := keyutil.PublicKeysFromFile(file)
		if err != nil {
			return nil, fmt.Errorf("service account key file %s: %w", file, err)
		}
		keys = append(keys, found...)
	}
	return keys, nil
}

// ReadSigningKey reads the private key (PEM, RSA or ECDSA) that signs tokens.
func ReadSigningKey(file string) (crypto.Signer, error) {
	key, err := keyutil.PrivateKeyFromFile(file)
	if err != nil {
		return nil, fmt.Errorf("service account signing key file %s: %w", file, err)
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("service account signing key file %s: expected an RSA or ECDSA key, found %T", file, key)
	}
	return signer, nil
}
