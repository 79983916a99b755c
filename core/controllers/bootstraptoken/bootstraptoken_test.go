// SPDX-License-Identifier: Apache-2.0

package bootstraptoken

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cluster-bootstrap/token/jws"

	"github.com/wasmplane/wasmplane/core/controllers/controllertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func token(id string, data map[string]string) *corev1.Secret {
	s := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "bootstrap-token-" + id}, Type: corev1.SecretTypeBootstrapToken,
		Data: map[string][]byte{"token-id": []byte(id), "token-secret": []byte("0123456789abcdef")},
	}
	for k, v := range data {
		s.Data[k] = []byte(v)
	}
	return s
}

func in(d time.Duration) string { return time.Now().Add(d).Format(time.RFC3339) }

func TestExpiredTokensAreRemovedAndOthersStay(t *testing.T) {
	w := controllertest.New(
		token("aaaaaa", map[string]string{"expiration": in(-time.Minute)}),
		token("bbbbbb", map[string]string{"expiration": in(time.Hour)}),
		token("cccccc", nil),
		token("dddddd", map[string]string{"expiration": "never"}), // as upstream: what cannot be read has expired
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "other"}, Type: corev1.SecretTypeBootstrapToken},
	)
	c, err := NewCleaner(w.Env(t), 1)
	if err != nil {
		t.Fatal(err)
	}
	w.Start(t, c)
	controllertest.Eventually(t, func() error {
		left, err := w.Client.CoreV1().Secrets("kube-system").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		var names []string
		for _, s := range left.Items {
			names = append(names, s.Name)
		}
		slices.Sort(names)
		if want := []string{"bootstrap-token-bbbbbb", "bootstrap-token-cccccc", "other"}; !slices.Equal(names, want) {
			return fmt.Errorf("there are %q", names)
		}
		return nil
	})
}

func TestClusterInfoIsSignedByTheTokensThatMay(t *testing.T) {
	signs := map[string]string{"usage-bootstrap-signing": "true"}
	w := controllertest.New(
		token("aaaaaa", signs),
		token("bbbbbb", nil),
		token("cccccc", map[string]string{"usage-bootstrap-signing": "true", "expiration": in(-time.Minute)}),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-public", Name: "cluster-info"}, Data: map[string]string{
			"kubeconfig": "the cluster", "jws-kubeconfig-gone00": "of a token that is no more", "other": "stays",
		}},
	)
	s, err := NewSigner(w.Env(t))
	if err != nil {
		t.Fatal(err)
	}
	w.Start(t, s)
	signedBy := func(want ...string) {
		t.Helper()
		controllertest.Eventually(t, func() error {
			info, err := w.Client.CoreV1().ConfigMaps("kube-public").Get(t.Context(), "cluster-info", metav1.GetOptions{})
			if err != nil {
				return err
			}
			var ids []string
			for _, key := range slices.Sorted(maps.Keys(info.Data)) {
				if id, ok := strings.CutPrefix(key, "jws-kubeconfig-"); ok {
					ids = append(ids, id)
					if !jws.DetachedTokenIsValid(info.Data[key], "the cluster", id, "0123456789abcdef") {
						return errors.New("a wrong signature of " + id)
					}
				}
			}
			if !slices.Equal(ids, want) || info.Data["other"] != "stays" {
				return fmt.Errorf("signed by %q: %q", ids, info.Data)
			}
			return nil
		})
	}
	signedBy("aaaaaa")
	if _, err := w.Client.CoreV1().Secrets("kube-system").Create(t.Context(), token("eeeeee", signs), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	signedBy("aaaaaa", "eeeeee")
	if err := w.Client.CoreV1().Secrets("kube-system").Delete(t.Context(), "bootstrap-token-aaaaaa", metav1.DeleteOptions{}); err != nil &&
		!apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	signedBy("eeeeee")
}
