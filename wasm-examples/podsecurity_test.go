// SPDX-License-Identifier: Apache-2.0

package examples_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	"sigs.k8s.io/yaml"

	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/host"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/plugintest"
)

// fixtures are the pods of the upstream library's test data, each once.
func fixtures(t *testing.T) map[string][]byte {
	t.Helper()
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/pod-security-admission").Output()
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(dir)), "test/testdata/*/*/*/*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	pods, seen := map[string][]byte{}, map[string]bool{}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !seen[string(content)] {
			seen[string(content)] = true
			pods[file] = content
		}
	}
	return pods
}

// TestPodSecurity holds the example to the library that Kubernetes itself decides
// with: the same verdict, in the same words, on every pod of the library's test data.
func TestPodSecurity(t *testing.T) {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	pods := fixtures(t)
	if len(pods) < 200 {
		t.Fatalf("%d pods were found", len(pods))
	}
	h, err := host.New(t.Context(), host.Config{InProcess: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	}()
	wasm := plugintest.Module(t, "pod-security")
	for _, level := range []api.Level{api.LevelPrivileged, api.LevelBaseline, api.LevelRestricted} {
		t.Run(string(level), func(t *testing.T) {
			e, err := manifest.ParseBytes([]byte("name: pod-security\nsource: file:x.wasm\nsettings: {enforce: " + string(level) + "}"))
			if err != nil {
				t.Fatal(err)
			}
			e.Limits.Deadline = manifest.Duration(time.Minute)
			g, err := plugintest.NewGuest(t.Context(), h, wasm, &e)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := g.Close(); err != nil {
					t.Error(err)
				}
			}()
			refused := 0
			for file, content := range pods {
				var pod corev1.Pod
				if err := yaml.UnmarshalStrict(content, &pod); err != nil {
					t.Fatal(err)
				}
				want := policy.AggregateCheckResults(evaluator.EvaluatePod(api.LevelVersion{Level: level, Version: api.LatestVersion()},
					&pod.ObjectMeta, &pod.Spec))
				text, err := json.Marshal(&pod)
				if err != nil {
					t.Fatal(err)
				}
				object, err := abi.Decode(text)
				if err != nil {
					t.Fatal(err)
				}
				document := map[string]any{"operation": "CREATE", "namespace": "default", "kind": map[string]any{"kind": "Pod"}, "object": object}
				out, _, err := g.Ask(t.Context(), abi.AdmissionValidate, "Pod", document)
				if err != nil {
					t.Fatal(err)
				}
				answer, err := abi.ParseAdmission(out, g.Manifest.Hook(abi.AdmissionValidate))
				if err != nil {
					t.Fatal(err)
				}
				words := ""
				if !want.Allowed {
					refused++
					words = `violates PodSecurity "` + string(level) + `:latest": ` + want.ForbiddenDetail()
				}
				if answer.Denied() != !want.Allowed || answer.Message != words {
					t.Errorf("%s:\n got  %q\n want %q", file, answer.Message, words)
				}
			}
			t.Logf("%d of %d pods are refused", refused, len(pods))
			if (level == api.LevelPrivileged) != (refused == 0) || refused == len(pods) {
				t.Errorf("%d of %d pods are refused", refused, len(pods))
			}
		})
	}
}
