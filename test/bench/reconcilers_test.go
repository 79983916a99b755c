// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/trace"
	"github.com/wasmplane/wasmplane/core/trace/journey"
	"github.com/wasmplane/wasmplane/core/trace/otlp"
	"github.com/wasmplane/wasmplane/plugins/plugintest/wat"
)

// BenchmarkReconcilers is what Wasm reconcilers cost asleep, and how they wake.
func BenchmarkReconcilers(b *testing.B) {
	for b.Loop() {
		measureReconcilers(b, 300, 100*time.Second, 100).publish(b)
	}
}

// herd is a number of reconcilers with a label of their own each.
type herd struct {
	what, unit string
	config     string
	wakes      int // how many are woken alone; 0: all at once
}

// measureReconcilers loads n reconcilers in one process, leaves them alone until no instance is
// left (a minute), and looks at the process beside one without any. Then it wakes some, each for
// the first time: by a ConfigMap of the label that it looks for.
func measureReconcilers(tb testing.TB, n int, settle time.Duration, wakes int) *report {
	r := newReport(fmt.Sprintf("%d Wasm reconcilers asleep in one process, beside none", n), "", "RSS", "anonymous", "live heap", "goroutines",
		"requests/min", "writes", "CPU", "asleep each: anonymous", "heap")
	var none resting
	for _, h := range []herd{
		{"none", "none", "", 0},
		{fmt.Sprint(n, " modules"), "modules", ownModules(tb, n), min(wakes, n)},
		{fmt.Sprint(n, " entries of one module"), "entries", oneModule(tb, n), 0},
	} {
		func() {
			c := newCluster(tb, "--nodes", "none")
			defer c.purge()
			if h.config != "" {
				c.writeConfig(h.config)
			}
			c.start()
			kube := c.kube()
			permit(tb, kube)
			if h.config == "" {
				pause(tb.Context(), settle)
				none = rest(tb, c, kube, "none", settle/2)
				r.row(append([]string{h.what}, none.cells(none, 0)...)...)
				return
			}
			pause(tb.Context(), settle)
			asleep := rest(tb, c, kube, h.unit, settle/2)
			r.row(append([]string{h.what}, asleep.cells(none, n)...)...)
			if n >= 100 { // of a few it would be noise
				r.metric("KiB/anon-"+h.unit, float64(asleep.anon-none.anon)/1024/float64(n))
				r.metric("KiB/heap-"+h.unit, (asleep.heap-none.heap)/1024/float64(n))
			}
			if h.wakes > 0 {
				wake(tb, kube, r, h.wakes)
			} else {
				wakeAll(tb, kube, r, n)
			}
		}()
	}
	r.note("asleep each: what the process has more than the one without, for each reconciler.")
	return r
}

// reconcilerSource is a reconciler that makes one ConfigMap for each that has its label.
const reconcilerSource = `(module
  (memory (export "memory") 2)
  (data (i32.const 1024) "%[1]s")
  (data (i32.const 4096) "%[2]s")
  (func (export "describe") (result i64) (i64.or (i64.shl (i64.const 1024) (i64.const 32)) (i64.const %[3]d)))
  (func (export "alloc") (param $length i32) (result i32) (i32.const 65536))
  (func (export "call") (param i32 i32 i32) (result i64) (i64.or (i64.shl (i64.const 4096) (i64.const 32)) (i64.const %[4]d))))`

func reconcilerName(i int) string { return fmt.Sprintf("r%03d", i) }

// ownModules are n modules that differ.
func ownModules(tb testing.TB, n int) string {
	tb.Helper()
	dir := tb.TempDir()
	text := "apiVersion: wasmplane.dev/v1alpha1\nkind: Configuration\nplugins:"
	for i := range n {
		name := reconcilerName(i)
		manifest := fmt.Sprintf(`{"abi":1,"name":"%[1]s","version":"1.0.0","hooks":[{"op":7,"point":"reconcile",`+
			`"primary":{"version":"v1","resource":"configmaps","kind":"ConfigMap","selector":"bench=%[1]s"},`+
			`"owned":[{"version":"v1","resource":"configmaps","kind":"ConfigMap"}],"fields":["name"]}]}`, name)
		answer := fmt.Sprintf(`{"apply":[{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"made-%[1]s"},"data":{"by":"%[1]s"}}]}`, name)
		quoted := func(s string) string { return strings.ReplaceAll(s, `"`, `\"`) }
		module, err := wat.Assemble(fmt.Sprintf(reconcilerSource, quoted(manifest), quoted(answer), len(manifest), len(answer)))
		if err != nil {
			tb.Fatal(err)
		}
		file := filepath.Join(dir, name+".wasm")
		if err := os.WriteFile(file, module, 0o600); err != nil {
			tb.Fatal(err)
		}
		text += fmt.Sprintf("\n  - {name: %s, source: 'file:%s', reconcile: {serviceAccount: default/%s}}", name, file, name)
	}
	return text + "\n"
}

// oneModule is an example of Rust's, entered n times.
func oneModule(tb testing.TB, n int) string {
	tb.Helper()
	text := "apiVersion: wasmplane.dev/v1alpha1\nkind: Configuration\nplugins:"
	for i := range n {
		name := reconcilerName(i)
		text += fmt.Sprintf("\n  - {name: %s, source: 'file:$WASM/ttl-after-finished.wasm', reconcile: {serviceAccount: default/%s}}", name, name)
	}
	return text + "\n"
}

// permit gives the reconcilers' accounts what they need.
func permit(tb testing.TB, kube kubernetes.Interface) {
	tb.Helper()
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "bench"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"", "batch"}, Resources: []string{"configmaps", "jobs"}, Verbs: []string{"get", "list", "watch", "create", "patch"}},
	}}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "bench"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "bench"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: "system:serviceaccounts:default"}},
	}
	if _, err := kube.RbacV1().ClusterRoles().Create(tb.Context(), role, metav1.CreateOptions{}); err != nil {
		tb.Fatal(err)
	}
	if _, err := kube.RbacV1().ClusterRoleBindings().Create(tb.Context(), binding, metav1.CreateOptions{}); err != nil {
		tb.Fatal(err)
	}
}

// wakeAll creates a Job that all n look at, which is none of their business, and takes the time
// until all have been called.
func wakeAll(tb testing.TB, kube kubernetes.Interface, r *report, n int) {
	tb.Helper()
	pod := corev1.PodTemplateSpec{Spec: corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever,
		Containers:    []corev1.Container{{Name: "main", Image: helloImage}},
	}}
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "all"}, Spec: batchv1.JobSpec{Suspend: ptr.To(true), Template: pod}}
	began := time.Now()
	if _, err := kube.BatchV1().Jobs("default").Create(tb.Context(), job, metav1.CreateOptions{}); err != nil {
		tb.Fatal(err)
	}
	for {
		called := 0
		for name, v := range scrape(tb, kube) {
			if strings.HasPrefix(name, "wasmplane_plugin_calls_total{") && strings.Contains(name, `point="reconcile"`) && v > 0 {
				called++
			}
		}
		if called >= n {
			break
		}
		if time.Since(began) > patience {
			tb.Fatalf("%d of %d reconcilers have been called", called, n)
		}
		pause(tb.Context(), 50*time.Millisecond)
	}
	r.note("One Job that all %d entries look at: all were called for the first time within %s.", n, short(time.Since(began)))
}

// scrape reads the process's metrics.
func scrape(tb testing.TB, kube kubernetes.Interface) map[string]float64 {
	tb.Helper()
	text, err := kube.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	out := map[string]float64{}
	for l := range strings.Lines(string(text)) {
		name, value, ok := strings.Cut(strings.TrimSpace(l), "} ")
		if ok {
			name += "}"
		} else {
			name, value, _ = strings.Cut(name, " ")
		}
		if v, err := strconv.ParseFloat(value, 64); err == nil {
			out[name] = v
		}
	}
	return out
}

// resting is what a process costs while nothing happens.
type resting struct {
	memory
	heap, goroutines, requests float64 // bytes, and requests a minute
	writes                     float64 // among these
	cpu, during                time.Duration
}

// rest looks at a process for a while. The profiles of its heap and of its goroutines are kept where
// WASMPLANE_BENCH_HEAPS asks for them, under the name of what is measured.
func rest(tb testing.TB, c *cluster, kube kubernetes.Interface, what string, during time.Duration) (r resting) {
	tb.Helper()
	before := used(tb, c)
	asked, wrote := requests(tb, kube)
	began := time.Now()
	pause(tb.Context(), during)
	r.cpu, r.during = used(tb, c)-before, time.Since(began)
	askedNow, wroteNow := requests(tb, kube)
	r.requests, r.writes = (askedNow-asked)/r.during.Minutes(), (wroteNow-wrote)/r.during.Minutes()
	for _, profile := range []string{"goroutine", "heap"} {
		data, err := kube.Discovery().RESTClient().Get().AbsPath("/debug/pprof/"+profile).Param("gc", "1").DoRaw(tb.Context())
		if dir := os.Getenv("WASMPLANE_BENCH_HEAPS"); err == nil && dir != "" {
			err = os.WriteFile(filepath.Join(dir, profile+"-"+what+".pb.gz"), data, 0o600)
		}
		if err != nil {
			tb.Fatal(err)
		}
	}
	now := scrape(tb, kube)
	r.heap, r.goroutines = now["go_memstats_heap_alloc_bytes"], now["go_goroutines"]
	var err error
	if r.memory, err = memoryOf(c.pid()); err != nil {
		tb.Fatal(err)
	}
	return r
}

// requests are those for resources that the server has answered, and the writes among them.
func requests(tb testing.TB, kube kubernetes.Interface) (all, writes float64) {
	tb.Helper()
	for name, v := range scrape(tb, kube) {
		if !strings.HasPrefix(name, "apiserver_request_total{") || strings.Contains(name, `,resource=""`) {
			continue
		}
		all += v
		for _, verb := range []string{"POST", "PUT", "PATCH", "APPLY", "DELETE"} {
			if strings.Contains(name, `verb="`+verb+`"`) {
				writes += v
			}
		}
	}
	return all, writes
}

func used(tb testing.TB, c *cluster) time.Duration {
	tb.Helper()
	d, err := cpuOf(c.pid())
	if err != nil {
		tb.Fatal(err)
	}
	return d
}

func (r resting) cells(none resting, n int) []string {
	cells := []string{
		mib(r.rss), mib(r.anon), mib(int64(r.heap)), fmt.Sprintf("%.0f", r.goroutines),
		fmt.Sprintf("%.1f", r.requests), fmt.Sprintf("%.1f", r.writes), percent(r.cpu, r.during),
	}
	if n == 0 {
		return append(cells, "", "")
	}
	each := func(more float64) string { return fmt.Sprintf("%.1f KiB", more/1024/float64(n)) }
	return append(cells, each(float64(r.anon-none.anon)), each(r.heap-none.heap))
}

// wake creates a ConfigMap for each of some reconcilers, one after the other, and takes the times
// from the trace: from the end of the write to the call of the plugin, and as its user sees it, to
// the event of the ConfigMap that the reconciler made. Beside it stands what the user waits
// for without reconcilers: a create and its event.
func wake(tb testing.TB, kube kubernetes.Interface, r *report, wakes int) {
	tb.Helper()
	maps := kube.CoreV1().ConfigMaps("default")
	seen, err := maps.Watch(tb.Context(), metav1.ListOptions{})
	if err != nil {
		tb.Fatal(err)
	}
	defer seen.Stop()
	create := func(name, label string, until string) time.Duration {
		began := time.Now()
		obj := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"bench": label}}}
		if _, err := maps.Create(tb.Context(), obj, metav1.CreateOptions{}); err != nil {
			tb.Fatal(err)
		}
		awaitEvent(tb, seen, until)
		return time.Since(began)
	}
	var plain, made, called times
	for i := range wakes {
		name := reconcilerName(i)
		plain = append(plain, create("plain-"+name, "none", "plain-"+name))
		made = append(made, create("first-"+name, name, "made-"+name))
	}
	for i := range wakes {
		called = append(called, callAfterWrite(tb, kube, "first-"+reconcilerName(i)))
	}
	r.note("The first waking of %d, one by one: from the end of the write to the call, p50 %s, p99 %s;", wakes, short(called.median()), short(called.quantile(0.99)))
	r.note("as a client over TLS sees it, from its create to the event of what the reconciler made: p50 %s, p99 %s, beside a create and its own event: %s, %s.",
		short(made.median()), short(made.quantile(0.99)), short(plain.median()), short(plain.quantile(0.99)))
	r.duration("first-call", called.median())
	r.duration("first-made", made.median())
}

// awaitEvent reads a watch until it tells of an object.
func awaitEvent(tb testing.TB, w watch.Interface, name string) {
	tb.Helper()
	for {
		select {
		case e := <-w.ResultChan():
			if m, ok := e.Object.(*corev1.ConfigMap); ok && m.Name == name {
				return
			}
		case <-time.After(patience):
			tb.Fatalf("no event of ConfigMap %s in %s", name, patience)
		}
	}
}

// callAfterWrite is the time from the end of an object's write to the call of the plugin.
func callAfterWrite(tb testing.TB, kube kubernetes.Interface, name string) time.Duration {
	tb.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		took, ok := tracedCall(tb, kube, name)
		if ok {
			return took
		}
		if time.Now().After(deadline) {
			tb.Fatalf("the trace of ConfigMap %s lacks the write or the call", name)
		}
		pause(tb.Context(), 100*time.Millisecond) // spans come in batches
	}
}

func tracedCall(tb testing.TB, kube kubernetes.Interface, name string) (took time.Duration, ok bool) {
	tb.Helper()
	j, err := otlp.Ask(tb.Context(), kube.Discovery().RESTClient(), trace.Query{
		Kind: "ConfigMap", Namespace: "default", Name: name,
		All: true,
	})
	if err != nil {
		tb.Fatal(err)
	}
	written, called := -1.0, -1.0
	var look func(steps []*journey.Step)
	look = func(steps []*journey.Step) {
		for _, s := range steps {
			switch {
			case s.Name == trace.StoreWrite && written < 0:
				written = s.Offset + s.Duration
			case s.Name == "reconcile" && called < 0:
				called = s.Offset
			}
			look(s.Steps)
		}
	}
	if j.Root != nil {
		look(j.Root.Steps)
	}
	return time.Duration((called - written) * float64(time.Millisecond)), written >= 0 && called >= 0
}
