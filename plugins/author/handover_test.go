package author_test

import (
	"bytes"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"

	"github.com/wasmplane/wasmplane/plugins/author"
	"github.com/wasmplane/wasmplane/plugins/toolchain"
)

func TestPushSignPullVerify(t *testing.T) {
	cfg := build(t, toolchain.C, "admission.validate")
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	ref := "oci://" + strings.TrimPrefix(server.URL, "http://") + "/team/my-own:1"
	r := author.Registry{PlainHTTP: true}
	pushed, err := r.Push(t.Context(), cfg, ref)
	if err != nil {
		t.Fatal(err)
	}
	again, err := r.Push(t.Context(), cfg, ref)
	if err != nil || again.Digest != pushed.Digest {
		t.Errorf("pushed again as %+v, %v", again, err)
	}
	dir := t.TempDir()
	private, public, err := author.GenerateKey(filepath.Join(dir, "plugin"))
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(private); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the private key: %v, %v", info.Mode(), err)
	}
	_, other, err := author.GenerateKey(filepath.Join(dir, "other"))
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "pulled.wasm")
	if _, err := r.Pull(t.Context(), ref, out, []string{public}); err == nil {
		t.Error("a module without a signature was pulled")
	}
	if _, err := r.Sign(t.Context(), pushed.Source, private, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Verify(t.Context(), ref, []string{other}); err == nil {
		t.Error("another key verified the signature")
	}
	if _, err := r.Verify(t.Context(), ref, []string{public}); err != nil {
		t.Error(err)
	}
	pulled, err := r.Pull(t.Context(), ref, out, []string{public})
	if err != nil || *pulled != *pushed {
		t.Fatalf("pulled %+v, pushed %+v, %v", pulled, pushed, err)
	}
	a, errA := os.ReadFile(out)
	b, errB := os.ReadFile(filepath.Join(cfg.Dir, "my-own.wasm"))
	if errA != nil || errB != nil || !bytes.Equal(a, b) {
		t.Errorf("what was pulled is not what was pushed: %v %v", errA, errB)
	}
	if _, err := r.Sign(t.Context(), out, private, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Verify(t.Context(), out, []string{public}); err != nil {
		t.Error(err)
	}
	if _, err := r.Verify(t.Context(), out, []string{other}); err == nil {
		t.Error("another key verified the file")
	}
	if _, _, err := author.GenerateKey(filepath.Join(dir, "plugin")); err == nil {
		t.Error("a key was written over")
	}
}

const auditLog = `{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Request","auditID":"1","stage":"ResponseComplete","requestURI":"/api/v1/namespaces/shop/pods","verb":"create","user":{"username":"jane","groups":["staff"]},"objectRef":{"resource":"pods","namespace":"shop","name":"web","apiVersion":"v1"},"requestObject":{"kind":"Pod","apiVersion":"v1","metadata":{"name":"web","namespace":"shop"},"spec":{}},"stageTimestamp":"2026-01-02T03:04:05.000000Z"}
{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Request","auditID":"2","stage":"RequestReceived","requestURI":"/","verb":"get","user":{"username":"jane"}}
{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Request","auditID":"3","stage":"ResponseComplete","requestURI":"/api/v1/namespaces/shop/pods","verb":"create","user":{"username":"tim"},"objectRef":{"resource":"pods","namespace":"shop","name":"db","apiVersion":"v1"},"requestObject":{"kind":"Pod","apiVersion":"v1","metadata":{"name":"db","labels":{"owner":"tim"}},"spec":{}},"stageTimestamp":"2026-01-02T03:04:06.000000Z"}
{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","auditID":"4","stage":"ResponseComplete","requestURI":"/api/v1/namespaces/shop/pods/web","verb":"update","user":{"username":"tim"},"objectRef":{"resource":"pods","namespace":"shop","name":"web","apiVersion":"v1"}}

{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Request","auditID":"5","stage":"ResponseComplete","requestURI":"/api/v1/namespaces/shop/secrets","verb":"create","user":{"username":"tim"},"objectRef":{"resource":"secrets","namespace":"shop","name":"s","apiVersion":"v1"},"requestObject":{"kind":"Secret","apiVersion":"v1","metadata":{"name":"s","annotations":{"kubectl.kubernetes.io/last-applied-configuration":"hunter2"}},"data":{"password":"aHVudGVyMg=="},"stringData":{"more":"hunter2"}},"stageTimestamp":"2026-01-02T03:04:06.000000Z"}
`

func TestWhatWasRecordedIsReplayed(t *testing.T) {
	cfg := build(t, toolchain.C, "admission.validate")
	source := filepath.Join(cfg.Dir, "plugin.c")
	text, err := os.ReadFile(source)
	if err != nil {
		t.Fatal(err)
	}
	rebuild := func(old, with string) {
		t.Helper()
		if !strings.Contains(string(text), old) {
			t.Fatalf("%q is not in the template", old)
		}
		write(t, source, strings.ReplaceAll(string(text), old, with))
		b, err := toolchain.New(toolchain.Config{})
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Build(t.Context(), cfg.Dir, filepath.Join(cfg.Dir, "my-own.wasm")); err != nil {
			t.Fatal(err)
		}
	}
	rebuild(`.resources = {"pods"}`, `.resources = {"pods", "secrets"}`)
	var recording bytes.Buffer
	done, err := author.MakeRecording(t.Context(), cfg, strings.NewReader(auditLog), &recording, author.RecordLimits{})
	if err != nil || done.Records != 3 || done.Unusable != 1 || done.Events != 5 {
		t.Fatalf("%+v, %v", done, err)
	}
	for _, secret := range []string{"hunter2", "aHVudGVyMg=="} {
		if strings.Contains(recording.String(), secret) {
			t.Errorf("the recording holds %s", secret)
		}
	}
	replayed, err := author.Replay(t.Context(), cfg, bytes.NewReader(recording.Bytes()))
	if err != nil || replayed.Same != 3 || len(replayed.Changes) != 0 {
		t.Errorf("the same plugin: %+v, %v", replayed, err)
	}
	rebuild(`"owner"`, `"team"`) // it now wants another label
	replayed, err = author.Replay(t.Context(), cfg, bytes.NewReader(recording.Bytes()))
	if err != nil || replayed.Records != 3 || replayed.Kinds["allow -> deny"] != 1 || replayed.Kinds["deny -> not asked"] != 1 || replayed.Same != 1 {
		t.Errorf("a candidate: %+v, %v", replayed, err)
	}
	if _, err := author.Replay(t.Context(), cfg, strings.NewReader("{}\n")); err == nil {
		t.Error("any file is a recording")
	}
	if _, err := author.MakeRecording(t.Context(), cfg, strings.NewReader("no log\n"), &recording, author.RecordLimits{}); err == nil || !strings.Contains(err.Error(), "line 1") {
		t.Errorf("any file is an audit log: %v", err)
	}
	recording.Reset()
	if done, err = author.MakeRecording(t.Context(), cfg, strings.NewReader(auditLog), &recording, author.RecordLimits{Records: 1}); err != nil || !done.Full || done.Records != 1 {
		t.Errorf("a full recording: %+v, %v", done, err)
	}
}
