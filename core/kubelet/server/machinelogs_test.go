// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// MachineLogs are kept by n1 alone.
func (n *node) MachineLogs() string { return n.logs }

// LogQueries are off unless a test switches them on.
func (n *node) LogQueries() bool { return n.queries }

func TestLogsOfTheMachine(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "shadow")
	logs := t.TempDir()
	for _, err := range []error{
		os.WriteFile(secret, []byte("secret"), 0o600),
		os.WriteFile(filepath.Join(logs, "syslog"), []byte("0123456789\n"), 0o600),
		os.Mkdir(filepath.Join(logs, "pods"), 0o700),
		os.WriteFile(filepath.Join(logs, "pods", "0.log"), []byte("in a folder\n"), 0o600),
		os.Symlink("pods/0.log", filepath.Join(logs, "within")),
		os.Symlink(secret, filepath.Join(logs, "outside")),
		syscall.Mkfifo(filepath.Join(logs, "pipe"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	w := start(t)
	w.logs(logs)
	for _, c := range []struct {
		as, path string
		code     int
		want     string
	}{
		{"get/log/n1", "/logs/syslog", 200, "0123456789"},
		{"get/proxy/n1", "/logs/pods/0.log", 200, "in a folder"},
		{"get/log/n1", "/logs/", 200, `<a href="syslog">syslog</a>`},
		{"get/log/n1", "/logs", 200, `<a href="pods/">pods/</a>`},
		{"get/log/n1", "/logs/within", 200, "in a folder"},
		{"get/stats/n1", "/logs/syslog", 403, "subresource(s)=[log]"},
		{"get/log/n1", "/logs/none", 404, ""},
		{"get/log/n1", "/logs/pipe", 404, ""},
		{"get/log/n2", "/logs/syslog?node=n2", 404, "it is simulated"},
	} {
		if code, body := w.do(c.as, "GET", c.path); code != c.code || !strings.Contains(body, c.want) {
			t.Errorf("%q %s: %d %s, want %d %s", c.as, c.path, code, body, c.code, c.want)
		}
	}
	if code, body := w.do("admin", "GET", "/logs/outside"); code == 200 || strings.Contains(body, "secret") {
		t.Errorf("a link that leads out of the folder: %d %s", code, body)
	}
}

// TestQueriesOfTheMachinesLogs are answered where the node has them switched on, and never lead
// out of the folder.
func TestQueriesOfTheMachinesLogs(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret.log")
	logs := t.TempDir()
	for _, err := range []error{
		os.WriteFile(secret, []byte("secret"), 0o600),
		os.WriteFile(filepath.Join(logs, "wasmplane-test-app.log"), []byte("of the app\n"), 0o600),
		os.Mkdir(filepath.Join(logs, "pods"), 0o700),
		os.WriteFile(filepath.Join(logs, "pods", "0.log"), []byte("in a folder\n"), 0o600),
		os.Symlink(secret, filepath.Join(logs, "wasmplane-test-outside.log")),
		syscall.Mkfifo(filepath.Join(logs, "wasmplane-test-pipe"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	w := start(t)
	w.logs(logs)
	if code, body := w.do("get/log/n1", "GET", "/logs/?query=wasmplane-test-app"); code != 200 || !strings.Contains(body, `<a href="pods/">`) {
		t.Errorf("queries are off: %d %s, want the folder's list", code, body)
	}
	w.n1.queries = true
	for _, c := range []struct {
		as, path string
		code     int
		want     string
	}{
		{"get/log/n1", "/logs/?query=wasmplane-test-app", 200, "of the app"},
		{"get/log/n1", "/logs?query=wasmplane-test-app", 200, "of the app"},
		{"get/proxy/n1", "/logs/?query=wasmplane-test-app.log", 200, "of the app"},
		{"get/stats/n1", "/logs/?query=wasmplane-test-app", 403, "subresource(s)=[log]"},
		{"get/log/n1", "/logs/?query=/wasmplane-test-app.log", 200, "of the app"},
		{"get/log/n1", "/logs/?query=pods/0.log", 200, "in a folder"},
		{"get/log/n1", `/logs/?query=pods\0.log`, 200, "in a folder"},
		{"get/log/n1", "/logs/?query=/pods", 200, `<a href="0.log">0.log</a>`},
		{"get/log/n1", "/logs/?query=/", 200, `<a href="pods/">`},
		{"get/log/n1", "/logs/pods/0.log", 200, "in a folder"},
		{"get/log/n1", "/logs/pods/?query=x", 406, "path not allowed in query mode"},
		{"get/log/n1", "/logs/?query=none", 200, "log not found for none"},
		{"get/log/n1", "/logs/?query=wasmplane-test-pipe", 200, "log not found for wasmplane-test-pipe"},
		{"get/log/n1", "/logs/?query=/wasmplane-test-pipe", 406, "no such file"},
		{"get/log/n1", "/logs/?query=/none", 406, "no such file"},
		{"get/log/n1", "/logs/?query=", 400, "may not be empty"},
		{"get/log/n1", "/logs/?tailLines=x", 400, "tailLines"},
		{"get/log/n1", "/logs/?tailLines=5", 406, "cannot be empty with options"},
		{"get/log/n1", "/logs/?query=a%20b", 406, "unsupported characters"},
		{"get/log/n2", "/logs/?node=n2&query=wasmplane-test-app", 404, "it is simulated"},
	} {
		if code, body := w.do(c.as, "GET", c.path); code != c.code || !strings.Contains(body, c.want) {
			t.Errorf("%q %s: %d %s, want %d %s", c.as, c.path, code, body, c.code, c.want)
		}
	}
	for _, path := range []string{
		"?query=wasmplane-test-outside", "?query=/wasmplane-test-outside.log", "?query=" + secret, "?query=../" +
			filepath.Base(filepath.Dir(secret)) + "/secret.log",
		"?query=/..%2f..%2f..%2f..%2f..%2f..%2f..%2fetc/passwd", `?query=..\..\..\..\..\etc\passwd`, "?query=..",
	} {
		if code, body := w.do("admin", "GET", "/logs/"+path); strings.Contains(body, "secret\n") || body == "secret" ||
			strings.Contains(body, "root:") {
			t.Errorf("%s leads out of the folder: %d %s", path, code, body)
		}
	}
}
