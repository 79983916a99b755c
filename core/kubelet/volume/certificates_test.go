// SPDX-License-Identifier: Apache-2.0

package volume_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	kubetesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/kubelet/volume"
)

func anchor(text string) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte(text)}))
}

func bundle(name, signer string, labels map[string]string, anchors ...string) *certificatesv1.ClusterTrustBundle {
	return &certificatesv1.ClusterTrustBundle{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec:       certificatesv1.ClusterTrustBundleSpec{SignerName: signer, TrustBundle: strings.Join(anchors, "")},
	}
}

func TestTrustBundlesAreProjected(t *testing.T) {
	client := fake.NewClientset(
		bundle("plain", "", nil, "# comment\n", anchor("one"), anchor("one"), anchor("two")),
		bundle("s:a", "example.com/s", map[string]string{"use": "a"}, anchor("three")),
		bundle("s:b", "example.com/s", map[string]string{"use": "b"}, anchor("four")),
	)
	for name, c := range map[string]struct {
		src     corev1.ClusterTrustBundleProjection
		anchors int
		fails   string
	}{
		"by name, each once":             {src: corev1.ClusterTrustBundleProjection{Name: ptr.To("plain")}, anchors: 2},
		"by name, missing":               {src: corev1.ClusterTrustBundleProjection{Name: ptr.To("none")}, fails: "not found"},
		"by name, missing and optional":  {src: corev1.ClusterTrustBundleProjection{Name: ptr.To("none"), Optional: ptr.To(true)}},
		"of a signer, all":               {src: corev1.ClusterTrustBundleProjection{SignerName: ptr.To("example.com/s"), LabelSelector: &metav1.LabelSelector{}}, anchors: 2},
		"of a signer, labelled":          {src: corev1.ClusterTrustBundleProjection{SignerName: ptr.To("example.com/s"), LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"use": "b"}}}, anchors: 1},
		"of a signer, no selector":       {src: corev1.ClusterTrustBundleProjection{SignerName: ptr.To("example.com/s")}, fails: "matched zero"},
		"of a signer, nothing, optional": {src: corev1.ClusterTrustBundleProjection{SignerName: ptr.To("example.com/s"), Optional: ptr.To(true)}},
		"of nobody":                      {fails: "requires either name or signerName"},
	} {
		t.Run(name, func(t *testing.T) {
			c.src.Path = "trust.pem"
			dir, err := project(t, client, corev1.VolumeProjection{ClusterTrustBundle: &c.src})
			if c.fails != "" {
				if err == nil || !strings.Contains(err.Error(), c.fails) {
					t.Fatalf("error: %v, expected %q", err, c.fails)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			data, err := os.ReadFile(filepath.Join(dir, "trust.pem"))
			if err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(string(data), "BEGIN CERTIFICATE"); n != c.anchors {
				t.Errorf("%d certificates, expected %d:\n%s", n, c.anchors, data)
			}
		})
	}
}

// A signer answers; the pod gets its key and the certificates that belong to it.
func TestPodCertificatesAreIssuedAndProjected(t *testing.T) {
	client := fake.NewClientset(
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "sa", UID: "sa-uid"}},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "node-uid"}},
	)
	var asked *certificatesv1.PodCertificateRequest
	client.PrependReactor("create", "podcertificaterequests", func(a kubetesting.Action) (bool, runtime.Object, error) {
		asked = a.(kubetesting.CreateAction).GetObject().(*certificatesv1.PodCertificateRequest).DeepCopy()
		asked.Name = "req-1"
		return true, asked, nil
	})
	answer := metav1.Condition{Type: certificatesv1.PodCertificateRequestConditionTypeIssued}
	client.PrependReactor("get", "podcertificaterequests", func(kubetesting.Action) (bool, runtime.Object, error) {
		r := asked.DeepCopy()
		r.Status.Conditions = []metav1.Condition{answer}
		r.Status.CertificateChain = "made by us\n" + anchor("leaf") + anchor("authority")
		r.Status.BeginRefreshAt, r.Status.NotAfter = ptr.To(metav1.NewTime(time.Now().Add(time.Hour))), ptr.To(
			metav1.NewTime(time.Now().Add(2*time.Hour)))
		return true, r, nil
	})
	src := corev1.VolumeProjection{PodCertificate: &corev1.PodCertificateProjection{
		SignerName: "example.com/s", KeyType: "ECDSAP256", CredentialBundlePath: "all.pem", KeyPath: "key.pem", CertificateChainPath: "chain.pem",
	}}
	dir, err := project(t, client, src)
	if err != nil {
		t.Fatal(err)
	}
	read := func(name string) string {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	if read("chain.pem") != anchor("leaf")+anchor("authority") || read("all.pem") != read("key.pem")+read("chain.pem") {
		t.Errorf("files:\n%s", read("all.pem"))
	}
	block, _ := pem.Decode([]byte(read("key.pem")))
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	proof, err := x509.ParseCertificateRequest(asked.Spec.StubPKCS10Request)
	if err != nil {
		t.Fatal(err)
	}
	if err := proof.CheckSignature(); err != nil || !key.(*ecdsa.PrivateKey).PublicKey.Equal(proof.PublicKey) {
		t.Errorf("the request does not prove the possession of the pod's key: %v", err)
	}
	s := asked.Spec
	if s.PodUID != "uid" || s.ServiceAccountUID != "sa-uid" || s.NodeUID != "node-uid" || asked.OwnerReferences[0].UID != "uid" {
		t.Errorf("the request: %+v", asked)
	}

	answer = metav1.Condition{Type: certificatesv1.PodCertificateRequestConditionTypeDenied, Reason: "No", Message: "never"}
	if _, err := project(t, client, src); err == nil || !strings.Contains(err.Error(), `permanently denied: reason="No"`) {
		t.Errorf("a request that was denied: %v", err)
	}
	src.PodCertificate.KeyType = "ROT13"
	if _, err := project(t, client, src); err == nil || !strings.Contains(err.Error(), "unknown key type") {
		t.Errorf("a key type that there is not: %v", err)
	}
}

// project mounts one projected source in a volume of a manager of its own.
func project(t *testing.T, client *fake.Clientset, src corev1.VolumeProjection) (string, error) {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "uid"},
		Spec: corev1.PodSpec{
			NodeName: "n", ServiceAccountName: "sa",
			Containers: []corev1.Container{{Name: "c", VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}}},
			Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
				Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{src}, DefaultMode: ptr.To[int32](0o644)},
			}}},
		},
	}
	root := t.TempDir()
	m, err := volume.New(volume.Config{RootDir: root, Client: client, Objects: &objects{}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Unmount(context.WithoutCancel(t.Context()), pod.UID); err != nil {
			t.Error(err)
		}
	})
	return filepath.Join(root, "pods/uid/volumes/kubernetes.io~projected/v"), m.Mount(t.Context(), pod)
}
