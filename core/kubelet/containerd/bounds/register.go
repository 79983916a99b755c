// SPDX-License-Identifier: Apache-2.0

package bounds

import (
	"errors"

	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/diff/apply"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/containerd/containerd/v2/plugins/diff/walking"
	"github.com/containerd/platforms"
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"

	"github.com/wasmplane/wasmplane/core/kubelet/containerd/wasmimage"
)

// containerd's plugins register themselves, and these two do so under the names of those
// that they stand for: paths on the disk and other plugins go by the names.
func init() { //nolint:gochecknoinits // how containerd is put together
	diff.RegisterProcessor(counting)
	registry.Register(&plugin.Registration{
		Type: plugins.ContentPlugin, ID: "content", Config: &Limits{},
		InitFn: func(ic *plugin.InitContext) (any, error) {
			root := ic.Properties[plugins.PropertyRootDir]
			ic.Meta.Exports["root"] = root
			inner, err := local.NewStore(root)
			if err != nil {
				return nil, err
			}
			return &store{Store: &wasmimage.Store{Store: inner}, ledger: newLedger(*ic.Config.(*Limits))}, nil
		},
	})
	registry.Register(&plugin.Registration{
		Type: plugins.DiffPlugin, ID: "walking",
		Requires: []plugin.Type{plugins.MetadataPlugin, plugins.MountManagerPlugin, plugins.ContentPlugin},
		InitFn: func(ic *plugin.InitContext) (any, error) {
			md, err := ic.GetSingle(plugins.MetadataPlugin)
			if err != nil {
				return nil, err
			}
			bounded, err := ic.GetSingle(plugins.ContentPlugin)
			if err != nil {
				return nil, err
			}
			var mounts mount.Manager
			if m, err := ic.GetSingle(plugins.MountManagerPlugin); err == nil {
				mounts = m.(mount.Manager)
			} else if !errors.Is(err, plugin.ErrPluginNotFound) {
				return nil, err
			}
			ic.Meta.Platforms = append(ic.Meta.Platforms, platforms.DefaultSpec())
			blobs := md.(*metadata.DB).ContentStore()
			return struct {
				diff.Comparer
				diff.Applier
			}{walking.NewWalkingDiff(blobs), &applier{apply.NewFileSystemApplierWithMountManager(blobs, mounts), bounded.(*store).ledger}}, nil
		},
	})
}
