// SPDX-License-Identifier: Apache-2.0

package apiserver_test

import (
	"context"
	"errors"
	"net/http"
	"reflect"
	"runtime"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/api/decodedsize"
	"github.com/wasmplane/wasmplane/core/apiserver/apiservertest"
	"github.com/wasmplane/wasmplane/core/apiserver/body"
	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/core/registry"
)

// decodedWrites keeps writes of pods where they have been decoded.
type decodedWrites struct{ entered, leave chan struct{} }

func (h decodedWrites) Mutate(ctx context.Context, r *admission.Request) error {
	if r.Resource.Resource != "pods" || r.User.GetName() == "setup" {
		return nil
	}
	h.entered <- struct{}{}
	select {
	case <-h.leave:
	case <-ctx.Done():
	}
	return errors.New("it was held for long enough") // nobody needs to look at so much that is wrong
}

func (decodedWrites) Validate(context.Context, *admission.Request) error { return nil }

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// A body of 120 KB is a pod of 16 MB. However many a user sends at one time, what they are decoded to is bounded; others have theirs,
// and all of it is given back.
func TestWhatBodiesAreDecodedToIsBounded(t *testing.T) {
	many := "[" + strings.Repeat("{},", 40_000) + "{}]"
	pod := `{"apiVersion":"v1","kind":"Pod","metadata":{"generateName":"x"},"spec":{"containers":` + many + `}}`
	takes := decodedsize.Size(reflect.TypeFor[corev1.Pod](), []byte(pod), object.JSON)
	if takes < 10<<20 {
		t.Fatalf("a pod of this test takes %d bytes only", takes)
	}
	const sent = 14
	for name, c := range map[string]struct{ method, path, mediaType, body string }{
		"a create":      {http.MethodPost, "/api/v1/namespaces/default/pods", "application/json", pod},
		"an update":     {http.MethodPut, "/api/v1/namespaces/default/pods/old", "application/json", strings.Replace(pod, "generateName\":\"x", "name\":\"old", 1)},
		"a JSON patch":  {http.MethodPatch, "/api/v1/namespaces/default/pods/old", "application/json-patch+json", `[{"op":"replace","path":"/spec/containers","value":` + many + `}]`},
		"a merge patch": {http.MethodPatch, "/api/v1/namespaces/default/pods/old", "application/merge-patch+json", `{"spec":{"containers":` + many + `}}`},
	} {
		t.Run(name, func(t *testing.T) {
			h := decodedWrites{make(chan struct{}), make(chan struct{})}
			s := apiservertest.Start(t, apiservertest.Options{Registry: func(c *registry.Config) { c.Admission = h }})
			setup := kubernetes.NewForConfigOrDie(s.Config("setup"))
			if _, err := setup.CoreV1().Pods("default").Create(t.Context(), &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: "old"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "a"}}},
			}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			before := heap()
			codes := make(chan int)
			for range sent {
				go func() { codes <- askAs(t, s, "ann", c.method, c.path, c.mediaType, c.body) }()
			}
			held, refused := 0, 0
			for held+refused < sent {
				select {
				case <-h.entered:
					held++
				case code := <-codes:
					if refused++; code != http.StatusTooManyRequests {
						t.Fatalf("answered %d", code)
					}
				}
			}
			taken := heap() - before
			t.Logf("%d of %d are served, %d MB are taken", held, sent, taken>>20)
			if held < 1 || int64(held)*takes > body.PerUser { // two as a rule: those that are refused later had room until then
				t.Errorf("%d requests that take %d bytes each are served at one time", held, takes)
			}
			if most := int64(2 * body.PerUser); taken > most {
				t.Errorf("%d bytes are taken, and %d are expected at most", taken, most)
			}
			// Another user has his own share.
			go func() { codes <- askAs(t, s, "bob", c.method, c.path, c.mediaType, c.body) }()
			select {
			case <-h.entered:
			case code := <-codes:
				t.Errorf("another user is answered %d", code)
			}
			close(h.leave)
			for range held + 1 {
				if code := <-codes; code != http.StatusInternalServerError {
					t.Errorf("who was held is answered %d", code)
				}
			}
			// And all of it has been given back.
			go func() { codes <- askAs(t, s, "ann", c.method, c.path, c.mediaType, c.body) }()
			select {
			case <-h.entered:
				<-codes
			case code := <-codes:
				t.Errorf("after the others were answered, one is answered %d", code)
			}
		})
	}
}
