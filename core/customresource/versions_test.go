// SPDX-License-Identifier: Apache-2.0

package customresource_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// hook is a conversion webhook: v1 has hostPort "host:port", v2 has host and port.
type hook struct {
	server *httptest.Server
	calls  atomic.Int64
	mu     sync.Mutex
	sizes  []int
	// spoil changes an answer before it is sent.
	spoil func(*apiextensionsv1.ConversionResponse)
}

func startHook(t *testing.T) *hook {
	t.Helper()
	h := &hook{}
	h.server = httptest.NewUnstartedServer(h)
	h.server.TLS = &tls.Config{Certificates: []tls.Certificate{selfSigned(t)}}
	h.server.StartTLS()
	t.Cleanup(h.server.Close)
	return h
}

func selfSigned(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	must(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func (h *hook) ca() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: h.server.TLS.Certificates[0].Certificate[0]})
}

func (h *hook) spoilt(f func(*apiextensionsv1.ConversionResponse)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.spoil = f
}

func (h *hook) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	review := &apiextensionsv1.ConversionReview{}
	if err := json.NewDecoder(req.Body).Decode(review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	h.calls.Add(1)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sizes = append(h.sizes, len(review.Request.Objects))
	answer := &apiextensionsv1.ConversionResponse{UID: review.Request.UID, Result: metav1.Status{Status: metav1.StatusSuccess}}
	for _, raw := range review.Request.Objects {
		u := &unstructured.Unstructured{}
		if err := u.UnmarshalJSON(raw.Raw); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		convertHost(u, review.Request.DesiredAPIVersion)
		answer.ConvertedObjects = append(answer.ConvertedObjects, runtime.RawExtension{Object: u})
	}
	if h.spoil != nil {
		h.spoil(answer)
	}
	review.Request, review.Response = nil, answer
	_ = json.NewEncoder(w).Encode(review)
}

func convertHost(u *unstructured.Unstructured, to string) {
	if to == "stable.example.com/v2" {
		host, port, _ := strings.Cut(fmt.Sprint(u.Object["hostPort"]), ":")
		u.Object["host"], u.Object["port"] = host, port
		delete(u.Object, "hostPort")
	} else {
		u.Object["hostPort"] = fmt.Sprintf("%v:%v", u.Object["host"], u.Object["port"])
		delete(u.Object, "host")
		delete(u.Object, "port")
	}
	u.SetAPIVersion(to)
}

// endpoints is a definition of two versions, stored as v1.
func endpoints(h *hook) string {
	return fmt.Sprintf(`
metadata: {name: endpoints.stable.example.com}
spec:
  group: stable.example.com
  scope: Namespaced
  names: {plural: endpoints, singular: endpoint, kind: Endpoint, listKind: EndpointList}
  conversion:
    strategy: Webhook
    webhook: {conversionReviewVersions: [v1], clientConfig: {url: %q, caBundle: %s}}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, properties: {hostPort: {type: string}, note: {type: string, default: old}}}}
  - name: v2
    served: true
    storage: false
    selectableFields: [{jsonPath: .host}]
    additionalPrinterColumns: [{name: Port, type: string, jsonPath: .port}]
    schema: {openAPIV3Schema: {type: object, properties: {host: {type: string}, port: {type: string}, note: {type: string},
      added: {type: string, default: new}}}}
`, h.server.URL, text(h.ca()))
}

func endpoint(t *testing.T, version, name, fields string) *unstructured.Unstructured {
	t.Helper()
	return object(t, fmt.Sprintf("apiVersion: stable.example.com/%s\nkind: Endpoint\nmetadata: {name: %s, labels: {a: b}}\n%s\n", version, name, fields))
}

func TestAWebhookConvertsBetweenVersions(t *testing.T) {
	h := startHook(t)
	c := start(t, clusterOptions{})
	c.define(endpoints(h))
	v1, v2 := c.in("endpoints.v1.stable.example.com"), c.in("endpoints.v2.stable.example.com")

	_, err := v1.Create(t.Context(), endpoint(t, "v1", "a", "hostPort: x:1"), metav1.CreateOptions{})
	must(t, err)
	got, err := v2.Get(t.Context(), "a", metav1.GetOptions{})
	must(t, err)
	if at(got, "host") != "x" || at(got, "port") != "1" || at(got, "note") != "old" || at(got, "added") != nil || at(got, "hostPort") != nil {
		t.Errorf("v1 as v2: %s", text(got))
	}
	made, err := v2.Create(t.Context(), endpoint(t, "v2", "b", "host: z\nport: '2'"), metav1.CreateOptions{})
	must(t, err)
	if at(made, "host") != "z" || made.GetAPIVersion() != "stable.example.com/v2" || made.GetResourceVersion() == "" {
		t.Errorf("made as v2: %s", text(made))
	}
	if at(made, "added") != nil {
		t.Errorf("the storage version has no room for added, and yet the answer has it: %s", text(made))
	}
	kv, err := c.srv.Store.Get(t.Context(), "/registry/stable.example.com/endpoints/default/b")
	if err != nil || !strings.Contains(string(kv.Value), `"apiVersion":"stable.example.com/v1"`) || !strings.Contains(string(kv.Value),
		`"hostPort":"z:2"`) {
		t.Errorf("stored %s %v", kv.Value, err)
	}
	patched, err := v2.Patch(t.Context(), "b", types.MergePatchType, []byte(`{"port":"3"}`), metav1.PatchOptions{})
	if err != nil || at(patched, "port") != "3" {
		t.Errorf("%s %v", text(patched), err)
	}
	applied, err := v2.Apply(t.Context(), "a", endpoint(t, "v2", "a", "host: other\nport: '9'"),
		metav1.ApplyOptions{FieldManager: "jane", Force: true})
	if err != nil || at(applied, "host") != "other" {
		t.Errorf("%s %v", text(applied), err)
	}
	old, err := v1.Get(t.Context(), "a", metav1.GetOptions{})
	if err != nil || at(old, "hostPort") != "other:9" {
		t.Errorf("%s %v", text(old), err)
	}
	must(t, v2.Delete(t.Context(), "b", metav1.DeleteOptions{}))
}

func TestAListIsConvertedInOneCallAndAnEventOnceForAllWatchers(t *testing.T) {
	h := startHook(t)
	c := start(t, clusterOptions{})
	c.define(endpoints(h))
	v1, v2 := c.in("endpoints.v1.stable.example.com"), c.in("endpoints.v2.stable.example.com")
	for i := range 20 {
		_, err := v1.Create(t.Context(), endpoint(t, "v1", fmt.Sprintf("e%02d", i), fmt.Sprintf("hostPort: h%d:1", i%2)), metav1.CreateOptions{})
		must(t, err)
	}
	before := h.calls.Load()
	list, err := v2.List(t.Context(), metav1.ListOptions{})
	must(t, err)
	if len(list.Items) != 20 || at(&list.Items[1], "host") != "h1" {
		t.Fatalf("%d items", len(list.Items))
	}
	if calls := h.calls.Load() - before; calls != 1 {
		t.Errorf("a list of 20 was converted in %d calls", calls)
	}
	if _, err := v2.List(t.Context(), metav1.ListOptions{}); err != nil || h.calls.Load()-before != 1 {
		t.Errorf("the same list was converted again: %v", err)
	}
	selected, err := v2.List(t.Context(), metav1.ListOptions{FieldSelector: "host=h1"})
	if err != nil || len(selected.Items) != 10 {
		t.Errorf("a selector on a converted field found %d: %v", len(selected.Items), err)
	}

	var watches []watch.Interface
	for range 10 {
		w, err := v2.Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.GetResourceVersion()})
		must(t, err)
		defer w.Stop()
		watches = append(watches, w)
	}
	before = h.calls.Load()
	_, err = v1.Create(t.Context(), endpoint(t, "v1", "late", "hostPort: late:1"), metav1.CreateOptions{})
	must(t, err)
	for _, w := range watches {
		if e := <-w.ResultChan(); e.Type != watch.Added || at(e.Object.(*unstructured.Unstructured), "host") != "late" {
			t.Errorf("a watcher saw %v", e)
		}
	}
	// Field management asks for nothing here: there is one manager, of v1.
	if calls := h.calls.Load() - before; calls != 1 {
		t.Errorf("one event was converted %d times for 10 watchers", calls)
	}
}

func TestWhatAWebhookAnswersIsHeldAgainstWhatItWasAsked(t *testing.T) {
	h := startHook(t)
	c := start(t, clusterOptions{})
	c.define(endpoints(h))
	v1, v2 := c.in("endpoints.v1.stable.example.com"), c.in("endpoints.v2.stable.example.com")
	_, err := v1.Create(t.Context(), endpoint(t, "v1", "a", "hostPort: x:1"), metav1.CreateOptions{})
	must(t, err)
	answer := func(r *apiextensionsv1.ConversionResponse) *unstructured.Unstructured {
		return r.ConvertedObjects[0].Object.(*unstructured.Unstructured)
	}
	for name, story := range map[string]struct {
		spoil func(*apiextensionsv1.ConversionResponse)
		want  string
	}{
		"it fails": {func(r *apiextensionsv1.ConversionResponse) {
			r.Result = metav1.Status{Status: metav1.StatusFailure, Message: "out of order"}
		}, "conversion webhook for stable.example.com/v1, Kind=Endpoint failed: out of order"},
		"nothing":        {func(r *apiextensionsv1.ConversionResponse) { r.ConvertedObjects = nil }, "returned 0 objects, expected 1"},
		"another UID":    {func(r *apiextensionsv1.ConversionResponse) { r.UID = "x" }, "expected response.uid="},
		"another name":   {func(r *apiextensionsv1.ConversionResponse) { answer(r).SetName("b") }, "must have the same name: a != b"},
		"another kind":   {func(r *apiextensionsv1.ConversionResponse) { answer(r).SetKind("Pod") }, "invalid kind (expected Endpoint, received Pod)"},
		"the version":    {func(r *apiextensionsv1.ConversionResponse) { answer(r).SetAPIVersion("stable.example.com/v1") }, "invalid groupVersion (expected stable.example.com/v2, received stable.example.com/v1)"},
		"no metadata":    {func(r *apiextensionsv1.ConversionResponse) { delete(answer(r).Object, "metadata") }, "must have the same name: a != "},
		"a broken label": {func(r *apiextensionsv1.ConversionResponse) { answer(r).SetLabels(map[string]string{"a": "b c"}) }, "metadata.labels: Invalid value"},
	} {
		t.Run(name, func(t *testing.T) {
			h.spoilt(story.spoil)
			_, err := v2.Get(t.Context(), "a", metav1.GetOptions{})
			if err == nil || !strings.Contains(err.Error(), story.want) {
				t.Errorf("%v\nwant %s", err, story.want)
			}
		})
	}
	h.spoilt(func(r *apiextensionsv1.ConversionResponse) {
		u := answer(r)
		u.SetFinalizers([]string{"example.com/x"})
		u.SetAnnotations(map[string]string{"c": "d"})
		u.SetLabels(nil)
	})
	got, err := v2.Get(t.Context(), "a", metav1.GetOptions{})
	if err != nil || len(got.GetFinalizers()) > 0 || got.GetAnnotations()["c"] != "d" || len(got.GetLabels()) > 0 {
		t.Errorf("metadata after the conversion: %s %v", text(got), err)
	}
	h.server.Close()
	if _, err := v1.Get(t.Context(), "a", metav1.GetOptions{}); err != nil {
		t.Errorf("the stored version needs no webhook: %v", err)
	}
}

func TestAnotherStorageVersionLeavesOldObjectsReadable(t *testing.T) {
	h := startHook(t)
	c := start(t, clusterOptions{})
	crd := c.define(endpoints(h))
	v1, v2 := c.in("endpoints.v1.stable.example.com"), c.in("endpoints.v2.stable.example.com")
	_, err := v1.Create(t.Context(), endpoint(t, "v1", "a", "hostPort: x:1"), metav1.CreateOptions{})
	must(t, err)
	c.redefine(crd.Name, func(crd *apiextensionsv1.CustomResourceDefinition) {
		crd.Spec.Versions[0].Storage, crd.Spec.Versions[1].Storage = false, true
	})
	_, err = v2.Create(t.Context(), endpoint(t, "v2", "b", "host: z\nport: '2'"), metav1.CreateOptions{})
	must(t, err)
	kv, err := c.srv.Store.Get(t.Context(), "/registry/stable.example.com/endpoints/default/b")
	if err != nil || !strings.Contains(string(kv.Value), `"added":"new"`) {
		t.Errorf("stored %s %v", kv.Value, err)
	}
	for _, versioned := range []struct {
		list func() (*unstructured.UnstructuredList, error)
		want string
	}{
		{func() (*unstructured.UnstructuredList, error) { return v1.List(t.Context(), metav1.ListOptions{}) }, `a "x:1" b "z:2"`},
		{func() (*unstructured.UnstructuredList, error) { return v2.List(t.Context(), metav1.ListOptions{}) }, `a "x" b "z"`},
	} {
		list, err := versioned.list()
		must(t, err)
		var got []string
		for _, u := range list.Items {
			host := at(&u, "hostPort")
			if host == nil {
				host = at(&u, "host")
			}
			got = append(got, fmt.Sprintf("%s %q", u.GetName(), host))
		}
		if strings.Join(got, " ") != versioned.want {
			t.Errorf("%q, want %s", got, versioned.want)
		}
	}
	now, err := c.crds.Get(t.Context(), crd.Name, metav1.GetOptions{})
	if err != nil || !slices.Equal(now.Status.StoredVersions, []string{"v1", "v2"}) {
		t.Errorf("stored versions %v, %v", now.Status.StoredVersions, err)
	}
	// A write brings an object to the storage version.
	_, err = v1.Patch(t.Context(), "a", types.MergePatchType, []byte(`{"metadata":{"labels":{"c":"d"}}}`), metav1.PatchOptions{})
	must(t, err)
	if kv, err = c.srv.Store.Get(t.Context(), "/registry/stable.example.com/endpoints/default/a"); err != nil ||
		!strings.Contains(string(kv.Value), `"host":"x"`) {
		t.Errorf("stored %s %v", kv.Value, err)
	}
}

func TestAChangedDefinitionHoldsForWhatIsStored(t *testing.T) {
	c := start(t, clusterOptions{})
	crd := c.define(crontabs)
	tabs := c.in("crontabs.v1.stable.example.com")
	_, err := tabs.Create(t.Context(), tab(t, "a", `{cronSpec: "* * * * 5", plain: kept}`), metav1.CreateOptions{})
	must(t, err)
	w, err := tabs.Watch(t.Context(), metav1.ListOptions{})
	must(t, err)
	defer w.Stop()
	<-w.ResultChan()
	schema := func(change func(map[string]apiextensionsv1.JSONSchemaProps)) {
		c.redefine(crd.Name, func(crd *apiextensionsv1.CustomResourceDefinition) {
			change(crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties)
		})
	}
	schema(func(p map[string]apiextensionsv1.JSONSchemaProps) {
		p["level"] = apiextensionsv1.JSONSchemaProps{Type: "string", Default: &apiextensionsv1.JSON{Raw: []byte(`"low"`)}}
		delete(p, "plain")
	})
	if e, open := <-w.ResultChan(); open {
		t.Errorf("a watch outlived its definition and saw %v", e)
	}
	got, err := tabs.Get(t.Context(), "a", metav1.GetOptions{ResourceVersion: "0"})
	if err != nil || at(got, "spec.level") != "low" || at(got, "spec.plain") != nil {
		t.Errorf("read with the new schema: %s %v", text(got), err)
	}
	schema(func(p map[string]apiextensionsv1.JSONSchemaProps) {
		p["plain"] = apiextensionsv1.JSONSchemaProps{Type: "string"}
	})
	if got, err = tabs.Get(t.Context(), "a", metav1.GetOptions{ResourceVersion: "0"}); err != nil || at(got, "spec.plain") != "kept" {
		t.Errorf("what is stored is not what was read meanwhile: %s %v", text(got), err)
	}
	c.redefine(crd.Name, func(crd *apiextensionsv1.CustomResourceDefinition) {
		v := crd.Spec.Versions[0].DeepCopy()
		v.Name, v.Storage = "v2", false
		crd.Spec.Versions = append(crd.Spec.Versions, *v)
		crd.Spec.Versions[0].Deprecated = true
	})
	if got, err = c.in("crontabs.v2.stable.example.com").Get(t.Context(), "a", metav1.GetOptions{}); err != nil ||
		got.GetAPIVersion() != "stable.example.com/v2" {
		t.Errorf("a version that was added: %v", err)
	}
	client, err := restClient(c)
	must(t, err)
	warned := client.Get().AbsPath("/apis/stable.example.com/v1/namespaces/default/crontabs/a").Do(t.Context())
	if len(warned.Warnings()) != 1 ||
		warned.Warnings()[0].Text != "stable.example.com/v1 CronTab is deprecated; use stable.example.com/v2 CronTab" {
		t.Errorf("users of the old version are told %v", warned.Warnings())
	}
}
