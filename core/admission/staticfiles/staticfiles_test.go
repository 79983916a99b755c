// SPDX-License-Identifier: Apache-2.0

package staticfiles_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/wasmplane/wasmplane/core/admission/staticfiles"
)

func decode(_ context.Context, doc []byte) (runtime.Object, error) {
	o, _, err := scheme.Codecs.UniversalDeserializer().Decode(doc, nil, nil)
	return o, err
}

const policy = `# what every cluster of ours refuses
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: no-latest.static.k8s.io}
spec:
  matchConstraints: {resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}]}
  validations: [{expression: "true"}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: no-latest.static.k8s.io}
spec: {policyName: no-latest.static.k8s.io, validationActions: [Deny]}
`

const hook = `apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: NAME}
webhooks:
- name: a.example.com
  clientConfig: CLIENT
  admissionReviewVersions: [v1]
  sideEffects: None
`

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestAFolderIsReadAndFollowed(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "policy.yaml", policy)
	write(t, dir, "notes.txt", "not a manifest")
	var mu sync.Mutex
	var notes []string
	f, err := staticfiles.Open(t.Context(), staticfiles.Config{Dir: dir, Decode: decode, Note: func(s string) {
		mu.Lock()
		notes = append(notes, s)
		mu.Unlock()
	}})
	if err != nil {
		t.Fatal(err)
	}
	if p, b := f.ValidatingPolicies(); len(p) != 1 || len(b) != 1 || len(f.Validating()) != 0 {
		t.Fatalf("%d policies, %d bindings", len(p), len(b))
	}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = f.Run(ctx) })
	defer running.Wait()
	defer stop()
	write(t, dir, "hook.yaml", strings.NewReplacer("NAME", "h.static.k8s.io", "CLIENT", "{url: 'https://127.0.0.1:1/x'}").Replace(hook))
	eventually(t, func() bool { return len(f.Validating()) == 1 })
	write(t, dir, "hook.yaml", "kind: [")
	eventually(t, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(notes) == 1 && strings.Contains(notes[0], "hook.yaml") && strings.Contains(notes[0], "stays in force")
	})
	if len(f.Validating()) != 1 {
		t.Error("a mistake took away what was in force")
	}
	if err := os.Remove(filepath.Join(dir, "hook.yaml")); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return len(f.Validating()) == 0 })
}

func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	end := time.After(time.Minute)
	for !ok() {
		select {
		case <-tick.C:
		case <-end:
			t.Fatal("it did not come true within a minute")
		}
	}
}

func TestMistakesNameTheFile(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"a name that the API could have", strings.Replace(policy, "no-latest.static.k8s.io", "no-latest", 1), `a name that ends with ".static.k8s.io"`},
		{"a service", strings.NewReplacer("NAME", "h.static.k8s.io", "CLIENT", "{service: {name: a, namespace: b}}").Replace(hook), "webhooks[0].clientConfig: a static webhook is named by url"},
		{"another kind", "apiVersion: v1\nkind: Pod\nmetadata: {name: x.static.k8s.io}\n", "expected a webhook configuration or an admission policy"},
		{"a binding without its policy", policy[strings.LastIndex(policy, "---"):], `no file of the folder has a policy "no-latest.static.k8s.io"`},
		{"the same twice", policy + "---\n" + policy, "is in"},
		{"parameters", strings.Replace(policy, "spec:\n", "spec:\n  paramKind: {apiVersion: v1, kind: ConfigMap}\n", 1), "takes no parameters"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir, "m.yaml", c.text)
			_, err := staticfiles.Open(t.Context(), staticfiles.Config{Dir: dir, Decode: decode})
			if err == nil || !strings.Contains(err.Error(), c.want) || c.name != "a binding without its policy" && !strings.Contains(err.Error(),
				"m.yaml") {
				t.Errorf("error %v, want %q in it", err, c.want)
			}
		})
	}
	if _, err := staticfiles.Open(t.Context(), staticfiles.Config{Dir: filepath.Join(t.TempDir(), "none"), Decode: decode}); err == nil {
		t.Error("a folder that does not exist was taken")
	}
}

// Whatever is in the files, reading them ends, and without a panic.
func FuzzManifests(f *testing.F) {
	f.Add([]byte(policy))
	f.Add([]byte(hook))
	f.Add([]byte("---\n---\n{"))
	f.Fuzz(func(t *testing.T, data []byte) {
		dir := t.TempDir()
		write(t, dir, "m.yaml", string(data))
		folder, err := staticfiles.Open(t.Context(), staticfiles.Config{Dir: dir, Decode: decode})
		if err != nil {
			return
		}
		for _, c := range folder.Mutating() {
			if _, ok := any(c).(*admissionregistrationv1.MutatingWebhookConfiguration); !ok || !strings.HasSuffix(c.Name, staticfiles.Suffix) {
				t.Errorf("%v", c)
			}
		}
	})
}
