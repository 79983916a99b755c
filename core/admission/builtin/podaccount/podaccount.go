// SPDX-License-Identifier: Apache-2.0

// Package podaccount is the admission plugin ServiceAccount.
package podaccount

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/storage/names"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/builtin/podrefs"
	"github.com/wasmplane/wasmplane/core/admission/reading"
)

// Plugin gives every pod a service account, its pull secrets and, as a
// projected volume, its token; and refuses pods whose account does not exist.
type Plugin struct {
	client kubernetes.Interface
	lister listers.ServiceAccountLister
	warm   reading.Warm
}

// TokenPath is where containers find the token.
const TokenPath = "/var/run/secrets/kubernetes.io/serviceaccount"

const (
	tokenVolumePrefix = "kube-api-access-"
	// tokenSeconds is what upstream asks for; the issuer extends exactly this life.
	tokenSeconds       = 60*60 + 7
	defaultAccount     = "default"
	mountableSecretsBy = "kubernetes.io/enforce-mountable-secrets"
)

// New is the plugin, which waits for its informer for as long as within.
func New(client kubernetes.Interface, informers informers.SharedInformerFactory, within time.Duration) *Plugin {
	accounts := informers.Core().V1().ServiceAccounts()
	return &Plugin{client, accounts.Lister(), reading.WarmOf(within, accounts.Informer())}
}

// Name implements admission.Plugin.
func (*Plugin) Name() string { return "ServiceAccount" }

// Handles implements admission.Plugin.
func (*Plugin) Handles(r *admission.Request) bool {
	return reading.On("", "pods", "", admission.Create).Handles(r) ||
		reading.On("", "pods", "ephemeralcontainers", admission.Update).Handles(r)
}

// Mutate implements admission.Mutator.
func (p *Plugin) Mutate(ctx context.Context, r *admission.Request) error {
	if r.Operation != admission.Create {
		return nil
	}
	given, err := reading.Typed[*corev1.Pod](r.Object)
	if err != nil {
		return err
	}
	// A mirror pod whose spec differs from its file's would be deleted by the kubelet at once.
	if podrefs.IsMirror(given) {
		return p.Validate(ctx, r)
	}
	name := given.Spec.ServiceAccountName
	if name == "" {
		name = defaultAccount
	}
	account, err := p.account(ctx, r, name)
	if err != nil {
		return err
	}
	mounts := automounts(account, given) && lacksToken(given)
	pulls := len(given.Spec.ImagePullSecrets) == 0 && len(account.ImagePullSecrets) > 0
	if given.Spec.ServiceAccountName == name && !mounts && !pulls {
		return nil // nothing to do: spare the pod a copy
	}
	pod := reading.WithSpec(given)
	if given.Spec.ServiceAccountName == "" {
		// The old field says the same, as defaulting would make it.
		pod.Spec.ServiceAccountName, pod.Spec.DeprecatedServiceAccount = name, name
	}
	if mounts {
		mountToken(pod)
	}
	if pulls {
		pod.Spec.ImagePullSecrets = slices.Clone(account.ImagePullSecrets)
	}
	r.Object.SetVersioned(pod)
	return nil
}

// lacksToken says whether a container has nothing at the token's path.
func lacksToken(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Spec.InitContainers, mountsNoToken) || slices.ContainsFunc(p.Spec.Containers, mountsNoToken)
}

func mountsNoToken(c corev1.Container) bool { return !mountsAt(c, TokenPath) }

// account waits a little for the default account, which a controller makes just
// after the namespace.
func (p *Plugin) account(ctx context.Context, r *admission.Request, name string) (*corev1.ServiceAccount, error) {
	refuse := func(err error) error {
		return admission.Forbidden(r, fmt.Errorf("error looking up service account %s/%s: %w", r.Namespace, name, err))
	}
	if err := p.warm.Wait(ctx, r); err != nil {
		return nil, err
	}
	attempts := 1
	if name == defaultAccount {
		attempts = 10
	}
	for attempt := range attempts {
		if attempt > 0 {
			select {
			case <-ctx.Done():
				return nil, refuse(ctx.Err())
			case <-time.After(150 * time.Millisecond):
			}
		}
		account, err := reading.Cached(
			func() (*corev1.ServiceAccount, error) { return p.lister.ServiceAccounts(r.Namespace).Get(name) },
			func() (*corev1.ServiceAccount, error) {
				return p.client.CoreV1().ServiceAccounts(r.Namespace).Get(ctx, name, metav1.GetOptions{})
			})
		if err == nil {
			return account, nil
		}
		if !apierrors.IsNotFound(err) {
			return nil, refuse(err)
		}
	}
	return nil, refuse(apierrors.NewNotFound(corev1.Resource("serviceaccount"), name))
}

// automounts: the pod's wish, else the account's, else yes.
func automounts(a *corev1.ServiceAccount, p *corev1.Pod) bool {
	return ptr.Deref(p.Spec.AutomountServiceAccountToken, ptr.Deref(a.AutomountServiceAccountToken, true))
}

// mountToken mounts the token into every container that has nothing at its path;
// there is one. The pod is one of reading.WithSpec.
func mountToken(p *corev1.Pod) {
	name, has := "", false
	for _, v := range p.Spec.Volumes {
		if strings.HasPrefix(v.Name, tokenVolumePrefix) {
			name, has = v.Name, true
			break
		}
	}
	if !has {
		name = names.SimpleNameGenerator.GenerateName(tokenVolumePrefix)
	}
	mount := func(given []corev1.Container) []corev1.Container {
		containers := slices.Clone(given)
		for i, c := range containers {
			if mountsNoToken(c) {
				containers[i].VolumeMounts = slices.Concat(c.VolumeMounts, []corev1.VolumeMount{{Name: name, ReadOnly: true, MountPath: TokenPath}})
			}
		}
		return containers
	}
	p.Spec.InitContainers = mount(p.Spec.InitContainers)
	p.Spec.Containers = mount(p.Spec.Containers)
	if !has {
		p.Spec.Volumes = slices.Concat(p.Spec.Volumes, []corev1.Volume{{Name: name, VolumeSource: corev1.VolumeSource{Projected: tokenVolume()}}})
	}
}

func mountsAt(c corev1.Container, path string) bool {
	for _, m := range c.VolumeMounts {
		if m.MountPath == path {
			return true
		}
	}
	return false
}

func tokenVolume() *corev1.ProjectedVolumeSource {
	return &corev1.ProjectedVolumeSource{
		DefaultMode: ptr.To(corev1.ProjectedVolumeSourceDefaultMode),
		Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: ptr.To(int64(tokenSeconds))}},
			{ConfigMap: &corev1.ConfigMapProjection{
				LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"},
				Items:                []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}},
			}},
			{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{
				Path: "namespace", FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.namespace"},
			}}}},
		},
	}
}

// Validate implements admission.Validator.
func (p *Plugin) Validate(ctx context.Context, r *admission.Request) error {
	pod, err := reading.Typed[*corev1.Pod](r.Object)
	if err != nil {
		return err
	}
	if podrefs.IsMirror(pod) && r.Operation == admission.Create {
		return validateMirror(r, pod)
	}
	if pod.Spec.ServiceAccountName == "" {
		return admission.Forbidden(r, fmt.Errorf("no service account specified for pod %s/%s", r.Namespace, pod.Name))
	}
	account, err := p.account(ctx, r, pod.Spec.ServiceAccountName)
	if err != nil {
		return err
	}
	if enforced, _ := strconv.ParseBool(account.Annotations[mountableSecretsBy]); !enforced {
		return nil
	}
	if err := limitSecrets(account, pod, r.Subresource == "ephemeralcontainers"); err != nil {
		return admission.Forbidden(r, err)
	}
	return nil
}

func validateMirror(r *admission.Request, pod *corev1.Pod) error {
	if pod.Spec.ServiceAccountName != "" {
		return admission.Forbidden(r, errors.New("a mirror pod may not reference service accounts"))
	}
	if podrefs.Secret(pod) {
		return admission.Forbidden(r, errors.New("a mirror pod may not reference secrets"))
	}
	for _, v := range pod.Spec.Volumes {
		if v.Projected == nil {
			continue
		}
		for _, s := range v.Projected.Sources {
			if s.ServiceAccountToken != nil {
				return admission.Forbidden(r, errors.New("a mirror pod may not use ServiceAccountToken volume projections"))
			}
		}
	}
	return nil
}

// limitSecrets holds a pod to the secrets that its account lists.
func limitSecrets(account *corev1.ServiceAccount, pod *corev1.Pod, ephemeral bool) error {
	allowed := map[string]bool{}
	for _, s := range account.Secrets {
		allowed[s.Name] = true
	}
	check := func(kind, name string, env []corev1.EnvVar, from []corev1.EnvFromSource) error {
		for _, e := range env {
			if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil && !allowed[e.ValueFrom.SecretKeyRef.Name] {
				return fmt.Errorf("%s %s with envVar %s referencing secret.secretName=%q is not allowed because service account %s does not reference that secret", kind, name, e.Name, e.ValueFrom.SecretKeyRef.Name, account.Name)
			}
		}
		for _, f := range from {
			if f.SecretRef != nil && !allowed[f.SecretRef.Name] {
				return fmt.Errorf("%s %s with envFrom referencing secret.secretName=%q is not allowed because service account %s does not reference that secret", kind, name, f.SecretRef.Name, account.Name)
			}
		}
		return nil
	}
	if ephemeral {
		for _, c := range pod.Spec.EphemeralContainers {
			if err := check("ephemeral container", c.Name, c.Env, c.EnvFrom); err != nil {
				return err
			}
		}
		return nil
	}
	for _, v := range pod.Spec.Volumes {
		if v.Secret != nil && !allowed[v.Secret.SecretName] {
			return fmt.Errorf("volume with secret.secretName=%q is not allowed because service account %s does not reference that secret", v.Secret.SecretName, account.Name)
		}
	}
	for _, c := range pod.Spec.InitContainers {
		if err := check("init container", c.Name, c.Env, c.EnvFrom); err != nil {
			return err
		}
	}
	for _, c := range pod.Spec.Containers {
		if err := check("container", c.Name, c.Env, c.EnvFrom); err != nil {
			return err
		}
	}
	return limitPullSecrets(account, pod)
}

func limitPullSecrets(account *corev1.ServiceAccount, pod *corev1.Pod) error {
	allowed := map[string]bool{}
	for _, s := range account.ImagePullSecrets {
		allowed[s.Name] = true
	}
	for i, s := range pod.Spec.ImagePullSecrets {
		if !allowed[s.Name] {
			return fmt.Errorf("imagePullSecrets[%d].name=%q is not allowed because service account %s does not reference that imagePullSecret", i, s.Name, account.Name)
		}
	}
	return nil
}
