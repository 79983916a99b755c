// SPDX-License-Identifier: Apache-2.0

package feeds

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/static"
)

// A pod of the API that says it comes from a file says otherwise to the node, and nothing else of it changes: neither
// its other annotations, nor what other components of the process have of the same pod.
func TestPodsOfTheAPIComeFromTheAPI(t *testing.T) {
	shared := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: "a", Annotations: map[string]string{static.SourceAnnotation: "file", "b": "c"},
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}},
	}}
	before, own := shared.DeepCopy(), *shared
	got, err := strip(&own)
	if err != nil {
		t.Fatal(err)
	}
	want := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", Annotations: map[string]string{static.SourceAnnotation: "api", "b": "c"}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(before, shared); diff != "" {
		t.Errorf("what the pod shares with others has changed:\n%s", diff)
	}
}
