// SPDX-License-Identifier: Apache-2.0

package static_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/wasmplane/wasmplane/core/kubelet/static"
	"github.com/wasmplane/wasmplane/core/run"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is generous: the machine may be busy.
const patience = time.Minute

// folder is a Folder that runs, and what it calls.
type folder struct {
	t      *testing.T
	dir    string
	pods   chan []*corev1.Pod
	failed chan string
}

func parse(_ context.Context, file string, data []byte) (*corev1.Pod, error) {
	p := &corev1.Pod{}
	if err := yaml.UnmarshalStrict(data, p); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return p, nil
}

func open(t *testing.T, dir string) *folder {
	t.Helper()
	f, err := static.New(static.Config{
		Dir: dir, NodeName: "Node1", Parse: parse, Every: 50 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	w := &folder{t: t, dir: dir, pods: make(chan []*corev1.Pod, 100), failed: make(chan string, 100)}
	ctx, cancel := context.WithCancel(t.Context())
	done := run.Go("folder", func() error {
		return f.Run(ctx, func(pods []*corev1.Pod) { w.pods <- pods }, func(err error) { w.failed <- err.Error() })
	})
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return w
}

// write puts a whole file in place at once, as careful editors do.
func (w *folder) write(name, data string) {
	w.t.Helper()
	if err := os.WriteFile(filepath.Join(w.dir, ".new"), []byte(data), 0o600); err != nil {
		w.t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(w.dir, ".new"), filepath.Join(w.dir, name)); err != nil {
		w.t.Fatal(err)
	}
}

func (w *folder) remove(name string) {
	w.t.Helper()
	if err := os.Remove(filepath.Join(w.dir, name)); err != nil {
		w.t.Fatal(err)
	}
}

// next are the pods of the next change, by name.
func (w *folder) next() map[string]*corev1.Pod {
	w.t.Helper()
	select {
	case pods := <-w.pods:
		out := map[string]*corev1.Pod{}
		for _, p := range pods {
			out[p.Namespace+"/"+p.Name] = p
		}
		return out
	case <-time.After(patience):
		w.t.Fatal("no change was seen")
		return nil
	}
}

// refused waits for an error with these words.
func (w *folder) refused(words string) {
	w.t.Helper()
	select {
	case got := <-w.failed:
		if !strings.Contains(got, words) {
			w.t.Errorf("the error is %q, want %q", got, words)
		}
	case <-time.After(patience):
		w.t.Fatalf("no error came with %q", words)
	}
}

func manifest(name, image string) string {
	return "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + "}\nspec:\n  containers: [{name: a, image: " + image + "}]\n"
}

// TestAFolderIsFollowed: pods come with their files, are others when these change in what
// counts, go with them, and a file with an error harms no other.
func TestAFolderIsFollowed(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pods")
	w := open(t, dir)
	if got := w.next(); len(got) != 0 {
		t.Fatalf("pods of a folder that is not there: %v", got)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	w.write("a.yaml", manifest("a", "one"))
	a := w.next()["default/a-node1"]
	if a == nil || a.Spec.NodeName != "Node1" || len(a.UID) != 32 || a.Annotations[static.HashAnnotation] != string(a.UID) ||
		a.Annotations[static.SourceAnnotation] != "file" || a.Annotations[static.SeenAnnotation] == "" || a.Status.Phase != corev1.PodPending {
		t.Fatalf("the pod is %+v", a)
	}
	tol := a.Spec.Tolerations
	if len(tol) != 1 || tol[0].Operator != corev1.TolerationOpExists || tol[0].Effect != corev1.TaintEffectNoExecute {
		t.Errorf("it tolerates %v", tol)
	}
	// Another file: the first pod is the same, as it is with a comment.
	w.write("a.yaml", "# A comment.\n"+manifest("a", "one"))
	w.write("b.yaml", strings.Replace(manifest("b", "one"), "{name: b}", "{name: b, namespace: other}", 1))
	got := w.next()
	if len(got) != 2 || got["default/a-node1"].UID != a.UID || got["other/b-node1"] == nil {
		t.Fatalf("the pods are %v", got)
	}
	// What is wrong is said once; what was right before stays.
	w.write("b.yaml", "apiVersion: [\n")
	w.refused(filepath.Join(dir, "b.yaml") + ": ")
	w.write("a.yaml", manifest("a", "two"))
	got = w.next()
	if len(got) != 2 || got["default/a-node1"].UID == a.UID {
		t.Fatalf("the pods are %v", got)
	}
	w.remove("b.yaml")
	if got = w.next(); len(got) != 1 {
		t.Fatalf("the pods are %v", got)
	}
	// Of two files with one name the first counts, until it is gone.
	first := got["default/a-node1"].UID
	w.write("c.yaml", manifest("a", "three"))
	w.refused("pod default/a-node1 stands in a.yaml too: choose another name")
	w.remove("a.yaml")
	if got = w.next(); len(got) != 1 || got["default/a-node1"].UID == first {
		t.Fatalf("the pods are %v", got)
	}
	if len(w.failed) != 0 {
		t.Errorf("said besides: %q", <-w.failed)
	}
}

func TestWhatIsNoManifestIsRefused(t *testing.T) {
	dir := t.TempDir()
	w := open(t, dir)
	w.next()
	w.write("big.yaml", "# "+strings.Repeat("x", 1<<20))
	w.refused("may have 1048576 bytes")
	if err := os.Symlink("/dev/zero", filepath.Join(dir, "endless")); err != nil {
		t.Fatal(err)
	}
	w.refused("found something else")
	w.write(".hidden.yaml", manifest("hidden", "one"))
	w.write("z.yaml", manifest("z", "one"))
	if got := w.next(); len(got) != 1 || got["default/z-node1"] == nil {
		t.Errorf("the pods are %v", got)
	}
}

// TestNothingOfTheAPIIsReferredTo: it may be away.
func TestNothingOfTheAPIIsReferredTo(t *testing.T) {
	for what, lines := range map[string]string{
		"serviceaccounts": "serviceAccountName: x",
		"secrets":         "imagePullSecrets: [{name: x}]",
		"resourceclaims":  "resourceClaims: [{name: x}]",
		"configmaps":      "initContainers: [{name: i, image: x, envFrom: [{configMapRef: {name: x}}]}]",
		"secrets ": "initContainers: [{name: i, image: x, " +
			"env: [{name: A, valueFrom: {secretKeyRef: {name: x, key: y}}}]}]",
		"configmaps (via configmap volumes)":             "volumes: [{name: v, configMap: {name: x}}]",
		"secrets (via secret volumes)":                   "volumes: [{name: v, secret: {secretName: x}}]",
		"csidrivers (via CSI volumes)":                   "volumes: [{name: v, csi: {driver: x}}]",
		"persistentvolumeclaims":                         "volumes: [{name: v, persistentVolumeClaim: {claimName: x}}]",
		"persistentvolumeclaims (via ephemeral volumes)": "volumes: [{name: v, ephemeral: {volumeClaimTemplate: {spec: {}}}}]",
		"serviceaccounts (via projected volumes)":        "volumes: [{name: v, projected: {sources: [{serviceAccountToken: {path: x}}]}}]",
		"configmaps (via projected volumes)": "volumes: [{name: v, " +
			"projected: {sources: [{downwardAPI: {}}, {configMap: {name: x}}]}}]",
		"volumes of this kind": "volumes: [{name: v}]",
	} {
		t.Run(what, func(t *testing.T) {
			w := open(t, t.TempDir())
			w.next()
			w.write("a.yaml", manifest("a", "one")+"  "+lines+"\n")
			w.refused("static pods may not reference " + strings.TrimSpace(what))
		})
	}
	w := open(t, t.TempDir())
	w.next()
	w.write("a.yaml", manifest("a", "one")+"  volumes: [{name: e, emptyDir: {}}, "+
		"{name: h, hostPath: {path: /}}, {name: p, projected: {sources: [{downwardAPI: {}}]}}]\n")
	if got := w.next(); len(got) != 1 {
		t.Errorf("the pods are %v", got)
	}
}

func TestPlanMirrors(t *testing.T) {
	named := func(name string, uid types.UID) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: uid, Annotations: map[string]string{}}}
	}
	of := func(pods ...*corev1.Pod) map[types.NamespacedName]*corev1.Pod {
		out := map[types.NamespacedName]*corev1.Pod{}
		for _, p := range pods {
			out[static.Key(p)] = p
		}
		return out
	}
	a, b := named("a", "hash-a"), named("b", "hash-b")
	m := static.Mirror(a, "node")
	if !static.IsMirror(m) || static.IsMirror(a) || !static.Reflects(m, a) || static.Reflects(m, b) || m.UID != "" ||
		m.OwnerReferences[0].UID != "node" || !*m.OwnerReferences[0].Controller {
		t.Errorf("the mirror is %+v", m)
	}
	deleted, old := m.DeepCopy(), m.DeepCopy()
	deleted.DeletionTimestamp = &metav1.Time{}
	old.Annotations[corev1.MirrorPodAnnotationKey] = "another"
	for name, c := range map[string]struct {
		pods, mirrors  map[types.NamespacedName]*corev1.Pod
		remove, create string
	}{
		"all is well": {of(a), of(m), "", ""},
		"missing":     {of(a, b), of(m), "", "b"},
		"deleted":     {of(a), of(deleted), "a", ""},
		"of a former": {of(a), of(old), "a", ""},
		"of nothing":  {of(), of(m), "a", ""},
	} {
		got := static.PlanMirrors(c.pods, c.mirrors)
		names := func(list []*corev1.Pod) (out string) {
			for _, p := range list {
				out += p.Name
			}
			return out
		}
		if names(got.Delete) != c.remove || names(got.Create) != c.create {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
