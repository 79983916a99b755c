// SPDX-License-Identifier: Apache-2.0

// Package hardened fills in a configuration for `profile: hardened`: what the CIS Kubernetes
// benchmark requires of an API server and the defaults leave off. A field that the file
// gives stays as it is given; docs/SECURITY.md lists what is filled in.
//
// What is kept in the data directory for the profile stays in use when the profile is
// taken away again: Secrets that were encrypted would be lost without their key.
package hardened

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/datadir"
	"github.com/wasmplane/wasmplane/core/config"
)

// Bounds of the audit log, as the benchmark names them (1.2.17 to 1.2.19).
const (
	auditBytes = 100 << 20
	auditFiles = 10
	auditAge   = config.Duration(30 * 24 * time.Hour)
)

// Plugins are the built-in admission plugins that the profile switches on.
func Plugins() []string {
	return []string{"DenyServiceExternalIPs", "RestrictServiceAddresses", "EventRateLimit"}
}

// EncryptionFile is the EncryptionConfiguration of the profile. It lies beside the
// cluster's other keys, which every apiserver of a cluster has and every backup holds.
func EncryptionFile(dir datadir.Dir) string { return filepath.Join(dir.PKI(), "encryption.yaml") }

// AuditFile is the audit log of the profile.
func AuditFile(dir datadir.Dir) string { return filepath.Join(string(dir), "audit", "audit.log") }

// Apply is Filled, and makes the key of Secrets at rest where there is none.
func Apply(c *config.Configuration, dir datadir.Dir) (*config.Configuration, error) {
	out, err := Filled(c, dir)
	if err != nil || out.Store.EncryptionConfigFile != EncryptionFile(dir) {
		return out, err
	}
	if err := makeKey(EncryptionFile(dir)); err != nil {
		return nil, fmt.Errorf("make the key of Secrets at rest: %w", err)
	}
	return out, nil
}

// Filled is the configuration as its profile wants it.
func Filled(c *config.Configuration, dir datadir.Dir) (*config.Configuration, error) {
	out := *c
	if out.Profile == config.Hardened {
		fill(&out.APIServer, dir)
	}
	if out.Store.EncryptionConfigFile != "" {
		return &out, nil
	}
	_, err := os.Lstat(EncryptionFile(dir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("look for the key of Secrets at rest: %w", err)
	}
	if err == nil || out.Profile == config.Hardened {
		out.Store.EncryptionConfigFile = EncryptionFile(dir)
	}
	return &out, nil
}

func fill(a *config.APIServer, dir datadir.Dir) {
	a.EnableAdmissionPlugins = slices.Clone(a.EnableAdmissionPlugins)
	for _, name := range Plugins() {
		if !slices.Contains(a.EnableAdmissionPlugins, name) && !slices.Contains(a.DisableAdmissionPlugins, name) {
			a.EnableAdmissionPlugins = append(a.EnableAdmissionPlugins, name)
		}
	}
	if a.AuditLogFile == "" && a.Audit.WebhookConfigFile == "" {
		a.AuditLogFile = AuditFile(dir)
	}
	if a.Audit.LogMaxBytes == 0 {
		a.Audit.LogMaxBytes = auditBytes
	}
	if a.Audit.LogMaxFiles == 0 {
		a.Audit.LogMaxFiles = auditFiles
	}
	if a.Audit.LogMaxAge == 0 {
		a.Audit.LogMaxAge = auditAge
	}
}

// document encrypts what is written from now on, and reads what was written before.
const document = `# Made at the first start with profile: hardened. Without this key the Secrets of the
# cluster cannot be read: keep it as you keep the other keys here.
apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets]
  providers:
  - secretbox: {keys: [{name: first, secret: %s}]}
  - identity: {}
`

// makeKey makes the file, whole or not at all, unless it is there. Where another
// process was first, its key counts.
func makeKey(file string) error {
	if _, err := os.Lstat(file); err == nil {
		return nil
	}
	var key [32]byte
	_, _ = rand.Read(key[:]) // it never fails
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	next, err := os.CreateTemp(filepath.Dir(file), "encryption.next-") // readable by its owner only
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(next.Name()) }()
	_, err = fmt.Fprintf(next, document, base64.StdEncoding.EncodeToString(key[:]))
	if err = errors.Join(err, next.Sync(), next.Close()); err != nil {
		return err
	}
	if err := os.Link(next.Name(), file); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}
