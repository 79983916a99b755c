// SPDX-License-Identifier: Apache-2.0

package wasmpods

import (
	"github.com/containerd/containerd/v2/core/runtime/v2"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"
)

func init() { //nolint:gochecknoinits // how containerd is put together
	registry.Register(&plugin.Registration{
		Type: plugins.SandboxControllerPlugin, ID: Name,
		Requires: []plugin.Type{plugins.ShimPlugin},
		InitFn: func(ic *plugin.InitContext) (any, error) {
			shims, err := ic.GetSingle(plugins.ShimPlugin)
			if err != nil {
				return nil, err
			}
			c := newController(ic.Properties[plugins.PropertyRootDir], ic.Properties[plugins.PropertyStateDir], shims.(*v2.ShimManager))
			return c, c.load(ic.Context)
		},
	})
}
