// SPDX-License-Identifier: Apache-2.0

package datadir

import (
	"k8s.io/client-go/rest"

	"github.com/wasmplane/wasmplane/core/client"
)

// Own is the configuration of a client of this directory's own server, as its administrator: the kubeconfig may
// name an address that is another server's just now. user is part of the user agent.
func (d Dir) Own(user string) (*rest.Config, error) {
	cfg, err := client.FromKubeconfig(d.Kubeconfig(), user)
	if err != nil {
		return nil, err
	}
	if state, err := d.ReadState(); err == nil && state.Public == cfg.Host && state.Server != "" {
		cfg.Host = state.Server
	}
	return cfg, nil
}
