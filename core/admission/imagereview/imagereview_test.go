// SPDX-License-Identifier: Apache-2.0

package imagereview

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	imagepolicyv1alpha1 "k8s.io/api/imagepolicy/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/admissiontest"
	"github.com/wasmplane/wasmplane/core/admission/pluginconfig"
	"github.com/wasmplane/wasmplane/core/dial"
	"github.com/wasmplane/wasmplane/core/dial/dialtest"
)

// reviewer is a service that decides on images: those named bad are refused.
func reviewer(t *testing.T, asked *atomic.Int32) *httptest.Server {
	t.Helper()
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		asked.Add(1)
		var review imagepolicyv1alpha1.ImageReview
		if err := json.NewDecoder(req.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		review.Status.Allowed = true
		for _, c := range review.Spec.Containers {
			if strings.HasPrefix(c.Image, "bad") && review.Spec.Annotations["break.image-policy.k8s.io/glass"] == "" {
				review.Status = imagepolicyv1alpha1.ImageReviewStatus{Reason: "not signed", AuditAnnotations: map[string]string{"image": c.Image}}
			}
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(s.Close)
	return s
}

func settings(t *testing.T, s *httptest.Server) *pluginconfig.ImagePolicy {
	t.Helper()
	return &pluginconfig.ImagePolicy{
		KubeConfigFile: dialtest.Kubeconfig(t, s, s.URL+"/images", ""), AllowTTL: time.Minute, DenyTTL: time.Minute,
		RetryBackoff: time.Millisecond,
	}
}

// TestTheServiceThatDecidesOnImagesIsAskedByThePolicy: its answers are bounded, it leads the
// server nowhere else, and it is not the metadata service. No pod comes in by that.
func TestTheServiceThatDecidesOnImagesIsAskedByThePolicy(t *testing.T) {
	s := dialtest.New(t)
	for place, want := range s.Hostile() {
		p, err := New(&pluginconfig.ImagePolicy{KubeConfigFile: s.Kubeconfig(t, place), RetryBackoff: time.Millisecond},
			dial.Operator(nil))
		if err != nil {
			t.Fatal(err)
		}
		err = p.Validate(t.Context(), admissiontest.Creating("pods", aPod("good:0", nil)))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", place, err)
		}
	}
	if n := s.Reached.Load(); n != 0 {
		t.Errorf("a redirect was followed %d times", n)
	}
	<-s.Let
}

func TestAServiceDecidesOnImages(t *testing.T) {
	var asked atomic.Int32
	s := reviewer(t, &asked)
	p, err := New(settings(t, s), dial.Operator(nil))
	if err != nil {
		t.Fatal(err)
	}
	image := func(name string, annotations map[string]string) func() *admission.Request {
		return func() *admission.Request { return admissiontest.Creating("pods", aPod(name, annotations)) }
	}
	admissiontest.Run(t, p,
		admissiontest.Case{Name: "allowed", Request: image("good:1", nil)},
		admissiontest.Case{Name: "refused", Request: image("bad:1", nil), Denied: `pods "web" is forbidden: image policy webhook backend denied one or more images: not signed`},
		admissiontest.Case{
			Name:    "by annotation",
			Request: image("bad:1", map[string]string{"break.image-policy.k8s.io/glass": "yes", "other": "x"}),
		},
	)
	before := asked.Load()
	r := image("bad:1", nil)()
	if err := p.Validate(t.Context(), r); err == nil || r.Annotations()[auditPrefix+"image"] != "bad:1" || asked.Load() != before {
		t.Errorf("asked again: %v, annotations %v, %d questions more", err, r.Annotations(), asked.Load()-before)
	}
	s.Close()
	if err := p.Validate(t.Context(), image("good:2", nil)()); err == nil {
		t.Error("nobody answers, and the pod was let in")
	}
	p.settings.DefaultAllow = true
	r = image("good:3", nil)()
	if err := p.Validate(t.Context(), r); err != nil || r.Annotations()[auditPrefix+"failed-open"] != "true" {
		t.Errorf("failing open: %v, annotations %v", err, r.Annotations())
	}
}

func aPod(image string, annotations map[string]string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", Annotations: annotations},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: image}}},
	}
}
