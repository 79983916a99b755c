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

// A clone of a machine has a copy of the directory: the two are told apart by what is not in it, and each knows by
// what it leads.
func TestIdentityHereIsOfTheMachine(t *testing.T) {
	d := Dir(t.TempDir())
	id, err := d.Identity()
	if err != nil {
		t.Fatal(err)
	}
	here, err := d.IdentityHere()
	if err != nil || here == id || len(here) != len(id) {
		t.Fatalf("identity %q, here %q, %v", id, here, err)
	}
	if again, err := d.IdentityHere(); err != nil || again != here {
		t.Errorf("another one the second time: %q, %v", again, err)
	}
	clone := onBoot(id, []byte("another boot"))
	if clone == here {
		t.Error("two machines have one identity")
	}
	for holder, want := range map[string]bool{"vm_" + id: true, "vm_" + here: true, "vm_" + clone: false, "": false, id: false} {
		if ours, err := d.Holds(holder); err != nil || ours != want {
			t.Errorf("%q is ours: %t, %v", holder, ours, err)
		}
	}
}
