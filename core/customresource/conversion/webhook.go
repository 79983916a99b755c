// SPDX-License-Identifier: Apache-2.0

package conversion

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"

	"github.com/wasmplane/wasmplane/core/customresource/extension"
	"github.com/wasmplane/wasmplane/core/dial"
)

// Webhooks makes the clients of conversion webhooks, and shares their connections.
type Webhooks struct{ clients webhook.ClientManager }

// maxAnswer bounds what a webhook answers, in bytes. A list of as many objects as one
// question may have is converted at once.
const maxAnswer = 64 << 20

// guarded makes the webhooks' clients connect by a policy, and follow nobody elsewhere.
type guarded struct {
	webhook.AuthenticationInfoResolver
	to dial.Policy
}

// ClientConfigFor implements webhook.AuthenticationInfoResolver.
func (g guarded) ClientConfigFor(hostPort string) (*rest.Config, error) {
	return g.guard(g.AuthenticationInfoResolver.ClientConfigFor(hostPort))
}

// ClientConfigForService implements webhook.AuthenticationInfoResolver.
func (g guarded) ClientConfigForService(name, namespace string, port int) (*rest.Config, error) {
	return g.guard(g.AuthenticationInfoResolver.ClientConfigForService(name, namespace, port))
}

func (g guarded) guard(c *rest.Config, err error) (*rest.Config, error) {
	if err != nil {
		return nil, err
	}
	c = rest.CopyConfig(c)
	c.Dial = g.to.Context()
	c.Wrap(dial.Webhook(maxAnswer))
	return c, nil
}

// NewWebhooks needs to know how services are reached; nil resolves their names
// by DNS, as pods do. They are connected to by the policy.
func NewWebhooks(services webhook.ServiceResolver, to dial.Policy) (*Webhooks, error) {
	clients, err := webhook.NewClientManager([]schema.GroupVersion{apiextensionsv1.SchemeGroupVersion, v1beta1.SchemeGroupVersion},
		v1beta1.AddToScheme, apiextensionsv1.AddToScheme)
	if err != nil {
		return nil, fmt.Errorf("conversion webhooks: %w", err)
	}
	info, err := webhook.NewDefaultAuthenticationInfoResolver("")
	if err != nil {
		return nil, fmt.Errorf("conversion webhooks: %w", err)
	}
	if services == nil {
		services = webhook.NewDefaultServiceResolver()
	}
	clients.SetAuthenticationInfoResolver(guarded{info, to})
	clients.SetServiceResolver(services)
	return &Webhooks{clients: clients}, nil
}

// For makes the converter that a definition asks for.
func (w *Webhooks) For(crd *apiextensionsv1.CustomResourceDefinition) (extension.Converter, error) {
	c := crd.Spec.Conversion
	if c == nil || c.Strategy == apiextensionsv1.NoneConverter {
		return None{}, nil
	}
	if c.Strategy != apiextensionsv1.WebhookConverter || c.Webhook == nil || c.Webhook.ClientConfig == nil {
		return nil, fmt.Errorf("unknown conversion strategy %q for CRD %s", c.Strategy, crd.Name)
	}
	client, err := w.clients.HookClient(clientConfig(crd.Name, c.Webhook.ClientConfig))
	if err != nil {
		return nil, fmt.Errorf("conversion webhook of %s: %w", crd.Name, err)
	}
	return &hook{client: client, versions: c.Webhook.ConversionReviewVersions}, nil
}

func clientConfig(name string, c *apiextensionsv1.WebhookClientConfig) webhook.ClientConfig {
	out := webhook.ClientConfig{Name: "conversion_webhook_for_" + name, CABundle: c.CABundle}
	if len(bytes.TrimSpace(out.CABundle)) == 0 {
		out.CABundle = nil // white space alone trusts the system's roots, as nothing does
	}
	if c.URL != nil {
		out.URL = *c.URL
	}
	if s := c.Service; s != nil {
		out.Service = &webhook.ClientConfigService{Name: s.Name, Namespace: s.Namespace, Port: 443}
		if s.Port != nil {
			out.Service.Port = *s.Port
		}
		if s.Path != nil {
			out.Service.Path = *s.Path
		}
	}
	return out
}

// hook calls one webhook.
type hook struct {
	client   *rest.RESTClient
	versions []string
}

// Convert implements extension.Converter.
func (h *hook) Convert(ctx context.Context, objects []*unstructured.Unstructured,
	to schema.GroupVersion,
) ([]*unstructured.Unstructured, error) {
	if len(objects) == 1 && bare(objects[0]) {
		return None{}.Convert(ctx, objects, to)
	}
	uid := uuid.NewUUID()
	request, response, err := h.review(objects, to, uid)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	kind := objects[0].GroupVersionKind()
	if err := h.client.Post().Body(request).Do(ctx).Into(response); err != nil {
		return nil, fmt.Errorf("conversion webhook for %v failed: %w", kind, err)
	}
	raw, err := answered(uid, response)
	if err != nil {
		return nil, fmt.Errorf("conversion webhook for %v failed: %w", kind, err)
	}
	if len(raw) != len(objects) {
		return nil, fmt.Errorf("conversion webhook for %v returned %d objects, expected %d", kind, len(raw), len(objects))
	}
	out := make([]*unstructured.Unstructured, len(raw))
	for i := range raw {
		if out[i], err = decoded(raw[i]); err != nil {
			return nil, fmt.Errorf("conversion webhook for %v returned invalid converted object at index %v: %w", kind, i, err)
		}
	}
	return same("webhook", objects, out, to)
}

// bare says that an object has nothing but its kind. Such a one stands for
// "nothing": it is what field management compares a new object with. There is
// nothing to ask a webhook or a plugin about it.
func bare(u *unstructured.Unstructured) bool {
	_, kind := u.Object["kind"]
	_, version := u.Object["apiVersion"]
	return len(u.Object) == 2 && kind && version
}

// review makes the question, in the first of the webhook's versions that we know.
func (h *hook) review(objects []*unstructured.Unstructured, to schema.GroupVersion,
	uid types.UID,
) (request, response runtime.Object, err error) {
	raw := make([]runtime.RawExtension, len(objects))
	for i, o := range objects {
		raw[i] = runtime.RawExtension{Object: o}
	}
	for _, v := range h.versions {
		switch v {
		case "v1":
			return &apiextensionsv1.ConversionReview{
				Request:  &apiextensionsv1.ConversionRequest{UID: uid, DesiredAPIVersion: to.String(), Objects: raw},
				Response: &apiextensionsv1.ConversionResponse{},
			}, &apiextensionsv1.ConversionReview{}, nil
		case "v1beta1":
			return &v1beta1.ConversionReview{
				Request:  &v1beta1.ConversionRequest{UID: uid, DesiredAPIVersion: to.String(), Objects: raw},
				Response: &v1beta1.ConversionResponse{},
			}, &v1beta1.ConversionReview{}, nil
		}
	}
	return nil, nil, errors.New("no supported conversion review versions")
}

var errNoResponse = errors.New("no response provided")

// answered are the objects of a response that says that it succeeded.
func answered(uid types.UID, response runtime.Object) ([]runtime.RawExtension, error) {
	switch r := response.(type) {
	case *apiextensionsv1.ConversionReview:
		if want := apiextensionsv1.SchemeGroupVersion.WithKind("ConversionReview"); r.GroupVersionKind() != want {
			return nil, fmt.Errorf("expected webhook response of %v, got %v", want, r.GroupVersionKind())
		}
		if r.Response == nil {
			return nil, errNoResponse
		}
		if r.Response.UID != uid {
			return nil, fmt.Errorf("expected response.uid=%q, got %q", uid, r.Response.UID)
		}
		return r.Response.ConvertedObjects, succeeded(r.Response.Result)
	case *v1beta1.ConversionReview:
		if r.Response == nil {
			return nil, errNoResponse
		}
		return r.Response.ConvertedObjects, succeeded(r.Response.Result)
	}
	return nil, fmt.Errorf("unrecognized response type: %T", response)
}

func succeeded(s metav1.Status) error {
	switch {
	case s.Status == metav1.StatusSuccess:
		return nil
	case s.Message != "":
		return errors.New(s.Message)
	}
	return fmt.Errorf("response.result.status was '%s', not 'Success'", s.Status)
}

func decoded(raw runtime.RawExtension) (*unstructured.Unstructured, error) {
	if u, ok := raw.Object.(*unstructured.Unstructured); ok {
		return u, nil
	}
	u := &unstructured.Unstructured{}
	return u, u.UnmarshalJSON(raw.Raw)
}
