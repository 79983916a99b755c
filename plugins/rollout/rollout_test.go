// SPDX-License-Identifier: Apache-2.0

package rollout_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"
	"sigs.k8s.io/yaml"

	"github.com/wasmplane/wasmplane/plugins/rollout"
)

const file = `# the cluster of the shop
kind: Configuration
plugins:
  # stays as it is
  - {name: other, source: "file:o.wasm"}
  - name: p # the one
    source: file:old.wasm
    mode: Warn # for now
    settings: {level: 1}
    candidate:
      source: oci://a.example/p:2
      digest: sha256:93a44bbb96c751218e4c00d479e4c14358122a389acca16205b1e4d0dc5f9476
      settings: {level: 2} # stricter
`

func TestAnEntryOfAFileIsPromotedAndRolledBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(path, []byte(file), 0o640); err != nil {
		t.Fatal(err)
	}
	read := func() string {
		t.Helper()
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	if _, err := rollout.File(path, "other", rollout.Promote); err == nil || !strings.Contains(err.Error(), "it has no candidate") {
		t.Errorf("%v", err)
	}
	if _, err := rollout.File(path, "none", rollout.Promote); err == nil || !strings.Contains(err.Error(), "no plugin of that name") {
		t.Errorf("%v", err)
	}
	if done, err := rollout.File(path, "p", rollout.Promote); err != nil || done != rollout.Promoted {
		t.Fatal(done, err)
	}
	got := read()
	for _, want := range []string{
		"# the cluster of the shop", "# stays as it is", "mode: Warn # for now", "source: oci://a.example/p:2",
		"settings: {level: 2} # stricter", "previous:\n      source: file:old.wasm\n      settings: {level: 1}",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in\n%s", want, got)
		}
	}
	if strings.Contains(got, "candidate") {
		t.Errorf("the candidate is still there:\n%s", got)
	}
	if done, err := rollout.File(path, "p", rollout.Rollback); err != nil || done != rollout.Restored {
		t.Fatal(done, err)
	}
	if got := read(); !strings.Contains(got, "source: file:old.wasm") || strings.Contains(got, "digest") || strings.Contains(got,
		"previous") || !strings.Contains(got, "settings: {level: 1}") {
		t.Errorf("rolled back:\n%s", got)
	}
	if _, err := rollout.File(path, "p", rollout.Rollback); err == nil {
		t.Error("there is nothing left to roll back")
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("the file's mode: %v, %v", info.Mode(), err)
	}
}

func TestAnObjectIsPromotedAndRolledBack(t *testing.T) {
	var tree map[string]any
	if err := yaml.Unmarshal([]byte(`
apiVersion: plugins.wasmplane.dev/v1
kind: Plugin
metadata: {name: p}
spec:
  source: oci://a.example/p:1
  digest: sha256:1
  order: 3
  candidate: {settings: {level: 2}}
`), &tree); err != nil {
		t.Fatal(err)
	}
	gvr := schema.GroupVersionResource{Group: "plugins.wasmplane.dev", Version: "v1", Resource: "plugins"}
	client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{gvr: "PluginList"},
		&unstructured.Unstructured{Object: tree})
	spec := func() map[string]any {
		t.Helper()
		o, err := client.Resource(gvr).Get(t.Context(), "p", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return o.Object["spec"].(map[string]any)
	}
	if done, err := rollout.Object(t.Context(), client, "p", rollout.Promote); err != nil || done != rollout.Promoted {
		t.Fatal(done, err)
	}
	if s := spec(); s["candidate"] != nil || s["source"] != "oci://a.example/p:1" || s["order"] != int64(3) ||
		s["settings"].(map[string]any)["level"] != int64(2) {
		t.Errorf("%v", s)
	}
	if done, err := rollout.Object(t.Context(), client, "p", rollout.Rollback); err != nil || done != rollout.Restored {
		t.Fatal(done, err)
	}
	if s := spec(); len(s["settings"].(map[string]any)) != 0 || s["previous"] != nil {
		t.Errorf("%v", s)
	}
	if _, err := rollout.Object(t.Context(), client, "none", rollout.Rollback); err == nil {
		t.Error("an object that is not there was rolled back")
	}
}
