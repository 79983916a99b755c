// SPDX-License-Identifier: Apache-2.0

package logquery_test

import (
	"context"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/wasmplane/wasmplane/core/kubelet/logquery"
)

// TestParse has the cases of upstream's test of the same.
func TestParse(t *testing.T) {
	for _, c := range []struct {
		query string
		// want is what it asks for, "-" where it asks for nothing; refused: the field that is wrong.
		want, refused string
	}{
		{query: "", want: "-"},
		{query: "unknown=true", want: "-"},
		{query: "sinceTime=&boot=&tailLines=", want: "-"},
		{query: "sinceTime=2019-12-04+02:00:00", refused: "sinceTime"},
		{query: "sinceTime=2019-12-04+02", refused: "sinceTime"},
		{query: "sinceTime=2019-12-04T02:00:00Z", want: "since=2019-12-04T02:00:00Z"},
		{query: "untilTime=2019-12-04+02:00", refused: "untilTime"},
		{query: "untilTime=2019-12-04T02:00:00%2B01:00", want: "until=2019-12-04T02:00:00+01:00"},
		{query: "tailLines=100", want: "lines=100"},
		{query: "tailLines=foo", refused: "tailLines"},
		{query: "tailLines=+", refused: "tailLines"},
		{query: "tailLines=99999999999999999999", refused: "tailLines"},
		{query: "pattern=foo", want: "pattern=foo"},
		{query: "boot=0", want: "boot=0"},
		{query: "boot=-23", want: "boot=-23"},
		{query: "boot=foo", refused: "boot"},
		{query: "query=", refused: "query"},
		{query: "query=+++&query=++", refused: "query"},
		{query: "query=foo", want: "services=foo"},
		{query: "query=foo&query=bar", want: "services=foo,bar"},
		{query: "query=foo&query=/bar", want: "services=foo files=/bar"},
		{query: `query=/foo&query=\bar`, want: `files=/foo,\bar`},
	} {
		values, err := url.ParseQuery(c.query)
		if err != nil {
			t.Fatal(err)
		}
		q, err := logquery.Parse(values)
		switch {
		case c.refused != "":
			if err == nil || !strings.HasPrefix(err.Error(), c.refused+": ") {
				t.Errorf("%q: %v, want it to be refused for %s", c.query, err, c.refused)
			}
		case err != nil:
			t.Errorf("%q: %v", c.query, err)
		case described(q) != c.want:
			t.Errorf("%q asks for %q, want %q", c.query, described(q), c.want)
		}
	}
}

func described(q *logquery.Query) string {
	if q == nil {
		return "-"
	}
	var s []string
	add := func(name, value string) { s = append(s, name+"="+value) }
	if q.Services != nil {
		add("services", strings.Join(q.Services, ","))
	}
	if q.Files != nil {
		add("files", strings.Join(q.Files, ","))
	}
	if q.Since != nil {
		add("since", q.Since.Format(time.RFC3339))
	}
	if q.Until != nil {
		add("until", q.Until.Format(time.RFC3339))
	}
	if q.TailLines != nil {
		add("lines", strconv.Itoa(*q.TailLines))
	}
	if q.Boot != nil {
		add("boot", strconv.Itoa(*q.Boot))
	}
	if q.Pattern != "" {
		add("pattern", q.Pattern)
	}
	return strings.Join(s, " ")
}

func TestValidate(t *testing.T) {
	for query, refused := range map[string]string{
		"query=svc": "", "query=a&query=b": "", "query=svc.foo": "", "query=svc_foo": "", "query=svc@foo": "", "query=svc:foo": "",
		"query=/some.log":                                "",
		"query=svc&pattern=a.*b":                         "",
		"query=svc&boot=-1":                              "",
		"query=svc&tailLines=100000":                     "",
		"query=svc&tailLines=0":                          "",
		"boot=0":                                         "cannot be empty with options",
		"query=svc&query=/f":                             "cannot specify a file and service",
		"query=/f&query=/g":                              "cannot specify more than one file",
		"query=/f&pattern=a":                             "cannot specify file with options",
		"query=svc%0a":                                   "unsupported characters",
		"query=svc.foo%0a":                               "unsupported characters",
		"query=svc*":                                     "unsupported characters",
		"query=a+--file=b":                               "unsupported characters",
		"query=" + strings.Repeat("svc1", 100):           "length must be less than 256",
		"query=a&query=b&query=c&query=d&query=e":        "must have at most 4 items",
		"query=svc&pattern=foo%5c":                       "pattern",
		"query=svc&pattern=" + strings.Repeat("a", 5000): "pattern",
		"query=svc&pattern=a%00b":                        "pattern",
		"query=svc&boot=1":                               "must be less than 1",
		"query=svc&tailLines=100001":                     "tailLines",
		"query=svc&tailLines=-1":                         "tailLines",
		"query=svc&sinceTime=2023-02-04T02:00:00Z&untilTime=2023-01-04T02:00:00Z": "must be after `sinceTime`",
		"query=svc&sinceTime=2023-01-04T02:00:00Z&untilTime=2023-02-04T02:00:00Z": "",
	} {
		err := parsed(t, query).Validate()
		if refused == "" && err != nil || refused != "" && (err == nil || !strings.Contains(err.Error(), refused)) {
			t.Errorf("%s: %v, want %q", query, err, refused)
		}
	}
}

func parsed(t *testing.T, query string) *logquery.Query {
	t.Helper()
	values, err := url.ParseQuery(query)
	if err != nil {
		t.Fatal(err)
	}
	q, err := logquery.Parse(values)
	if err != nil || q == nil {
		t.Fatalf("%s: %v %v", query, q, err)
	}
	return q
}

// reader is a stand-in for journalctl: it knows web.service and web.socket, and prints what it is
// called with, an argument a line.
func reader(t *testing.T) []string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "reader")
	script := `[ "$1" = --field=_SYSTEMD_UNIT ] && { printf 'web.service\nweb.socket\n'; exit; }
printf '%s\n' "$@"; echo "no such boot" >&2; exit 1`
	if err := os.WriteFile(file, []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{"sh", file}
}

func TestWhatJournalctlIsAsked(t *testing.T) {
	logs := logquery.Logs{Files: fstest.MapFS{}, Journal: reader(t)}
	for query, want := range map[string]string{
		"query=web": "--unit=web", "query=web.socket": "--unit=web.socket",
		"query=web&query=web.socket&tailLines=7": "--lines=7 --unit=web --unit=web.socket",
		"query=web&boot=-1&pattern=-b+$(id)":     "--unit=web --grep=-b $(id) --boot=-1",
		"query=web&sinceTime=2019-12-04T02:03:00%2B01:00&untilTime=2020-01-01T00:00:00Z": "--since=2019-12-04 01:03:00 UTC " +
			"--until=2020-01-01 00:00:00 UTC --unit=web",
	} {
		got := copied(t.Context(), t, logs, query)
		all := "--utc --no-pager --output=short-precise " + want + " no such boot "
		if strings.ReplaceAll(got, "\n", " ") != all {
			t.Errorf("%s: %q, want %q", query, got, all)
		}
	}
}

func copied(ctx context.Context, t *testing.T, logs logquery.Logs, query string) string {
	t.Helper()
	var out strings.Builder
	logs.Copy(ctx, &out, parsed(t, query))
	return out.String()
}

func TestServicesThatLogToFiles(t *testing.T) {
	files := fstest.MapFS{
		"plain": {Data: []byte("a\n")}, "app.log": {Data: []byte("b\n")}, "svc/svc.log": {Data: []byte("c\n")}, "empty/x": {},
	}
	for name, logs := range map[string]logquery.Logs{
		"a journal": {Files: files, Journal: reader(t)}, "none": {Files: files, Journal: []string{filepath.Join(t.TempDir(), "missing")}},
	} {
		for query, want := range map[string]string{
			"query=plain": "a\n", "query=app": "b\n", "query=app.log": "b\n", "query=svc": "c\n",
			"query=plain&query=app": "a\nb\n",
			"query=none&query=svc":  "\nlog not found for none\nc\n",
			"query=empty":           "\nlog not found for empty\n",
			"query=..":              "\nlog not found for ..\n",
			"query=app&tailLines=3": "\noptions present and query resolved to log files for [app]\ntry without specifying options\n",
		} {
			if got := copied(t.Context(), t, logs, query); got != want {
				t.Errorf("%s: %s: %q, want %q", name, query, got, want)
			}
		}
	}
	// One service of the journal, one of a file.
	got := copied(t.Context(), t, logquery.Logs{Files: files, Journal: reader(t)}, "query=web&query=app")
	if !strings.HasSuffix(got, "--unit=web\nno such boot\nb\n") {
		t.Errorf("both: %q", got)
	}
}

// TestAnAnswerEndsWithItsReader: the command that would write for ever is gone with who asked.
func TestAnAnswerEndsWithItsReader(t *testing.T) {
	file := filepath.Join(t.TempDir(), "reader")
	if err := os.WriteFile(file, []byte(`[ "$1" = --field=_SYSTEMD_UNIT ] && { echo web.service; exit; }
while :; do echo line; done`), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	w := &leaver{leave: cancel}
	logquery.Logs{Files: fstest.MapFS{}, Journal: []string{"sh", file}}.Copy(ctx, w, parsed(t, "query=web"))
	if w.wrote == 0 {
		t.Error("nothing was written")
	}
}

// leaver goes away after the first lines.
type leaver struct {
	leave func()
	wrote int
}

func (l *leaver) Write(b []byte) (int, error) {
	l.wrote += len(b)
	l.leave()
	return len(b), nil
}
