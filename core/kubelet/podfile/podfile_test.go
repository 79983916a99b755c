// SPDX-License-Identifier: Apache-2.0

package podfile_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/podfile"
)

const good = `# A comment.
apiVersion: v1
kind: Pod
metadata:
  name: web
spec:
  containers:
    - name: web
      image: example.org/web:1
`

func TestAPodHasTheDefaultsOfTheAPI(t *testing.T) {
	p, err := podfile.Pod(t.Context(), "web.yaml", []byte(good))
	if err != nil {
		t.Fatal(err)
	}
	c := p.Spec.Containers[0]
	if p.Name != "web" || p.Spec.RestartPolicy != corev1.RestartPolicyAlways || c.TerminationMessagePath == "" ||
		c.ImagePullPolicy != corev1.PullIfNotPresent || *p.Spec.TerminationGracePeriodSeconds != 30 {
		t.Errorf("the pod is %+v", p.Spec)
	}
	words := `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},"spec":{"containers":[{"name":"a","image":"b"}]}}`
	if _, err := podfile.Pod(t.Context(), "web.json", []byte(words)); err != nil {
		t.Error(err)
	}
}

// TestErrorsSayWhere: the file, the line, the field, and what was expected.
func TestErrorsSayWhere(t *testing.T) {
	for name, c := range map[string]struct{ data, want string }{
		"nothing":  {"# nothing\n", "f.yaml:1: expected a Pod, found nothing"},
		"syntax":   {"a: b\n c: [\n", "f.yaml: yaml: line 2"},
		"kind":     {strings.Replace(good, "kind: Pod", "kind: Job", 1), "f.yaml:3: kind: expected apiVersion v1 and kind Pod, found v1 and Job"},
		"list":     {"- a\n", "f.yaml:1: expected a Pod"},
		"two":      {good + "---\n" + good, "f.yaml:12: expected one Pod, found another document"},
		"unknown":  {strings.Replace(good, "image:", "imagge:", 1), "f.yaml:9: spec.containers[0].imagge"},
		"type":     {good + "  hostNetwork: 7\n", "f.yaml:2: "},
		"nameless": {strings.Replace(good, "  name: web\n", "  labels: {}\n", 1), "f.yaml:4: metadata.name: expected a name"},
		"invalid":  {good + "  restartPolicy: Sometimes\n", "f.yaml:10: spec.restartPolicy: Unsupported value"},
		"ephemeral": {
			good + "  ephemeralContainers:\n    - {name: x, image: y}\n", "f.yaml:10: spec.ephemeralContainers",
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := podfile.Pod(t.Context(), "f.yaml", []byte(c.data))
			if err == nil || !strings.HasPrefix(err.Error(), c.want) {
				t.Errorf("the error is %v, want %s", err, c.want)
			}
		})
	}
}

func FuzzPod(f *testing.F) {
	f.Add([]byte(good))
	f.Fuzz(func(t *testing.T, data []byte) {
		if p, err := podfile.Pod(t.Context(), "f.yaml", data); err == nil && p.Name == "" {
			t.Errorf("a pod without a name of %q", data)
		}
	})
}
