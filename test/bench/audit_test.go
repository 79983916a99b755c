// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/datadir"
	"github.com/wasmplane/wasmplane/test/internal/harness"
)

// BenchmarkAudit is what it costs the process to ask a hundred policies about 50,000 pods that are stored, to find that nothing has
// changed, and to ask again about ten that have.
func BenchmarkAudit(b *testing.B) {
	for b.Loop() {
		measureAudit(b, objectsInAll(), 100).publish(b)
	}
}

// objectsInAll is how many objects there are.
func objectsInAll() int {
	if n, err := strconv.Atoi(os.Getenv("WASMPLANE_BENCH_OBJECTS")); err == nil {
		return n
	}
	return 50_000
}

// audits are the policies, by turns: expressions in CEL, Rego, and a module in waPC. None refuses a request.
var audits = []func(i int) string{
	func(i int) string { return celPolicy(i, aboutPods, "Audit") },
	func(i int) string {
		return fmt.Sprintf(`apiVersion: constraints.gatekeeper.sh/v1beta1
kind: Template%[1]d
metadata: {name: p%[2]d}
spec:
  enforcementAction: dryrun
  match: {kinds: [{apiGroups: [""], kinds: [Pod]}], excludedNamespaces: [kube-*]}
  parameters: {bad: ":bad%[2]d"}
`, i%20, i)
	},
	func(i int) string {
		return fmt.Sprintf(`apiVersion: policies.kubewarden.io/v1
kind: ClusterAdmissionPolicy
metadata: {name: p%[1]d}
spec:
  module: file://policy.wasm
  mode: monitor
  mutating: false
  rules: [{operations: [CREATE, UPDATE], apiGroups: [""], apiVersions: [v1], resources: [pods]}]
  settings: {policy: p%[1]d}
`, i)
	},
}

// audited is a cluster with pods that nobody runs.
type audited struct {
	*bound
	policies int
}

// lastPod is judged last: objects are, in the order of their names.
const lastPod = "zz-last"

func measureAudit(tb testing.TB, objects, policies int) *report {
	r := newReport(fmt.Sprintf("A background audit of %d pods by %d policies: CEL, Rego and waPC by turns", objects, policies),
		"", "took", "CPU", "of it at rest", "each question")
	a := &audited{&bound{cluster: newCluster(tb, "--nodes", "none")}, policies}
	tb.Cleanup(a.purge)
	a.fill(tb, objects)

	// Judged at once: nothing is remembered of what was judged while policies and pods came.
	if err := os.Remove(datadir.Dir(a.Data).PolicyScan()); err != nil && !errors.Is(err, os.ErrNotExist) {
		tb.Fatal(err)
	}
	a.configure("openreports.io")
	a.start()
	a.kube = a.cluster.kube()
	rest := a.spend(tb, "the last pod has a report by all policies", func() error {
		return a.reported(tb.Context(), lastPod, policies/len(audits))
	})
	questions := objects * policies
	r.row("all", short(rest.took), short(rest.cpu), "-", short(rest.cpu/time.Duration(questions)))
	r.duration("cpu-all", rest.cpu)

	const calm = 60 * time.Second
	idle := a.spend(tb, "a minute has passed", passed(calm))
	r.row("nothing changed, 4 passes", short(idle.took), short(idle.cpu), "all", "-")
	r.duration("cpu-minute", idle.cpu)

	a.change(tb, objects)
	ten := a.spend(tb, "ten reports say so", func() error {
		for _, name := range changed(objects) {
			if err := a.reported(tb.Context(), name, 1); err != nil {
				return err
			}
		}
		return nil
	})
	still := time.Duration(float64(idle.cpu) * float64(ten.took) / float64(calm))
	r.row("ten changed", short(ten.took), short(ten.cpu), short(still), short((ten.cpu-still)/time.Duration(10*policies)))
	r.duration("cpu-ten", max(ten.cpu, time.Microsecond))
	a.weigh(tb)
	r.note("Live heap after it %s, anonymous memory %s. A pass begins 15 s after the one before, and takes half of a processor.",
		mib(int64(a.heap)), mib(a.memory.anon))
	return r
}

// configure writes the configuration. Only with a format of reports there are any.
func (a *audited) configure(format string) {
	text := fmt.Sprintf("apiVersion: wasmplane.dev/v1alpha1\nkind: Configuration\npolicyKinds: [gatekeeper, kubewarden]\npluginFiles: %s\n",
		filepath.Join(a.Dir, "modules"))
	if format != "" {
		text += "policyReports: " + format + "\n"
	}
	a.writeConfig(text)
}

// fill has the policies and the pods stored, and stops the process.
func (a *audited) fill(tb testing.TB, objects int) {
	tb.Helper()
	a.writeModules(tb, inWaPC)
	a.configure("")
	a.start()
	a.kube = a.cluster.kube()
	awaitAccount(tb, a.kube, "default")
	write := newApplier(tb, a.cluster)
	write.apply(tb, templates(tb))
	texts := make([]string, a.policies)
	for i := range texts {
		texts[i] = audits[i%len(audits)](i)
	}
	write.apply(tb, texts...)
	write.awaitReady(tb, "plugins.plugins.wasmplane.dev/v1", a.policies-(a.policies+len(audits)-1)/len(audits))
	var all errgroup.Group
	all.SetLimit(16)
	for i := range objects {
		all.Go(func() error {
			pod := labelless()
			pod.Name, pod.GenerateName = podName(i), ""
			pod.Spec.SchedulerName = "nobody"
			pod.Spec.Containers[0].Image = "example.com/a:v1"
			if i == objects-1 {
				pod.Name, pod.Spec.Containers[0].Image = lastPod, "example.com/a:latest"
			}
			_, err := a.kube.CoreV1().Pods("default").Create(tb.Context(), pod, metav1.CreateOptions{})
			return err
		})
	}
	if err := all.Wait(); err != nil {
		tb.Fatal(err)
	}
	a.stop()
}

func podName(i int) string { return fmt.Sprintf("p%06d", i) }

// changed are the pods that change.
func changed(objects int) []string {
	out := []string{lastPod}
	for i := range 9 {
		out = append(out, podName(i*(objects-1)/9))
	}
	return out
}

// change gives pods an image that one policy is against.
func (a *audited) change(tb testing.TB, objects int) {
	tb.Helper()
	for _, name := range changed(objects) {
		_, err := a.kube.CoreV1().Pods("default").Patch(tb.Context(), name, types.StrategicMergePatchType,
			[]byte(`{"spec":{"containers":[{"name":"main","image":"example.com/a:bad0"}]}}`), metav1.PatchOptions{})
		if err != nil {
			tb.Fatal(err)
		}
	}
}

// reported says why a pod has no report in which so many policies are against it and all others are not.
func (a *audited) reported(ctx context.Context, pod string, against int) error {
	o, err := a.kube.CoreV1().Pods("default").Get(ctx, pod, metav1.GetOptions{})
	if err != nil {
		return err
	}
	const reports = "/apis/openreports.io/v1alpha1/namespaces/default/reports"
	text, err := a.kube.Discovery().RESTClient().Get().AbsPath(reports, string(o.UID)).DoRaw(ctx)
	if err != nil {
		return err
	}
	var u unstructured.Unstructured
	if err := u.UnmarshalJSON(text); err != nil {
		return err
	}
	fail, _, _ := unstructured.NestedInt64(u.Object, "summary", "fail")
	pass, _, _ := unstructured.NestedInt64(u.Object, "summary", "pass")
	if int(fail) != against || int(pass) != a.policies-against {
		return fmt.Errorf("%d policies are against %s, %d are not", fail, pod, pass)
	}
	return nil
}

// expense is what something took.
type expense struct{ took, cpu time.Duration }

// spend is what the process spends until something is so.
func (a *audited) spend(tb testing.TB, what string, so func() error) expense {
	tb.Helper()
	began, before := time.Now(), used(tb, a.cluster)
	ctx, cancel := context.WithTimeout(tb.Context(), time.Hour)
	defer cancel()
	if err := harness.Poll(ctx, 500*time.Millisecond, so); err != nil {
		tb.Fatalf("%s: %v", what, err)
	}
	return expense{time.Since(began), used(tb, a.cluster) - before}
}

// passed is so when a time has passed.
func passed(d time.Duration) func() error {
	until := time.Now().Add(d)
	return func() error {
		if left := time.Until(until); left > 0 {
			return fmt.Errorf("%s are left", left)
		}
		return nil
	}
}
