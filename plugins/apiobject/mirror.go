// SPDX-License-Identifier: Apache-2.0

package apiobject

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/wasmplane/wasmplane/plugins/apiobject/plugindefinition"
	"github.com/wasmplane/wasmplane/plugins/loader"
)

// OriginLabel marks the objects that stand for entries of the configuration file, by
// the value FromFile. Only a server writes them, and nobody can change what they
// stand for through the API: they hold a status and nothing else.
const (
	OriginLabel = "plugins.wasmplane.dev/origin"
	FromFile    = string(loader.File)
)

func mirrored(o metav1.Object) bool { return o.GetLabels()[OriginLabel] == FromFile }

// ofFile are the entries of the file, by name. Members of groups are told of by their group.
func ofFile(all []loader.Status) map[string]loader.Status {
	out := map[string]loader.Status{}
	for _, s := range all {
		if s.Origin == loader.File && s.MemberOf == "" {
			out[s.Name] = s
		}
	}
	return out
}

// mirror makes an object for each entry of the file that has none.
func (c *Controller) mirror(ctx context.Context, entries map[string]loader.Status) {
	there := map[string]bool{}
	for _, o := range c.objects() {
		there[nameOf(o)] = true // be it somebody's own: it is refused, and says so
	}
	for name := range entries {
		if there[name] {
			continue
		}
		o := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{}}}
		o.SetAPIVersion(plugindefinition.Group + "/" + plugindefinition.Version)
		o.SetKind(plugindefinition.Kind)
		o.SetName(name)
		o.SetLabels(map[string]string{OriginLabel: FromFile})
		_, err := c.cfg.Client.Resource(c.cfg.resource()).Create(ctx, o, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) && ctx.Err() == nil {
			c.cfg.Logger.WarnContext(ctx, "could not make the object that shows a plugin of the configuration file", "plugin", name, "error", err)
		}
	}
}

// unmirror takes an object away whose entry no process has any more.
func (c *Controller) unmirror(ctx context.Context, o *unstructured.Unstructured) error {
	uid, version := o.GetUID(), o.GetResourceVersion()
	return c.cfg.Client.Resource(c.cfg.resource()).Delete(ctx, o.GetName(), metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &version}, // another server may just have reported
	})
}
