// SPDX-License-Identifier: Apache-2.0

package podidentity_test

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/wasmplane/wasmplane/core/kubelet/podidentity"
)

// A token is asked for anew when four fifths of its life are over.
func TestTokensAreRenewedInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		var mu sync.Mutex
		asked := 0
		client.PrependReactor("create", "serviceaccounts", func(a clienttesting.Action) (bool, runtime.Object, error) {
			mu.Lock()
			defer mu.Unlock()
			asked++
			req := a.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenRequest)
			if b := req.Spec.BoundObjectRef; b == nil || b.Kind != "Pod" || b.Name != "p" || b.UID != "uid" {
				t.Errorf("the token is not bound to its pod: %+v", b)
			}
			life := time.Hour
			if asked == 1 {
				life = 100 * time.Millisecond
			}
			return true, &authenticationv1.TokenRequest{Status: authenticationv1.TokenRequestStatus{
				Token:               fmt.Sprint("token-", asked),
				ExpirationTimestamp: metav1.NewTime(time.Now().Add(life)),
			}}, nil
		})
		tokens := podidentity.NewTokens(client)
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "uid"}}
		src := &corev1.ServiceAccountTokenProjection{Path: "token"}
		get := func() string {
			s, _, err := tokens.Get(t.Context(), p, src)
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		if got := get(); got != "token-1" {
			t.Errorf("first %s", got)
		}
		time.Sleep(90 * time.Millisecond) // four fifths of its life
		if got := get(); got != "token-2" {
			t.Errorf("then %s", got)
		}
		if got := get(); got != "token-2" {
			t.Errorf("then %s", got)
		}
	})
}
