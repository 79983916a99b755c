// SPDX-License-Identifier: Apache-2.0

package serviceaccount

import (
	"context"
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/controllers/controllertest"
)

func TestEveryNamespaceHasDefault(t *testing.T) {
	gone := metav1.Now()
	c := controllertest.New(
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a"}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "leaving", DeletionTimestamp: &gone, Finalizers: []string{"x"}}},
	)
	ctl, err := New(c.Env(t), 1)
	if err != nil {
		t.Fatal(err)
	}
	c.Start(t, ctl)
	there := func() error {
		_, err := c.Client.CoreV1().ServiceAccounts("a").Get(t.Context(), "default", metav1.GetOptions{})
		return err
	}
	controllertest.Eventually(t, there)
	if err := c.Client.CoreV1().ServiceAccounts("a").Delete(t.Context(), "default", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	controllertest.Eventually(t, there)
	if _, err := c.Client.CoreV1().ServiceAccounts("leaving").Get(t.Context(), "default", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("in a namespace that is being deleted: %v", err)
	}
}

type minter struct{ count int }

func (m *minter) LegacyToken(_ context.Context, account *corev1.ServiceAccount, secret *corev1.Secret) (string, error) {
	m.count++
	return fmt.Sprintf("token %d of %s for %s", m.count, account.UID, secret.Name), nil
}

func tokenSecret(name, account, uid string) *corev1.Secret {
	s := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "a", Annotations: map[string]string{corev1.ServiceAccountNameKey: account}},
		Type:       corev1.SecretTypeServiceAccountToken,
	}
	if uid != "" {
		s.Annotations[corev1.ServiceAccountUIDKey] = uid
	}
	return s
}

// A token secret is filled once; one of an account that is gone, or of a former one
// of the same name, is deleted.
func TestTokens(t *testing.T) {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot", Namespace: "a", UID: "robot-uid"}}
	c := controllertest.New(account, tokenSecret("mine", "robot", ""), tokenSecret("former", "robot", "another-uid"),
		tokenSecret("nobodys", "gone", ""))
	ctl, err := NewTokens(c.Env(t), 1, &minter{}, func() []byte { return []byte("the CA") })
	if err != nil {
		t.Fatal(err)
	}
	c.Start(t, ctl)
	filled := func() error {
		s, err := c.Client.CoreV1().Secrets("a").Get(t.Context(), "mine", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if string(s.Data["token"]) != "token 1 of robot-uid for mine" || string(s.Data["ca.crt"]) != "the CA" ||
			string(s.Data["namespace"]) != "a" ||
			s.Annotations[corev1.ServiceAccountUIDKey] != "robot-uid" {
			return fmt.Errorf("%s %v", s.Data, s.Annotations)
		}
		return nil
	}
	controllertest.Eventually(t, filled)
	gone := func(name string) func() error {
		return func() error {
			if _, err := c.Client.CoreV1().Secrets("a").Get(t.Context(), name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return errors.Join(fmt.Errorf("secret %s is still there", name), err)
			}
			return nil
		}
	}
	controllertest.Eventually(t, gone("former"))
	controllertest.Eventually(t, gone("nobodys"))
	if err := filled(); err != nil {
		t.Errorf("minted again: %v", err)
	}
	if err := c.Client.CoreV1().ServiceAccounts("a").Delete(t.Context(), "robot", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	controllertest.Eventually(t, gone("mine"))
}
