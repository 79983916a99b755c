// SPDX-License-Identifier: Apache-2.0

package apiserver_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/authentication/user"
	applyautoscalingv1 "k8s.io/client-go/applyconfigurations/autoscaling/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/wasmplane/wasmplane/core/apiserver/apiservertest"
	"github.com/wasmplane/wasmplane/core/client"
)

// clients are the ways that programs talk to the server.
func clients(t *testing.T, s *apiservertest.Server) map[string]*rest.Config {
	t.Helper()
	text := s.Config("text")
	proto := s.Config("proto")
	proto.ContentType, proto.AcceptContentTypes = "application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf,application/json"
	return map[string]*rest.Config{
		"JSON": text, "protobuf": proto,
		"in memory": client.InMemory(s.LocalHandler(), &user.DefaultInfo{Name: "inside", Groups: []string{user.SystemPrivilegedGroup}}, "test"),
	}
}

func namespace(t *testing.T, c kubernetes.Interface, name string) string {
	t.Helper()
	_, err := c.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("create namespace %s: %v", name, err)
	}
	return name
}

func configMap(name, value string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"v": value}}
}

func TestClientGo(t *testing.T) {
	s := apiservertest.Start(t, apiservertest.Options{})
	for name, cfg := range clients(t, s) {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			c := kubernetes.NewForConfigOrDie(cfg)
			ns := namespace(t, c, "client-"+strings.ReplaceAll(strings.ToLower(name), " ", "-"))
			maps := c.CoreV1().ConfigMaps(ns)

			created, err := maps.Create(ctx, configMap("one", "1"), metav1.CreateOptions{})
			if err != nil {
				t.Fatalf("create: %v", err)
			}
			if created.UID == "" || created.ResourceVersion == "" || created.CreationTimestamp.IsZero() || len(created.ManagedFields) != 1 {
				t.Errorf("the created object lacks metadata: %+v", created.ObjectMeta)
			}
			w, err := maps.Watch(ctx, metav1.ListOptions{ResourceVersion: created.ResourceVersion})
			if err != nil {
				t.Fatalf("watch: %v", err)
			}
			defer w.Stop()

			generated, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "gen-"}}, metav1.CreateOptions{})
			if err != nil || !strings.HasPrefix(generated.Name, "gen-") {
				t.Fatalf("create with a generated name: %v, %q", err, generated.Name)
			}
			expect(t, w, watch.Added, generated.Name)

			stale := created.DeepCopy()
			created.Data["v"] = "2"
			updated, err := maps.Update(ctx, created, metav1.UpdateOptions{})
			if err != nil {
				t.Fatalf("update: %v", err)
			}
			expect(t, w, watch.Modified, "one")
			same, err := maps.Update(ctx, updated.DeepCopy(), metav1.UpdateOptions{})
			if err != nil || same.ResourceVersion != updated.ResourceVersion {
				t.Errorf("an update that changes nothing: %v, revision %s became %s", err, updated.ResourceVersion, same.ResourceVersion)
			}
			if _, err := maps.Update(ctx, stale, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
				t.Errorf("update of an old state: expected a conflict, got %v", err)
			}
			if _, err := maps.Create(ctx, configMap("one", "x"), metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
				t.Errorf("create what exists: got %v", err)
			}

			list, err := maps.List(ctx, metav1.ListOptions{})
			if err != nil || len(list.Items) != 2 {
				t.Fatalf("list: %v, %d items", err, len(list.Items))
			}
			uid := types.UID("nobody")
			if err := maps.Delete(ctx, "one", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}}); !apierrors.IsConflict(err) {
				t.Errorf("delete of another uid: got %v", err)
			}
			if err := maps.Delete(ctx, "one", metav1.DeleteOptions{}); err != nil {
				t.Errorf("delete: %v", err)
			}
			expect(t, w, watch.Deleted, "one")
			if _, err := maps.Get(ctx, "one", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				t.Errorf("get what is gone: got %v", err)
			}
			if err := maps.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
				t.Errorf("delete collection: %v", err)
			}
			expect(t, w, watch.Deleted, generated.Name)
		})
	}
}

func expect(t *testing.T, w watch.Interface, kind watch.EventType, name string) {
	t.Helper()
	select {
	case e, ok := <-w.ResultChan():
		if !ok {
			t.Fatalf("the watch ended before %s of %s", kind, name)
		}
		o, ok := e.Object.(metav1.Object)
		if e.Type != kind || !ok || o.GetName() != name {
			t.Fatalf("expected %s of %s, got %s of %+v", kind, name, e.Type, e.Object)
		}
	case <-time.After(20 * time.Second):
		t.Fatalf("no event for 20 s; expected %s of %s", kind, name)
	}
}

// Informers of today start by a watch that sends the present state first.
func TestInformers(t *testing.T) {
	s := apiservertest.Start(t, apiservertest.Options{})
	for name, cfg := range clients(t, s) {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			c := kubernetes.NewForConfigOrDie(cfg)
			ns := namespace(t, c, "informer-"+strings.ReplaceAll(strings.ToLower(name), " ", "-"))
			for i := range 5 {
				if _, err := c.CoreV1().ConfigMaps(ns).Create(ctx, configMap(fmt.Sprintf("cm-%d", i), "1"), metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			seen := make(chan string, 100)
			f := informers.NewSharedInformerFactoryWithOptions(c, 0, informers.WithNamespace(ns))
			inf := f.Core().V1().ConfigMaps().Informer()
			_, err := inf.AddEventHandler(cache.ResourceEventHandlerFuncs{
				AddFunc:    func(o any) { seen <- "add " + o.(*corev1.ConfigMap).Name },
				UpdateFunc: func(_, o any) { seen <- "update " + o.(*corev1.ConfigMap).Name },
				DeleteFunc: func(o any) { seen <- "delete " + o.(*corev1.ConfigMap).Name },
			})
			if err != nil {
				t.Fatal(err)
			}
			f.Start(ctx.Done())
			if !cache.WaitForCacheSync(ctx.Done(), inf.HasSynced) {
				t.Fatal("the informer did not sync")
			}
			if n := len(inf.GetStore().List()); n != 5 {
				t.Errorf("synced with %d objects, expected 5", n)
			}
			for range 5 {
				<-seen
			}
			if _, err := c.CoreV1().ConfigMaps(ns).Create(ctx, configMap("late", "1"), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			if got := <-seen; got != "add late" {
				t.Errorf("saw %q", got)
			}
			cancel()
			f.Shutdown()
		})
	}
	t.Run("metadata", func(t *testing.T) {
		m := metadata.NewForConfigOrDie(metadata.ConfigFor(s.Config("gc")))
		gvr := corev1.SchemeGroupVersion.WithResource("configmaps")
		l, err := m.Resource(gvr).Namespace("informer-json").List(t.Context(), metav1.ListOptions{})
		if err != nil || len(l.Items) != 6 || l.Items[0].Name == "" {
			t.Fatalf("metadata of a list: %v, %+v", err, l)
		}
		w, err := m.Resource(gvr).Namespace("informer-json").Watch(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
		if e := <-w.ResultChan(); e.Type != watch.Added || e.Object.(*metav1.PartialObjectMetadata).Name == "" {
			t.Errorf("first event: %+v", e)
		}
	})
}

// A list can be read to its end although the state has moved on, until it is
// compacted away: then the client is told how to go on.
func TestContinue(t *testing.T) {
	s := apiservertest.Start(t, apiservertest.Options{})
	c := kubernetes.NewForConfigOrDie(s.Config("reader"))
	ns := namespace(t, c, "pages")
	maps := c.CoreV1().ConfigMaps(ns)
	for i := range 7 {
		if _, err := maps.Create(t.Context(), configMap(fmt.Sprintf("cm-%d", i), "1"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	first, err := maps.List(t.Context(), metav1.ListOptions{Limit: 3})
	if err != nil || len(first.Items) != 3 || *first.RemainingItemCount != 4 {
		t.Fatalf("first page: %v, %+v", err, first)
	}
	if err := maps.Delete(t.Context(), "cm-4", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	second, err := maps.List(t.Context(), metav1.ListOptions{Limit: 3, Continue: first.Continue})
	if err != nil || len(second.Items) != 3 || second.Items[1].Name != "cm-4" || second.ResourceVersion != first.ResourceVersion {
		t.Fatalf("second page: %v, %+v", err, second)
	}
	exact, err := maps.List(t.Context(),
		metav1.ListOptions{ResourceVersion: first.ResourceVersion, ResourceVersionMatch: metav1.ResourceVersionMatchExact})
	if err != nil || len(exact.Items) != 7 {
		t.Errorf("list at exactly %s: %v", first.ResourceVersion, err)
	}
	if _, err := maps.List(t.Context(), metav1.ListOptions{Continue: "nonsense"}); !apierrors.IsBadRequest(err) {
		t.Errorf("nonsense token: got %v", err)
	}
	err = c.CoreV1().RESTClient().Get().Namespace(ns).Resource("configmaps").Param("resourceVersion", "1000000").MaxRetries(0).Do(
		t.Context()).Error()
	if !apierrors.IsTimeout(err) || !apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge) {
		t.Errorf("a revision of the future: got %v", err)
	}
	if _, err := maps.List(t.Context(), metav1.ListOptions{ResourceVersion: "abc"}); !apierrors.IsBadRequest(err) &&
		!apierrors.IsInvalid(err) {
		t.Errorf("a revision that is none: got %v", err)
	}

	// Another server, which does not remember the page's state, on a compacted store.
	revision, err := s.Store.Revision(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Store.Compact(t.Context(), revision); err != nil {
		t.Fatal(err)
	}
	other := apiservertest.Start(t, apiservertest.Options{Store: s.Store})
	maps = kubernetes.NewForConfigOrDie(other.Config("reader")).CoreV1().ConfigMaps(ns)
	_, err = maps.List(t.Context(), metav1.ListOptions{Limit: 3, Continue: first.Continue})
	var status apierrors.APIStatus
	if !errors.As(err, &status) || !apierrors.IsResourceExpired(err) || status.Status().ListMeta.Continue == "" {
		t.Fatalf("a page of a compacted state: got %v", err)
	}
	rest, err := maps.List(t.Context(), metav1.ListOptions{Limit: 30, Continue: status.Status().ListMeta.Continue})
	if err != nil || len(rest.Items) != 3 {
		t.Errorf("the rest, inconsistent: %v, %d items", err, len(rest.Items))
	}
	w, err := maps.Watch(t.Context(), metav1.ListOptions{ResourceVersion: "1"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	e := <-w.ResultChan()
	if st, ok := e.Object.(*metav1.Status); e.Type != watch.Error || !ok || st.Code != http.StatusGone {
		t.Errorf("a watch from long ago: got %+v", e)
	}
}

// What one server acknowledged is in the next list of another one.
func TestTwoServers(t *testing.T) {
	one := apiservertest.Start(t, apiservertest.Options{})
	two := apiservertest.Start(t, apiservertest.Options{Store: one.Store})
	a, b := kubernetes.NewForConfigOrDie(one.Config("a")), kubernetes.NewForConfigOrDie(two.Config("b"))
	ns := namespace(t, a, "shared")
	for i := range 50 {
		name := fmt.Sprintf("cm-%d", i)
		if _, err := a.CoreV1().ConfigMaps(ns).Create(t.Context(), configMap(name, "1"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		list, err := b.CoreV1().ConfigMaps(ns).List(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) != i+1 {
			t.Fatalf("after %d creates at one server, the other lists %d: %v", i+1, len(list.Items), err)
		}
		if _, err := b.CoreV1().ConfigMaps(ns).Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	// Both count up the same number: none of the increments is lost.
	done := make(chan error, 2)
	for _, c := range []kubernetes.Interface{a, b} {
		go func() {
			for range 25 {
				if err := increment(t.Context(), c, ns, "cm-0"); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
	}
	for range 2 {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	cm, err := a.CoreV1().ConfigMaps(ns).Get(t.Context(), "cm-0", metav1.GetOptions{})
	if err != nil || len(cm.Data["n"]) != 50 {
		t.Errorf("50 increments made %d: %v", len(cm.Data["n"]), err)
	}
}

func increment(ctx context.Context, c kubernetes.Interface, ns, name string) error {
	for {
		cm, err := c.CoreV1().ConfigMaps(ns).Get(ctx, name, metav1.GetOptions{ResourceVersion: "0"})
		if err != nil {
			return err
		}
		cm.Data["n"] += "+"
		_, err = c.CoreV1().ConfigMaps(ns).Update(ctx, cm, metav1.UpdateOptions{})
		if !apierrors.IsConflict(err) {
			return err
		}
	}
}

func httpClient(t *testing.T, s *apiservertest.Server) *http.Client {
	t.Helper()
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(s.CA)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// What hostile or broken clients send is refused with a Status, and costs little.
func TestBadRequests(t *testing.T) {
	s := apiservertest.Start(t, apiservertest.Options{})
	c := kubernetes.NewForConfigOrDie(s.Config("setup"))
	namespace(t, c, "default")
	if _, err := c.CoreV1().ConfigMaps("default").Create(t.Context(), configMap("cm", "1"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	browser := httpClient(t, s)
	const maps = "/api/v1/namespaces/default/configmaps"
	bomb := `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"x"},"data":` + strings.Repeat(`{"a":`,
		1000) + "1" + strings.Repeat("}", 1000) + "}"
	var copies []string
	for range 40 {
		copies = append(copies, `{"op":"copy","from":"/data","path":"/data/x"}`)
	}
	aliases := "a: &a [x,x,x,x,x,x,x,x,x,x]\n"
	for i := range 9 {
		aliases += fmt.Sprintf("%c: &%c [*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c]\n", 'b'+i, 'b'+i, 'a'+i, 'a'+i, 'a'+i, 'a'+i, 'a'+i, 'a'+i, 'a'+i,
			'a'+i, 'a'+i)
	}
	for _, test := range []struct {
		name, method, path, contentType, accept, body string
		code                                          int
		says                                          string
	}{
		{"another kind", "POST", maps, "application/json", "", `{"kind":"Secret","apiVersion":"v1","metadata":{"name":"x"}}`, 400, "cannot be handled as a ConfigMap"},
		{"another namespace", "POST", maps, "application/json", "", `{"metadata":{"name":"x","namespace":"other"}}`, 400, "the namespace of the provided object does not match the namespace sent on the request"},
		{"no JSON", "POST", maps, "application/json", "", `{`, 400, "unexpected end of JSON input"},
		{"empty body", "POST", maps, "application/json", "", ``, 400, ""},
		{"unknown body type", "POST", maps, "text/plain", "", `x`, 415, "the body of the request was in an unknown format"},
		{"unknown patch type", "PATCH", maps + "/cm", "application/json", "", `{}`, 415, "application/merge-patch+json"},
		{"a question as a Table", "POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "application/json", "application/json;as=Table;v=v1;g=meta.k8s.io", `{"spec":{"nonResourceAttributes":{"path":"/","verb":"get"}}}`, 406, "only the following media types are accepted"},
		{"a question about nothing", "POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "application/json", "", `{"spec":{}}`, 422, "exactly one of nonResourceAttributes or resourceAttributes must be specified"},
		{"unacceptable answer", "GET", maps, "", "image/png", ``, 406, "only the following media types are accepted"},
		{"oversized body", "POST", maps, "application/json", "", `{"data":{"a":"` + strings.Repeat("x", 4<<20) + `"}}`, 413, "limit is 3145728"},
		{"too large for etcd", "POST", maps, "application/json", "", `{"metadata":{"name":"x"},"data":{"a":"` + strings.Repeat("x", 2<<20) + `"}}`, 422, "Too long"},
		{"deep JSON", "POST", maps, "application/json", "", bomb, 400, "deeper than 500 levels"},
		{"YAML bomb", "POST", maps, "application/yaml", "", aliases, 400, ""},
		{"JSON patch bomb", "PATCH", maps + "/cm", "application/json-patch+json", "", "[" + strings.Join(copies, ",") + "]", 413, "copy operations"},
		{"too many patch operations", "PATCH", maps + "/cm", "application/json-patch+json", "", "[" + strings.Repeat(`{"op":"test","path":"/data/v","value":"1"},`, 10000) + `{"op":"test","path":"/data/v","value":"1"}]`, 413, "The allowed maximum operations in a JSON patch is 10000"},
		{"unknown method", "FOO", maps, "", "", ``, 405, ""},
		{"post to an object", "POST", maps + "/cm", "application/json", "", `{}`, 405, ""},
		{"unknown subresource", "GET", maps + "/cm/nope", "", "", ``, 404, ""},
		{"a step too deep", "GET", "/api/v1/namespaces/default/pods/p/status/x", "", "", ``, 404, ""},
		{"dots for a name", "GET", maps + "/..", "", "", ``, 0, ""},
		{"dots for a namespace", "GET", "/api/v1/namespaces/../configmaps/cm", "", "", ``, 0, ""},
		{"escaped slash in a name", "GET", maps + "/..%2f..%2fsecrets", "", "", ``, 0, ""},
		{"escaped percent in a name", "GET", maps + "/%2525", "", "", ``, 400, "may not contain"},
		{"double slashes", "GET", "//api//v1/namespaces", "", "", ``, 0, ""},
		{"bad label selector", "GET", maps + "?labelSelector=" + "%3D%3D", "", "", ``, 400, "found '==', expected"},
		{"bad dry run", "POST", maps + "?dryRun=maybe", "application/json", "", `{"metadata":{"name":"x"}}`, 422, "dryRun"},
		{"force without apply", "PATCH", maps + "/cm?force=true", "application/merge-patch+json", "", `{}`, 422, "may not be specified for non-apply patch"},
		{"apply without a manager", "PATCH", maps + "/cm", "application/apply-patch+yaml", "", `{"apiVersion":"v1","kind":"ConfigMap"}`, 422, "fieldManager"},
		{"strict fields", "POST", maps + "?fieldValidation=Strict", "application/json", "", `{"metadata":{"name":"x"},"datta":{}}`, 400, `strict decoding error: unknown field "datta"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			req, err := http.NewRequestWithContext(t.Context(), test.method, s.URL+test.path, strings.NewReader(test.body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer mallory")
			if test.contentType != "" {
				req.Header.Set("Content-Type", test.contentType)
			}
			if test.accept != "" {
				req.Header.Set("Accept", test.accept)
			}
			response, err := browser.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			body, err := io.ReadAll(response.Body)
			if err != nil {
				t.Fatal(err)
			}
			if response.StatusCode < 400 || response.StatusCode >= 500 {
				t.Errorf("answered %d: %s", response.StatusCode, body)
			}
			if test.code != 0 && response.StatusCode != test.code {
				t.Errorf("answered %d, expected %d: %s", response.StatusCode, test.code, body)
			}
			var status metav1.Status
			if err := json.Unmarshal(body, &status); err != nil || status.Kind != "Status" || int(status.Code) != response.StatusCode {
				t.Errorf("the answer is no Status: %v, %s", err, body)
			}
			if !strings.Contains(status.Message, test.says) {
				t.Errorf("the answer says %q, expected %q in it", status.Message, test.says)
			}
		})
	}
	t.Run("nobody", func(t *testing.T) {
		response, err := browser.Get(s.URL + maps)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		body, _ := io.ReadAll(response.Body)
		if response.StatusCode != 401 || !bytes.Contains(body, []byte(`"message":"Unauthorized","reason":"Unauthorized","code":401`)) {
			t.Errorf("answered %d %s", response.StatusCode, body)
		}
	})
}

func TestWebSocketWatch(t *testing.T) {
	s := apiservertest.Start(t, apiservertest.Options{})
	c := kubernetes.NewForConfigOrDie(s.Config("setup"))
	namespace(t, c, "sockets")
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(s.CA)
	dialer := websocket.Dialer{TLSClientConfig: &tls.Config{RootCAs: pool}}
	conn, response, err := dialer.DialContext(t.Context(),
		strings.Replace(s.URL, "https", "wss", 1)+"/api/v1/namespaces/sockets/configmaps?watch=1",
		http.Header{"Authorization": {"Bearer someone"}, "Origin": {"https://elsewhere"}})
	if err != nil {
		t.Fatalf("dial: %v, %v", err, response)
	}
	defer conn.Close()
	if _, err := c.CoreV1().ConfigMaps("sockets").Create(t.Context(), configMap("cm", "1"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, message, err := conn.ReadMessage()
	if err != nil {
		t.Fatal(err)
	}
	var event struct {
		Type   string
		Object corev1.ConfigMap
	}
	if err := json.Unmarshal(message, &event); err != nil || event.Type != "ADDED" || event.Object.Name != "cm" {
		t.Errorf("got %s: %v", message, err)
	}
}

// The replicas of an object have owners of their own, whichever way they are set.
func TestScaleIsOwned(t *testing.T) {
	s := apiservertest.Start(t, apiservertest.Options{})
	c := kubernetes.NewForConfigOrDie(s.Config("setup"))
	ns := namespace(t, c, "scales")
	deployments := c.AppsV1().Deployments(ns)
	labels := map[string]string{"app": "web"}
	one := int32(1)
	_, err := deployments.Create(t.Context(), &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: appsv1.DeploymentSpec{
		Replicas: &one, Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	wanted := applyautoscalingv1.Scale().WithName("web").WithNamespace(ns).WithSpec(applyautoscalingv1.ScaleSpec().WithReplicas(4))
	if _, err := deployments.ApplyScale(t.Context(), "web", wanted, metav1.ApplyOptions{FieldManager: "hpa"}); !apierrors.IsConflict(err) {
		t.Errorf("an apply of somebody else's replicas: got %v", err)
	}
	scale, err := deployments.ApplyScale(t.Context(), "web", wanted, metav1.ApplyOptions{FieldManager: "hpa", Force: true})
	if err != nil || scale.Spec.Replicas != 4 || scale.Status.Selector != "app=web" {
		t.Fatalf("apply by force: %v, %+v", err, scale)
	}
	scale.Spec.Replicas = 5
	if scale, err = deployments.UpdateScale(t.Context(), "web", scale, metav1.UpdateOptions{FieldManager: "hand"}); err != nil ||
		scale.Spec.Replicas != 5 {
		t.Fatalf("update: %v, %+v", err, scale)
	}
	err = c.AppsV1().RESTClient().Patch(types.MergePatchType).Namespace(ns).Resource("deployments").Name("web").SubResource("scale").
		Param("fieldManager", "hand").Body([]byte(`{"spec":{"replicas":6}}`)).Do(t.Context()).Error()
	if err != nil {
		t.Fatalf("patch: %v", err)
	}
	d, err := deployments.Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil || *d.Spec.Replicas != 6 {
		t.Fatalf("in the end: %v, %d replicas", err, *d.Spec.Replicas)
	}
	owners := map[string]bool{}
	for _, e := range d.ManagedFields {
		if strings.Contains(e.FieldsV1.GetRawString(), "f:replicas") {
			owners[e.Manager+" "+e.APIVersion+" "+e.Subresource] = true
		}
	}
	if len(owners) != 1 || !owners["hand apps/v1 scale"] {
		t.Errorf("the replicas are owned by %v", owners)
	}
}

// A stopping server ends watches, so that nobody has to wait for them.
func TestShutdownEndsWatches(t *testing.T) {
	s := apiservertest.Start(t, apiservertest.Options{})
	c := kubernetes.NewForConfigOrDie(s.Config("watcher"))
	w, err := c.CoreV1().Pods("").Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.Stop()
	for range w.ResultChan() { // read to its end
	}
}
