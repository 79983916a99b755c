// SPDX-License-Identifier: Apache-2.0

package support

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/datadir"
)

// planted stands in every place where a secret may stand.
const planted = "Tr0ub4dor-and-3"

func TestSecretsAreTakenOutOfTexts(t *testing.T) {
	r := newRedactor(nil)
	for _, c := range []string{
		`level=INFO msg="joined by abcdef.0123456789abcdef.sha256:00"|abcdef.0123456789abcdef`,
		"Authorization: Bearer " + planted,
		`{"token":"` + planted + `","next":1}`,
		`msg="login failed" password="` + planted + ` x"`,
		`msg="login: {\"password\":\"` + planted + `\"}"`,
		"mysql --password " + planted,
		"DB_PASSWORD=" + planted,
		"apiKey: " + planted,
		"client_secret='" + planted + "'",
		"postgres://admin:" + planted + "@db:5432/",
		"t=eyJhbGciOiJSUzI1NiIsImtpZCI6.eyJpc3MiOiJrdWJlcm5ldGVzL3NlcnZpY2VhY2NvdW50Iiw.c2lnbmF0dXJl end|eyJpc3MiOiJrdWJlcm5ldGVzL3NlcnZpY2VhY2NvdW50Iiw",
		"-----BEGIN EC PRIVATE KEY-----\nMHcCAQEEIB" + "\n-----END EC PRIVATE KEY-----\n|MHcCAQEEIB",
		"MHcCAQEEIB\nAAAA==\n-----END EC PRIVATE KEY-----\nthe log goes on|MHcCAQEEIB",
		"-----BEGIN PRIVATE KEY-----\nMHcCAQEEIB|MHcCAQEEIB",
		"client-key-data: LS0tLS1CRUdJTiBFQyBQUklWQVRF|QyBQUklWQVRF",
		"AKIAIOSFODNN7EXAMPLE|IOSFODNN7",
	} {
		text, secret, own := strings.Cut(c, "|")
		if !own {
			secret = planted
		}
		if got := r.text(text); strings.Contains(got, secret) || !strings.Contains(got, hidden) {
			t.Errorf("%q became %q", text, got)
		}
	}
	for _, plain := range []string{
		`time=2026-01-01T00:00:00.000Z level=INFO msg="node is ready" node=a pods=3`,
		"the certificate of kube-apiserver ends in 20 days",
		"apiserver_request_total{code=\"200\",resource=\"secrets\",verb=\"LIST\"} 7",
		"10.0.0.1:6443 https://server:6443/api/v1/nodes",
	} {
		if got := r.text(plain); got != plain {
			t.Errorf("%q became %q", plain, got)
		}
	}
}

func TestValuesOfSecretsAreFoundWhereverTheyStand(t *testing.T) {
	r := newRedactor([]string{"correct horse", "first line of it\nsecond line of it\n", "short"})
	got := r.text("it was correct horse, y29y: Y29ycmVjdCBob3JzZQ==, then second line of it; a short one")
	if want := "it was " + hidden + ", y29y: " + hidden + ", then " + hidden + "; a short one"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// pod has the secret in each place where users put theirs.
var pod = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web","namespace":"shop","managedFields":[{"manager":"` + planted + `"}],
 "annotations":{"kubectl.kubernetes.io/last-applied-configuration":"{\"kind\":\"Secret\",\"data\":{\"a\":\"` + planted + `\"}}",
 "deployment.kubernetes.io/revision":"7"}},
 "spec":{"automountServiceAccountToken":true,"containers":[{"name":"c","image":"i",
  "env":[{"name":"DB","value":"` + planted + `"},{"name":"REF","valueFrom":{"secretKeyRef":{"name":"s","key":"k"}}}],
  "args":["--level=` + planted + `","-p` + planted + `"],"command":["sh","-c","` + planted + `"],
  "livenessProbe":{"httpGet":{"path":"/","httpHeaders":[{"name":"X","value":"` + planted + `"}]}},
  "lifecycle":{"preStop":{"exec":{"command":["` + planted + `"]}}}}],
  "volumes":[{"name":"v","csi":{"driver":"d","volumeAttributes":{"pw":"` + planted + `"}}}]},
 "status":{"containerStatuses":[{"lastState":{"terminated":{"exitCode":1,"message":"` + planted + `","reason":"Error"}}}]}}`

func decoded(t *testing.T, text string) (v map[string]any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestPodsLoseWhatMayHoldSecrets(t *testing.T) {
	out, err := json.Marshal(newRedactor(nil).object(decoded(t, pod)))
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(out, []byte(planted)) {
		t.Errorf("the secret is in it: %s", out)
	}
	for _, kept := range []string{
		`"name":"DB"`, `"secretKeyRef":{"key":"k","name":"s"}`, `"--level=` + hidden, `"deployment.kubernetes.io/revision":"7"`,
		`"reason":"Error"`,
		`"automountServiceAccountToken":true`, `"last-applied-configuration":"`[1:20],
	} {
		if !bytes.Contains(out, []byte(kept)) {
			t.Errorf("%s is not in it: %s", kept, out)
		}
	}
}

// cluster answers as an API does whose objects have the secret everywhere.
func cluster(t *testing.T) func() (*rest.Config, error) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/api/v1/secrets":
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"apiVersion":"v1","kind":"SecretList","items":[{"metadata":{"name":"a"},"data":{"x":"cGxhaW4gd29yZHMgb25seQ=="}}]}`)
		case r.URL.Path == "/api/v1/pods":
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"apiVersion":"v1","kind":"PodList","items":[%s]}`, pod)
		case r.URL.Path == "/metrics":
			fmt.Fprintln(w, "up 1\nleak{of=\"plain words only\"} 1")
		case strings.HasPrefix(r.URL.Path, "/version"), strings.HasPrefix(r.URL.Path, "/debug"), r.URL.Path == "/readyz":
			fmt.Fprintln(w, r.URL.Path)
		default:
			http.Error(w, `{"kind":"Status","message":"not here: token=`+planted+`"}`, http.StatusForbidden)
		}
	}))
	t.Cleanup(server.Close)
	return func() (*rest.Config, error) { return &rest.Config{Host: server.URL}, nil }
}

// unpack is what an archive has, by name.
func unpack(t *testing.T, archive []byte) map[string]string {
	t.Helper()
	zipped, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for r := tar.NewReader(zipped); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[strings.TrimPrefix(h.Name, "support/")] = string(data)
	}
}

func directory(t *testing.T) Options {
	t.Helper()
	dir := datadir.Dir(t.TempDir())
	config := filepath.Join(t.TempDir(), "config.yaml")
	for file, text := range map[string]string{
		dir.Log(): "level=INFO msg=\"a plugin prints\" out=\"token: " + planted +
			"\"\nlevel=INFO msg=ready\nlevel=WARN msg=\"plain words only\"\n",
		dir.Kubeconfig(): planted,
		config: "# " + planted + "\nplugins:\n- name: a\n  settings: {key: " + planted +
			"}\napiserver: {listen: ':6443'}\n",
		filepath.Join(string(dir), "state.json"): `{"cluster":"c"}`,
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return Options{Dir: dir, Folder: "support", ConfigFile: config, Now: time.Unix(0, 0)}
}

func TestTheArchiveHasNoSecret(t *testing.T) {
	o := directory(t)
	o.Client = cluster(t)
	var out bytes.Buffer
	if _, err := Write(t.Context(), &out, o); err != nil {
		t.Fatal(err)
	}
	files := unpack(t, out.Bytes())
	for name, text := range files {
		if strings.Contains(text, planted) || strings.Contains(text, "plain words only") {
			t.Errorf("%s has a secret:\n%s", name, text)
		}
	}
	for name, want := range map[string]string{
		"INDEX.txt": "- objects/nodes.jsonl: ", "logs/wasmplane.log": "msg=ready", "objects/pods.jsonl": `"name":"web"`, "api/metrics.txt": "up 1",
		"api/goroutines.txt": "/debug/pprof/goroutine", "configuration.yaml": "listen: :6443", "state.json": `"cluster":"c"`, "machine/kernel.txt": "Linux",
	} {
		if !strings.Contains(files[name], want) {
			t.Errorf("%s lacks %q:\n%s", name, want, files[name])
		}
	}
}

func TestAnArchiveIsMadeWithoutTheServer(t *testing.T) {
	o := directory(t)
	o.Client = func() (*rest.Config, error) { return nil, errors.New("the cluster's kubeconfig is missing") }
	var out bytes.Buffer
	result, err := Write(t.Context(), &out, o)
	if err != nil {
		t.Fatal(err)
	}
	files := unpack(t, out.Bytes())
	if want := "- objects/pods.jsonl: the cluster's kubeconfig is missing\n"; !strings.Contains(files["INDEX.txt"], want) {
		t.Errorf("the index lacks %q:\n%s", want, files["INDEX.txt"])
	}
	if !strings.Contains(files["logs/wasmplane.log"], "msg=ready") || result.Files != len(files)-1 || len(result.Missing) == 0 {
		t.Errorf("%+v, %d files", result, len(files))
	}
}

func TestFilesAndTheWholeAreBounded(t *testing.T) {
	line := strings.Repeat("x", 1023) + "\n"
	endless := func(_ context.Context, w io.Writer) error {
		for range 100 << 10 { // 100 MiB
			if _, err := io.WriteString(w, line); err != nil {
				return err
			}
		}
		return nil
	}
	b := &bundle{redactor: newRedactor(nil), left: 3 << 20}
	b.add(t.Context(), File{Name: "a", Most: 2 << 20, Write: endless})
	b.add(t.Context(), File{Name: "b", Most: 2<<20 - 1, Write: endless})
	b.add(t.Context(), File{Name: "c", Write: endless})
	size := 0
	for _, e := range b.entries {
		if len(e.data)%len(line) != 0 {
			t.Errorf("%s ends within a line", e.name)
		}
		size += len(e.data)
	}
	if size != 3<<20 || len(b.missing) != 3 {
		t.Errorf("%d bytes, %q", size, b.missing)
	}
}

func TestALogIsCutAtALine(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log")
	text := "token=" + strings.Repeat("s", mostInFile) + "\nthe last line\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := last(file)(t.Context(), &out); err != nil || out.String() != "the last line\n" {
		t.Errorf("%.100q (%v)", out.String(), err)
	}
}
