// SPDX-License-Identifier: Apache-2.0

package kindcodec

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/kubernetes/pkg/apis/core/install"

	"github.com/wasmplane/wasmplane/core/object"
)

// TestWhatIsWrittenIsReadQuickly: what this server writes needs no look at the kind first. That
// both ways read the same is tested for every kind of the contract, in core/api.
func TestWhatIsWrittenIsReadQuickly(t *testing.T) {
	c, err := New(legacyscheme.Scheme, corev1.SchemeGroupVersion.WithKind("Pod"))
	if err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{}
	pod.Name = "a"
	value, err := c.Encode(pod, object.Protobuf)
	if err != nil {
		t.Fatal(err)
	}
	if o, ok := c.quickProto(value).(*corev1.Pod); !ok || o.Name != "a" || o.Kind != "Pod" {
		t.Errorf("protobuf: %+v", o)
	}
	text, err := c.Encode(pod, object.JSON)
	if err != nil {
		t.Fatal(err)
	}
	if o, ok := c.quick(text).(*corev1.Pod); !ok || o.Name != "a" {
		t.Errorf("JSON: %+v", o)
	}
	if o := c.quickProto(value[:len(value)-1]); o != nil {
		t.Errorf("protobuf that is cut off was read quickly: %+v", o)
	}
}

func TestAKindThatTheSchemeLacksHasNoCodec(t *testing.T) {
	if _, err := New(legacyscheme.Scheme, corev1.SchemeGroupVersion.WithKind("Pot")); err == nil {
		t.Error("a codec of Pots was made")
	}
}
