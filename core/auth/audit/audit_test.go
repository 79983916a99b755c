package audit

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	upstream "k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"
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
	ctx, end := l.Begin(t.Context(), req, info, &user.DefaultInfo{Name: "jane", Groups: []string{"dev"}})
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
		string(e.RequestObject.Raw) != `{"data":1}` || string(e.ResponseObject.Raw) != `{"kind":"Secret"}` || e.Stage != auditv1.StageResponseComplete {
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
	if _, err := Open(Config{PolicyFile: file, File: filepath.Join(t.TempDir(), "a.log")}); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("error %v", err)
	}
}

func TestTheFileIsRotatedWithinBounds(t *testing.T) {
	dir := t.TempDir()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	l, _ := open(t, Config{File: filepath.Join(dir, "audit.log"), MaxBytes: 2000, MaxFiles: 3, Now: func() time.Time { now = now.Add(time.Second); return now }})
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
