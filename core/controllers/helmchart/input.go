// SPDX-License-Identifier: Apache-2.0

package helmchart

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/wasmplane/wasmplane/core/chart/chartobject"
	"github.com/wasmplane/wasmplane/core/chart/origin"
	"github.com/wasmplane/wasmplane/core/chart/render"
	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/core/controllers"
)

// faultError is what its owner is told: a condition's reason and message.
type faultError struct{ Reason, Message string }

func (e *faultError) Error() string { return e.Reason + ": " + e.Message }

func fault(reason, format string, args ...any) error {
	return &faultError{reason, fmt.Sprintf(format, args...)}
}

// asAccount makes a fault of what the API refuses the account.
func (hc *chart) asAccount(err error, what string) error {
	if err == nil {
		return nil
	}
	if apierrors.IsForbidden(err) {
		return fault("Forbidden", "%s: the service account %s/%s may not: %s: bind a role to it that allows it",
			what, hc.GetNamespace(), hc.Spec.ServiceAccountName, clip(err.Error(), 500))
	}
	return fmt.Errorf("%s: %w", what, err)
}

// clients are those of the object's service account, which has to be there: nobody makes one for it.
func (c *Controller) clients(ctx context.Context, hc *chart) (*client.Set, error) {
	key := controllers.Key{Namespace: hc.GetNamespace(), Name: hc.Spec.ServiceAccountName}
	_, err := c.kube.CoreV1().ServiceAccounts(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, fault("NoServiceAccount", "the namespace %s has no service account %s: make it, and bind a role to it that may install the chart",
			key.Namespace, key.Name)
	}
	if err != nil {
		return nil, fmt.Errorf("look for the service account: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if have := c.accounts[key]; have != nil {
		return have, nil
	}
	set, err := c.cfg.ClientsFor(key.Namespace, key.Name)
	if err != nil {
		return nil, fmt.Errorf("clients of the service account %s: %w", key, err)
	}
	const most = 256
	if len(c.accounts) >= most { // all are made anew when they are needed
		clear(c.accounts)
	}
	c.accounts[key] = set
	return set, nil
}

// valuesLimit bounds all values of one object together, in bytes.
const valuesLimit = 4 << 20

// input is what a release is made of, besides an archive that has to be fetched.
type input struct {
	values       []string // documents; later ones win
	valuesDigest string
	archive      []byte // nil = it is to be fetched
	desired      string // a digest of all that makes another release
}

// input reads what the spec refers to, as the account.
func (c *Controller) input(ctx context.Context, hc *chart, kube kubernetes.Interface) (*input, error) {
	in := &input{}
	sum, size := sha256.New(), 0
	add := func(values string) error {
		if size += len(values); size > valuesLimit {
			return fault("InvalidValues", "the values have more than %d bytes together", valuesLimit)
		}
		in.values = append(in.values, values)
		_, err := fmt.Fprintf(sum, "%d:%s", len(values), values)
		return err
	}
	for i, from := range hc.Spec.ValuesFrom {
		b, err := hc.read(ctx, kube, from)
		var missing *faultError
		if from.Optional && errors.As(err, &missing) && missing.Reason == reasonMissing {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("valuesFrom[%d]: %w", i, err)
		}
		if err := add(string(b)); err != nil {
			return nil, err
		}
	}
	if len(hc.Spec.Values) > 0 {
		if err := add(string(hc.Spec.Values)); err != nil {
			return nil, err
		}
	}
	in.valuesDigest = "sha256:" + hex.EncodeToString(sum.Sum(nil))
	if err := c.inline(ctx, hc, kube, in); err != nil {
		return nil, err
	}
	s, content := &hc.Spec, ""
	if in.archive != nil {
		content = origin.Digest(in.archive)
	}
	if s.Digest != "" && in.archive != nil && content != s.Digest {
		return nil, fault("WrongDigest", "the archive has the digest %s, and the spec wants %s", content, s.Digest)
	}
	whole, err := json.Marshal([]any{s.Chart, s.Repo, s.Version, content, s.Digest, s.SkipCRDs, in.valuesDigest})
	if err != nil {
		return nil, err
	}
	in.desired = origin.Digest(whole)
	return in, nil
}

// inline reads an archive that is in the object or beside it.
func (c *Controller) inline(ctx context.Context, hc *chart, kube kubernetes.Interface, in *input) (err error) {
	switch s := &hc.Spec; {
	case s.ChartContent != "":
		if in.archive, err = base64.StdEncoding.DecodeString(s.ChartContent); err != nil {
			return fault("InvalidSpec", "chartContent is no base64: %v", err)
		}
	case s.ChartFrom != nil:
		if in.archive, err = hc.read(ctx, kube, *s.ChartFrom); err != nil {
			return fmt.Errorf("chartFrom: %w", err)
		}
	}
	return nil
}

const reasonMissing = "MissingReference"

// read reads one key as the account.
func (hc *chart) read(ctx context.Context, kube kubernetes.Interface, r chartobject.Reference) ([]byte, error) {
	var data map[string][]byte
	var err error
	if r.Kind == "Secret" {
		var s *corev1.Secret
		if s, err = kube.CoreV1().Secrets(hc.GetNamespace()).Get(ctx, r.Name, metav1.GetOptions{}); err == nil {
			data = s.Data
		}
	} else {
		var m *corev1.ConfigMap
		if m, err = kube.CoreV1().ConfigMaps(hc.GetNamespace()).Get(ctx, r.Name, metav1.GetOptions{}); err == nil {
			if text, ok := m.Data[r.Key]; ok {
				return []byte(text), nil
			}
			data = m.BinaryData
		}
	}
	if apierrors.IsNotFound(err) {
		return nil, fault(reasonMissing, "the namespace %s has no %s %s", hc.GetNamespace(), r.Kind, r.Name)
	}
	if err != nil {
		return nil, hc.asAccount(err, "read "+r.Kind+" "+r.Name)
	}
	b, ok := data[r.Key]
	if !ok {
		return nil, fault(reasonMissing, "there is no %s", r)
	}
	return b, nil
}

// tenant says whether somebody wrote the object who has no rights over the machine: in kube-system only operators write,
// or whom they let.
func (hc *chart) tenant() bool { return ofTenants(hc.GetNamespace()) }

func ofTenants(namespace string) bool { return namespace != metav1.NamespaceSystem }

// source is where the archive is fetched from.
func (hc *chart) source(ctx context.Context, kube kubernetes.Interface) (origin.Source, error) {
	s := origin.Source{
		Chart: hc.Spec.Chart, Repo: hc.Spec.Repo, Version: hc.Spec.Version,
		Tenant: hc.tenant(),
	}
	if err := s.Check(); err != nil {
		return s, fault("InvalidSpec", "%v", err)
	}
	if hc.Spec.AuthSecret == nil {
		return s, nil
	}
	name := hc.Spec.AuthSecret.Name
	secret, err := kube.CoreV1().Secrets(hc.GetNamespace()).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return s, fault(reasonMissing, "authSecret: the namespace %s has no Secret %s", hc.GetNamespace(), name)
	}
	if err != nil {
		return s, hc.asAccount(err, "read authSecret "+name)
	}
	s.Username, s.Password, s.CA = string(secret.Data["username"]), string(secret.Data["password"]), string(secret.Data["ca.crt"])
	return s, nil
}

// prepare fetches and renders, in a job.
func (c *Controller) prepare(ctx context.Context, hc *chart, set *client.Set, in *input, o render.Order) *prepared {
	archive := in.archive
	if archive == nil {
		source, err := hc.source(ctx, set.Kube)
		if err == nil {
			if archive, err = c.fetcher.Fetch(ctx, source); err != nil {
				err = fault("FetchFailed", "%v", err)
			}
		}
		if err != nil {
			return &prepared{err: err}
		}
	}
	p := &prepared{digest: origin.Digest(archive)}
	if want := hc.Spec.Digest; want != "" && want != p.digest {
		p.err = fault("WrongDigest", "the archive has the digest %s, and the spec wants %s", p.digest, want)
		return p
	}
	var err error
	if o.KubeVersion, o.APIVersions, err = c.capabilities(); err != nil {
		return &prepared{err: err}
	}
	if p.rendered, err = c.cfg.Renderer.Render(ctx, archive, o, c.looker(hc, set)); err != nil {
		p.err = fault("RenderFailed", "%s", clip(err.Error(), 2000))
	}
	return p
}

// capabilities of the cluster, for .Capabilities in templates.
func (c *Controller) capabilities() (version string, apis []string, err error) {
	v, err := c.discovery.ServerVersion()
	if err != nil {
		return "", nil, fmt.Errorf("ask for the version of the cluster: %w", err)
	}
	c.discovery.Invalidate() // a chart may have brought kinds
	_, lists, err := c.discovery.ServerGroupsAndResources()
	if len(lists) == 0 && err != nil { // an aggregated API that does not answer hides its own kinds only
		return "", nil, fmt.Errorf("ask for the kinds of the cluster: %w", err)
	}
	for _, l := range lists {
		apis = append(apis, l.GroupVersion)
		for _, r := range l.APIResources {
			apis = append(apis, l.GroupVersion+"/"+r.Kind)
		}
	}
	return v.GitVersion, apis, nil
}

// lookupLimit bounds the objects of a list that a template looks up.
const lookupLimit = 500

// looker answers what templates look up, by the account's rights.
func (c *Controller) looker(hc *chart, set *client.Set) render.Looker {
	return func(ctx context.Context, l render.Lookup) render.Answer {
		r, err := c.resource(set.Dynamic, l.APIVersion, l.Kind, l.Namespace)
		if err != nil {
			return render.Answer{Error: fmt.Sprintf("lookup of %s %s: %v", l.APIVersion, l.Kind, err)}
		}
		var found interface{ MarshalJSON() ([]byte, error) }
		if l.Name != "" {
			o, err2 := r.Get(ctx, l.Name, metav1.GetOptions{})
			found, err = o, err2
		} else {
			list, err2 := r.List(ctx, metav1.ListOptions{Limit: lookupLimit})
			if err2 == nil && list.GetContinue() != "" {
				err2 = fmt.Errorf("there are more than %d, which is too many for a lookup", lookupLimit)
			}
			found, err = list, err2
		}
		if apierrors.IsNotFound(err) {
			return render.Answer{}
		}
		if err == nil {
			b, err := found.MarshalJSON()
			if err == nil {
				return render.Answer{Object: b}
			}
		}
		return render.Answer{Error: hc.asAccount(err, "lookup of "+l.Kind+" "+l.Name).Error()}
	}
}
