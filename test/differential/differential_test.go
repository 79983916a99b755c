// SPDX-License-Identifier: Apache-2.0

package differential

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/wasmplane/wasmplane/test/internal/sides"
)

// anonymousHealth is what strangers may see on our side; upstream gets the same
// by configuration.
const anonymousHealth = `apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
anonymous:
  enabled: true
  conditions: [{path: /livez}, {path: /readyz}, {path: /healthz}]
`

func upstream(t *testing.T) *asker {
	t.Helper()
	file := filepath.Join(t.TempDir(), "authentication.yaml")
	if err := os.WriteFile(file, []byte(anonymousHealth), 0o600); err != nil {
		t.Fatal(err)
	}
	return newAsker(t, sides.Theirs(t, "--authorization-mode", "Node,RBAC", "--authentication-config", file,
		"--enable-admission-plugins", "NodeRestriction", "--allow-privileged"))
}

func corpus(t *testing.T) []story {
	t.Helper()
	var all []story
	all = append(all, stage())
	all = append(all, published(), oddReads(), oddWrites(), patches(), people(), reviews(), subresources(), admitted(), definitions(),
		customs(), policies())
	all = append(all, lived(t)...)
	all = append(all, stored(t)...)
	all = append(all, created(t)...)
	unique(t, all)
	return all
}

// stage is what all stories stand on.
func stage() story {
	return story{name: "stage", requests: []request{
		{method: "POST", path: "/api/v1/namespaces", body: `{"metadata":{"name":"` + space + `"}}`, quiet: true},
		{method: "POST", path: "/api/v1/namespaces/" + space + "/serviceaccounts", body: `{"metadata":{"name":"default"}}`, quiet: true},
	}}
}

// TestAnswers compares our answers with upstream's: those of the kube-apiserver
// that KUBE_APISERVER_BIN names, or without one with what is recorded. STORIES is
// a part of the names of those stories that are told; "" = all. RECORD=1 tells those
// that are recorded, and records.
func TestAnswers(t *testing.T) {
	stories := corpus(t)
	for _, name := range recorded {
		if !slices.ContainsFunc(stories, func(s story) bool { return s.name == name }) {
			t.Errorf("there is no story %q to record", name)
		}
	}
	if os.Getenv("KUBE_APISERVER_BIN") == "" {
		againstRecord(t, newAsker(t, sides.Ours(t)), stories)
		return
	}
	c := &comparison{ours: newAsker(t, sides.Ours(t)), theirs: upstream(t), decisions: compileDecisions(), used: map[int]bool{}}
	var record []string
	recording := os.Getenv("RECORD") == "1"
	part := os.Getenv("STORIES")
	for _, s := range stories {
		switch {
		case recording: // all that are recorded, whatever STORIES says: the record is whole or not written
			if slices.Contains(recorded, s.name) {
				record = append(record, c.story(t, s))
			}
		case strings.Contains(s.name, part) || s.name == "stage":
			c.story(t, s)
		}
	}
	t.Logf("%d requests in %d stories; %d answers differ, %d differences are decided", c.asked, len(stories), c.found, c.excused)
	if recording {
		// The record stands for upstream's answers: it is of stories in which nothing differed.
		if t.Failed() {
			t.Fatal("nothing is recorded while answers differ: mend them, or decide on them in decided_test.go")
		}
		if err := os.WriteFile(recordFile, []byte(strings.Join(record, "\n")+"\n"), 0o644); err != nil { //nolint:gosec // for everybody to read
			t.Fatal(err)
		}
		return
	}
	if part != "" {
		return
	}
	for i, d := range c.decisions {
		if !c.used[i] && !d.sometimes {
			t.Errorf("nothing differs as decided any more: %s", d.why)
		}
	}
}

// comparison is one run against upstream.
type comparison struct {
	ours, theirs          *asker
	decisions             []compiled
	used                  map[int]bool
	asked, found, excused int
}

// story tells a story to both, reports what is not decided, and answers its line
// of the record.
func (c *comparison) story(t *testing.T, s story) string {
	t.Helper()
	var answers [2][]answer
	g, ctx := errgroup.WithContext(t.Context())
	for i, a := range []*asker{c.ours, c.theirs} {
		g.Go(func() (err error) { answers[i], err = a.tell(ctx, s); return err })
	}
	if err := g.Wait(); err != nil {
		t.Errorf("%s: %v", s.name, err)
		return ""
	}
	var report []string
	sums := make([]string, 0, len(s.requests))
	for i, r := range s.requests {
		c.asked++
		var open []string
		for _, d := range compare(r, answers[0][i], answers[1][i]) {
			if n := decided(c.decisions, s.name, r.title(i), d); n >= 0 {
				c.used[n] = true
				c.excused++
				continue
			}
			open = append(open, d.String())
		}
		// Where the two differ as decided, ours is what is not to change.
		sums = append(sums, sum(r, answers[0][i]))
		if len(open) > 0 {
			c.found++
			report = append(report, s.name+": "+r.title(i)+"\n"+strings.Join(open, "\n"))
		}
	}
	if len(report) > 0 {
		t.Errorf("%d of %d answers differ\n%s", len(report), len(s.requests), strings.Join(report, "\n"))
	}
	return line(s, sums)
}
