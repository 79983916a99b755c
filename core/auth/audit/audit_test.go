// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	upstream "k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/wasmplane/wasmplane/core/dial"
	"github.com/wasmplane/wasmplane/core/dial/dialtest"
)

func open(t *testing.T, cfg Config) (*Log, func() []auditv1.Event) {
	t.Helper()
	if cfg.File == "" {
		cfg.File = filepath.Join(t.TempDir(), "audit.log")
	}
	l, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l, func() []auditv1.Event {
		t.Helper()
		data, err := os.ReadFile(cfg.File)
		if err != nil {
			t.Fatal(err)
		}
		var all []auditv1.Event
		for line := range bytes.Lines(data) {
			var e auditv1.Event
			if err := json.Unmarshal(line, &e); err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			all = append(all, e)
		}
		return all
	}
}

// ask sends one request past the log, as the apiserver does.
func ask(t *testing.T, l *Log, method, path, body string, status int) {
	t.Helper()
	req := httptest.NewRequest(method, path, strings.NewReader(body))
	req.Header.Set("Content-Type", "application/json")
	info := &genericrequest.RequestInfo{Path: path, Verb: strings.ToLower(method)}
	if strings.HasPrefix(path, "/api/v1/") {
		info.IsResourceRequest, info.Verb, info.APIVersion, info.Resource, info.Namespace, info.Name = true, "update", "v1", "secrets", "ns", "s"
	}
	answer := http.Header{}
	ctx, end, err := l.Begin(Identify(t.Context(), req, answer), req, info, &user.DefaultInfo{Name: "jane", Groups: []string{"dev"}})
	if err != nil {
		t.Fatal(err)
	}
	if answer.Get("Audit-ID") == "" {
		t.Error("the answer has no Audit-ID")
	}
	upstream.AddAuditAnnotation(ctx, "a/b", "c")
	if got, _ := io.ReadAll(req.Body); string(got) != body {
		t.Errorf("the server reads %q", got)
	}
	From(ctx).Response([]byte(`{"kind":"Secret"}`))
	end(status)
}

const policyFile = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: RequestResponse, resources: [{group: "", resources: [secrets]}]}
- {level: None}
`

func TestThePolicyDecidesWhatIsWritten(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte(policyFile), 0o600); err != nil {
		t.Fatal(err)
	}
	l, read := open(t, Config{PolicyFile: file})
	ask(t, l, "PUT", "/api/v1/namespaces/ns/secrets/s", `{"data":1}`, 200)
	ask(t, l, "GET", "/version", "", 200)
	events := read()
	if len(events) != 1 {
		t.Fatalf("%d events", len(events))
	}
	e := events[0]
	if e.User.Username != "jane" || e.ObjectRef.Name != "s" || e.ResponseStatus.Code != 200 || e.Annotations["a/b"] != "c" ||
		string(e.RequestObject.Raw) != `{"data":1}` || string(e.ResponseObject.Raw) != `{"kind":"Secret"}` ||
		e.Stage != auditv1.StageResponseComplete {
		t.Errorf("%+v", e)
	}
}

func TestByDefaultMetadataIsWrittenAndNoBodies(t *testing.T) {
	l, read := open(t, Config{})
	ask(t, l, "PUT", "/api/v1/namespaces/ns/secrets/s", `{"data":"secret"}`, 403)
	ask(t, l, "GET", "/readyz", "", 200)
	events := read()
	if len(events) != 1 || events[0].RequestObject != nil || events[0].ResponseObject != nil || events[0].ResponseStatus.Code != 403 {
		t.Errorf("%+v", events)
	}
}

func TestABrokenPolicyIsRefusedWithItsFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nruls: []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Config{PolicyFile: file, File: filepath.Join(t.TempDir(), "a.log")}); err == nil || !strings.Contains(err.Error(),
		file) {
		t.Errorf("error %v", err)
	}
}

func TestTheFileIsRotatedWithinBounds(t *testing.T) {
	dir := t.TempDir()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	l, _ := open(t, Config{
		File: filepath.Join(dir, "audit.log"), MaxBytes: 2000, MaxFiles: 3,
		Now: func() time.Time { now = now.Add(time.Second); return now },
	})
	for range 50 {
		ask(t, l, "PUT", "/api/v1/namespaces/ns/secrets/s", "{}", 200)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, e.Name())
		if info.Size() > 2000 || info.Mode().Perm() != 0o600 {
			t.Errorf("%s has %d bytes, mode %o", e.Name(), info.Size(), info.Mode().Perm())
		}
	}
	if len(names) != 4 || !slices.Contains(names, "audit.log") {
		t.Errorf("files %q", names)
	}
	if l.Lost() != 0 {
		t.Errorf("%d lost", l.Lost())
	}
}

func TestAFullDiskDoesNotStopRequests(t *testing.T) {
	l, _ := open(t, Config{File: "/dev/full"})
	ask(t, l, "PUT", "/api/v1/namespaces/ns/secrets/s", "{}", 200)
	if l.Lost() != 1 {
		t.Errorf("%d lost", l.Lost())
	}
}

func policyOf(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte("apiVersion: audit.k8s.io/v1\nkind: Policy\n"+text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func begin(t *testing.T, l *Log) (*Entry, func(int), error) {
	t.Helper()
	req := httptest.NewRequest("POST", "/api/v1/namespaces/ns/configmaps", strings.NewReader("{}"))
	info := &genericrequest.RequestInfo{
		Path: req.URL.Path, Verb: "create", IsResourceRequest: true, APIVersion: "v1", Resource: "configmaps",
		Namespace: "ns",
	}
	ctx, end, err := l.Begin(t.Context(), req, info, &user.DefaultInfo{Name: "jane"})
	return From(ctx), end, err
}

func TestARefusalIsRecordedWithItsWords(t *testing.T) {
	l, read := open(t, Config{})
	e, end, err := begin(t, l)
	if err != nil {
		t.Fatal(err)
	}
	e.Status(&metav1.Status{Status: "Failure", Code: 403, Reason: "Forbidden", Message: "jane may not"})
	end(403)
	got := read()[0]
	if got.ResponseStatus.Message != "jane may not" || got.ResponseStatus.Reason != "Forbidden" || got.ResponseObject != nil {
		t.Errorf("%+v", got)
	}
}

func TestManagedFieldsAreLeftOutWhereThePolicySaysSo(t *testing.T) {
	l, read := open(t, Config{PolicyFile: policyOf(t, "omitManagedFields: true\nomitStages: [RequestReceived]\nrules: [{level: RequestResponse}]\n")})
	e, end, err := begin(t, l)
	if err != nil {
		t.Fatal(err)
	}
	e.Request([]byte(`{"metadata":{"name":"x","managedFields":[1]},"n":12345678901234567890}`))
	e.Response([]byte(`{"items":[{"metadata":{"managedFields":[1]}}],"rows":[{"object":{"metadata":{"managedFields":[2]}}}]}`))
	e.About(&metav1.ObjectMeta{Name: "x", UID: "u"})
	end(201)
	got := read()[0]
	if text := string(got.RequestObject.Raw); strings.Contains(text, "managedFields") || !strings.Contains(text, "12345678901234567890") {
		t.Errorf("request %s", text)
	}
	if text := string(got.ResponseObject.Raw); strings.Contains(text, "managedFields") {
		t.Errorf("response %s", text)
	}
	if got.ObjectRef.Name != "x" || got.ObjectRef.UID != "u" {
		t.Errorf("about %+v", got.ObjectRef)
	}
}

func TestANewPolicyIsTakenOnAndABrokenOneIsNot(t *testing.T) {
	file := policyOf(t, "rules: [{level: None}]\n")
	l, read := open(t, Config{PolicyFile: file})
	say := func() {
		t.Helper()
		_, end, err := begin(t, l)
		if err != nil {
			t.Fatal(err)
		}
		end(200)
	}
	say()
	for text, want := range map[string]bool{
		"rules: [{level: Loud}]\n":                                    false,
		"omitStages: [RequestReceived]\nrules: [{level: Metadata}]\n": true,
	} {
		if err := os.WriteFile(file, []byte("apiVersion: audit.k8s.io/v1\nkind: Policy\n"+text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := l.Reload(t.Context()); (err == nil) != want {
			t.Errorf("%q: %v", text, err)
		}
	}
	if err := os.WriteFile(file, []byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules: [{level: Metadata}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := l.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	say()
	if n := len(read()); n != 1 {
		t.Errorf("%d events", n)
	}
}

func TestAStrictLogRefusesWhatItCannotWrite(t *testing.T) {
	l, _ := open(t,
		Config{File: "/dev/full", FileTarget: Target{Mode: BlockingStrict}, PolicyFile: policyOf(t, "rules: [{level: Metadata}]\n")})
	if _, _, err := begin(t, l); !errors.Is(err, ErrNotWritten) {
		t.Errorf("error %v", err)
	}
}

func TestAPanicIsTheLastEvent(t *testing.T) {
	l, read := open(t, Config{})
	e, _, err := begin(t, l)
	if err != nil {
		t.Fatal(err)
	}
	e.Panicked("boom")
	if got := read(); len(got) != 1 || got[0].Stage != auditv1.StagePanic || !strings.Contains(got[0].ResponseStatus.Message, "boom") {
		t.Errorf("%+v", got)
	}
}

// receiver is an audit webhook that refuses the first request.
func receiver(t *testing.T) (kubeconfig string, events <-chan auditv1.Event) {
	t.Helper()
	got := make(chan auditv1.Event, 100)
	var refused atomic.Bool
	hook := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !refused.Swap(true) {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		var list auditv1.EventList
		if err := json.NewDecoder(r.Body).Decode(&list); err != nil {
			t.Error(err)
		}
		for _, e := range list.Items {
			got <- e
		}
	}))
	t.Cleanup(hook.Close)
	return dialtest.Kubeconfig(t, hook, hook.URL, ""), got
}

func TestAWebhookGetsEventsAlsoAfterItFailedAndLargeOnesWithoutBodies(t *testing.T) {
	kubeconfig, events := receiver(t)
	l, err := Open(Config{
		WebhookFile: kubeconfig, InitialBackoff: time.Millisecond,
		WebhookTarget: Target{BatchEvents: 2, BatchWait: time.Millisecond, MaxEventBytes: 2000},
		PolicyFile:    policyOf(t, "omitStages: [RequestReceived]\nrules: [{level: RequestResponse}]\n"),
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{10, 5000} {
		e, end, err := begin(t, l)
		if err != nil {
			t.Fatal(err)
		}
		e.Response([]byte(`{"x":"` + strings.Repeat("y", size) + `"}`))
		end(201)
	}
	if err := l.Close(); err != nil { // hands over what is buffered
		t.Fatal(err)
	}
	small, large := <-events, <-events
	if small.ResponseObject == nil {
		small, large = large, small
	}
	if small.ResponseObject == nil || large.ResponseObject != nil || large.Annotations["audit.k8s.io/truncated"] != "true" {
		t.Errorf("%+v\n%+v", small, large)
	}
}

// TestAWebhookOfEventsIsSentThemByThePolicy: what it answers is bounded, and events go
// nowhere but where they are sent, whoever it says wants them.
func TestAWebhookOfEventsIsSentThemByThePolicy(t *testing.T) {
	s := dialtest.New(t)
	for place, want := range s.Hostile() {
		hook, err := newHook(s.Kubeconfig(t, place), dial.Operator(nil), wait.Backoff{Duration: time.Millisecond, Steps: 1})
		if err != nil {
			t.Fatal(err)
		}
		list := &auditinternal.EventList{Items: []auditinternal.Event{{Level: auditinternal.LevelMetadata}}}
		if err := hook.RestClient.Post().Body(list).Do(t.Context()).Error(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", place, err)
		}
	}
	if n := s.Reached.Load(); n != 0 {
		t.Errorf("a redirect was followed %d times", n)
	}
	<-s.Let
}
