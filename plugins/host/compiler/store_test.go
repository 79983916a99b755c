// SPDX-License-Identifier: Apache-2.0

package compiler

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/tetratelabs/wazero"

	"github.com/wasmplane/wasmplane/plugins/fuel"
)

func artifact(t *testing.T) *Artifact {
	t.Helper()
	a, err := InProcess{}.Compile(t.Context(), empty, Spec{})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// adopt has a fresh engine take an artifact over.
func adopt(t *testing.T, a *Artifact) error {
	t.Helper()
	s, err := NewStage(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	r := wazero.NewRuntimeWithConfig(t.Context(), s.Config(wazero.NewRuntimeConfigCompiler().WithCoreFeatures(Features)))
	_, err = s.Adopt(t.Context(), r, a)
	if left, _ := filepath.Glob(filepath.Join(s.dir, "*", "*")); len(left) > 0 {
		t.Errorf("left in the stage: %v", left)
	}
	if err := errors.Join(r.Close(t.Context()), s.Close(t.Context())); err != nil {
		t.Error(err)
	}
	return err
}

// TestTheServerNeverCompiles: with its code a module is taken over, without it that fails.
func TestTheServerNeverCompiles(t *testing.T) {
	a := artifact(t)
	if err := adopt(t, a); err != nil {
		t.Error(err)
	}
	for _, without := range []*Artifact{
		{Metered: a.Metered},
		{Metered: a.Metered, Name: "wazero-v0.0.1-amd64-linux/" + filepath.Base(a.Name), Code: a.Code},
		{Metered: a.Metered, Name: "../" + a.Name, Code: a.Code},
	} {
		if err := adopt(t, without); !errors.Is(err, ErrNotCompiled) {
			t.Errorf("%q: %v", without.Name, err)
		}
	}
}

func TestAStoreTakesOnlyWhatItWrote(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cache")
	s, err := OpenStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	a := artifact(t)
	if err := s.Put("one", a); err != nil {
		t.Fatal(err)
	}
	again, err := OpenStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got := again.Get("one"); got == nil || got.Name != a.Name || string(got.Code) != string(a.Code) ||
		string(got.Metered) != string(a.Metered) {
		t.Errorf("read %+v", got)
	}
	good, err := os.ReadFile(s.path("one"))
	if err != nil {
		t.Fatal(err)
	}
	plant := func(what, key string, b []byte) {
		t.Helper()
		if err := os.WriteFile(s.path(key), b, 0o600); err != nil {
			t.Fatal(err)
		}
		if s.Get(key) != nil {
			t.Errorf("taken: %s", what)
		}
	}
	plant("another module's artifact", "two", good)
	for i := range good {
		bad := append([]byte(nil), good...)
		bad[i] ^= 1
		plant("a damaged one", "one", bad)
	}
	for n := range good {
		plant("a part of one", "one", good[:n])
	}
	other, err := OpenStore(filepath.Join(t.TempDir(), "cache"))
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Put("one", a); err != nil {
		t.Fatal(err)
	}
	theirs, err := os.ReadFile(other.path("one"))
	if err != nil {
		t.Fatal(err)
	}
	plant("one of another server", "one", theirs)
}

func TestTheKeyIsForItsOwnerOnly(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cache")
	var work sync.WaitGroup
	stores := make([]*Store, 8)
	for i := range stores {
		work.Go(func() {
			s, err := OpenStore(dir)
			if err != nil {
				t.Error(err)
			}
			stores[i] = s
		})
	}
	work.Wait()
	for _, s := range stores {
		if s == nil || string(s.key) != string(stores[0].key) {
			t.Fatal("processes that begin at once have other keys")
		}
	}
	for path, want := range map[string]os.FileMode{dir: 0o700, dir + ".key": 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v", path, info.Mode(), err)
		}
	}
	if err := os.Chmod(dir+".key", 0o644); err != nil {
		t.Fatal(err)
	}
	if s, err := OpenStore(dir); err != nil || string(s.key) == string(stores[0].key) {
		t.Errorf("a key that others could read is still in use, %v", err)
	}
}

// TestOneModuleIsTakenOverByMany at once: the engine shows a module to others before it is whole.
func TestOneModuleIsTakenOverByMany(t *testing.T) {
	a := artifact(t)
	s, err := NewStage(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	r := wazero.NewRuntimeWithConfig(t.Context(), s.Config(wazero.NewRuntimeConfigCompiler().WithCoreFeatures(Features)))
	_, err = r.NewHostModuleBuilder(fuel.ImportModule).NewFunctionBuilder().WithFunc(func(int32) {}).Export(fuel.ImportYield).Instantiate(
		t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	for range 8 {
		work.Go(func() {
			for range 50 {
				code, err := s.Adopt(t.Context(), r, a)
				if err != nil {
					t.Error(err)
					return
				}
				m, err := r.InstantiateModule(t.Context(), code, wazero.NewModuleConfig().WithName(""))
				if err != nil {
					t.Error(err)
					return
				}
				_ = m.ExportedFunction("f") // looks at what the engine makes last
				if err := errors.Join(m.Close(t.Context()), code.Close(t.Context())); err != nil {
					t.Error(err)
				}
			}
		})
	}
	work.Wait()
	if err := errors.Join(r.Close(t.Context()), s.Close(t.Context())); err != nil {
		t.Error(err)
	}
}
