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
		{"get/log/n2", "/logs/syslog?node=n2", 404, "no machine"},
	} {
		if code, body := w.do(c.as, "GET", c.path); code != c.code || !strings.Contains(body, c.want) {
			t.Errorf("%q %s: %d %s, want %d %s", c.as, c.path, code, body, c.code, c.want)
		}
	}
	if code, body := w.do("admin", "GET", "/logs/outside"); code == 200 || strings.Contains(body, "secret") {
		t.Errorf("a link that leads out of the folder: %d %s", code, body)
	}
}
