// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// serveHooks is the program of admission webhooks: /mutate labels everything with
// who asked, /deny refuses what is labelled so, /lie answers another question,
// /hang never answers.
func serveHooks() {
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Request == nil {
			http.Error(w, "not a review", http.StatusBadRequest)
			return
		}
		out := &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
		switch r.URL.Path {
		case "/mutate":
			jsonPatch := admissionv1.PatchTypeJSONPatch
			out.PatchType = &jsonPatch
			out.Patch = []byte(`[{"op":"add","path":"/metadata/annotations","value":{"asked-by":"` + review.Request.UserInfo.Username + `"}}]`)
		case "/deny":
			if strings.Contains(string(review.Request.Object.Raw), `"forbidden":"yes"`) {
				out.Allowed, out.Result = false, &metav1.Status{Message: "it is labelled so", Code: http.StatusForbidden}
			}
			out.Warnings = []string{"somebody looked at " + review.Request.Name}
		case "/lie":
			out.UID = "another"
		case "/hang":
			<-r.Context().Done()
			return
		}
		_ = json.NewEncoder(w).Encode(admissionv1.AdmissionReview{
			TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"}, Response: out,
		})
	}))
	defer s.Close()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	fmt.Printf("serving at %s with %s\n", s.URL, base64.StdEncoding.EncodeToString(ca))
	select {}
}

// raceCreates is a program: race KUBECONFIG NAMESPACE N. It creates N ConfigMaps at
// once and tells how many were let in.
func raceCreates() {
	set := clientOf(os.Args[1])
	var n int
	if _, err := fmt.Sscan(os.Args[3], &n); err != nil {
		log.Fatal(err)
	}
	var admitted, refused atomic.Int64
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("race-%d", i)}}
			_, err := set.CoreV1().ConfigMaps(os.Args[2]).Create(context.Background(), m, metav1.CreateOptions{})
			switch {
			case err == nil:
				admitted.Add(1)
			case apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota: "):
				refused.Add(1)
			default:
				log.Fatal(err)
			}
		})
	}
	all.Wait()
	fmt.Printf("admitted %d, refused %d\n", admitted.Load(), refused.Load())
}
