// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	oteltrace "go.opentelemetry.io/otel/trace"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/trace"
)

// BenchmarkPlugins is what Wasm plugins add to a create, and what its trace costs.
func BenchmarkPlugins(b *testing.B) {
	for b.Loop() {
		measurePlugins(b, pluginWays, 3000).publish(b)
		measureTrace(b, 20_000).publish(b)
	}
}

// way is a namespace in which certain plugins stand on a create's road. One server
// has them all, so that its load is the same for all.
type way struct {
	namespace, what string
	validate, label bool // no-latest, add-label
}

var pluginWays = []way{
	{"plain", "no plugin", false, false},
	{"rust", "no-latest (Rust, validates)", true, false},
	{"go", "add-label (Go, mutates)", false, true},
	{"both", "both", true, true},
}

// pluginConfig has the plugins asked in their namespaces only.
func pluginConfig(ways []way) string {
	text := "apiVersion: wasmplane.dev/v1alpha1\nkind: Configuration\nplugins:"
	entry := func(name, point, settings string, asked func(way) bool) {
		var namespaces []string
		for _, w := range ways {
			if asked(w) {
				namespaces = append(namespaces, w.namespace)
			}
		}
		if len(namespaces) == 0 {
			return
		}
		text += fmt.Sprintf(`
  - name: %s
    source: file:$WASM/%s.wasm
    points: [%s]
    failurePolicy: Fail
    settings: {%s}
    match:
      rules:
        - {operations: [CREATE], apiGroups: [""], resources: [pods]}
      namespaceSelector:
        matchExpressions:
          - {key: kubernetes.io/metadata.name, operator: In, values: [%s]}
`, name, name, point, settings, strings.Join(namespaces, ", "))
	}
	entry("no-latest", "admission.validate", "", func(w way) bool { return w.validate })
	entry("add-label", "admission.mutate", "label: team, value: unassigned", func(w way) bool { return w.label })
	return text
}

// measurePlugins creates pods, dry run, in each namespace by turns.
// A dry run takes the whole road but for the write to the disk.
func measurePlugins(tb testing.TB, ways []way, rounds int) *report {
	c := newCluster(tb, "--nodes", "none")
	c.writeConfig(pluginConfig(ways))
	c.start()
	kube := c.kube()
	for _, w := range ways {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}}
		if _, err := kube.CoreV1().Namespaces().Create(tb.Context(), ns, metav1.CreateOptions{}); err != nil {
			tb.Fatal(err)
		}
		awaitAccount(tb, kube, w.namespace)
	}
	r := newReport("A pod's create (dry run, over TLS) with and without Wasm plugins, by turns", "", "p50", "p99", "more at p50",
		"more at p99", "ratio p50")
	took := make([]times, len(ways))
	for i := range rounds + rounds/10 {
		for n := range ways {
			n = (n + i) % len(ways)
			began := time.Now()
			pod, err := kube.CoreV1().Pods(ways[n].namespace).Create(tb.Context(), labelless(),
				metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			spent := time.Since(began)
			if err := checkLabel(pod, ways[n], err); err != nil {
				tb.Fatal(err)
			}
			if i >= rounds/10 { // the first ones warm up
				took[n] = append(took[n], spent)
			}
		}
	}
	none := took[0]
	for n, w := range ways {
		p50, p99 := took[n].median(), took[n].quantile(0.99)
		r.row(w.what, short(p50), short(p99), short(p50-none.median()), short(p99-none.quantile(0.99)),
			fmt.Sprintf("%.2f", ratio(p50, none.median())))
		r.metric("us/"+w.namespace, float64(p50.Nanoseconds())/1000)
	}
	r.note("%d of each.", rounds)
	return r
}

func labelless() *corev1.Pod {
	pod := hello("dry")
	pod.Labels = nil
	return pod
}

// checkLabel makes sure that the plugin which is measured did what it does.
func checkLabel(pod *corev1.Pod, w way, err error) error {
	if err != nil {
		return err
	}
	if _, has := pod.Labels["team"]; has != w.label {
		return fmt.Errorf("pod in namespace %s: the plugin's label is there: %t, expected %t", w.namespace, has, w.label)
	}
	return nil
}

// measureTrace records the spans of one create, as the apiserver does, into the
// store that it uses, by turns with recording nothing.
func measureTrace(tb testing.TB, rounds int) *report {
	store, err := trace.NewStore(trace.StoreConfig{})
	if err != nil {
		tb.Fatal(err)
	}
	on, shutdown := trace.NewProvider(tb.Context(), "apiserver", store.Exporter())
	defer func() { _ = shutdown(tb.Context()) }()
	var with, without times
	for i := range rounds {
		began := time.Now()
		tracedCreate(tb, trace.Discard(), i)
		middle := time.Now()
		tracedCreate(tb, on, i)
		without, with = append(without, middle.Sub(began)), append(with, time.Since(middle))
	}
	r := newReport("The trace of one create: a request with its 11 steps", "", "p50", "p99")
	r.row("recorded", short(with.median()), short(with.quantile(0.99)))
	r.row("discarded", short(without.median()), short(without.quantile(0.99)))
	r.metric("us/trace", float64(with.median().Nanoseconds())/1000)
	return r
}

func tracedCreate(tb testing.TB, tracer oteltrace.Tracer, i int) {
	ctx, request := tracer.Start(tb.Context(), trace.Request, oteltrace.WithAttributes(
		trace.KindKey.String("Pod"), trace.NamespaceKey.String("default"), trace.NameKey.String(fmt.Sprint("pod-", i%500)),
		trace.UserKey.String("system:admin"), trace.VerbKey.String("create"), trace.ResourceKey.String("pods")))
	step := func(name string, attributes ...attribute.KeyValue) {
		_, span := tracer.Start(ctx, name, oteltrace.WithAttributes(attributes...))
		span.End()
	}
	step(trace.Authenticate, trace.UserKey.String("system:admin"))
	step(trace.Authorize, trace.PluginKey.String("RBAC"), trace.DecisionKey.String("allow"))
	for _, p := range []string{"NamespaceLifecycle", "ServiceAccount", "LimitRanger", "Priority"} {
		step(trace.AdmissionMutate, trace.PluginKey.String(p), trace.PointKey.String("admission.mutate"), trace.DecisionKey.String("patch"))
	}
	for _, p := range []string{"NamespaceLifecycle", "PodSecurity", "NodeRestriction", "ResourceQuota"} {
		step(trace.AdmissionValidate, trace.PluginKey.String(p), trace.PointKey.String("admission.validate"), trace.DecisionKey.String("allow"))
	}
	step(trace.StoreWrite, trace.RevisionKey.String(fmt.Sprint(i)))
	request.SetAttributes(trace.UIDKey.String(fmt.Sprint("uid-", i%500)), trace.StatusKey.Int(201))
	request.End()
}
