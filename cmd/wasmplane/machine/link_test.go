// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
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
	if err := linkKubelet("kubelet", root); err == nil {
		t.Error("a relative path was taken")
	}
	if linkKubelet("", root) != nil || unlinkKubelet("", root) != nil {
		t.Error("no link is no mistake")
	}
}
