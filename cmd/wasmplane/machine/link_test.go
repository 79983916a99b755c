// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/datadir"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/process"
	"github.com/wasmplane/wasmplane/core/config"
)

// TestTheKubeletsLink: made, made again, removed; another's is left alone.
func TestTheKubeletsLink(t *testing.T) {
	root := t.TempDir()
	link := filepath.Join(t.TempDir(), "lib", "kubelet")
	for range 2 {
		if err := linkKubelet(link, root); err != nil {
			t.Fatal(err)
		}
	}
	if to, err := os.Readlink(link); err != nil || to != root {
		t.Fatalf("leads to %q %v", to, err)
	}
	other := t.TempDir()
	if err := linkKubelet(link, other); err == nil || !strings.Contains(err.Error(),
		"node.kubeletLink: "+link+" is there, and no link to "+other) {
		t.Errorf("another's link: %v", err)
	}
	if err := unlinkKubelet(link, other); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(link); err != nil {
		t.Errorf("another's link was removed: %v", err)
	}
	if err := unlinkKubelet(link, root); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(link); !os.IsNotExist(err) {
		t.Errorf("the link is left: %v", err)
	}
	if err := linkKubelet(other, root); err == nil {
		t.Error("a directory was taken for the link")
	}
	// A directory is seen at two paths by a link above it here, and by a bind mount elsewhere.
	above := filepath.Join(t.TempDir(), "above")
	if err := os.Symlink(filepath.Dir(root), above); err != nil {
		t.Fatal(err)
	}
	mounted := filepath.Join(above, filepath.Base(root))
	if err := linkKubelet(mounted, root); err != nil {
		t.Errorf("the directory itself: %v", err)
	}
	if err := unlinkKubelet(mounted, root); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(root); err != nil {
		t.Errorf("the directory itself was removed: %v", err)
	}
	if err := linkKubelet("kubelet", root); err == nil {
		t.Error("a relative path was taken")
	}
	if linkKubelet("", root) != nil || unlinkKubelet("", root) != nil {
		t.Error("no link is no mistake")
	}
}

// TestDownKnowsTheLink: what down removes is what the node was started with.
func TestDownKnowsTheLink(t *testing.T) {
	c := config.Default()
	c.Cluster.Name, c.Node.KubeletLink = "a", "/var/lib/kubelet"
	dir := datadir.Dir(t.TempDir())
	if err := WriteState(process.Options{Config: c, Dir: dir}, "https://127.0.0.1:1"); err != nil {
		t.Fatal(err)
	}
	state, err := dir.ReadState()
	if err != nil {
		t.Fatal(err)
	}
	if o := stateOptions(dir, state, nil); o.Config.Node.KubeletLink != c.Node.KubeletLink {
		t.Errorf("down looks for the link %q", o.Config.Node.KubeletLink)
	}
}
