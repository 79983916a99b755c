// SPDX-License-Identifier: Apache-2.0

package logquery_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/wasmplane/wasmplane/core/kubelet/logquery"
)

// writer makes a journal of entries in the journal's export format.
const writer = "/lib/systemd/systemd-journal-remote"

// TestARealJournal is asked by the real journalctl.
func TestARealJournal(t *testing.T) {
	for _, program := range []string{writer, "journalctl"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatalf("%v: install Debian's package systemd-journal-remote, as test/deps.sh test does", err)
		}
	}
	dir := t.TempDir()
	write := exec.CommandContext(t.Context(), writer, "--output="+filepath.Join(dir, "a.journal"), "-")
	write.Stdin = strings.NewReader(entry(0, 1, "web", "first of web") + entry(60, 1, "db", "one of db") +
		entry(120, 2, "web", "second of web") +
		entry(180, 2, "web", "third, that failed"))
	if out, err := write.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	logs := logquery.Logs{Files: fstest.MapFS{"app.log": {Data: []byte("of a file")}}, Journal: []string{
		"journalctl", "--directory=" + dir,
		"--quiet",
	}}
	const first, one = "Nov 14 22:13:20.000000 host web[1]: first of web\n", "Nov 14 22:14:20.000000 host db[1]: one of db\n"
	const second, third = "Nov 14 22:15:20.000000 host web[1]: second of web\n", "Nov 14 22:16:20.000000 host web[1]: third, that failed\n"
	for query, want := range map[string]string{
		"query=web":                  first + second + third,
		"query=db":                   one,
		"query=db&query=web":         first + one + second + third,
		"query=web&query=app":        first + second + third + "of a file",
		"query=eb":                   "\nlog not found for eb\n",
		"query=web&tailLines=1":      third,
		"query=web&pattern=^s.*d\\b": second,
		"query=web&boot=-1":          first,
		"query=web&boot=0":           second + third,
		"query=web&sinceTime=2023-11-14T22:14:00Z":        second + third,
		"query=web&untilTime=2023-11-14T23:16:00%2B01:00": first + second,
	} {
		if got := copied(t.Context(), t, logs, query); got != want {
			t.Errorf("%s: %q, want %q", query, got, want)
		}
	}
}

// entry of a service, so many seconds after the first, of the first or the second boot.
func entry(after, boot int, service, message string) string {
	const begin = 1_700_000_000
	return fmt.Sprintf("__REALTIME_TIMESTAMP=%d000000\n__MONOTONIC_TIMESTAMP=%d000000\n_BOOT_ID=%032d\n_MACHINE_ID=%032d\n_HOSTNAME=host\n"+
		"_TRANSPORT=journal\n_SYSTEMD_UNIT=%s.service\nSYSLOG_IDENTIFIER=%[5]s\n_PID=1\nMESSAGE=%s\n\n", begin+after, after+1, boot, 3, service, message)
}
