// SPDX-License-Identifier: Apache-2.0

package cases_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/wasmplane/wasmplane/plugins/author"
	"github.com/wasmplane/wasmplane/plugins/author/authortest"
	"github.com/wasmplane/wasmplane/plugins/author/cases"
	"github.com/wasmplane/wasmplane/plugins/plugintest"
)

// foreign makes a plugin of a guest that package foreign tests with.
func foreign(t *testing.T, guest, entry, list string) author.Config {
	t.Helper()
	dir := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-buildmode=c-shared", "-trimpath", "-ldflags=-s -w", "-o",
		filepath.Join(dir, "p.wasm"), "./plugins/foreign/testdata/"+guest)
	build.Dir = plugintest.Root(t)
	build.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	authortest.Write(t, filepath.Join(dir, author.EntryFile), "name: p\nsource: file:p.wasm\n"+entry)
	authortest.Write(t, filepath.Join(dir, author.CasesFile), list)
	cfg := authortest.Open(t, dir)
	cfg.CacheDir = filepath.Join(plugintest.Root(t), "build", "plugin-cache") // it is compiled for each settings
	return cfg
}

// TestASchedulersGuestOffline: a guest of kube-scheduler-wasm-extension is led through a cycle.
func TestASchedulersGuestOffline(t *testing.T) {
	const common = `
  pod: {metadata: {name: web}}
  nodes:
  - {metadata: {name: n1, labels: {zone: a}}, status: {images: [{names: [nginx], sizeBytes: 1000}]}}
  - {metadata: {name: n2, labels: {zone: b}}, status: {images: [{names: [nginx], sizeBytes: 1000}]}}
`
	cfg := foreign(t, "sched", "", `
- name: scores
  expect: {decision: judge, verdicts: {n1: 10, n2: 10}}`+common+`
- name: a node that is avoided
  settings: {avoid: zone-x}
  expect: {decision: judge, verdicts: {n1: "filtered [\"n2\"]"}}`+common+`
- name: a pod that is refused
  settings: {refuse: prefilter}
  expect: {verdicts: {n1: refused at prefilter after prefilter, n2: refused at prefilter after prefilter}}`+common+`
- name: scores that are normalized
  settings: {normalize: true}
  expect: {verdicts: {n1: 90, n2: 90}}`+common+`
- name: a score that traps
  settings: {trap: score}
  expect: {decision: failed, error: "/it printed: panic: as configured/"}`+common)
	results, failed := test(t, cfg, cases.Compiled)
	for _, i := range []int{0, 2, 3, 4} {
		if !results[i].Passed {
			t.Errorf("%s: %s", results[i].Name, strings.Join(results[i].Problems, "\n"))
		}
	}
	if failed != 1 || !strings.Contains(strings.Join(results[1].Problems, "\n"), "verdicts:") { // what is expected there is wrong
		t.Errorf("%d failed: %q", failed, results[1].Problems)
	}
}

// TestAPolicysHostCallsOffline: images and access reviews are what the case says, and a
// request comes in an AdmissionReview, as kwctl scaffolds it, or in the place of an object.
func TestAPolicysHostCallsOffline(t *testing.T) {
	const request = `{uid: "1", kind: {group: "", version: v1, kind: Pod}, resource: {group: "", version: v1, resource: pods}, requestKind: {group: "", version: v1, kind: Pod},
    requestResource: {group: "", version: v1, resource: pods}, name: web, namespace: shop, operation: CREATE,
      userInfo: {username: jane}, dryRun: false, oldObject: null,
    object: {apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop}}}`
	cfg := foreign(t, "wapc", `
points: [admission.validate]
match: {rules: [{apiGroups: [""], apiVersions: [v1], resources: [pods], operations: [CREATE]}]}
grants: {accessReview: true, images: {registries: [registry.example.com]}}
`, `
- name: access
  settings: {calls: [
    {namespace: kubernetes, operation: can_i, payload: {subject_access_review: {user: jane, groups: [], resource_attributes: {verb: get, resource: pods, namespace: shop}}}},
    {namespace: kubernetes, operation: can_i, payload: {subject_access_review: {user: jane, groups: [], resource_attributes: {verb: delete, resource: pods, namespace: shop}}}}]}
  access: [{user: jane, verb: get, resource: pods, allowed: true, reason: she may}]
  object: {apiVersion: v1, kind: Pod, metadata: {name: web}}
  expect: {decision: allow, warnings: ['{"allowed":true,"reason":"she may"}', '{"allowed":false,"reason":"the case lists nothing about it under access"}']}
- name: images
  settings: {calls: [
    {namespace: oci, operation: v1/manifest_digest, payload: "registry.example.com/a:1"},
    {namespace: oci, operation: v1/manifest_digest, payload: "registry.example.com/b:1"}]}
  images: {"registry.example.com/a:1": {digest: "sha256:abc"}}
  object: {apiVersion: v1, kind: Pod, metadata: {name: web}}
  expect: {decision: allow, warnings: ['{"digest":"sha256:abc"}', 'error: no registry is asked in a test, and the case lists no image registry.example.com/b:1: add it under images']}
- name: a review
  input: {apiVersion: admission.k8s.io/v1, kind: AdmissionReview, request: `+request+`}
  expect: {decision: allow, auditAnnotations: {seen: pods}}
- name: a review in the place of an object
  object: {apiVersion: admission.k8s.io/v1, kind: AdmissionReview, request: `+request+`}
  expect: {decision: allow, auditAnnotations: {seen: pods}}
- name: a request
  object: `+request+`
  expect: {decision: allow, auditAnnotations: {seen: pods}}
- name: a request as a policy gets it
  input: {request: `+request+`}
  expect: {decision: allow, auditAnnotations: {seen: pods}}
`)
	results, _ := test(t, cfg, cases.Compiled)
	for _, r := range results {
		if !r.Passed {
			t.Errorf("%s: %s", r.Name, strings.Join(r.Problems, "\n"))
		}
	}
}
