// SPDX-License-Identifier: Apache-2.0

package hostfn_test

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/attempts"
	"github.com/wasmplane/wasmplane/core/dial"
	"github.com/wasmplane/wasmplane/plugins/host"
	"github.com/wasmplane/wasmplane/plugins/hostfn"
	"github.com/wasmplane/wasmplane/plugins/manifest"
)

// entry is an entry as an operator writes it.
func entry(t *testing.T, grants string) *manifest.Entry {
	t.Helper()
	e, err := manifest.ParseBytes([]byte("{name: p, source: 'file:p.wasm', grants: " + grants + "}"))
	if err != nil {
		t.Fatal(err)
	}
	return &e
}

// shelf is a cluster of a few objects.
type shelf []runtime.Object

var served = []hostfn.Resource{
	{GroupVersionResource: schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}, Kind: "Namespace"},
	{GroupVersionResource: schema.GroupVersionResource{Version: "v1", Resource: "pods"}, Kind: "Pod", Namespaced: true},
	{GroupVersionResource: schema.GroupVersionResource{Version: "v1", Resource: "secrets"}, Kind: "Secret", Namespaced: true},
}

func (s shelf) Find(_ context.Context, gv schema.GroupVersion, kind, resource string) (hostfn.Resource, error) {
	for _, r := range served {
		if r.GroupVersion() == gv && (r.Kind == kind || r.Resource == resource) {
			return r, nil
		}
	}
	return hostfn.Resource{}, apierrors.NewNotFound(gv.WithResource(resource).GroupResource(), kind)
}

func kindOf(o runtime.Object) string {
	switch o.(type) {
	case *corev1.Namespace:
		return "Namespace"
	case *corev1.Pod:
		return "Pod"
	}
	return "Secret"
}

func (s shelf) Get(_ context.Context, r hostfn.Resource, namespace, name string, _ bool) (runtime.Object, string, error) {
	for _, o := range s {
		if m := o.(metav1.Object); kindOf(o) == r.Kind && m.GetName() == name && m.GetNamespace() == namespace {
			return o, "7", nil
		}
	}
	return nil, "7", nil
}

func (s shelf) List(_ context.Context, r hostfn.Resource, sel hostfn.Selection) (hostfn.Page, error) {
	page := hostfn.Page{ResourceVersion: "7"}
	for _, o := range s {
		m := o.(metav1.Object)
		if kindOf(o) != r.Kind || sel.Namespace != "" && sel.Namespace != m.GetNamespace() || !sel.Labels.Matches(labels.Set(m.GetLabels())) {
			continue
		}
		page.Items = append(page.Items, o)
	}
	return page, nil
}

func someObjects() shelf {
	ns := func(name, env string) runtime.Object {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"env": env}}}
	}
	pod := func(namespace, name, image string) runtime.Object {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Spec:       corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "c", Image: image}}},
		}
	}
	return shelf{
		ns("blue", "prod"), ns("red", "test"), pod("blue", "a", "a:1"), pod("red", "b", "b:1"),
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: "s"}, Data: map[string][]byte{"k": []byte("secret")}},
	}
}

func TestReadingGivesWhatTheGrantsCoverAndNothingElse(t *testing.T) {
	const pods, blue = `{read: [{resources: [pods]}]}`, `{read: [{resources: [pods], namespaces: [blue]}]}`
	for _, c := range []struct{ name, grants, tenant, call, input, reply, failure string }{
		{
			"a whole object", `{read: [{resources: [namespaces]}]}`, "", hostfn.Get, `{"apiVersion":"v1","kind":"Namespace","name":"blue"}`,
			`{"resourceVersion":"7","object":{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"blue","labels":{"env":"prod"}},"spec":{},"status":{}}}`, "",
		},
		{
			"fields", pods, "", hostfn.Get, `{"apiVersion":"v1","resource":"pods","namespace":"blue","name":"a","fields":["spec.containers[*].image","metadata.name"]}`,
			`{"resourceVersion":"7","object":{"spec":{"containers":[{"image":"a:1"}]},"metadata":{"name":"a"}}}`, "",
		},
		{"none there", pods, "", hostfn.Get, `{"apiVersion":"v1","resource":"pods","namespace":"blue","name":"zzz"}`, `{"resourceVersion":"7","object":null}`, ""},
		{
			"all namespaces", pods, "", hostfn.List, `{"apiVersion":"v1","resource":"pods","fields":["metadata.name"]}`,
			`{"resourceVersion":"7","more":false,"items":[{"metadata":{"name":"a"}},{"metadata":{"name":"b"}}]}`, "",
		},
		{
			"a limit", pods, "", hostfn.List, `{"apiVersion":"v1","resource":"pods","fields":["metadata.name"],"limit":1}`,
			`{"resourceVersion":"7","more":true,"items":[{"metadata":{"name":"a"}}]}`, "",
		},
		{
			"labels", `{read: [{resources: [namespaces]}]}`, "", hostfn.List, `{"apiVersion":"v1","kind":"Namespace","labelSelector":"env in (test)","fields":["metadata.name"]}`,
			`{"resourceVersion":"7","more":false,"items":[{"metadata":{"name":"red"}}]}`, "",
		},
		{
			"names that were granted", `{read: [{resources: [namespaces], names: [red], fields: [metadata.name]}]}`, "", hostfn.List, `{"apiVersion":"v1","kind":"Namespace"}`,
			`{"resourceVersion":"7","more":false,"items":[{"metadata":{"name":"red"}}]}`, "",
		},
		{
			"a tenant's own", pods, "red", hostfn.List, `{"apiVersion":"v1","resource":"pods","fields":["metadata.name"]}`,
			`{"resourceVersion":"7","more":false,"items":[{"metadata":{"name":"b"}}]}`, "",
		},

		{"another resource", pods, "", hostfn.Get, `{"apiVersion":"v1","kind":"Namespace","name":"blue"}`, "", `plugin "p" may not read namespaces: grant it with grants.read: [{resources: [namespaces]}]`},
		{"another name", `{read: [{resources: [namespaces], names: [red]}]}`, "", hostfn.Get, `{"apiVersion":"v1","kind":"Namespace","name":"blue"}`, "", "may not read namespaces"},
		{"another namespace", blue, "", hostfn.Get, `{"apiVersion":"v1","kind":"Pod","namespace":"red","name":"b"}`, "", "may not read pods in namespace red"},
		{"every namespace", blue, "", hostfn.List, `{"apiVersion":"v1","kind":"Pod"}`, "", "may not read pods"},
		{"another group", `{read: [{apiGroups: [apps], resources: ["*"]}]}`, "", hostfn.Get, `{"apiVersion":"v1","kind":"Namespace","name":"blue"}`, "", "may not read namespaces"},
		{"secrets by a star", `{read: [{resources: ["*"]}]}`, "", hostfn.Get, `{"apiVersion":"v1","kind":"Secret","namespace":"blue","name":"s"}`, "", "may not read secrets"},
		{"a field beside", `{read: [{resources: [pods], fields: [metadata]}]}`, "", hostfn.Get, `{"apiVersion":"v1","kind":"Pod","namespace":"blue","name":"a","fields":["spec.nodeName"]}`, "", "may not read the field spec.nodeName"},
		{"a tenant elsewhere", pods, "red", hostfn.Get, `{"apiVersion":"v1","kind":"Pod","namespace":"blue","name":"a"}`, "", `of namespace red may not read namespace blue`},
		{"a tenant cluster-wide", `{read: [{resources: [namespaces]}]}`, "red", hostfn.List, `{"apiVersion":"v1","kind":"Namespace"}`, "", "which belong to no namespace"},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := entry(t, c.grants)
			e.Namespace = c.tenant
			out, err := hostfn.New(hostfn.Backend{Objects: someObjects()}).Set(e)[c.call](t.Context(), []byte(c.input))
			if c.failure == "" && err != nil || string(out) != c.reply {
				t.Errorf("reply %s\nwant  %s\nerror %v", out, c.reply, err)
			}
			var refused *host.RefusedError
			if c.failure != "" && (!errors.As(err, &refused) || !strings.Contains(err.Error(), c.failure)) {
				t.Errorf("error %v, want a refusal with %q", err, c.failure)
			}
		})
	}
}

func TestBadRequestsAreExplained(t *testing.T) {
	set := hostfn.New(hostfn.Backend{Objects: someObjects()}).Set(entry(t, `{read: [{resources: [pods]}], log: true, random: true, events: true, certificates: true}`))
	for _, c := range []struct{ call, input, want string }{
		{hostfn.Get, `{`, "not the JSON"},
		{hostfn.Get, `{"apiVersion":"v1","kind":"Pod"}`, "name is missing"},
		{hostfn.Get, `{"apiVersion":"v1","kind":"Pod","name":"x"}`, "namespace is missing"},
		{hostfn.Get, `{"apiVersion":"a/b/c","kind":"Pod","name":"x"}`, "apiVersion"},
		{hostfn.Get, `{"apiVersion":"v1","name":"x"}`, "kind or resource"},
		{hostfn.Get, `{"apiVersion":"v1","kind":"Nonsense","name":"x"}`, "not served here"},
		{hostfn.Get, `{"apiVersion":"v1","kind":"Pod","namespace":"blue","name":"a","fields":["a..b"]}`, "fields: path"},
		{hostfn.List, `{"apiVersion":"v1","kind":"Pod","labelSelector":"=="}`, "labelSelector"},
		{hostfn.List, `{"apiVersion":"v1","kind":"Pod","limit":-1}`, "negative"},
		{hostfn.Random, `many`, "no number of bytes"},
		{hostfn.Log, `text`, "log record"},
		{hostfn.Event, `{}`, "no API to record events in"},
		{hostfn.Certificate, `{"certificate":"x"}`, "expected one certificate"},
	} {
		if _, err := set[c.call](t.Context(), []byte(c.input)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %s: %v, want %q", c.call, c.input, err, c.want)
		}
	}
}

type allowing struct {
	asked []authorizationv1.SubjectAccessReviewSpec
}

func (a *allowing) Review(_ context.Context, s authorizationv1.SubjectAccessReviewSpec) (authorizationv1.SubjectAccessReviewStatus, error) {
	a.asked = append(a.asked, s)
	return authorizationv1.SubjectAccessReviewStatus{Allowed: true, Reason: "RBAC"}, nil
}

func TestAccessReviewAsksTheAuthorizers(t *testing.T) {
	access := &allowing{}
	e := entry(t, `{accessReview: true}`)
	call := hostfn.New(hostfn.Backend{Access: access}).Set(e)[hostfn.Review]
	out, err := call(t.Context(), []byte(`{"user":"jane","resourceAttributes":{"namespace":"blue","verb":"get","resource":"pods"}}`))
	if err != nil || string(out) != `{"allowed":true,"reason":"RBAC"}` || access.asked[0].ResourceAttributes.Verb != "get" {
		t.Errorf("reply %s, error %v, asked %+v", out, err, access.asked)
	}
	e.Namespace = "red"
	if _, err := call(t.Context(), []byte(`{"user":"jane","resourceAttributes":{"namespace":"blue","verb":"get","resource":"pods"}}`)); err == nil || !strings.Contains(err.Error(), "that namespace only") {
		t.Errorf("a tenant asked about another namespace: %v", err)
	}
	if _, err := call(t.Context(), []byte(`{"user":"jane","nonResourceAttributes":{"path":"/","verb":"get"}}`)); err == nil {
		t.Error("a tenant asked about what belongs to no namespace")
	}
}

type noted struct{ lines []string }

func (n *noted) Record(plugin string, about corev1.ObjectReference, kind, reason, message string) {
	n.lines = append(n.lines, plugin+" "+about.Namespace+"/"+about.Name+" "+kind+" "+reason+" "+message)
}

func TestEventsAreRecordedAtABoundedRate(t *testing.T) {
	events := &noted{}
	e := entry(t, `{events: true}`)
	call := hostfn.New(hostfn.Backend{Events: events}).Set(e)[hostfn.Event]
	const input = `{"regarding":{"apiVersion":"v1","kind":"Pod","namespace":"blue","name":"a"},"type":"Warning","reason":"Odd","message":"odd image"}`
	if _, err := call(t.Context(), []byte(input)); err != nil || events.lines[0] != "p blue/a Warning Odd odd image" {
		t.Fatalf("%v, %v", err, events.lines)
	}
	dropped := 0
	for range 500 {
		if _, err := call(t.Context(), []byte(input)); err != nil {
			dropped++
		}
	}
	if dropped == 0 {
		t.Error("a flood of events was let through")
	}
	e.Namespace = "red"
	if _, err := call(t.Context(), []byte(input)); err == nil || !strings.Contains(err.Error(), "there only") {
		t.Errorf("a tenant wrote about another namespace: %v", err)
	}
}

// drawer is a StateStore that other processes write to as well.
type drawer struct {
	mu     sync.Mutex
	values map[string]map[string][]byte
	fail   error
	synced chan struct{}
}

func (d *drawer) Sync(_ context.Context, plugin string, changes map[string][]byte) (map[string][]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fail != nil {
		return nil, d.fail
	}
	if d.values[plugin] == nil {
		d.values[plugin] = map[string][]byte{}
	}
	for k, v := range changes {
		if v == nil {
			delete(d.values[plugin], k)
		} else {
			d.values[plugin][k] = v
		}
	}
	if d.synced != nil && len(changes) > 0 {
		d.synced <- struct{}{}
	}
	out := map[string][]byte{}
	for k, v := range d.values[plugin] {
		out[k] = v
	}
	return out, nil
}

func TestStateIsThePluginsOwnBoundedAndWritten(t *testing.T) {
	d := &drawer{values: map[string]map[string][]byte{"p": {"old": []byte("1")}}, synced: make(chan struct{}, 8)}
	f := hostfn.New(hostfn.Backend{State: d})
	mine := f.Set(entry(t, `{state: {size: 1Ki}}`))
	call := func(set map[string]host.Func, name, input string) string {
		t.Helper()
		out, err := set[name](t.Context(), []byte(input))
		if err != nil {
			return err.Error()
		}
		return string(out)
	}
	for _, c := range []struct{ name, input, want string }{
		{hostfn.StateGet, `{"key":"old"}`, `{"value":"MQ=="}`},
		{hostfn.StateGet, `{"key":"none"}`, `{"value":null}`},
		{hostfn.StatePut, `{"key":"a","value":"AAE="}`, ""},
		{hostfn.StatePut, `{"key":"empty","value":""}`, ""},
		{hostfn.StateGet, `{"key":"a"}`, `{"value":"AAE="}`},
		{hostfn.StateGet, `{"key":"empty"}`, `{"value":""}`},
		{hostfn.StatePut, `{"key":"old"}`, ""},
		{hostfn.StateList, `{}`, `{"keys":["a","empty"]}`},
		{hostfn.StateList, `{"prefix":"e"}`, `{"keys":["empty"]}`},
	} {
		if got := call(mine, c.name, c.input); got != c.want {
			t.Errorf("%s %s: %s, want %s", c.name, c.input, got, c.want)
		}
	}
	if got := call(mine, hostfn.StatePut, `{"key":"../x","value":"AAE="}`); !strings.Contains(got, "key: expected") {
		t.Errorf("a bad key: %s", got)
	}
	big, _ := json.Marshal(map[string]any{"key": "b", "value": make([]byte, 2000)})
	if got := call(mine, hostfn.StatePut, string(big)); !strings.Contains(got, "grants.state.size allows 1024") {
		t.Errorf("too much: %s", got)
	}
	other := entry(t, `{state: {size: 1Ki}}`)
	other.Namespace = "red"
	if got := call(f.Set(other), hostfn.StateList, `{}`); got != `{"keys":[]}` {
		t.Errorf("another plugin sees %s", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- f.Run(ctx) }()
	<-d.synced
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if v := d.values["p"]; string(v["a"]) != "\x00\x01" || len(v) != 2 {
		t.Errorf("kept: %v", v)
	}
}

func TestOnlyPublicAddressesArePublic(t *testing.T) {
	for a, want := range map[string]bool{
		"8.8.8.8": true, "2606:4700::1111": true, "10.0.0.1": false, "127.0.0.1": false, "169.254.169.254": false, "192.168.1.1": false,
		"100.64.0.1": false,
		"::1":        false, "fe80::1": false, "fd00::1": false, "::ffff:10.0.0.1": false, "0.0.0.0": false, "224.0.0.1": false,
		"255.255.255.255": false, "64:ff9b::a00:1": false, "2002:a00:1::": false,
	} {
		if got := dial.IsPublic(netip.MustParseAddr(a)); got != want {
			t.Errorf("%s: %t", a, got)
		}
	}
}

func TestFetchGoesToGrantedHostsOnly(t *testing.T) {
	var elsewhere string
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/away":
			http.Redirect(w, r, elsewhere, http.StatusFound)
		case "/here":
			http.Redirect(w, r, "/ok", http.StatusFound)
		case "/loop":
			http.Redirect(w, r, "/loop", http.StatusFound)
		case "/flood":
			_, _ = w.Write(make([]byte, 1<<20))
		case "/bytes":
			_, _ = w.Write([]byte{0xff, 0x00})
		default:
			w.Header().Set("X-Seen", r.Method+" "+r.Header.Get("X-Mine"))
			_, _ = w.Write([]byte("hello"))
		}
	}))
	defer s.Close()
	other := httptest.NewTLSServer(http.NotFoundHandler())
	defer other.Close()
	elsewhere = other.URL
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	host := strings.TrimPrefix(s.URL, "https://")
	var log bytes.Buffer
	f := hostfn.New(hostfn.Backend{Attempts: attempts.New(attempts.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})})
	defer f.Close()
	granted := f.Set(entry(t, `{http: [{hosts: ["`+host+`"], private: true, caFile: `+ca+`}]}`))[hostfn.Fetch]
	narrow := f.Set(entry(t, `{http: [{hosts: ["`+host+`"], paths: [/api], private: true, caFile: `+ca+`}]}`))[hostfn.Fetch]
	public := f.Set(entry(t, `{http: [{hosts: ["`+host+`"], caFile: `+ca+`}]}`))[hostfn.Fetch]
	for _, c := range []struct {
		name  string
		call  func(context.Context, []byte) ([]byte, error)
		input string
		want  string
	}{
		{"a page", granted, `{"url":"` + s.URL + `/ok","headers":{"X-Mine":"yes"}}`, `"body":"hello"`},
		{"a redirect on the host", granted, `{"url":"` + s.URL + `/here"}`, `"body":"hello"`},
		{"bytes", granted, `{"url":"` + s.URL + `/bytes"}`, `"bodyBytes":"/wA="`},
		{"another method", granted, `{"method":"DELETE","url":"` + s.URL + `/ok"}`, "may not send DELETE"},
		{"another host", granted, `{"url":"` + other.URL + `"}`, "may not send GET"},
		{"a redirect away", granted, `{"url":"` + s.URL + `/away"}`, "may not send GET"},
		{"a loop", granted, `{"url":"` + s.URL + `/loop"}`, "more than 3 redirects"},
		{"a flood", granted, `{"url":"` + s.URL + `/flood"}`, "more than 524288 bytes"},
		{"plain http", granted, `{"url":"http://` + host + `/ok"}`, "expected https://"},
		{"credentials", granted, `{"url":"https://a:b@` + host + `/ok"}`, "credentials"},
		{"a host header", granted, `{"url":"` + s.URL + `/ok","headers":{"host":"x"}}`, "cannot be set"},
		{"another path", narrow, `{"url":"` + s.URL + `/apix"}`, "may not send GET"},
		{"below the path", narrow, `{"url":"` + s.URL + `/api/x"}`, `"body":"hello"`},
		{"out of the path", narrow, `{"url":"` + s.URL + `/api/../ok"}`, "may not send GET"},
		{"out of the path, encoded", narrow, `{"url":"` + s.URL + `/api/%2e%2e/ok"}`, "may not send GET"},
		{"a private address", public, `{"url":"` + s.URL + `/ok"}`, "is a private address"},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, err := c.call(t.Context(), []byte(c.input))
			text := string(out)
			if err != nil {
				text = err.Error()
			}
			if !strings.Contains(text, c.want) {
				t.Errorf("%s, want %q in it", text, c.want)
			}
			if c.name == "a private address" && !strings.Contains(log.String(), "attempt=dial reason=grant") {
				t.Errorf("the ledger has %q", log.String())
			}
		})
	}
}

func TestImagesAreLookedUpInGrantedRegistries(t *testing.T) {
	s := httptest.NewServer(registry.New())
	defer s.Close()
	reg := strings.TrimPrefix(s.URL, "http://")
	img, err := random.Image(100, 1)
	if err != nil {
		t.Fatal(err)
	}
	ref, err := name.ParseReference(reg + "/team/web:1")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, img); err != nil {
		t.Fatal(err)
	}
	digest, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	f := hostfn.New(hostfn.Backend{Images: hostfn.NewImages(nil, nil)})
	set := f.Set(entry(t, `{images: {plainHTTP: ["`+reg+`"], private: true}}`))
	input := []byte(`{"image":"` + ref.Name() + `"}`)
	for call, want := range map[string]string{
		hostfn.ImageDigest: `{"digest":"` + digest.String() + `"}`, hostfn.ImageRead: `"layers":[`, hostfn.ImageConfig: `"rootfs"`,
	} {
		out, err := set[call](t.Context(), input)
		if err != nil || !strings.Contains(string(out), want) || !strings.Contains(string(out), digest.String()) {
			t.Errorf("%s: %s, %v", call, out, err)
		}
	}
	if _, err := set[hostfn.ImageDigest](t.Context(), []byte(`{"image":"nginx"}`)); err == nil || !strings.Contains(err.Error(), "grants.images: {registries: [index.docker.io]}") {
		t.Errorf("another registry: %v", err)
	}
	public := f.Set(entry(t, `{images: {plainHTTP: ["`+reg+`"]}}`))
	if _, err := public[hostfn.ImageDigest](t.Context(), input); err == nil || !strings.Contains(err.Error(), "private address") {
		t.Errorf("a private address: %v", err)
	}
}

func TestNamesAreLookedUpIfGranted(t *testing.T) {
	set := hostfn.New(hostfn.Backend{}).Set(entry(t, `{dns: [localhost, "*.example.com"]}`))
	out, err := set[hostfn.Lookup](t.Context(), []byte(`{"host":"localhost"}`))
	var reply struct{ IPs []string }
	if err != nil || json.Unmarshal(out, &reply) != nil || !slices.ContainsFunc(reply.IPs,
		func(ip string) bool { return net.ParseIP(ip).IsLoopback() }) {
		t.Errorf("%s, %v", out, err)
	}
	for _, name := range []string{"example.com", "other.org", "badexample.com"} {
		if _, err := set[hostfn.Lookup](t.Context(), []byte(`{"host":"`+name+`"}`)); err == nil || !strings.Contains(err.Error(),
			"may not look up") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestEveryFunctionSaysWhatGrantsIt(t *testing.T) {
	everything := entry(t, `{log: true, clock: true, random: true, read: [{resources: [pods]}], accessReview: true, events: true, state: {size: 1Ki},
		images: {registries: [a.example]}, http: [{hosts: [a.example]}], dns: [a.example], certificates: true}`)
	set := hostfn.Set(everything, nil)
	for _, name := range hostfn.Names() {
		if set[name] == nil {
			t.Errorf("%s is not there when everything is granted", name)
		}
	}
	if n := len(hostfn.Set(entry(t, `{}`), nil)); n != 0 || len(set) != len(hostfn.Names()) {
		t.Errorf("%d functions without a grant, %d with all", n, len(set))
	}
}
