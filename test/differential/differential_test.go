package differential

import (
	"fmt"
	"os"
	"path/filepath"
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
	all = append(all, published(), oddReads(), oddWrites(), patches(), people(), reviews(), subresources(), admitted(), definitions(), customs(), policies())
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

// TestUpstream compares with upstream itself. UPSTREAM_STORIES is a part of the
// names of those stories that are told; "" = all.
func TestUpstream(t *testing.T) {
	if os.Getenv("KUBE_APISERVER_BIN") == "" {
		t.Skip("KUBE_APISERVER_BIN names no kube-apiserver: `make differential` builds one")
	}
	var ours, theirs *asker
	ours, theirs = newAsker(t, sides.Ours(t)), upstream(t)
	stories := corpus(t)
	var asked, found, excused int
	for _, s := range stories {
		if part := os.Getenv("STORIES"); !strings.Contains(s.name, part) && s.name != "stage" {
			continue
		}
		var answers [2][]answer
		g, ctx := errgroup.WithContext(t.Context())
		for i, a := range []*asker{ours, theirs} {
			g.Go(func() (err error) { answers[i], err = a.tell(ctx, s); return err })
		}
		if err := g.Wait(); err != nil {
			t.Errorf("%s: %v", s.name, err)
			continue
		}
		var report []string
		for i, r := range s.requests {
			var open []difference
			for _, d := range compare(r, answers[0][i], answers[1][i]) {
				if decided(s, r.title(i), d) {
					excused++
				} else {
					open = append(open, d)
				}
			}
			asked++
			if len(open) == 0 {
				continue
			}
			found++
			lines := []string{fmt.Sprintf("%s: %s", s.name, r.title(i))}
			for _, d := range open {
				lines = append(lines, d.String())
			}
			report = append(report, strings.Join(lines, "\n"))
		}
		if len(report) > 0 {
			t.Errorf("%d of %d answers differ\n%s", len(report), len(s.requests), strings.Join(report, "\n"))
		}
	}
	t.Logf("%d requests in %d stories; %d answers differ, %d differences are decided", asked, len(stories), found, excused)
}

func decided(story, string, difference) bool { return false }
