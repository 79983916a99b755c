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
	"sync/atomic"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// serveAgain is the program of webhooks that make others be asked again: /late
// changes a pod only when it sees what somebody else did to it; /meddle writes to
// the ConfigMap that it is asked about, once, so that the write it is asked about
// finds another object than it began with.
func serveAgain() {
	cfg, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		log.Fatal(err)
	}
	set, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		log.Fatal(err)
	}
	var meddled atomic.Bool
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Request == nil {
			http.Error(w, "not a review", http.StatusBadRequest)
			return
		}
		out := &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
		switch about := string(review.Request.Object.Raw); r.URL.Path {
		case "/late":
			if strings.Contains(about, `"team":"unassigned"`) && !strings.Contains(about, "example.com/proxy") {
				jsonPatch := admissionv1.PatchTypeJSONPatch
				out.PatchType = &jsonPatch
				out.Patch = []byte(`[{"op":"add","path":"/metadata/annotations","value":{"example.com/proxy":"true"}}]`)
			}
		case "/meddle":
			if meddled.CompareAndSwap(false, true) { // its own write comes here too
				meddle(r.Context(), set, review.Request.Namespace, review.Request.Name)
			}
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

func meddle(ctx context.Context, set kubernetes.Interface, namespace, name string) {
	patch := []byte(`{"data":{"meddled":"yes"}}`)
	if _, err := set.CoreV1().ConfigMaps(namespace).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		log.Fatal(err)
	}
}
