// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"path/filepath"
	"testing"

	"github.com/wasmplane/wasmplane/plugins/loader"
	"github.com/wasmplane/wasmplane/plugins/source"
)

// TestSettingsAreCheckedByASchemaThatIsKnown: by the digest of a module that was loaded once, also where its settings were refused
// then, and for those alone in whose namespace that was.
func TestSettingsAreCheckedByASchemaThatIsKnown(t *testing.T) {
	wasm, err := assembleAs(`"settings":true,"settingsSchema":{"required":["label"],"properties":{"label":{"type":"string"}}},`, "x", "")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	replaceFile(t, filepath.Join(dir, "labels.wasm"), wasm)
	l := newLoader(t, loader.Config{InProcess: true, Dir: dir, Entries: entries(t, "plugins: [{name: p, source: 'file:labels.wasm'}]")})
	pinned := "digest: '" + source.Digest(wasm) + "', "
	check := func(what, want string) {
		t.Helper()
		e := entries(t, "plugins: [{name: q, source: 'file:labels.wasm', "+what+"}]")[0]
		if err := l.CheckSettings(&e); err == nil && want != "" || err != nil && err.Error() != want {
			t.Errorf("%s: got %v, want %q", what, err, want)
		}
	}
	check(pinned+"settings: {label: 1}", "") // not known yet
	if err := l.Load(t.Context()); err == nil {
		t.Error("the module is loaded without its settings")
	}
	check(pinned+"settings: {label: 1}", `settings.label must be of type string: "number"`)
	check(pinned+"mode: Warn", "settings.label is required")
	check(pinned+"settings: {label: a}", "")
	check("settings: {label: 1}", "") // the file may be another one by now
	e := entries(t, "plugins: [{name: q, source: 'file:labels.wasm', "+pinned+"mode: Warn}]")[0]
	e.Namespace = "shop"
	if err := l.CheckSettings(&e); err != nil {
		t.Errorf("a tenant is shown the schema of an operator's module: %v", err)
	}
}
