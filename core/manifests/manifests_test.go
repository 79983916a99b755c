// SPDX-License-Identifier: Apache-2.0

package manifests_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/restmapper"

	"github.com/wasmplane/wasmplane/core/apiserver/apiservertest"
	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/core/manifests"
	"github.com/wasmplane/wasmplane/core/run"
)

// patience is generous: the machine may be busy.
const patience = time.Minute

// world is a real API server.
type world struct {
	t   *testing.T
	set *client.Set
}

func newWorld(t *testing.T) *world {
	t.Helper()
	s := apiservertest.Start(t, apiservertest.Options{})
	set, err := client.New(s.Config("manifests"))
	if err != nil {
		t.Fatal(err)
	}
	return &world{t, set}
}

// server is one that applies a folder.
type server struct {
	*world
	name, dir string
	folder    *manifests.Folder
	reports   chan string
	stop      func()
}

func (w *world) server(name, dir string) *server {
	s := &server{world: w, name: name, dir: dir, reports: make(chan string, 100), stop: func() {}}
	s.folder = manifests.New(manifests.Config{
		Dir: dir, Server: name, Kube: w.set.Kube, Dynamic: w.set.Dynamic, Every: 100 * time.Millisecond,
		Mapper: restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(w.set.Kube.Discovery())),
		Report: func(_ context.Context, problem string) { s.reports <- problem },
		Logger: slog.New(slog.NewTextHandler(w.t.Output(), nil)),
	})
	return s
}

// start runs work until stop, or the test's end.
func (s *server) start(work func(context.Context) error) *server {
	ctx, cancel := context.WithCancel(s.t.Context())
	done := run.Go("folder", func() error { return work(ctx) })
	ended := false
	s.stop = func() {
		if ended {
			return
		}
		ended = true
		cancel()
		if err := <-done; err != nil {
			s.t.Error(err)
		}
	}
	s.t.Cleanup(s.stop)
	return s
}

func (s *server) reported(want string) {
	s.t.Helper()
	select {
	case got := <-s.reports:
		if !strings.Contains(got, want) {
			s.t.Fatalf("reported: %s; want %q", got, want)
		}
	case <-time.After(patience):
		s.t.Fatalf("nothing was reported; want %q", want)
	}
}

func (w *world) write(dir, name, text string) {
	w.t.Helper()
	hidden := filepath.Join(dir, "."+name) // as editors do
	if err := os.WriteFile(hidden, []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
	if err := os.Rename(hidden, filepath.Join(dir, name)); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) remove(dir, name string) {
	w.t.Helper()
	if err := os.Remove(filepath.Join(dir, name)); err != nil {
		w.t.Fatal(err)
	}
}

// await waits until a ConfigMap of the default namespace has that value; "" = there is none.
func (w *world) await(name, want string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	for {
		now := w.value(name)
		if now == want {
			return
		}
		if !run.Sleep(ctx, 20*time.Millisecond) {
			w.t.Fatalf("ConfigMap %s has %q, want %q", name, now, want)
		}
	}
}

func (w *world) value(name string) string {
	w.t.Helper()
	m, err := w.set.Kube.CoreV1().ConfigMaps("default").Get(w.t.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return ""
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return m.Data["v"]
}

func configMap(name, value string) string {
	return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + name + "}\ndata: {v: " + value + "}\n"
}

func TestAFolderIsAppliedAndPruned(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	w.write(dir, "a.yaml", "# a comment\n---\n"+configMap("one", "first")+"---\n"+configMap("two", "second"))
	s := w.server("s", dir)
	s.start(s.folder.Apply)
	w.await("one", "first")
	w.await("two", "second")

	// A change, and what is taken out of a file.
	w.write(dir, "a.yaml", configMap("one", "changed"))
	w.await("one", "changed")
	w.await("two", "")

	// To another file, with its namespace, it only moves.
	m, err := w.set.Kube.CoreV1().ConfigMaps("default").Get(t.Context(), "one", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w.write(dir, "b.yaml", "apiVersion: v1\nkind: ConfigMapList\nitems:\n- "+
		strings.ReplaceAll(strings.TrimSpace(configMap("three", "third")), "\n", "\n  ")+"\n")
	w.await("three", "third")
	w.write(dir, "a.yaml", strings.ReplaceAll(configMap("one", "moved"), "{name: one}", "{name: one, namespace: default}"))
	w.await("one", "moved")
	w.write(dir, "c.yaml", configMap("last", "last"))
	w.await("last", "last")
	after, err := w.set.Kube.CoreV1().ConfigMaps("default").Get(t.Context(), "one", metav1.GetOptions{})
	if err != nil || after.UID != m.UID {
		t.Errorf("it was made anew: %v %v (%v)", after.UID, m.UID, err)
	}

	// What is taken out while nobody looks goes at the next start.
	s.stop()
	w.remove(dir, "b.yaml")
	again := w.server("s", dir)
	if !again.folder.Wanted(t.Context()) {
		t.Error("nothing is to be done")
	}
	again.start(again.folder.Apply)
	w.await("three", "")
	if w.value("one") != "moved" {
		t.Error("another object has gone as well")
	}
}

func TestAWrongFileHarmsNoOther(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	w.write(dir, "a.yaml", configMap("one", "first"))
	s := w.server("s", dir)
	s.start(s.folder.Apply)
	w.await("one", "first")

	w.write(dir, "a.yaml", configMap("one", "first")+"---\nkind: [\n")
	s.reported(filepath.Join(dir, "a.yaml") + ":6: yaml: ")
	w.write(dir, "b.yaml", configMap("two", "second")+"---\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: three\n  labels:\n    a: 'not a label!'\n")
	s.reported(filepath.Join(dir, "b.yaml") + ":10: metadata.labels: ")
	w.await("two", "second")
	w.write(dir, "c.yaml", configMap("four", "x")+"dat: {}\n")
	s.reported(filepath.Join(dir, "c.yaml") + ":5: dat: ConfigMap four: ")
	w.write(dir, "d.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {generateName: x}\n")
	s.reported(filepath.Join(dir, "d.yaml") + ":3: metadata.name: expected apiVersion, kind and metadata.name")
	w.write(dir, "e.yaml", configMap("two", "other"))
	s.reported("ConfigMap two: it stands in " + filepath.Join(dir, "b.yaml") + " too")
	if w.value("one") != "first" {
		t.Error("what was right in a wrong file has gone")
	}
	w.write(dir, "a.yaml", configMap("one", "mended"))
	w.await("one", "mended")
}

func TestAKindThatComesWithAnotherFileIsAwaited(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	w.write(dir, "a.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: in, namespace: later}\n")
	w.write(dir, "z.yaml", "apiVersion: v1\nkind: Namespace\nmetadata: {name: later}\n")
	s := w.server("s", dir)
	s.start(s.folder.Apply)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		if _, err := w.set.Kube.CoreV1().ConfigMaps("later").Get(ctx, "in", metav1.GetOptions{}); err == nil {
			return
		} else if !run.Sleep(ctx, 20*time.Millisecond) {
			t.Fatal(err)
		}
	}
}

// Who may change the record alone has nothing deleted that is not the folder's.
func TestOnlyWhatIsTheFoldersIsDeleted(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	w.write(dir, "a.yaml", configMap("one", "first"))
	s := w.server("s", dir)
	s.start(s.folder.Apply)
	w.await("one", "first")
	s.stop()
	maps := w.set.Kube.CoreV1().ConfigMaps("kube-system")
	m, err := maps.Get(t.Context(), manifests.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	m.Data["applied"] = strings.Replace(m.Data["applied"], `"objects":[`,
		`"objects":[{"file":"x","server":"s","apiVersion":"v1","kind":"ConfigMap","namespace":"default","name":"another"},`, 1)
	if _, err := maps.Update(t.Context(), m, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	another := metav1.ObjectMeta{Name: "another"}
	if _, err := w.set.Kube.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: another, Data: map[string]string{"v": "stays"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	again := w.server("s", dir)
	again.start(again.folder.Apply)
	w.write(dir, "b.yaml", configMap("two", "second"))
	w.await("two", "second")
	w.remove(dir, "b.yaml")
	w.await("two", "")
	if got := w.value("another"); got != "stays" {
		t.Errorf("another object: %q", got)
	}
}

func TestAServerDeletesOnlyWhatItHasApplied(t *testing.T) {
	w := newWorld(t)
	full, other := t.TempDir(), t.TempDir()
	w.write(full, "a.yaml", configMap("one", "first"))
	w.write(full, "b.yaml", configMap("two", "second"))
	first := w.server("first", full)
	first.start(first.folder.Apply)
	w.await("one", "first")
	w.await("two", "second")

	// The second server has other files: it reports that while the first leads.
	w.write(other, "b.yaml", configMap("two", "another"))
	second := w.server("second", other)
	second.start(second.folder.Compare)
	second.reported("b.yaml is another one, a.yaml is only there; give all servers the same")
	second.stop()

	// When it leads, it takes nothing away.
	first.stop()
	leader := w.server("second", other)
	leader.start(leader.folder.Apply)
	w.await("two", "another")
	if w.value("one") != "first" {
		t.Error("the second server deleted what it never had")
	}
	w.remove(other, "b.yaml")
	w.await("two", "")
}

func TestAFolderThatOthersMayWriteIsRefused(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	w.write(dir, "a.yaml", configMap("one", "first"))
	w.write(dir, "b.yaml", configMap("two", "second"))
	if err := os.Chmod(filepath.Join(dir, "a.yaml"), 0o666); err != nil { //nolint:gosec // the mistake
		t.Fatal(err)
	}
	s := w.server("s", dir)
	s.start(s.folder.Apply)
	s.reported("a.yaml: other users may write it (0666)")
	w.await("two", "second")
	if err := os.Chmod(dir, 0o777); err != nil { //nolint:gosec // the mistake
		t.Fatal(err)
	}
	s.reported(dir + ": other users may write it (0777)") // from now on it is not read
	w.write(dir, "b.yaml", configMap("two", "planted"))
	if got := w.value("one") + w.value("two"); got != "second" {
		t.Errorf("%q", got)
	}
}

func TestAFolderThatIsGoneTakesNothingAlong(t *testing.T) {
	w := newWorld(t)
	dir := filepath.Join(t.TempDir(), "manifests")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	w.write(dir, "a.yaml", configMap("one", "first"))
	s := w.server("s", dir)
	s.start(s.folder.Apply)
	w.await("one", "first")
	if err := os.Rename(dir, dir+".away"); err != nil {
		t.Fatal(err)
	}
	s.reported("no such file or directory; what was applied stays")
	if w.value("one") != "first" {
		t.Error("it was deleted")
	}
	if err := os.Rename(dir+".away", dir); err != nil {
		t.Fatal(err)
	}
	w.write(dir, "a.yaml", configMap("one", "again"))
	w.await("one", "again")
}
