package bench

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"go.opentelemetry.io/otel/attribute"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/wasmplane/wasmplane/core/trace"
)

// BenchmarkPlugins is what Wasm plugins add to a create, and what its trace costs.
func BenchmarkPlugins(b *testing.B) {
	for b.Loop() {
		measurePlugins(b, 3000).publish(b)
		measureTrace(b, 20_000).publish(b)
	}
}

// pluginWays are namespaces, each with other plugins on a create's way. One server
// has them all, so that its load is the same for all.
var pluginWays = []struct{ namespace, what string }{
	{"bench-none", "no plugin"},
	{"bench-rust", "no-latest (Rust, validates)"},
	{"bench-go", "add-label (Go, mutates)"},
	{"bench-both", "both"},
}

// pluginConfig has the plugins asked in their namespaces only.
func pluginConfig() string {
	entry := func(name, point, settings string, namespaces ...string) string {
		return fmt.Sprintf(`
  - name: %s
    source: file:$WASM/%s.wasm
    points: [%s]
    failurePolicy: Fail
    match:
      rules:
        - {operations: [CREATE], apiGroups: [""], resources: [pods, configmaps]}
      namespaceSelector:
        matchExpressions:
          - {key: kubernetes.io/metadata.name, operator: In, values: [%s]}
%s`, name, name, point, strings.Join(namespaces, ", "), settings)
	}
	return "apiVersion: wasmplane.dev/v1alpha1\nkind: Configuration\nplugins:" +
		entry("no-latest", "admission.validate", "", "bench-rust", "bench-both") +
		entry("add-label", "admission.mutate", "    settings: {label: team, value: unassigned}\n", "bench-go", "bench-both")
}

// measurePlugins creates pods and ConfigMaps, dry run, in each namespace by turns.
// A dry run takes the whole road but for the write to the disk.
func measurePlugins(t testing.TB, rounds int) *report {
	c := newCluster(t, "--nodes", "none")
	c.writeConfig(pluginConfig())
	c.start()
	kube := c.kube()
	for _, w := range pluginWays {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}}
		if _, err := kube.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		awaitAccount(t, kube, w.namespace)
	}
	r := newReport("A create (dry run, over TLS) with and without Wasm plugins, by turns", "", "", "p50", "p99", "more at p50", "more at p99", "ratio p50")
	for _, kind := range []struct {
		name   string
		create func(kube kubernetes.Interface, namespace string) error
	}{
		{"Pod", func(kube kubernetes.Interface, namespace string) error {
			got, err := kube.CoreV1().Pods(namespace).Create(t.Context(), labelless(), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			return checkLabel(got, namespace, err)
		}},
		{"ConfigMap", func(kube kubernetes.Interface, namespace string) error {
			object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "dry"}, Data: map[string]string{"a": "b"}}
			got, err := kube.CoreV1().ConfigMaps(namespace).Create(t.Context(), object, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			return checkLabel(got, namespace, err)
		}},
	} {
		took := make([]times, len(pluginWays))
		for i := range rounds + rounds/10 {
			for n := range pluginWays {
				n = (n + i) % len(pluginWays)
				began := time.Now()
				if err := kind.create(kube, pluginWays[n].namespace); err != nil {
					t.Fatal(err)
				}
				if i >= rounds/10 { // the first ones warm up
					took[n] = append(took[n], time.Since(began))
				}
			}
		}
		none := took[0]
		for n, w := range pluginWays {
			p50, p99 := took[n].median(), took[n].quantile(0.99)
			r.row(kind.name, w.what, short(p50), short(p99), short(p50-none.median()), short(p99-none.quantile(0.99)), fmt.Sprintf("%.2f", ratio(p50, none.median())))
			r.metric(fmt.Sprintf("us/%s-%s", strings.ToLower(kind.name), strings.TrimPrefix(w.namespace, "bench-")), float64(p50.Nanoseconds())/1000)
		}
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
func checkLabel(o metav1.Object, namespace string, err error) error {
	if err != nil {
		return err
	}
	want := namespace == "bench-go" || namespace == "bench-both"
	if _, has := o.GetLabels()["team"]; has != want {
		return fmt.Errorf("%T %s/%s: the plugin's label is there: %t, expected %t", o, namespace, o.GetName(), has, want)
	}
	return nil
}

// measureTrace records the spans of one create, as the apiserver does, into the
// store that it uses, by turns with recording nothing.
func measureTrace(t testing.TB, rounds int) *report {
	store, err := trace.NewStore(trace.StoreConfig{})
	if err != nil {
		t.Fatal(err)
	}
	on, shutdown := trace.NewProvider(t.Context(), "apiserver", store.Exporter())
	defer func() { _ = shutdown(t.Context()) }()
	var with, without times
	for i := range rounds {
		began := time.Now()
		tracedCreate(t, trace.Discard(), i)
		middle := time.Now()
		tracedCreate(t, on, i)
		without, with = append(without, middle.Sub(began)), append(with, time.Since(middle))
	}
	r := newReport("The trace of one create: a request with its 11 steps", "", "p50", "p99")
	r.row("recorded", short(with.median()), short(with.quantile(0.99)))
	r.row("discarded", short(without.median()), short(without.quantile(0.99)))
	r.metric("us/trace", float64(with.median().Nanoseconds())/1000)
	return r
}

func tracedCreate(t testing.TB, tracer oteltrace.Tracer, i int) {
	ctx, request := tracer.Start(t.Context(), trace.Request, oteltrace.WithAttributes(
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
