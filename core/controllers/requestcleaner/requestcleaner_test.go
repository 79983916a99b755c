// SPDX-License-Identifier: Apache-2.0

package requestcleaner

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/controllers/controllertest"
)

func certificate(t *testing.T, ends time.Time) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: ends}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func request(name string, certificate []byte, conditions ...certificatesv1.RequestConditionType) *certificatesv1.CertificateSigningRequest {
	r := &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.Now()}}
	for _, c := range conditions {
		r.Status.Conditions = append(r.Status.Conditions,
			certificatesv1.CertificateSigningRequestCondition{Type: c, LastUpdateTime: metav1.Now()})
	}
	r.Status.Certificate = certificate
	return r
}

func TestRequestsGoInTheirTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const approved, denied, failed = certificatesv1.CertificateApproved, certificatesv1.CertificateDenied, certificatesv1.CertificateFailed
		timeless := request("of-no-time", nil, approved)
		timeless.Status.Conditions[0].LastUpdateTime = metav1.Time{}
		c := controllertest.New(
			request("pending", nil), request("denied", nil, denied), request("failed", nil, approved, failed), request("approved", nil, approved),
			request("issued", certificate(t, time.Now().Add(1000*time.Hour)), approved),
			request("ended", certificate(t, time.Now().Add(10*time.Minute)), approved),
			request("junk", []byte("junk"), approved), timeless,
		)
		c.Start(t, New(c.Env(t), 1))
		for _, step := range []struct {
			wait time.Duration
			want []string
		}{
			{5 * time.Minute, []string{"approved", "denied", "ended", "failed", "issued", "junk", "of-no-time", "pending"}},
			{10 * time.Minute, []string{"approved", "denied", "failed", "issued", "junk", "of-no-time", "pending"}},
			{50 * time.Minute, []string{"approved", "of-no-time", "pending"}},
			{22 * time.Hour, []string{"approved", "of-no-time", "pending"}},
			{2 * time.Hour, []string{"of-no-time"}},
		} {
			time.Sleep(step.wait)
			synctest.Wait()
			left, err := c.Client.CertificatesV1().CertificateSigningRequests().List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, r := range left.Items {
				names = append(names, r.Name)
			}
			if slices.Sort(names); !slices.Equal(names, step.want) {
				t.Errorf("%v are left, want %v", names, step.want)
			}
		}
	})
}

// An answer that comes late begins its own time.
func TestAnAnswerCountsFromWhenItCame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := controllertest.New(request("late", nil))
		c.Start(t, New(c.Env(t), 1))
		requests := c.Client.CertificatesV1().CertificateSigningRequests()
		time.Sleep(23 * time.Hour)
		r, err := requests.Get(t.Context(), "late", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		r.Status = request("", nil, certificatesv1.CertificateApproved).Status
		if _, err := requests.UpdateStatus(t.Context(), r, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(23 * time.Hour)
		synctest.Wait()
		if _, err := requests.Get(t.Context(), "late", metav1.GetOptions{}); err != nil {
			t.Errorf("an approved request that may still be answered: %v", err)
		}
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if _, err := requests.Get(t.Context(), "late", metav1.GetOptions{}); err == nil {
			t.Error("it is still there")
		}
	})
}

func TestPodsRequestsGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := controllertest.New(&certificatesv1.PodCertificateRequest{ObjectMeta: metav1.ObjectMeta{
			Name: "a", Namespace: "shop",
			CreationTimestamp: metav1.Now(),
		}})
		c.Start(t, NewPods(c.Env(t), 1))
		for _, step := range []struct {
			wait time.Duration
			want int
		}{{14 * time.Minute, 1}, {2 * time.Minute, 0}} {
			time.Sleep(step.wait)
			synctest.Wait()
			left, err := c.Client.CertificatesV1().PodCertificateRequests("shop").List(t.Context(), metav1.ListOptions{})
			if err != nil || len(left.Items) != step.want {
				t.Errorf("%d requests (%v), want %d", len(left.Items), err, step.want)
			}
		}
	})
}
