// SPDX-License-Identifier: Apache-2.0

package hardened

import (
	"os"
	"slices"
	"testing"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/datadir"
	"github.com/wasmplane/wasmplane/core/config"
)

func applied(t *testing.T, dir datadir.Dir, change func(*config.Configuration)) *config.Configuration {
	t.Helper()
	c := config.Default()
	change(c)
	out, err := Apply(c, dir)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func harden(c *config.Configuration) { c.Profile = config.Hardened }

func TestTheProfileFillsInWhatIsLeftOpen(t *testing.T) {
	dir := datadir.Dir(t.TempDir())
	c := applied(t, dir, harden)
	if a := c.APIServer; !slices.Equal(a.EnableAdmissionPlugins, Plugins()) || a.AuditLogFile != AuditFile(dir) ||
		a.Audit.LogMaxAge != auditAge {
		t.Errorf("found %+v", a)
	}
	c = applied(t, dir, func(c *config.Configuration) {
		harden(c)
		c.APIServer.AuditLogFile, c.APIServer.Audit.LogMaxFiles = "mine.log", 3
		c.APIServer.DisableAdmissionPlugins = []string{"EventRateLimit"}
		c.Store.EncryptionConfigFile = "mine.yaml"
	})
	if a := c.APIServer; a.AuditLogFile != "mine.log" || a.Audit.LogMaxFiles != 3 || slices.Contains(a.EnableAdmissionPlugins,
		"EventRateLimit") {
		t.Errorf("what the file gives has changed: %+v", a)
	}
	if c.Store.EncryptionConfigFile != "mine.yaml" {
		t.Errorf("encryption by %s", c.Store.EncryptionConfigFile)
	}
}

func TestWithoutTheProfileNothingIsFilledIn(t *testing.T) {
	dir := datadir.Dir(t.TempDir())
	c := applied(t, dir, func(*config.Configuration) {})
	if a := c.APIServer; a.AuditLogFile != "" || len(a.EnableAdmissionPlugins) > 0 || c.Store.EncryptionConfigFile != "" {
		t.Errorf("found %+v, encryption by %q", a, c.Store.EncryptionConfigFile)
	}
	if _, err := os.Stat(EncryptionFile(dir)); !os.IsNotExist(err) {
		t.Errorf("a key was made: %v", err)
	}
}

func TestTheKeyIsMadeOnceAndKept(t *testing.T) {
	dir := datadir.Dir(t.TempDir())
	applied(t, dir, harden)
	first, err := os.ReadFile(EncryptionFile(dir))
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(EncryptionFile(dir))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key's mode is %v, %v", info.Mode(), err)
	}
	if c := applied(t, dir, func(*config.Configuration) {}); c.Store.EncryptionConfigFile != EncryptionFile(dir) {
		t.Error("without the profile the Secrets that were encrypted cannot be read any more")
	}
	applied(t, dir, harden)
	if again, err := os.ReadFile(EncryptionFile(dir)); err != nil || string(again) != string(first) {
		t.Errorf("the key was made anew: %v", err)
	}
	left, err := os.ReadDir(dir.PKI())
	if err != nil || len(left) != 1 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
