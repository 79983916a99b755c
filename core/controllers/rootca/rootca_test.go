// SPDX-License-Identifier: Apache-2.0

package rootca

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/controllers/controllertest"
)

// It is published, and what somebody does to it is undone.
func TestPublished(t *testing.T) {
	c := controllertest.New(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
	ctl, err := New(c.Env(t), 1, func() []byte { return []byte("the CA") })
	if err != nil {
		t.Fatal(err)
	}
	c.Start(t, ctl)
	var published *corev1.ConfigMap
	right := func() error {
		var err error
		published, err = c.Client.CoreV1().ConfigMaps("a").Get(t.Context(), "kube-root-ca.crt", metav1.GetOptions{})
		if err == nil && (len(published.Data) != 1 || published.Data["ca.crt"] != "the CA") {
			return fmt.Errorf("%v", published.Data)
		}
		return err
	}
	controllertest.Eventually(t, right)
	published.Data = map[string]string{"ca.crt": "another"}
	if _, err := c.Client.CoreV1().ConfigMaps("a").Update(t.Context(), published, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	controllertest.Eventually(t, right)
	if err := c.Client.CoreV1().ConfigMaps("a").Delete(t.Context(), "kube-root-ca.crt", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	controllertest.Eventually(t, right)
}
