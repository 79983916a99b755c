// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	ggcr "github.com/google/go-containerregistry/pkg/registry"
	"go.uber.org/goleak"

	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/loader"
	"github.com/wasmplane/wasmplane/plugins/plugintest"
	"github.com/wasmplane/wasmplane/plugins/source"
)

// eventually waits for something that happens beside the test.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !holds(); {
		if time.Now().After(deadline) {
			t.Fatalf("%s did not happen", what)
		}
		<-time.After(2 * time.Millisecond)
	}
}

func names(l *loader.Loader) (out []string) {
	for _, p := range l.AdmissionPlugins() {
		out = append(out, p.Name())
	}
	return out
}

func TestOrderIsWhatIsWrittenThenTheFileThenNames(t *testing.T) {
	dir := t.TempDir()
	replaceFile(t, filepath.Join(dir, "tiny.wasm"), tiny(t, "no", ""))
	list := func(items ...string) string {
		text := "plugins:\n"
		for _, i := range items {
			text += "  - {source: 'file:tiny.wasm', points: [admission.validate], " + i + "}\n"
		}
		return text
	}
	l := newLoader(t,
		loader.Config{InProcess: true, Dir: dir, Entries: entries(t, list("name: z-file", "name: a-file", "name: late, order: 5"))})
	if err := l.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	err := l.Apply(t.Context(), loader.API, entries(t, list("name: z-api", "name: b-api", "name: early, order: -1", "name: a-file")))
	if !errors.Is(err, loader.ErrTaken) {
		t.Errorf("an API entry with a name of the file: %v", err)
	}
	if got, want := names(l), []string{"early", "z-file", "a-file", "b-api", "z-api", "late"}; !slices.Equal(got, want) {
		t.Errorf("order %v, want %v", got, want)
	}
	if err := l.Apply(t.Context(), loader.API, nil); err != nil {
		t.Error(err)
	}
	if got, want := names(l), []string{"z-file", "a-file", "late"}; !slices.Equal(got, want) {
		t.Errorf("after the API's are gone %v, want %v", got, want)
	}
	if err := l.Apply(t.Context(), loader.File, entries(t, list("name: a-file", "name: z-file"))); err != nil {
		t.Error(err)
	}
	if got, want := names(l), []string{"a-file", "z-file"}; !slices.Equal(got, want) {
		t.Errorf("after the file's changed places %v, want %v", got, want)
	}
}

func TestAProcessKeepsWhatItAsksOnly(t *testing.T) {
	dir := t.TempDir()
	replaceFile(t, filepath.Join(dir, "tiny.wasm"), tiny(t, "no", ""))
	l := newLoader(t, loader.Config{InProcess: true, Dir: dir, Points: []abi.Point{abi.SchedulingFilter, abi.SchedulingScore}, Entries: entries(t, `
plugins:
  - {name: says-so, source: "file:tiny.wasm", points: [admission.validate]}
  - {name: shows-it, source: "file:tiny.wasm"}
  - {name: broken-and-not-ours, source: "file:none.wasm", points: [admission.validate]}
`)})
	if err := l.Load(t.Context()); err != nil {
		t.Error(err)
	}
	for _, s := range l.Status() {
		if !s.Unused || s.Ready || s.Instances != 0 {
			t.Errorf("%+v", s)
		}
	}
	if len(l.AdmissionPlugins()) != 0 {
		t.Errorf("taking part: %v", names(l))
	}
}

func TestACandidateIsComparedAndChangesNothing(t *testing.T) {
	defer goleak.VerifyNone(t)
	dir := t.TempDir()
	replaceFile(t, filepath.Join(dir, "canned.wasm"), plugintest.Canned(t))
	const plugin = "plugins:\n  - name: p\n    source: file:canned.wasm\n    points: [admission.validate]\n    settings: {allowed: true}\n"
	l, err := loader.New(t.Context(),
		loader.Config{
			InProcess: true, Dir: dir,
			Entries: entries(t, plugin+"    candidate: {settings: {allowed: false, message: 'too strict'}}\n"),
		})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	if err := l.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	p := l.AdmissionPlugins()[0]
	ask := func(want string) {
		t.Helper()
		if err := validate(t, p); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("decision %v, want %q", err, want)
		}
	}
	ask("")
	status := func() *loader.CandidateStatus { return l.Status()[0].Candidate }
	eventually(t, "the comparison", func() bool { return status().Calls == 1 })
	c := status()
	if c.Differing != 1 || len(c.Differences) != 1 || c.Differences[0].Enforced != "allow" ||
		c.Differences[0].Candidate != "deny: too strict" || !strings.Contains(c.Differences[0].About, "CREATE Pod default/web") {
		t.Errorf("%+v", c)
	}
	// Another wording is no other decision.
	apply := func(text string) {
		t.Helper()
		if err := l.Apply(t.Context(), loader.File, entries(t, text)); err != nil {
			t.Error(err)
		}
	}
	before := l.Status()[0].Since
	apply(plugin + "    candidate: {settings: {allowed: true, message: 'fine'}}\n")
	ask("")
	eventually(t, "the comparison", func() bool { return status().Calls == 1 })
	if c := status(); c.Differing != 0 || len(c.Differences) != 0 {
		t.Errorf("%+v", c)
	}
	if since := l.Status()[0].Since; !since.Equal(before) {
		t.Error("the version in force was loaded again for a new candidate")
	}
	// One that cannot be loaded leaves everything as it is, and says so.
	if err := l.Apply(t.Context(), loader.File, entries(t, plugin+"    candidate: {source: 'file:none.wasm'}\n")); err == nil ||
		!strings.Contains(err.Error(), "load the candidate of plugin \"p\"") {
		t.Errorf("error %v", err)
	}
	if s := l.Status()[0]; !s.Ready || s.Error != "" || !s.Candidate.Ready || s.Candidate.Error == "" {
		t.Errorf("%+v", s)
	}
	ask("")
	// Promoted, and gone.
	apply("plugins:\n  - {name: p, source: 'file:canned.wasm', points: [admission.validate], settings: {allowed: false, message: strict}}\n")
	ask("strict")
	if status() != nil {
		t.Errorf("the candidate is still there: %+v", status())
	}
}

func TestAModuleComesFromARegistryAndARestartNeedsNone(t *testing.T) {
	s := httptest.NewServer(ggcr.New(ggcr.Logger(log.New(io.Discard, "", 0))))
	defer s.Close()
	f, err := source.New(source.Config{})
	if err != nil {
		t.Fatal(err)
	}
	at := "oci://" + strings.TrimPrefix(s.URL, "http://") + "/team/tiny:1"
	unpinned := entries(t, "plugins: [{name: x, source: '"+at+"', digest: 'sha256:"+strings.Repeat("0", 64)+"', fetch: {plainHTTP: true}}]")[0]
	digest, err := f.Push(t.Context(), &unpinned, tiny(t, "from afar", ""), nil)
	if err != nil {
		t.Fatal(err)
	}
	modules := filepath.Join(t.TempDir(), "modules")
	load := func(want string) {
		t.Helper()
		l := newLoader(t, loader.Config{
			InProcess: true, ModuleDir: modules,
			Entries: entries(t, "plugins: [{name: tiny, points: [admission.validate], source: '"+at+"@"+digest+"', fetch: {plainHTTP: true}}]"),
		})
		err := l.Load(t.Context())
		if want == "" {
			if err == nil {
				t.Error("it was loaded from nowhere")
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := validate(t, l.AdmissionPlugins()[0]); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("decision %v", err)
		}
	}
	load("from afar")
	s.Close()
	load("from afar")
	modules = filepath.Join(t.TempDir(), "empty")
	load("")
}

func TestRegistriesThatDoNotAnswerAreWaitedForSideBySide(t *testing.T) {
	var asked atomic.Int32
	all := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/v2/") && asked.Add(1) == 3 { // later ones try again
			close(all)
		}
		<-all // nobody is answered before all have been asked
		panic(http.ErrAbortHandler)
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	defer s.Close()
	text := "plugins:\n"
	for _, name := range []string{"a", "b", "c"} {
		text += "  - {name: " + name + ", points: [admission.validate], source: 'oci://" + strings.TrimPrefix(s.URL,
			"http://") + "/x/" + name + ":1', digest: 'sha256:" + strings.Repeat("0", 64) + "', fetch: {plainHTTP: true, timeout: 60s}}\n"
	}
	l := newLoader(t, loader.Config{InProcess: true, Entries: entries(t, text)})
	done := make(chan error, 1)
	go func() { done <- l.Load(t.Context()) }()
	<-all
	if err := <-done; err == nil {
		t.Error("modules were loaded from nowhere")
	}
}
