// SPDX-License-Identifier: Apache-2.0

package command

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/supervisor"
)

// TestAServiceOfFilesThatOthersCanChangeIsRefused: its binary, its configuration, its directory.
func TestAServiceOfFilesThatOthersCanChangeIsRefused(t *testing.T) {
	good, anybodys := t.TempDir(), filepath.Join(t.TempDir(), "anybodys")
	if err := errors.Join(os.Mkdir(anybodys, 0o700), os.Chmod(anybodys, 0o777)); err != nil { //nolint:gosec // that is the test
		t.Fatal(err)
	}
	service := func(binary, config, dir string) supervisor.Service {
		return supervisor.Service{Name: "s", Dir: dir, Command: []string{
			filepath.Join(binary, "wasmplane"), "up", "--data-dir", dir, "--config", filepath.Join(config, "config.yaml"),
		}}
	}
	if err := checkOwned(service(good, good, good)); err != nil {
		t.Error(err)
	}
	for _, s := range []supervisor.Service{service(anybodys, good, good), service(good, anybodys, good), service(good, good, anybodys)} {
		if err := checkOwned(s); err == nil || !strings.Contains(err.Error(), "anybodys can be written by others") {
			t.Errorf("%v: %v", s.Command, err)
		}
	}
}
