// SPDX-License-Identifier: Apache-2.0

package unitgraph

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wasmplane/wasmplane/core/run"
)

func units() []run.Status {
	now := time.Now()
	return []run.Status{
		{Name: "store", State: run.Ready, Since: now.Add(-90 * time.Second), Took: 40 * time.Millisecond},
		{Name: "server", State: run.Failed, After: "store", Since: now.Add(-time.Second), Error: `no "disk"`},
		{Name: "node a", State: run.Waiting, After: "server"},
	}
}

func TestUnitsAreATableOrAGraph(t *testing.T) {
	for _, c := range []struct {
		method, query string
		status        int
		want          string
	}{
		{"GET", "", http.StatusOK, `UNIT     STATE     FOR     STARTED IN   WAITS FOR   ERROR
store    ready     1m30s   40ms         -           -
server   failed    1s      -            store       no "disk"
node a   waiting   -       -            server      -
`},
		{"GET", "?format=dot", http.StatusOK, `digraph units {
	rankdir=RL
	node [shape=box style=filled]
	"store" [label="store\nready 1m30s" fillcolor=palegreen]
	"server" [label="server\nfailed 1s" fillcolor=salmon]
	"server" -> "store"
	"node a" [label="node a\nwaiting -" fillcolor=lightgray]
	"node a" -> "server"
}
`},
		{"GET", "?format=svg", http.StatusBadRequest, "format: found \"svg\", expected text or dot\n"},
		{"POST", "", http.StatusMethodNotAllowed, "method: found POST, expected GET\n"},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := httptest.NewRecorder()
			Handler(units).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), c.method, Path+c.query, nil))
			if w.Code != c.status || w.Body.String() != c.want {
				t.Errorf("%s %s: %d\n%s\nexpected %d\n%s", c.method, c.query, w.Code, w.Body, c.status, c.want)
			}
		})
	}
}
