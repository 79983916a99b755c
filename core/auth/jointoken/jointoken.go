// SPDX-License-Identifier: Apache-2.0

// Package jointoken is the token by which a machine joins a cluster. It is a bootstrap
// token of Kubernetes, a Secret of type bootstrap.kubernetes.io/token in kube-system,
// with two differences that stock tools don't mind: the Secret holds a digest of the
// token's secret half, so that who reads the store or a backup can join nothing, and what
// is handed to the machine ends with the pin of the cluster's authority, so that the
// machine hands the token to no other server.
package jointoken

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/cluster-bootstrap/token/api"
	"k8s.io/cluster-bootstrap/util/secrets"
)

const (
	// WorkersGroup is the group of machines that join as workers; RBAC gives it the right
	// to a kubelet's first certificate, and nothing else.
	WorkersGroup = "system:bootstrappers:wasmplane:workers"
	// ServersGroup is the group of machines that join as further control planes. Whoever is in
	// it is given every key of the cluster, once: a token of this group is worth as much.
	ServersGroup = "system:bootstrappers:wasmplane:servers"
	// ReasonNameTaken is why the cluster denies a certificate to a machine with a token:
	// there is a node of the name that it asks for.
	ReasonNameTaken = "NodeNameTaken"
	// digestKey of a Secret stands for upstream's token-secret: the SHA-256 of the
	// secret half in hexadecimal digits. Its 82 random bits need no slow hash.
	digestKey = "token-secret-sha256"

	idLength, secretLength = 6, 16
	alphabet               = "abcdefghijklmnopqrstuvwxyz0123456789"
)

// Reserved tells whether a node cannot have the name: its serving certificate would be
// good for a server that clients trust with more.
func Reserved(node string) bool {
	return node == "localhost" || node == "kubernetes" || strings.HasPrefix(node, "kubernetes.")
}

// Life of a token: what `token create` gives by default, and the least; and for
// further servers, whose token is worth the whole cluster, the default and the most.
const (
	DefaultLife       = time.Hour
	ShortestLife      = time.Minute
	DefaultServerLife = 15 * time.Minute
	LongestServerLife = time.Hour
)

// Token is what a machine is given.
type Token struct {
	ID, Secret string
	// Pin of the cluster's authority, as cabundle.Pin writes it; "" = not known.
	Pin string
}

var form = regexp.MustCompile(`^([a-z0-9]{6})\.([a-z0-9]{16})(?:\.(sha256:[0-9a-f]{64}))?$`)

// Parse reads ID.SECRET.PIN, or upstream's ID.SECRET. No error repeats the token.
func Parse(text string) (Token, error) {
	m := form.FindStringSubmatch(strings.TrimSpace(text))
	if m == nil {
		return Token{}, errors.New("the token is damaged: expected six letters or digits, a dot, sixteen more, a dot and sha256:..., as `wasmplane token create` prints it")
	}
	return Token{ID: m[1], Secret: m[2], Pin: m[3]}, nil
}

// Bearer is the token as requests carry it.
func (t Token) Bearer() string { return t.ID + "." + t.Secret }

// String is what Parse reads.
func (t Token) String() string {
	if t.Pin == "" {
		return t.Bearer()
	}
	return t.Bearer() + "." + t.Pin
}

// Matches tells whether a Secret is of the token with this secret half, whether it
// holds the half itself, as upstream's do, or its digest.
func Matches(s *corev1.Secret, secret string) bool {
	if want, hashed := s.Data[digestKey]; hashed {
		return subtle.ConstantTimeCompare(want, []byte(digest(secret))) == 1
	}
	want := s.Data[api.BootstrapTokenSecretKey]
	return len(want) > 0 && subtle.ConstantTimeCompare(want, []byte(secret)) == 1
}

// Digest is what the cluster keeps of the token's secret half. Both sides of a hand-over
// have it, and nobody else but who reads the store.
func (t Token) Digest() string { return digest(t.Secret) }

// DigestOf is the digest that a Secret holds; "" where it holds none.
func DigestOf(s *corev1.Secret) string { return string(s.Data[digestKey]) }

// SecretName is the name of the Secret of the token with this ID.
func SecretName(id string) string { return api.BootstrapTokenSecretPrefix + id }

func digest(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}

// Create makes a token of group that ends after life, and returns it without a pin.
func Create(ctx context.Context, kube kubernetes.Interface, group string, life time.Duration, description string) (Token, error) {
	if life < ShortestLife {
		return Token{}, fmt.Errorf("a token that lives for %s would end before it is used; expected at least %s", life, ShortestLife)
	}
	if group == ServersGroup && life > LongestServerLife {
		return Token{}, fmt.Errorf("a token for a server is worth the whole cluster: expected at most %s, found %s", LongestServerLife, life)
	}
	const attempts = 5 // an ID that is taken is one of two thousand million
	for range attempts {
		t := Token{ID: random(idLength), Secret: random(secretLength)}
		_, err := kube.CoreV1().Secrets(metav1.NamespaceSystem).Create(ctx, t.secretObject(group, time.Now().Add(life), description),
			metav1.CreateOptions{})
		switch {
		case err == nil:
			return t, nil
		case !apierrors.IsAlreadyExists(err):
			return Token{}, fmt.Errorf("create a token: %w", err)
		}
	}
	return Token{}, errors.New("create a token: every name that was tried is taken; try again")
}

func (t Token) secretObject(group string, until time.Time, description string) *corev1.Secret {
	data := map[string]string{
		api.BootstrapTokenIDKey: t.ID, digestKey: digest(t.Secret), api.BootstrapTokenExpirationKey: until.UTC().Format(time.RFC3339),
		api.BootstrapTokenUsageAuthentication: "true", api.BootstrapTokenExtraGroupsKey: group,
	}
	if description != "" {
		data[api.BootstrapTokenDescriptionKey] = description
	}
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: api.BootstrapTokenSecretPrefix + t.ID},
		Type:       corev1.SecretTypeBootstrapToken, StringData: data,
	}
}

func random(length int) string {
	out := make([]byte, 0, length)
	for len(out) < length {
		var b [1]byte
		_, _ = rand.Read(b[:]) // it never fails
		// The last few values would make the first letters likelier than others.
		if n := int(b[0]); n < 256-256%len(alphabet) {
			out = append(out, alphabet[n%len(alphabet)])
		}
	}
	return string(out)
}

// Entry is a token as `token list` shows it, without what would let anybody join.
type Entry struct {
	ID, Description string
	// Ends is when it expires; zero = never.
	Ends   time.Time
	Groups []string
}

// List lists the bootstrap tokens of the cluster, those of other tools included, by
// their ends.
func List(ctx context.Context, kube kubernetes.Interface) ([]Entry, error) {
	found, err := kube.CoreV1().Secrets(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("type", string(corev1.SecretTypeBootstrapToken)).String(),
	})
	if err != nil {
		return nil, fmt.Errorf("list tokens: %w", err)
	}
	var out []Entry
	for i := range found.Items {
		s := &found.Items[i]
		e := Entry{ID: secrets.GetData(s, api.BootstrapTokenIDKey), Description: secrets.GetData(s, api.BootstrapTokenDescriptionKey)}
		e.Ends, _ = time.Parse(time.RFC3339, secrets.GetData(s, api.BootstrapTokenExpirationKey))
		if e.Groups, err = secrets.GetGroups(s); err != nil {
			e.Groups = nil // no token may give such a group: it is refused, and can be revoked
		}
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b Entry) int { return a.Ends.Compare(b.Ends) })
	return out, nil
}

// Revoke ends a token at once. id may be a whole token.
func Revoke(ctx context.Context, kube kubernetes.Interface, id string) error {
	id, _, _ = strings.Cut(id, ".")
	err := kube.CoreV1().Secrets(metav1.NamespaceSystem).Delete(ctx, api.BootstrapTokenSecretPrefix+id, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("there is no token %q; `wasmplane token list` shows those that there are (expired ones are gone)", id)
	}
	if err != nil {
		return fmt.Errorf("revoke token %q: %w", id, err)
	}
	return nil
}
