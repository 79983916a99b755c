// SPDX-License-Identifier: Apache-2.0

package authn

import (
	"context"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"

	"github.com/wasmplane/wasmplane/core/api/satoken"
)

// objects reads what tokens are bound to: from informers where they have it,
// else, as an informer may lag or not have been filled yet, from the server.
// Secrets and webhook configurations are always read from the server: few tokens
// are bound to them, and all secrets of a cluster in memory cost too much.
type objects struct {
	client   kubernetes.Interface
	accounts listers.ServiceAccountLister
	pods     listers.PodLister
	nodes    listers.NodeLister
}

// NewObjects reads through the shared informers of f and through client, which
// needs the right to get these objects. It is for NewAuthenticator of satoken.
func NewObjects(client kubernetes.Interface, f informers.SharedInformerFactory) satoken.Getter {
	core := f.Core().V1()
	return &objects{client, core.ServiceAccounts().Lister(), core.Pods().Lister(), core.Nodes().Lister()}
}

// NewLiveObjects reads everything from the server. It is for the Issuer.
func NewLiveObjects(client kubernetes.Interface) satoken.Getter { return &objects{client: client} }

func (o *objects) GetServiceAccount(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	if o.accounts != nil {
		if a, err := o.accounts.ServiceAccounts(namespace).Get(name); !apierrors.IsNotFound(err) {
			return a, err
		}
	}
	return o.client.CoreV1().ServiceAccounts(namespace).Get(ctx, name, metav1.GetOptions{})
}

func (o *objects) GetPod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	if o.pods != nil {
		if p, err := o.pods.Pods(namespace).Get(name); !apierrors.IsNotFound(err) {
			return p, err
		}
	}
	return o.client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
}

func (o *objects) GetNode(ctx context.Context, name string) (*corev1.Node, error) {
	if o.nodes != nil {
		if n, err := o.nodes.Get(name); !apierrors.IsNotFound(err) {
			return n, err
		}
	}
	return o.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
}

func (o *objects) GetSecret(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	return o.client.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
}

func (o *objects) GetValidatingWebhookConfiguration(ctx context.Context,
	name string,
) (*admissionregistrationv1.ValidatingWebhookConfiguration, error) {
	return o.client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(ctx, name, metav1.GetOptions{})
}

func (o *objects) GetMutatingWebhookConfiguration(ctx context.Context,
	name string,
) (*admissionregistrationv1.MutatingWebhookConfiguration, error) {
	return o.client.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(ctx, name, metav1.GetOptions{})
}
