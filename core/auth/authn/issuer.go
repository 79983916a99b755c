// SPDX-License-Identifier: Apache-2.0

package authn

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/warning"

	"github.com/wasmplane/wasmplane/core/api/satoken"
)

// IssuerConfig says which tokens are made.
type IssuerConfig struct {
	Signer *satoken.Signer
	// Objects reads what a token is bound to. It must not lag behind the store: the
	// kubelet asks for a token right after it saw the pod.
	Objects satoken.Getter
	// Audiences of a token whose request names none; the apiserver's own.
	Audiences []string
	// MaxLifetime bounds what a request may ask for; 0: upstream's 2^32 seconds.
	MaxLifetime time.Duration
	// Now is the clock; default time.Now.
	Now func() time.Time
}

// Issuer makes service account tokens (the subresource serviceaccounts/token).
type Issuer struct{ cfg IssuerConfig }

// NewIssuer checks the configuration.
func NewIssuer(cfg IssuerConfig) (*Issuer, error) {
	if cfg.Signer == nil || cfg.Objects == nil || len(cfg.Audiences) == 0 {
		return nil, errors.New("token issuer: Signer, Objects and Audiences are all needed")
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Issuer{cfg}, nil
}

const (
	tokenRequestKind = "TokenRequest"
	defaultLifetime  = int64(60 * 60)
	minLifetime      = int64(10 * 60)
	maxLifetime      = int64(1) << 32
)

// Issue makes a token for sa as request asks, and fills request's metadata and status.
// Errors are API status errors in upstream's words.
func (i *Issuer) Issue(ctx context.Context, sa *corev1.ServiceAccount, request *authenticationv1.TokenRequest) error {
	now := i.cfg.Now()
	if err := i.complete(sa, request, now); err != nil {
		return err
	}
	signed := satoken.Request{ServiceAccount: sa}
	if err := i.bind(ctx, sa, request.Spec.BoundObjectRef, &signed); err != nil {
		return err
	}
	wanted := *request.Spec.ExpirationSeconds
	if longest := int64(i.cfg.MaxLifetime / time.Second); longest > 0 && wanted > longest {
		warning.AddWarning(ctx, "", fmt.Sprintf("requested expiration of %d seconds shortened to %d seconds", wanted, longest))
		wanted = longest
		request.Spec.ExpirationSeconds = &wanted
	}
	auds := authenticator.Audiences(request.Spec.Audiences)
	forServer := len(authenticator.Audiences(i.cfg.Audiences).Intersect(auds)) == len(auds)
	signed.Audiences = auds
	signed.Seconds, signed.WarnAfter = satoken.Extend(wanted, signed.Pod != nil, forServer)
	token, err := i.cfg.Signer.Sign(ctx, signed)
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("failed to generate token: %w", err))
	}
	request.Status = authenticationv1.TokenRequestStatus{
		Token: token, ExpirationTimestamp: metav1.NewTime(now.Add(time.Duration(wanted) * time.Second)),
	}
	return nil
}

// complete fills in what the request leaves open and checks the rest.
func (i *Issuer) complete(sa *corev1.ServiceAccount, r *authenticationv1.TokenRequest, now time.Time) error {
	invalid := func(err *field.Error) error {
		return apierrors.NewInvalid(schema.GroupKind{Group: authenticationv1.GroupName, Kind: tokenRequestKind}, sa.Name, field.ErrorList{err})
	}
	meta, spec := field.NewPath("metadata"), field.NewPath("spec")
	switch {
	case r.Name != "" && r.Name != sa.Name:
		return invalid(field.Invalid(meta.Child("name"), r.Name, "must match the service account name if specified"))
	case r.Namespace != "" && r.Namespace != sa.Namespace:
		return invalid(field.Invalid(meta.Child("namespace"), r.Namespace, "must match the service account namespace if specified"))
	case r.UID != "" && r.UID != sa.UID:
		return apierrors.NewConflict(schema.GroupResource{Group: authenticationv1.GroupName, Resource: tokenRequestKind}, sa.Name,
			fmt.Errorf("the UID in the token request (%s) does not match the UID of the service account (%s)", r.UID, sa.UID))
	}
	r.Name, r.Namespace, r.UID, r.CreationTimestamp = sa.Name, sa.Namespace, sa.UID, metav1.NewTime(now)
	if len(r.Spec.Audiences) == 0 {
		r.Spec.Audiences = i.cfg.Audiences
	}
	if r.Spec.ExpirationSeconds == nil {
		seconds := defaultLifetime
		r.Spec.ExpirationSeconds = &seconds
	}
	switch seconds := *r.Spec.ExpirationSeconds; {
	case seconds < minLifetime:
		return invalid(field.Invalid(spec.Child("expirationSeconds"), seconds, "may not specify a duration less than 10 minutes"))
	case seconds > maxLifetime:
		return invalid(field.Invalid(spec.Child("expirationSeconds"), seconds, "may not specify a duration larger than 2^32 seconds"))
	}
	return nil
}

// bind finds the object that the token shall not outlive.
func (i *Issuer) bind(ctx context.Context, sa *corev1.ServiceAccount, ref *authenticationv1.BoundObjectReference,
	out *satoken.Request,
) (err error) {
	if ref == nil {
		return nil
	}
	var uid types.UID
	gvk := schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind)
	switch {
	case gvk.Group == "" && gvk.Kind == "Pod":
		uid, err = i.bindPod(ctx, sa, ref.Name, out)
	case gvk.Group == "" && gvk.Kind == "Node":
		if out.Node, err = i.cfg.Objects.GetNode(ctx, ref.Name); err == nil {
			uid = out.Node.UID
		}
	case gvk.Group == "" && gvk.Kind == "Secret":
		if out.Secret, err = i.cfg.Objects.GetSecret(ctx, sa.Namespace, ref.Name); err == nil {
			uid = out.Secret.UID
		}
	default:
		return apierrors.NewBadRequest(fmt.Sprintf("cannot bind token to object of type %s", gvk))
	}
	if err != nil {
		return err
	}
	if ref.UID != "" && ref.UID != uid {
		return apierrors.NewConflict(schema.GroupResource{Group: gvk.Group, Resource: gvk.Kind}, ref.Name,
			fmt.Errorf("the UID in the bound object reference (%s) does not match the UID in record. The object might have been deleted and then recreated", ref.UID))
	}
	return nil
}

// bindPod also records the pod's node, so that a relying party knows where the token is used.
func (i *Issuer) bindPod(ctx context.Context, sa *corev1.ServiceAccount, name string, out *satoken.Request) (types.UID, error) {
	pod, err := i.cfg.Objects.GetPod(ctx, sa.Namespace, name)
	if err != nil {
		return "", err
	}
	if pod.Spec.ServiceAccountName != sa.Name {
		return "", apierrors.NewBadRequest(fmt.Sprintf("cannot bind token for serviceaccount %q to pod running with different serviceaccount name.", sa.Name))
	}
	out.Pod = pod
	if pod.Spec.NodeName == "" {
		return pod.UID, nil
	}
	out.Node, err = i.cfg.Objects.GetNode(ctx, pod.Spec.NodeName)
	switch {
	case apierrors.IsNotFound(err):
		out.Node = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: pod.Spec.NodeName}}
	case err != nil:
		return "", apierrors.NewInternalError(err)
	}
	return pod.UID, nil
}

// OpenID serves the two documents by which others check tokens on their own, at
// satoken.ConfigPath and satoken.KeysPath.
func OpenID(m satoken.Metadata) map[string]http.Handler {
	serve := func(mediaType string, get func() ([]byte, int)) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			doc, age := get()
			w.Header().Set("Content-Type", mediaType)
			w.Header().Set("Cache-Control", fmt.Sprintf("public, max-age=%d", age))
			_, _ = w.Write(doc) // a client that went away needs no answer
		})
	}
	return map[string]http.Handler{
		satoken.ConfigPath: serve("application/json", m.GetConfigJSON),
		satoken.KeysPath:   serve("application/jwk-set+json", m.GetKeysetJSON),
	}
}
