// SPDX-License-Identifier: Apache-2.0

package recording_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/wasmplane/wasmplane/plugins/author/authortest"
	"github.com/wasmplane/wasmplane/plugins/author/recording"
	"github.com/wasmplane/wasmplane/plugins/toolchain"
)

const auditLog = `{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Request","auditID":"1","stage":"ResponseComplete","requestURI":"/api/v1/namespaces/shop/pods","verb":"create","user":{"username":"jane","groups":["staff"]},"objectRef":{"resource":"pods","namespace":"shop","name":"web","apiVersion":"v1"},"requestObject":{"kind":"Pod","apiVersion":"v1","metadata":{"name":"web","namespace":"shop"},"spec":{}},"stageTimestamp":"2026-01-02T03:04:05.000000Z"}
{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Request","auditID":"2","stage":"RequestReceived","requestURI":"/","verb":"get","user":{"username":"jane"}}
{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Request","auditID":"3","stage":"ResponseComplete","requestURI":"/api/v1/namespaces/shop/pods","verb":"create","user":{"username":"tim"},"objectRef":{"resource":"pods","namespace":"shop","name":"db","apiVersion":"v1"},"requestObject":{"kind":"Pod","apiVersion":"v1","metadata":{"name":"db","labels":{"owner":"tim"}},"spec":{}},"stageTimestamp":"2026-01-02T03:04:06.000000Z"}
{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","auditID":"4","stage":"ResponseComplete","requestURI":"/api/v1/namespaces/shop/pods/web","verb":"update","user":{"username":"tim"},"objectRef":{"resource":"pods","namespace":"shop","name":"web","apiVersion":"v1"}}

{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Request","auditID":"5","stage":"ResponseComplete","requestURI":"/api/v1/namespaces/shop/secrets","verb":"create","user":{"username":"tim"},"objectRef":{"resource":"secrets","namespace":"shop","name":"s","apiVersion":"v1"},"requestObject":{"kind":"Secret","apiVersion":"v1","metadata":{"name":"s","annotations":{"kubectl.kubernetes.io/last-applied-configuration":"hunter2"}},"data":{"password":"aHVudGVyMg=="},"stringData":{"more":"hunter2"}},"stageTimestamp":"2026-01-02T03:04:06.000000Z"}
`

func TestWhatWasRecordedIsReplayed(t *testing.T) {
	cfg := authortest.Build(t, toolchain.C, "admission.validate")
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
		authortest.Write(t, source, strings.ReplaceAll(string(text), old, with))
		authortest.Rebuild(t, cfg.Dir)
	}
	rebuild(`.resources = {"pods"}`, `.resources = {"pods", "secrets"}`)
	var made bytes.Buffer
	done, err := recording.Make(t.Context(), cfg, strings.NewReader(auditLog), &made, recording.Limits{})
	if err != nil || done.Records != 3 || done.Unusable != 1 || done.Events != 5 {
		t.Fatalf("%+v, %v", done, err)
	}
	for _, secret := range []string{"hunter2", "aHVudGVyMg=="} {
		if strings.Contains(made.String(), secret) {
			t.Errorf("the recording holds %s", secret)
		}
	}
	replayed, err := recording.Replay(t.Context(), cfg, bytes.NewReader(made.Bytes()))
	if err != nil || replayed.Same != 3 || len(replayed.Changes) != 0 {
		t.Errorf("the same plugin: %+v, %v", replayed, err)
	}
	rebuild(`"owner"`, `"team"`) // it now wants another label
	replayed, err = recording.Replay(t.Context(), cfg, bytes.NewReader(made.Bytes()))
	if err != nil || replayed.Records != 3 || replayed.Kinds["allow -> deny"] != 1 || replayed.Kinds["deny -> not asked"] != 1 ||
		replayed.Same != 1 {
		t.Errorf("a candidate: %+v, %v", replayed, err)
	}
	if _, err := recording.Replay(t.Context(), cfg, strings.NewReader("{}\n")); err == nil {
		t.Error("any file is a recording")
	}
	if _, err := recording.Make(t.Context(), cfg, strings.NewReader("no log\n"), &made, recording.Limits{}); err == nil ||
		!strings.Contains(err.Error(), "line 1") {
		t.Errorf("any file is an audit log: %v", err)
	}
	made.Reset()
	if done, err = recording.Make(t.Context(), cfg, strings.NewReader(auditLog), &made, recording.Limits{Records: 1}); err != nil ||
		!done.Full || done.Records != 1 {
		t.Errorf("a full recording: %+v, %v", done, err)
	}
}
