// SPDX-License-Identifier: Apache-2.0

package localcsi_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/wasmplane/wasmplane/core/kubelet/linuxhost"
	"github.com/wasmplane/wasmplane/core/kubelet/localcsi"
	"github.com/wasmplane/wasmplane/core/localvolume"
	"github.com/wasmplane/wasmplane/core/run"
)

// start runs a driver until the test ends, and answers its socket.
func start(t *testing.T, root string) (*localcsi.Driver, string) {
	t.Helper()
	socket := filepath.Join(shortDir(t), "csi.sock")
	d, err := localcsi.New(localcsi.Config{
		Name: "local.example", Root: root, Node: "here", TopologyKey: "local.example/node", Socket: socket,
		Version: "1",
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := run.Go("driver", func() error { return d.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return d, socket
}

// shortDir: paths of sockets are short.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "wpcsi") //nolint:usetesting // as said
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(linuxhost.UnmountBelow(dir), os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// TestSanity: the storage community's own suite for drivers, of directories, of images and of block devices.
func TestSanity(t *testing.T) {
	suite := filepath.Join(t.TempDir(), "csi-sanity")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", suite, "github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity")
	build.Dir = filepath.Join("testdata", "sanity")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the suite: %v\n%s", err, out)
	}
	limited := filepath.Join(t.TempDir(), "parameters.yaml")
	if err := os.WriteFile(limited, []byte(localvolume.LimitParameter+": "+localvolume.LimitImage+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, more := range map[string][]string{
		"directory": {"--csi.testvolumeaccesstype=mount"}, "block": {"--csi.testvolumeaccesstype=block"},
		"image": {"--csi.testvolumeaccesstype=mount", "--csi.testvolumeparameters=" + limited},
	} {
		t.Run(name, func(t *testing.T) {
			_, socket := start(t, t.TempDir())
			dir := shortDir(t)
			more = append(more, "--csi.endpoint="+socket, "--csi.mountdir="+filepath.Join(dir, "mount"),
				"--csi.stagingdir="+filepath.Join(dir, "staging"), "--ginkgo.no-color")
			out, err := exec.CommandContext(t.Context(), suite, more...).CombinedOutput() //nolint:gosec // built above
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			t.Logf("%s", regexp.MustCompile("Ran .* Specs|[0-9]+ Passed.*").FindAll(out, -1))
		})
	}
}
