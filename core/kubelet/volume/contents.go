// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/kubelet/podidentity"
	"github.com/wasmplane/wasmplane/core/kubelet/spec"
	"github.com/wasmplane/wasmplane/core/kubelet/volume/fsgroup"
	"github.com/wasmplane/wasmplane/core/kubelet/volume/payload"
)

// contents makes the files of volumes that speak of API objects.
type contents struct {
	objects     spec.Objects
	allocatable func() corev1.ResourceList
	tokens      *podidentity.Tokens
	trust       *podidentity.TrustBundles
	certs       *podidentity.Certificates
}

const defaultMode = 0o644

func modeOf(m *int32) os.FileMode {
	if m == nil {
		return defaultMode
	}
	return os.FileMode(*m) & 0o7777
}

// project picks items out of data, or takes all of it.
func project(out payload.Files, data map[string][]byte, items []corev1.KeyToPath, mode *int32, optional bool, what string) error {
	if len(items) == 0 {
		for k, v := range data {
			out[k] = payload.File{Data: v, Mode: modeOf(mode)}
		}
		return nil
	}
	for _, it := range items {
		v, ok := data[it.Key]
		if !ok {
			if optional {
				continue
			}
			return fmt.Errorf("references non-existent %s key: %s", what, it.Key)
		}
		f := payload.File{Data: v, Mode: modeOf(mode)}
		if it.Mode != nil {
			f.Mode = modeOf(it.Mode)
		}
		out[it.Path] = f
	}
	return nil
}

func isOptional(b *bool) bool { return b != nil && *b }

func (c *contents) configMap(ctx context.Context, out payload.Files, p *corev1.Pod, name string, items []corev1.KeyToPath, mode *int32,
	optional bool,
) error {
	cm, err := c.objects.ConfigMap(ctx, p.Namespace, name)
	if apierrors.IsNotFound(err) {
		if optional {
			return nil
		}
		return fmt.Errorf("configmap %q not found", name)
	}
	if err != nil {
		return fmt.Errorf("couldn't get configMap %v/%v: %w", p.Namespace, name, err)
	}
	data := make(map[string][]byte, len(cm.Data)+len(cm.BinaryData))
	for k, v := range cm.Data {
		data[k] = []byte(v)
	}
	for k, v := range cm.BinaryData {
		data[k] = v
	}
	return project(out, data, items, mode, optional, "config")
}

func (c *contents) secret(ctx context.Context, out payload.Files, p *corev1.Pod, name string, items []corev1.KeyToPath, mode *int32,
	optional bool,
) error {
	s, err := c.objects.Secret(ctx, p.Namespace, name)
	if apierrors.IsNotFound(err) {
		if optional {
			return nil
		}
		return fmt.Errorf("secret %q not found", name)
	}
	if err != nil {
		return fmt.Errorf("couldn't get secret %v/%v: %w", p.Namespace, name, err)
	}
	return project(out, s.Data, items, mode, optional, "secret")
}

func (c *contents) downward(out payload.Files, p *corev1.Pod, items []corev1.DownwardAPIVolumeFile, mode *int32) error {
	for i := range items {
		it := &items[i]
		var v string
		var err error
		switch {
		case it.FieldRef != nil:
			v, err = spec.Field(p, it.FieldRef.FieldPath)
		case it.ResourceFieldRef != nil:
			v, err = spec.ResourceField(it.ResourceFieldRef, p, nil, c.allocatable())
		}
		if err != nil {
			return fmt.Errorf("downward API file %s: %w", it.Path, err)
		}
		f := payload.File{Data: []byte(v), Mode: modeOf(mode)}
		if it.Mode != nil {
			f.Mode = modeOf(it.Mode)
		}
		out[it.Path] = f
	}
	return nil
}

// write brings the directory to the payload.
func write(r Request, out payload.Files, memory bool) (Mounted, error) {
	if memory {
		if err := mountTmpfs(r.Dir, 0); err != nil {
			return Mounted{}, err
		}
	} else if err := makeDir(r.Dir, 0o755); err != nil {
		return Mounted{}, err
	}
	if err := payload.Write(r.Dir, out, func(dir string) error { return fsgroup.Own(dir, r.Pod, true) }); err != nil {
		return Mounted{}, err
	}
	return Mounted{Path: r.Dir, ReadOnly: true}, nil
}

type configMap struct{ *contents }

func (*configMap) Name() string                   { return "kubernetes.io/configmap" }
func (*configMap) Supports(v *corev1.Volume) bool { return v.ConfigMap != nil }
func (*configMap) Live()                          {}

func (k *configMap) Mount(ctx context.Context, r Request) (Mounted, error) {
	s, out := r.Volume.ConfigMap, payload.Files{}
	if err := k.configMap(ctx, out, r.Pod, s.Name, s.Items, s.DefaultMode, isOptional(s.Optional)); err != nil {
		return Mounted{}, err
	}
	return write(r, out, false)
}

func (*configMap) Unmount(_ context.Context, _ types.UID, _, dir string) error {
	return removeTree(dir)
}

type secret struct{ *contents }

func (*secret) Name() string                   { return "kubernetes.io/secret" }
func (*secret) Supports(v *corev1.Volume) bool { return v.Secret != nil }
func (*secret) Live()                          {}

func (k *secret) Mount(ctx context.Context, r Request) (Mounted, error) {
	s, out := r.Volume.Secret, payload.Files{}
	if err := k.secret(ctx, out, r.Pod, s.SecretName, s.Items, s.DefaultMode, isOptional(s.Optional)); err != nil {
		return Mounted{}, err
	}
	return write(r, out, true)
}

func (*secret) Unmount(_ context.Context, _ types.UID, _, dir string) error { return removeTree(dir) }

type downward struct{ *contents }

func (*downward) Name() string                   { return "kubernetes.io/downward-api" }
func (*downward) Supports(v *corev1.Volume) bool { return v.DownwardAPI != nil }
func (*downward) Live()                          {}

func (k *downward) Mount(_ context.Context, r Request) (Mounted, error) {
	s, out := r.Volume.DownwardAPI, payload.Files{}
	if err := k.downward(out, r.Pod, s.Items, s.DefaultMode); err != nil {
		return Mounted{}, err
	}
	return write(r, out, true)
}

func (*downward) Unmount(_ context.Context, _ types.UID, _, dir string) error {
	return removeTree(dir)
}

type projected struct{ *contents }

func (*projected) Name() string                   { return "kubernetes.io/projected" }
func (*projected) Supports(v *corev1.Volume) bool { return v.Projected != nil }
func (*projected) Live()                          {}

func (k *projected) Mount(ctx context.Context, r Request) (Mounted, error) {
	s, out := r.Volume.Projected, payload.Files{}
	for i := range s.Sources {
		if err := k.source(ctx, out, r, i, s.DefaultMode); err != nil {
			return Mounted{}, err
		}
	}
	return write(r, out, true)
}

func (k *projected) source(ctx context.Context, out payload.Files, r Request, index int, mode *int32) error {
	src := &r.Volume.Projected.Sources[index]
	switch {
	case src.ConfigMap != nil:
		return k.configMap(ctx, out, r.Pod, src.ConfigMap.Name, src.ConfigMap.Items, mode, isOptional(src.ConfigMap.Optional))
	case src.Secret != nil:
		return k.secret(ctx, out, r.Pod, src.Secret.Name, src.Secret.Items, mode, isOptional(src.Secret.Optional))
	case src.DownwardAPI != nil:
		return k.downward(out, r.Pod, src.DownwardAPI.Items, mode)
	case src.ServiceAccountToken != nil:
		return k.token(ctx, out, r, src.ServiceAccountToken, mode)
	case src.ClusterTrustBundle != nil:
		anchors, err := k.trust.Anchors(ctx, src.ClusterTrustBundle)
		if err != nil {
			return err
		}
		out[src.ClusterTrustBundle.Path] = private(r.Pod, anchors, mode)
	case src.PodCertificate != nil:
		return k.certificate(ctx, out, r, index, mode)
	}
	return nil
}

func (k *projected) token(ctx context.Context, out payload.Files, r Request, src *corev1.ServiceAccountTokenProjection, mode *int32) error {
	tok, _, err := k.tokens.Get(ctx, r.Pod, src)
	if err != nil {
		return err
	}
	out[src.Path] = private(r.Pod, []byte(tok), mode)
	return nil
}

func (k *projected) certificate(ctx context.Context, out payload.Files, r Request, index int, mode *int32) error {
	src := r.Volume.Projected.Sources[index].PodCertificate
	key, chain, err := k.certs.Get(ctx, r.Pod, certificateOf(r, index), src)
	if err != nil {
		return err
	}
	for path, data := range map[string][]byte{
		src.CredentialBundlePath: append(slices.Clone(key), chain...), src.KeyPath: key, src.CertificateChainPath: chain,
	} {
		if path != "" {
			out[path] = private(r.Pod, data, mode)
		}
	}
	return nil
}

func certificateOf(r Request, index int) podidentity.Source {
	return podidentity.Source{Pod: r.Pod.UID, Volume: r.Volume.Name, Index: index}
}

// private is a file for the pod's user alone, where all of its containers have
// one or a group for files.
func private(p *corev1.Pod, data []byte, mode *int32) payload.File {
	f := payload.File{Data: data, Mode: modeOf(mode)}
	user := commonUser(p)
	if sc := p.Spec.SecurityContext; user != nil || sc != nil && sc.FSGroup != nil {
		f.Mode, f.User = 0o600, user
	}
	return f
}

// commonUser is whom all containers run as, if the pod says so.
func commonUser(p *corev1.Pod) *int64 {
	var pod *int64
	if sc := p.Spec.SecurityContext; sc != nil {
		pod = sc.RunAsUser
	}
	var user *int64
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			own := pod
			if sc := list[i].SecurityContext; sc != nil && sc.RunAsUser != nil {
				own = sc.RunAsUser
			}
			if own == nil || user != nil && *user != *own {
				return nil
			}
			user = own
		}
	}
	return user
}

// RefreshAt is when the first of the volume's tokens or certificates is old.
func (k *projected) RefreshAt(r Request) time.Time {
	var first time.Time
	for i := range r.Volume.Projected.Sources {
		var at time.Time
		switch src := &r.Volume.Projected.Sources[i]; {
		case src.ServiceAccountToken != nil:
			at = k.tokens.RefreshAt(r.Pod, src.ServiceAccountToken)
		case src.ClusterTrustBundle != nil:
			at = time.Now().Add(podidentity.TrustRefresh)
		case src.PodCertificate != nil:
			at = k.certs.RefreshAt(certificateOf(r, i))
		}
		if !at.IsZero() && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	return first
}

func (k *projected) Unmount(_ context.Context, uid types.UID, _, dir string) error {
	k.tokens.Forget(uid)
	k.certs.Forget(uid)
	return removeTree(dir)
}
