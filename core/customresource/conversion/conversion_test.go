// SPDX-License-Identifier: Apache-2.0

package conversion

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/dial"
	"github.com/wasmplane/wasmplane/core/dial/dialtest"
)

var (
	v1 = schema.GroupVersion{Group: "example.com", Version: "v1"}
	v2 = schema.GroupVersion{Group: "example.com", Version: "v2"}
)

func tree(tb testing.TB, text string) *unstructured.Unstructured {
	tb.Helper()
	u := &unstructured.Unstructured{}
	if err := json.Unmarshal([]byte(text), &u.Object); err != nil {
		tb.Fatal(err)
	}
	return u
}

func given(tb testing.TB) *unstructured.Unstructured {
	tb.Helper()
	return tree(tb, `{"apiVersion":"example.com/v1","kind":"Tab","metadata":{"name":"a","namespace":"n","uid":"u","labels":{"a":"b"},"finalizers":["f"]},"spec":{"x":1}}`)
}

func TestNoneChangesTheVersionOnly(t *testing.T) {
	in := given(t)
	out, err := None{}.Convert(t.Context(), []*unstructured.Unstructured{in}, v2)
	if err != nil || out[0].GetAPIVersion() != v2.String() || in.GetAPIVersion() != v1.String() {
		t.Fatal(out, err)
	}
	out[0].SetAPIVersion(v1.String())
	a, _ := json.Marshal(in)
	if b, _ := json.Marshal(out[0]); string(a) != string(b) {
		t.Errorf("%s\n%s", a, b)
	}
}

func TestMetadataIsTheOriginalsButForLabelsAndAnnotations(t *testing.T) {
	for name, story := range map[string]struct{ answer, want, err string }{
		"labels and annotations are taken": {
			answer: `{"apiVersion":"example.com/v2","kind":"Tab","metadata":{"name":"a","namespace":"n","uid":"u","labels":{"c":"d"},"annotations":{"e":"f"},"finalizers":[],"generation":9}}`,
			want:   `{"annotations":{"e":"f"},"finalizers":["f"],"labels":{"c":"d"},"name":"a","namespace":"n","uid":"u"}`,
		},
		"labels may go":            {answer: `{"apiVersion":"example.com/v2","kind":"Tab","metadata":{"name":"a","namespace":"n","uid":"u"}}`, want: `{"finalizers":["f"],"name":"a","namespace":"n","uid":"u"}`},
		"another namespace":        {answer: `{"apiVersion":"example.com/v2","kind":"Tab","metadata":{"name":"a","namespace":"m","uid":"u"}}`, err: "must have the same namespace: n != m"},
		"another UID":              {answer: `{"apiVersion":"example.com/v2","kind":"Tab","metadata":{"name":"a","namespace":"n","uid":"w"}}`, err: "must have the same UID: u != w"},
		"labels that are no map":   {answer: `{"apiVersion":"example.com/v2","kind":"Tab","metadata":{"name":"a","namespace":"n","uid":"u","labels":[]}}`, err: "invalid metadata.labels of type []interface {}"},
		"a label that is no text":  {answer: `{"apiVersion":"example.com/v2","kind":"Tab","metadata":{"name":"a","namespace":"n","uid":"u","labels":{"a":1}}}`, err: "metadata.labels[a] must be a string, but is float64"},
		"a bad annotation":         {answer: `{"apiVersion":"example.com/v2","kind":"Tab","metadata":{"name":"a","namespace":"n","uid":"u","annotations":{"-":""}}}`, err: "metadata.annotation"},
		"the version was not made": {answer: `{"apiVersion":"example.com/v1","kind":"Tab"}`, err: "invalid groupVersion (expected example.com/v2, received example.com/v1)"},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := same("webhook", []*unstructured.Unstructured{given(t)}, []*unstructured.Unstructured{tree(t, story.answer)}, v2)
			if story.err != "" {
				if err == nil || !strings.Contains(err.Error(), story.err) {
					t.Errorf("%v, want %s", err, story.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got, _ := json.Marshal(out[0].Object["metadata"]); string(got) != story.want {
				t.Errorf("%s, want %s", got, story.want)
			}
		})
	}
}

// resolver finds every Service at one address.
type resolver struct{ at string }

func (r resolver) ResolveEndpoint(namespace, name string, port int32) (*url.URL, error) {
	if namespace != "ns" || name != "svc" || port != 8443 {
		return nil, errors.New("asked for another Service")
	}
	return &url.URL{Scheme: "https", Host: r.at}, nil
}

func TestAServiceIsCalledByItsNameAtItsEndpoint(t *testing.T) {
	asked := make(chan string, 1)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		asked <- req.Host + req.URL.Path
		http.Error(w, "no", http.StatusTeapot)
	}))
	defer server.Close()
	hooks, err := NewWebhooks(resolver{server.Listener.Addr().String()}, dial.Operator(nil))
	if err != nil {
		t.Fatal(err)
	}
	path, port := "/convert", int32(8443)
	crd := &apiextensionsv1.CustomResourceDefinition{}
	crd.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{
		Strategy: apiextensionsv1.WebhookConverter,
		Webhook: &apiextensionsv1.WebhookConversion{
			ConversionReviewVersions: []string{"v7", "v1"},
			ClientConfig: &apiextensionsv1.WebhookClientConfig{Service: &apiextensionsv1.ServiceReference{
				Namespace: "ns", Name: "svc",
				Path: &path, Port: &port,
			}, CABundle: []byte(" \n")},
		},
	}
	c, err := hooks.For(crd)
	if err != nil {
		t.Fatal(err)
	}
	// The certificate is for example.com, and signed by nobody whom anybody trusts.
	if _, err = c.Convert(t.Context(), []*unstructured.Unstructured{given(t)}, v2); err == nil || !strings.Contains(err.Error(),
		"conversion webhook for example.com/v1, Kind=Tab failed: ") || !strings.Contains(err.Error(), "svc.ns.svc:8443/convert") {
		t.Errorf("%v", err)
	}
	select {
	case host := <-asked:
		t.Errorf("a server with a bad certificate was asked: %s", host)
	default:
	}
	out, err := c.Convert(t.Context(), []*unstructured.Unstructured{tree(t, `{"apiVersion":"example.com/v1","kind":"Tab"}`)}, v2)
	if err != nil || out[0].GetAPIVersion() != v2.String() {
		t.Errorf("an empty object is nothing to ask about: %v", err)
	}
	crd.Spec.Conversion.Webhook.ConversionReviewVersions = []string{"v7"}
	if c, err = hooks.For(crd); err != nil {
		t.Fatal(err)
	}
	if _, err = c.Convert(t.Context(), []*unstructured.Unstructured{given(t)}, v2); err == nil ||
		err.Error() != "no supported conversion review versions" {
		t.Errorf("%v", err)
	}
	crd.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{Strategy: "Magic"}
	if _, err := hooks.For(crd); err == nil || !strings.Contains(err.Error(), `unknown conversion strategy "Magic"`) {
		t.Errorf("%v", err)
	}
}

// TestAConversionWebhookIsAskedByThePolicy: its answers are bounded, it leads the server
// nowhere else, and it is not the metadata service of the machine.
func TestAConversionWebhookIsAskedByThePolicy(t *testing.T) {
	s := dialtest.New(t)
	for place, want := range s.Hostile() {
		hooks, err := NewWebhooks(nil, dial.Operator(nil))
		if err != nil {
			t.Fatal(err)
		}
		crd := &apiextensionsv1.CustomResourceDefinition{}
		crd.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{
			Strategy: apiextensionsv1.WebhookConverter,
			Webhook: &apiextensionsv1.WebhookConversion{
				ConversionReviewVersions: []string{"v1"}, ClientConfig: &apiextensionsv1.WebhookClientConfig{URL: &place, CABundle: s.CA()},
			},
		}
		c, err := hooks.For(crd)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Convert(t.Context(), []*unstructured.Unstructured{given(t)}, v2); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", place, err)
		}
	}
	if n := s.Reached.Load(); n != 0 {
		t.Errorf("a redirect was followed %d times", n)
	}
	<-s.Let
}

// FuzzSame: whatever a webhook answers, it is refused, or is the object that was sent.
func FuzzSame(f *testing.F) {
	f.Add([]byte(`{"apiVersion":"example.com/v2","kind":"Tab","metadata":{"name":"a","namespace":"n","uid":"u","labels":{"c":"d"}}}`))
	f.Add([]byte(`{"apiVersion":"example.com/v2","kind":"Tab","metadata":{"name":"a","namespace":"n","uid":"u","labels":null,"annotations":7}}`))
	f.Add([]byte(`{"apiVersion":"example.com/v2","kind":"Tab","metadata":[]}`))
	f.Fuzz(func(t *testing.T, answer []byte) {
		u := &unstructured.Unstructured{}
		if json.Unmarshal(answer, &u.Object) != nil || u.Object == nil {
			return
		}
		in := given(t)
		out, err := same("webhook", []*unstructured.Unstructured{in}, []*unstructured.Unstructured{u}, v2)
		if err != nil {
			return
		}
		if out[0].GetName() != "a" || out[0].GetUID() != "u" || len(out[0].GetFinalizers()) != 1 || out[0].GetGeneration() != 0 {
			t.Fatalf("another object came through: %v", out[0].Object)
		}
	})
}
