// SPDX-License-Identifier: Apache-2.0

package control

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/process"
	"github.com/wasmplane/wasmplane/core/api/satoken"
	"github.com/wasmplane/wasmplane/core/pki"
)

// KeysOf are what this process can give to its control loops: where the data
// directory holds the cluster's keys too, as on a machine that also runs an
// apiserver, it can sign; elsewhere certificate requests and token secrets wait for
// another process.
func KeysOf(c *process.Component) (Keys, error) {
	keys := Keys{}
	if ca := c.Config.CAData; len(ca) > 0 {
		keys.RootCA = func() []byte { return ca }
	}
	switch _, err := os.Stat(filepath.Join(c.Options.Dir.PKI(), "ca.key")); {
	case errors.Is(err, fs.ErrNotExist):
		c.Options.Logger.Info("this process has no keys of the cluster: it signs neither certificate requests nor token secrets", "directory", c.Options.Dir.PKI())
		return keys, nil
	case err != nil:
		return keys, fmt.Errorf("look for the cluster's keys: %w", err)
	}
	authority, err := pki.Open(pki.Config{Dir: c.Options.Dir.PKI(), ClusterDomain: c.Options.Config.Cluster.Domain, Log: c.Options.Logger})
	if err != nil {
		return keys, err
	}
	signer, err := c.Options.TokenKey(authority)
	if err != nil {
		return keys, err
	}
	keys.Authority, keys.RootCA = authority.CASigner, authority.RootsPEM
	tokens, err := satoken.NewSigner(c.Options.Config.APIServer.ServiceAccountIssuer, signer)
	if err != nil {
		return keys, err
	}
	keys.Minter = satoken.SecretTokens{Signer: tokens}
	return keys, nil
}
