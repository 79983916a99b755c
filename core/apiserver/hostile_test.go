// SPDX-License-Identifier: Apache-2.0

package apiserver_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/encoding/protowire"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/wasmplane/wasmplane/core/apiserver"
	"github.com/wasmplane/wasmplane/core/apiserver/apiservertest"
	"github.com/wasmplane/wasmplane/core/trace"
	"github.com/wasmplane/wasmplane/core/trace/journey"
)

// deepDefinition is a CustomResourceDefinition in protobuf whose schema says
// "not" that many times, one in the other: a few bytes a level.
func deepDefinition(levels int) []byte {
	field := func(number protowire.Number, content []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), content)
	}
	text := func(number protowire.Number, s string) []byte { return field(number, []byte(s)) }
	yes := func(number protowire.Number) []byte {
		return protowire.AppendVarint(protowire.AppendTag(nil, number, protowire.VarintType), 1)
	}
	const not = 28
	heads, size := make([][]byte, 0, levels), 0
	for range levels {
		head := protowire.AppendVarint(protowire.AppendTag(nil, not, protowire.BytesType), uint64(size))
		heads, size = append(heads, head), size+len(head)
	}
	slices.Reverse(heads)
	version := slices.Concat(text(1, "v1"), yes(2), yes(3), field(4, field(1, bytes.Join(heads, nil))))
	names := slices.Concat(text(1, "holes"), text(2, "hole"), text(4, "Hole"), text(5, "HoleList"))
	spec := slices.Concat(text(1, "deep.example.com"), field(3, names), text(4, "Namespaced"), field(7, version))
	definition := slices.Concat(field(1, text(1, "holes.deep.example.com")), field(2, spec))
	kind := slices.Concat(text(1, "apiextensions.k8s.io/v1"), text(2, "CustomResourceDefinition"))
	return slices.Concat([]byte("k8s\x00"), field(1, kind), field(2, definition))
}

// The decoder of protobuf has no bound, and validation of such a schema overflowed
// the stack: that ends a process, and cannot be recovered from.
func TestASchemaInProtobufCannotEndTheServer(t *testing.T) {
	s := apiservertest.Start(t, apiservertest.Options{})
	for _, test := range []struct {
		levels, code int
		says         string
	}{
		{100_000, http.StatusBadRequest, "nests deeper"},
		{400_000, http.StatusBadRequest, "nests deeper"},
		{500, http.StatusUnprocessableEntity, "is invalid"}, // deep, and decoded all the same
	} {
		code, text := post(t, s, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "application/vnd.kubernetes.protobuf",
			deepDefinition(test.levels))
		if code != test.code || !strings.Contains(text, test.says) {
			t.Errorf("%d levels: answered %d, expected %d and %q: %.300s", test.levels, code, test.code, test.says, text)
		}
	}
}

func post(t *testing.T, s *apiservertest.Server, path, mediaType string, body []byte) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+path, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer mallory")
	req.Header.Set("Content-Type", mediaType)
	req.Header.Set("Accept", "application/json")
	response, err := httpClient(t, s).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

// A body that never comes: whoever is refused anyway must not hold the connection
// and its goroutines for as long as they like.
func TestARefusedRequestWhoseBodyNeverComesEnds(t *testing.T) {
	s := apiservertest.Start(t, apiservertest.Options{
		Authorizer: readers{},
		Server:     func(c *apiserver.Config) { c.RequestTimeout = 500 * time.Millisecond },
	})
	for name, headers := range map[string][]string{
		"nobody":                    {"Content-Length: 10"},
		"nobody, in chunks":         {"Transfer-Encoding: chunked"},
		"somebody who may not":      {"Content-Length: 10", "Authorization: Bearer reader"},
		"somebody else, in vain":    {"Content-Length: 10", "Authorization: Bearer reader", "Impersonate-User: admin"},
		"somebody who may, for now": {"Content-Length: 10", "Authorization: Bearer admin"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := dialRaw(t, s) // ends after a minute, which is what happened
			lines := append([]string{"POST /api/v1/namespaces/default/configmaps HTTP/1.1", "Host: x", "Content-Type: application/json"}, headers...)
			began := time.Now()
			response, body := conn.say(lines...)
			if response != nil && response.StatusCode < 400 {
				t.Errorf("answered %d %s", response.StatusCode, body)
			}
			// Either an answer or the end, but the server's doing and not the test's.
			if _, err := conn.in.ReadByte(); err == nil || time.Since(began) > 55*time.Second {
				t.Errorf("the connection is still there: %v after %s", err, time.Since(began))
			}
		})
	}
}

// A kubelet runs commands behind a GET with an upgrade, and by way of nodes/proxy
// it is the server that asks: who may only look must not get that far.
func TestAnUpgradeThroughANodeNeedsCreate(t *testing.T) {
	s, _, c := connectServer(t, apiservertest.Options{Authorizer: readers{}})
	kubelet := &spy{}
	startNodeWith(t, c, kubelet, "pod")
	for _, headers := range [][]string{
		{"Connection: Upgrade", "Upgrade: websocket"},
		{"Connection: keep-alive", "Connection: upgrade", "Upgrade: SPDY/3.1"},
		{"Connection: keep-alive, UPGRADE", "Upgrade: websocket"},
	} {
		for _, node := range []string{"node", "https:node:"} {
			lines := append([]string{
				"GET /api/v1/nodes/" + node + "/proxy/exec/connect/pod/main?command=id&output=1 HTTP/1.1", "Host: x", "Authorization: Bearer reader",
				"Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
			}, headers...)
			response, body := dialRaw(t, s).say(lines...)
			if response == nil || response.StatusCode != http.StatusForbidden {
				t.Errorf("%v at %s: answered %v %s", headers, node, response, body)
			}
		}
	}
	if kubelet.was("/exec") {
		t.Error("the kubelet was asked to run a command")
	}
	// Looking is allowed, and so is all of it to whoever may create.
	if response, _ := dialRaw(t, s).say("GET /api/v1/nodes/node/proxy/pods HTTP/1.1", "Host: x",
		"Authorization: Bearer reader"); response == nil || !kubelet.was("/pods") {
		t.Errorf("a plain GET was answered %v", response)
	}
	dialRaw(t, s).say("GET /api/v1/nodes/node/proxy/exec/connect/pod/main HTTP/1.1", "Host: x", "Authorization: Bearer admin",
		"Connection: Upgrade", "Upgrade: websocket")
	if !kubelet.was("/exec") {
		t.Error("an administrator did not get through")
	}
}

// Each series of a metric is kept for ever: names that clients make up must not become labels.
func TestMadeUpNamesAreNoLabels(t *testing.T) {
	var gather func() ([]*dto.MetricFamily, error)
	s := apiservertest.Start(t, apiservertest.Options{Server: func(c *apiserver.Config) { gather = c.Gatherer.Gather }})
	c := kubernetes.NewForConfigOrDie(s.Config("setup"))
	namespace(t, c, "ns")
	if _, err := c.CoreV1().ConfigMaps("ns").Create(t.Context(), configMap("cm", "1"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	series := func() (n int) {
		families, err := gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				n++
				for _, l := range m.GetLabel() {
					if strings.Contains(l.GetValue(), "madeup") {
						t.Errorf("%s has a series with %s=%q", f.GetName(), l.GetName(), l.GetValue())
					}
				}
			}
		}
		return n
	}
	flood := func(from, to int) {
		for i := from; i < to; i++ {
			x := fmt.Sprintf("madeup%d", i)
			for _, path := range []string{
				"/apis/" + x + "/v1/things/one", "/apis/" + x + "/" + x + "/namespaces/ns/" + x + "/one", "/api/v1/namespaces/ns/configmaps/cm/" + x,
				"/apis/apps/" + x + "/namespaces/ns/deployments/one", "/api/" + x + "/namespaces/ns/pods/one/log", "/api/v1/" + x, "/" + x,
			} {
				for _, headers := range [][]string{{"Authorization: Bearer mallory"}, {"Authorization: Bearer mallory", "Impersonate-Group: x"}, {}} {
					dialRaw(t, s).say(append([]string{"GET " + path + " HTTP/1.1", "Host: x", "Connection: close"}, headers...)...)
				}
			}
		}
	}
	flood(0, 2)
	before := series()
	flood(2, 5)
	if after := series(); after != before {
		t.Errorf("%d series became %d", before, after)
	}
}

// The store of traces is bounded: who is not even known must not push out of it
// what others did.
func TestStrangersLeaveNoTrace(t *testing.T) {
	const most = 200
	store, err := trace.NewStore(trace.StoreConfig{MaxSpans: most})
	if err != nil {
		t.Fatal(err)
	}
	tracer, shutdown := trace.NewProvider(context.WithoutCancel(t.Context()), "apiserver", store.Exporter())
	t.Cleanup(func() { _ = shutdown(context.WithoutCancel(t.Context())) })
	s := apiservertest.Start(t, apiservertest.Options{Server: func(c *apiserver.Config) { c.Tracer = tracer }})
	c := kubernetes.NewForConfigOrDie(s.Config("setup"))
	namespace(t, c, "ns")
	if _, err := c.CoreV1().ConfigMaps("ns").Create(t.Context(), configMap("cm", "1"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	told := func() bool {
		j, err := journey.Of(store, trace.Query{Kind: "ConfigMap", Namespace: "ns", Name: "cm"})
		if err != nil {
			t.Fatal(err)
		}
		return j.Root != nil
	}
	if !told() {
		t.Fatal("a write was not recorded")
	}
	conn := dialRaw(t, s)
	for i := range most {
		for _, request := range []string{"PUT", "GET"} {
			response, _ := conn.say(fmt.Sprintf("%s /api/v1/namespaces/ns/configmaps/x%d HTTP/1.1", request, i), "Host: x")
			if response == nil || response.StatusCode != http.StatusUnauthorized {
				t.Fatalf("a stranger was answered %v", response)
			}
		}
	}
	if !told() {
		t.Error("strangers have pushed out what was recorded")
	}
}

// Leases of thousands of nodes are most of what is written, and tell nothing: they must not push out what others did
// either. The first write of a lease, and one that fails, are told.
func TestRenewalsLeaveNoTrace(t *testing.T) {
	store, err := trace.NewStore(trace.StoreConfig{})
	if err != nil {
		t.Fatal(err)
	}
	tracer, shutdown := trace.NewProvider(context.WithoutCancel(t.Context()), "apiserver", store.Exporter())
	t.Cleanup(func() { _ = shutdown(context.WithoutCancel(t.Context())) })
	s := apiservertest.Start(t, apiservertest.Options{Server: func(c *apiserver.Config) { c.Tracer = tracer }})
	c := kubernetes.NewForConfigOrDie(s.Config("node"))
	namespace(t, c, "ns")
	leases := c.CoordinationV1().Leases("ns")
	lease, err := leases.Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "node"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	first := lease.DeepCopy()
	told := func() string {
		j, err := journey.Of(store, trace.Query{Kind: "Lease", Namespace: "ns", Name: "node"})
		if err != nil {
			t.Fatal(err)
		}
		var verbs []string
		if j.Root != nil {
			for _, step := range j.Root.Steps {
				verbs = append(verbs, step.Attrs[string(trace.VerbKey)])
			}
		}
		return strings.Join(verbs, " ")
	}
	if got := told(); got != "create" {
		t.Fatalf("the creation is told as %q", got)
	}
	for range 3 {
		now := metav1.NowMicro()
		lease.Spec.RenewTime = &now
		if lease, err = leases.Update(t.Context(), lease, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if got := told(); got != "create" {
		t.Errorf("a renewal is told: %s", got)
	}
	if _, err := leases.Update(t.Context(), first, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Fatalf("a renewal of what was renewed since: %v", err)
	}
	if got := told(); got != "update" {
		t.Errorf("a renewal that failed is not told: %s", got)
	}
}
