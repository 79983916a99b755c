// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/run"
)

// patience bounds one request.
const patience = 30 * time.Second

// member of the ConfigMap that holds the record.
const member = "applied"

// load reads what was applied.
func (f *Folder) load(ctx context.Context) (record, error) {
	var r record
	m, err := f.cfg.Kube.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return r, nil
	}
	if err != nil {
		return r, fmt.Errorf("read what was applied before: %w", err)
	}
	if err := json.Unmarshal([]byte(m.Data[member]), &r); err != nil {
		return r, fmt.Errorf("read what was applied before: ConfigMap %s/%s is damaged, delete it: %w", m.Namespace, Name, err)
	}
	return r, nil
}

// save writes it down.
func (f *Folder) save(ctx context.Context, r record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	maps := f.cfg.Kube.CoreV1().ConfigMaps(metav1.NamespaceSystem)
	m, err := maps.Get(ctx, Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: Name}, Data: map[string]string{member: string(data)}},
			metav1.CreateOptions{})
	} else if err == nil && m.Data[member] != string(data) {
		m.Data = map[string]string{member: string(data)}
		_, err = maps.Update(ctx, m, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("write down what is applied: %w", err)
	}
	return nil
}

// resource finds where objects of a kind are.
func (f *Folder) resource(gvk schema.GroupVersionKind, namespace string) (dynamic.ResourceInterface, error) {
	m, err := f.cfg.Mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return nil, err
	}
	if m.Scope.Name() != meta.RESTScopeNameNamespace {
		return f.cfg.Dynamic.Resource(m.Resource), nil
	}
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	return f.cfg.Dynamic.Resource(m.Resource).Namespace(namespace), nil
}

func (f *Folder) apply(ctx context.Context, it item) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	r, err := f.resource(it.object.GroupVersionKind(), it.object.GetNamespace())
	if err != nil {
		return err
	}
	_, err = r.Apply(ctx, it.object.GetName(), it.object, metav1.ApplyOptions{FieldManager: Manager, Force: true})
	return err
}

// soon tells errors that go away with what other manifests bring.
func soon(err error) bool {
	return meta.IsNoMatchError(err) || apierrors.IsNotFound(err) || apierrors.IsConflict(err) || apierrors.IsServiceUnavailable(err) ||
		apierrors.IsTooManyRequests(err) || apierrors.IsTimeout(err)
}

// chart is the kind of Helm charts (core/controllers/helmchart). One is uninstalled by the rights of an account, which may
// stand in the same file: what stands before it goes after it.
const chart = "HelmChart"

// errUninstalling is a chart that is not gone yet.
var errUninstalling = errors.New("it is being uninstalled")

// gone waits a little until an object is.
func gone(ctx context.Context, r dynamic.ResourceInterface, name string) bool {
	pause := run.Backoff{First: 50 * time.Millisecond, Longest: 500 * time.Millisecond}
	for range 10 {
		if _, err := r.Get(ctx, name, metav1.GetOptions{}); err != nil {
			return apierrors.IsNotFound(err)
		}
		if !pause.Wait(ctx) {
			break
		}
	}
	return false
}

// prune deletes an object that was applied, if it is still the folder's: whoever may change
// the record alone cannot have anything else deleted.
func (f *Folder) prune(ctx context.Context, o applied) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	r, err := f.resource(schema.FromAPIVersionAndKind(o.APIVersion, o.Kind), o.Namespace)
	if meta.IsNoMatchError(err) {
		return nil // its kind has gone, and took it along
	}
	if err != nil {
		return err
	}
	now, err := r.Get(ctx, o.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(now.GetManagedFields(), func(e metav1.ManagedFieldsEntry) bool {
		return e.Manager == Manager && e.Operation == metav1.ManagedFieldsOperationApply
	}) {
		f.cfg.Logger.InfoContext(ctx, "an object that is no longer in the folder of manifests is not its any more, and stays", "kind", o.Kind,
			"namespace", o.Namespace, "name", o.Name)
		return nil
	}
	uid := now.GetUID()
	err = r.Delete(ctx, o.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &uid}, PropagationPolicy: ptr.To(metav1.DeletePropagationBackground),
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	if o.Kind == chart && !gone(ctx, r, o.Name) {
		return errUninstalling
	}
	f.cfg.Logger.InfoContext(ctx, "an object was deleted with its manifest", "kind", o.Kind, "namespace", o.Namespace, "name", o.Name, "file",
		o.File)
	return nil
}
