// SPDX-License-Identifier: Apache-2.0

package lending

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/wasmplane/wasmplane/core/airgap"
	"github.com/wasmplane/wasmplane/core/run"
)

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// kept puts an archive with one file into a folder, and answers its name.
func kept(t *testing.T, dir string, content []byte) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "a.tar")
	only := airgap.File{Path: airgap.Program, Size: int64(len(content)), Digest: airgap.Digest(content)}
	l := &airgap.List{Platform: "linux/amd64", Files: []airgap.File{only}}
	check(t, airgap.Write(t.Context(), file, l, nil, func(context.Context, airgap.File) (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(content)), nil
	}, nil))
	from, err := airgap.FileSource(file)
	check(t, err)
	a, err := airgap.Keep(t.Context(), dir, from, anyList, nil)
	check(t, err)
	check(t, a.Close())
	return filepath.Base(a.File)
}

func anyList(*airgap.List, []byte, []byte) error { return nil }

// serves runs a Shelf; wrap changes how it answers.
func serves(t *testing.T, dir string, wrap func(http.Handler) http.Handler) *httptest.Server {
	t.Helper()
	shelf := &Shelf{Dir: dir, Log: slog.New(slog.DiscardHandler)}
	ctx, cancel := context.WithCancel(t.Context())
	ended := run.Go("shelf", func() error { return shelf.Run(ctx) })
	s := httptest.NewTLSServer(wrap(shelf))
	t.Cleanup(func() {
		cancel()
		check(t, <-ended)
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

func plain(h http.Handler) http.Handler { return h }

// follows runs a Follower of servers, and answers what it takes.
func follows(t *testing.T, dir string, allow airgap.Check, servers ...*httptest.Server) <-chan string {
	t.Helper()
	took := make(chan string, 10)
	f := &Follower{
		Dir: dir, Check: allow, Again: 10 * time.Millisecond, Log: slog.New(slog.DiscardHandler),
		Client: func(address string) (*rest.Config, error) {
			return &rest.Config{Host: "https://" + address, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}, nil
		},
		Servers: func(context.Context) (out []string, _ error) {
			for _, s := range servers {
				out = append(out, strings.TrimPrefix(s.URL, "https://"))
			}
			return out, nil
		},
		Took: func(_ context.Context, a *airgap.Archive) error {
			took <- filepath.Base(a.File)
			return nil
		},
		Removed: func(context.Context) error {
			took <- "removed"
			return nil
		},
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := run.Go("follower", func() error { return f.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		check(t, <-ended)
	})
	return took
}

func wait(t *testing.T, took <-chan string, want string) {
	t.Helper()
	select {
	case got := <-took:
		if got != want {
			t.Fatalf("%s was taken over, want %s", got, want)
		}
	case <-time.After(time.Minute):
		t.Fatalf("%s was not taken over", want)
	}
}

// An archive that is there, and one that comes while a request waits, reach the other machine, from whichever server.
func TestArchivesReachTheOtherMachines(t *testing.T) {
	one, two, mine := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "airgap")
	first := kept(t, one, []byte("first"))
	took := follows(t, mine, anyList, serves(t, one, plain), serves(t, two, plain))
	wait(t, took, first)
	second := kept(t, two, []byte("second"))
	wait(t, took, second)
	for _, name := range []string{first, second} {
		a, err := airgap.Open(filepath.Join(mine, name))
		check(t, err)
		check(t, a.Close())
	}
}

// What is removed on one server goes from all machines, and comes back from none; one that is loaded again does, though a machine
// that was away still has the removal.
func TestARemovalReachesTheOtherMachines(t *testing.T) {
	one, two, mine := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "airgap")
	name := kept(t, one, []byte("first"))
	first, second := serves(t, one, plain), serves(t, two, plain)
	took, other := follows(t, mine, anyList, first, second), follows(t, two, anyList, first)
	wait(t, took, name)
	wait(t, other, name)
	check(t, airgap.Remove(one, name, 0))
	wait(t, took, "removed")
	wait(t, other, "removed")
	for _, dir := range []string{one, two, mine} {
		if files, err := airgap.Kept(dir); err != nil || len(files) > 0 {
			t.Errorf("%s still has %q, %v", dir, files, err)
		}
	}
	if again := kept(t, one, []byte("first")); again != name {
		t.Fatalf("the same archive is %s, and was %s", again, name)
	}
	check(t, airgap.Want(one, name))
	wait(t, took, name)
	wait(t, other, name)
	if turn, err := airgap.Turn(mine, name); err != nil || turn != 2 {
		t.Errorf("turn %d, %v", turn, err)
	}
}

// A machine of a release without removals tells offers apart by what it knows of them: it must not ask without end.
func TestAMachineThatKnowsNoRemovalsWaits(t *testing.T) {
	dir := t.TempDir()
	shelf := &Shelf{Dir: dir, Log: slog.New(slog.DiscardHandler)}
	gone, there := kept(t, dir, []byte("first")), kept(t, dir, []byte("second"))
	check(t, airgap.Remove(dir, gone, 0))
	check(t, airgap.SetTurn(dir, there, 2))
	shelf.look(t.Context())
	asked := func(query string) string {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		w := httptest.NewRecorder()
		shelf.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, Path+query, nil))
		return w.Body.String()
	}
	old, now := asked(""), asked("?removals")
	if strings.Contains(old, "removed") || strings.Contains(old, "turn") || !strings.Contains(now, `"removed":[{"name":"`+gone) {
		t.Errorf("old %s, now %s", old, now)
	}
	var knows struct {
		Archives []struct {
			Name string `json:"name"`
			Size int64  `json:"size"`
		} `json:"archives"`
	}
	check(t, json.Unmarshal([]byte(old), &knows))
	text, err := json.Marshal(knows)
	check(t, err)
	if again := asked("?not=" + airgap.Digest(text)); again != "" {
		t.Errorf("it is answered at once: %s", again)
	}
}

// A download that breaks off goes on where it was when the server answers again.
func TestADownloadGoesOn(t *testing.T) {
	dir, mine := t.TempDir(), filepath.Join(t.TempDir(), "airgap")
	content := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	name := kept(t, dir, content)
	var broke atomic.Int64
	took := follows(t, mine, anyList, serves(t, dir, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Get("archive") != "" && r.Header.Get("Range") != "" && broke.Add(1) == 1 {
				w.Header().Set("Content-Length", "1000000")
				w.WriteHeader(http.StatusPartialContent)
				_, _ = w.Write(content[:1000])
				panic(http.ErrAbortHandler)
			}
			h.ServeHTTP(w, r)
		})
	}))
	wait(t, took, name)
	if n := broke.Load(); n < 2 {
		t.Errorf("it was asked %d times for a part", n)
	}
}

// What a machine's Check refuses is asked about once, and nothing of it stays.
func TestWhatIsNotForThisMachineStaysAway(t *testing.T) {
	dir, mine := t.TempDir(), filepath.Join(t.TempDir(), "airgap")
	name := kept(t, dir, []byte("theirs"))
	asked := make(chan struct{}, 10)
	took := follows(t, mine, func(l *airgap.List, _, _ []byte) error {
		if l.Files[0].Size == 6 {
			asked <- struct{}{}
			return errors.New("not for me")
		}
		return nil
	}, serves(t, dir, plain))
	<-asked
	other := kept(t, dir, []byte("mine"))
	wait(t, took, other)
	if len(asked) > 0 {
		t.Errorf("%s was asked for again", name)
	}
	if _, err := os.Stat(filepath.Join(mine, name)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is there: %v", err)
	}
}

func TestAShelfShowsArchivesAndNothingElse(t *testing.T) {
	dir := t.TempDir()
	name := kept(t, dir, []byte("one"))
	check(t, os.WriteFile(filepath.Join(dir, "secret"), []byte("secret"), 0o600))
	check(t, os.WriteFile(filepath.Join(filepath.Dir(dir), "outside"), []byte("outside"), 0o600))
	s := serves(t, dir, plain)
	client := s.Client()
	get := func(query string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+Path+query, nil)
		check(t, err)
		resp, err := client.Do(req)
		check(t, err)
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		check(t, err)
		return resp.StatusCode, string(body)
	}
	for _, query := range []string{"secret", "../outside", "%2e%2e%2foutside", "/etc/passwd", strings.Repeat("0", 64) + ".tar"} {
		if code, body := get("?archive=" + query); code != http.StatusNotFound || strings.Contains(body, "secret") {
			t.Errorf("%s: %d %s", query, code, body)
		}
	}
	// The folder is read soon after the start.
	var body string
	for code := 0; !strings.Contains(body, name); code, body = get("?not=" + Offer{}.tag()) {
		if code != 0 && code != http.StatusOK {
			t.Fatalf("%d %s", code, body)
		}
	}
	if strings.Contains(body, "secret") {
		t.Errorf("it shows %s", body)
	}
	if code, body := get("?archive=" + name); code != http.StatusOK || !strings.HasPrefix(body, "airgap.json") {
		t.Errorf("%d %.40q", code, body)
	}
}
