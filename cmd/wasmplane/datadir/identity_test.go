// SPDX-License-Identifier: Apache-2.0

package datadir

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// Two directories differ, also at the same path on two machines; one keeps its identity.
func TestIdentityIsOfTheDirectory(t *testing.T) {
	one, other := Dir(t.TempDir()), Dir(t.TempDir())
	ids := make([]string, 8)
	var wg sync.WaitGroup
	for i := range ids {
		wg.Go(func() {
			id, err := one.Identity()
			if err != nil {
				t.Error(err)
			}
			ids[i] = id
		})
	}
	wg.Wait()
	for _, id := range ids {
		if id != ids[0] || len(id) != 32 {
			t.Fatalf("identities %q", ids)
		}
	}
	if id, err := other.Identity(); err != nil || id == ids[0] {
		t.Errorf("the other's identity: %q, %v", id, err)
	}
	if left, _ := filepath.Glob(filepath.Join(string(one), "identity.next-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestADamagedIdentityIsAnError(t *testing.T) {
	d := Dir(t.TempDir())
	if err := os.WriteFile(filepath.Join(string(d), "identity"), []byte("\x00\x00"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Identity(); err == nil || !strings.Contains(err.Error(), "32 hexadecimal digits") {
		t.Errorf("error %v", err)
	}
}
