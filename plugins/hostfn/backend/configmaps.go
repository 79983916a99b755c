// SPDX-License-Identifier: Apache-2.0

package backend

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"

	"github.com/wasmplane/wasmplane/plugins/manifest"
)

// ConfigMapState keeps what plugins put in a ConfigMap each, in a namespace of their
// own, so that it is in every backup and shared by all processes of the control plane.
type ConfigMapState struct{ Kube kubernetes.Interface }

// stateLabel marks the ConfigMaps.
const stateLabel = "plugins.wasmplane.dev/state"

func stateName(plugin string) string {
	return manifest.StatePrefix + strings.ReplaceAll(plugin, "_", "..")
}

// Sync implements hostfn.StateStore.
func (c ConfigMapState) Sync(ctx context.Context, plugin string, changes map[string][]byte) (map[string][]byte, error) {
	maps := c.Kube.CoreV1().ConfigMaps(manifest.StateNamespace)
	name := stateName(plugin)
	var kept map[string][]byte
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		cm, err := maps.Get(ctx, name, metav1.GetOptions{})
		absent := apierrors.IsNotFound(err)
		if absent {
			cm = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{stateLabel: "true"}}}
		} else if err != nil {
			return err
		}
		kept = cm.BinaryData
		if len(changes) == 0 {
			return nil
		}
		if cm.BinaryData == nil {
			cm.BinaryData = map[string][]byte{}
		}
		for k, v := range changes {
			if v == nil {
				delete(cm.BinaryData, k)
			} else {
				cm.BinaryData[k] = v
			}
		}
		kept = cm.BinaryData
		if absent {
			_, err = maps.Create(ctx, cm, metav1.CreateOptions{})
			if apierrors.IsAlreadyExists(err) {
				err = apierrors.NewConflict(corev1.Resource("configmaps"), name, err)
			}
			return err
		}
		_, err = maps.Update(ctx, cm, metav1.UpdateOptions{})
		return err
	})
	switch {
	case apierrors.IsForbidden(err) || apierrors.IsNotFound(err):
		return nil, fmt.Errorf("keep the state of plugin %q in configmap %s/%s: %w; the namespace and the right to get, create and update configmaps there come with wasmplane, another cluster needs them made (docs/plugins/hostcalls.md)",
			plugin, manifest.StateNamespace, name, err)
	case err != nil:
		return nil, fmt.Errorf("keep the state of plugin %q in configmap %s/%s: %w", plugin, manifest.StateNamespace, name, err)
	}
	return kept, nil
}
