// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	cacheddiscovery "k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/restmapper"

	"github.com/wasmplane/wasmplane/plugins/plugintest/wat"
	"github.com/wasmplane/wasmplane/plugins/toolchain"
	"github.com/wasmplane/wasmplane/test/internal/guests"
	"github.com/wasmplane/wasmplane/test/internal/harness"
)

// BenchmarkManyPolicies is what a pod's create costs where a thousand policies are in force and ten of them are about pods,
// beside these ten alone.
func BenchmarkManyPolicies(b *testing.B) {
	for _, k := range policyKinds {
		b.Run(k.unit, func(b *testing.B) {
			for b.Loop() {
				measurePolicies(b, k, 10, policiesInAll(), 1000).publish(b)
			}
		})
	}
}

// policyKind is a way to write a policy.
type policyKind struct {
	what, unit string
	kinds      string                        // what policyKinds of the configuration says
	first      func(tb testing.TB) string    // objects that have to be there before
	one        func(i int, on target) string // a policy, of one or several documents
	awaited    []string                      // of these kinds each object gets the condition Ready
	labels     bool                          // the policies about pods put labels on them; otherwise they refuse an image
	unrefusing bool                          // the policies about pods allow everything
	module     func(tb testing.TB) ([]byte, error)
}

// target is what a policy is about.
type target struct{ group, version, resource, kind string }

// elsewhere are what policies that are not about pods are about, by turns.
var elsewhere = []target{
	{"", "v1", "services", "Service"},
	{"", "v1", "configmaps", "ConfigMap"},
	{"networking.k8s.io", "v1", "ingresses", "Ingress"},
	{"rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding"},
	{"", "v1", "persistentvolumeclaims", "PersistentVolumeClaim"},
}

var aboutPods = target{"", "v1", "pods", "Pod"}

func (t target) rules() string {
	return fmt.Sprintf("[{apiGroups: [%q], apiVersions: [%s], operations: [CREATE, UPDATE], resources: [%s]}]", t.group, t.version, t.resource)
}

// expression is true unless the pod has the policy's image, or another object its name.
func expression(i int, on target, image string) string {
	if on == aboutPods {
		return fmt.Sprintf(`object.spec.containers.all(c, %s)`, fmt.Sprintf(image, i))
	}
	return fmt.Sprintf(`object.metadata.name != 'bad%d' && !has(object.spec.hostPID)`, i)
}

const (
	plainImage   = `!c.image.endsWith(':bad%d')`
	kyvernoImage = `image(c.image).identifier() != 'bad%d'`
)

func admissionPolicy(i int, on target) string { return celPolicy(i, on, "Deny") }

func celPolicy(i int, on target, action string) string {
	return fmt.Sprintf(`apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: p%[1]d}
spec:
  matchConstraints: {resourceRules: %[2]s}
  validations: [{expression: "%[3]s"}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: p%[1]d}
spec: {policyName: p%[1]d, validationActions: [%[4]s]}
`, i, on.rules(), expression(i, on, plainImage), action)
}

func kyvernoValidating(image, elsewhere string) func(i int, on target) string {
	return func(i int, on target) string {
		text := expression(i, on, image)
		if on != aboutPods {
			text += elsewhere
		}
		return fmt.Sprintf(`apiVersion: policies.kyverno.io/v1
kind: ValidatingPolicy
metadata: {name: p%d}
spec:
  autogen: {podControllers: {controllers: []}}
  matchConstraints: {resourceRules: %s}
  validations: [{expression: "%s"}]
`, i, on.rules(), text)
	}
}

func kyvernoMutating(value string) func(i int, on target) string {
	return func(i int, on target) string {
		return fmt.Sprintf(`apiVersion: policies.kyverno.io/v1
kind: MutatingPolicy
metadata: {name: p%[1]d}
spec:
  autogen: {podControllers: {controllers: []}}
  matchConstraints: {resourceRules: %[2]s}
  mutations:
  - patchType: ApplyConfiguration
    applyConfiguration: {expression: "Object{metadata: Object.metadata{labels: {'p%[1]d': %[3]s}}}"}
`, i, on.rules(), value)
	}
}

func imagePolicy(i int, on target) string {
	return fmt.Sprintf(`apiVersion: policies.kyverno.io/v1
kind: ImageValidatingPolicy
metadata: {name: p%[1]d}
spec:
  autogen: {podControllers: {controllers: []}}
  matchConstraints: {resourceRules: %[2]s}
  matchImageReferences: [{glob: "r%[1]d.example.com/*"}]
  attestors: [{name: team, cosign: {ctlog: {insecureIgnoreTlog: true}, key: {data: %[3]q}}}]
  validations: [{expression: "images.containers.all(i, verifyImageSignatures(i, [attestors.team]) > 0)"}]
`, i, on.rules(), teamKey())
}

// teamKey is somebody's public key.
var teamKey = sync.OnceValue(func() string {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	der, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		panic(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
})

// templates are twenty, for fifty constraints each.
func templates(testing.TB) string {
	var b strings.Builder
	for i := range 20 {
		fmt.Fprintf(&b, `---
apiVersion: templates.gatekeeper.sh/v1
kind: ConstraintTemplate
metadata: {name: template%[1]d}
spec:
  crd:
    spec:
      names: {kind: Template%[1]d}
      validation: {openAPIV3Schema: {type: object, properties: {bad: {type: string}}}}
  targets:
  - target: admission.k8s.gatekeeper.sh
    rego: |
      package template%[1]d
      violation[{"msg": msg}] {
        container := input.review.object.spec.containers[_]
        endswith(container.image, input.parameters.bad)
        msg := sprintf("container %%v has the image %%v", [container.name, container.image])
      }
`, i)
	}
	return b.String()
}

func constraint(i int, on target) string {
	return fmt.Sprintf(`apiVersion: constraints.gatekeeper.sh/v1beta1
kind: Template%[1]d
metadata: {name: p%[2]d}
spec:
  match: {kinds: [{apiGroups: [%[3]q], kinds: [%[4]s]}], excludedNamespaces: [kube-*]}
  parameters: {bad: ":bad%[2]d"}
`, i%20, i, on.group, on.kind)
}

func assign(i int, on target) string {
	return fmt.Sprintf(`apiVersion: mutations.gatekeeper.sh/v1
kind: AssignMetadata
metadata: {name: p%[1]d}
spec:
  match: {kinds: [{apiGroups: [%[2]q], kinds: [%[3]s]}]}
  location: metadata.labels.p%[1]d
  parameters: {assign: {value: set}}
`, i, on.group, on.kind)
}

func kubewarden(i int, on target) string {
	return fmt.Sprintf(`apiVersion: policies.kubewarden.io/v1
kind: ClusterAdmissionPolicy
metadata: {name: p%[1]d}
spec:
  module: file://policy.wasm
  mutating: false
  rules: [{operations: [CREATE, UPDATE], apiGroups: [%[2]q], apiVersions: [%[3]s], resources: [%[4]s]}]
  settings: {allowed: true, audit: {policy: p%[1]d}}
`, i, on.group, on.version, on.resource)
}

// policyKinds are the rows.
var policyKinds = []policyKind{
	{what: "ValidatingAdmissionPolicy", unit: "vap", one: admissionPolicy},
	{
		what: "Kyverno: ValidatingPolicy", unit: "kyverno", kinds: "kyverno", one: kyvernoValidating(plainImage, ""),
		awaited: []string{"validatingpolicies.policies.kyverno.io/v1"},
	},
	{
		what: "Kyverno: ValidatingPolicy with Kyverno's own functions", unit: "kyverno-own", kinds: "kyverno",
		one:     kyvernoValidating(kyvernoImage, " && sha256(object.metadata.name) != ''"),
		awaited: []string{"validatingpolicies.policies.kyverno.io/v1"},
	},
	{
		what: "Kyverno: MutatingPolicy", unit: "kyverno-mutating", kinds: "kyverno", one: kyvernoMutating("'set'"), labels: true,
		awaited: []string{"mutatingpolicies.policies.kyverno.io/v1"},
	},
	{
		what: "Kyverno: MutatingPolicy with Kyverno's own functions", unit: "kyverno-mutating-own", kinds: "kyverno", labels: true,
		one: kyvernoMutating("sha256('a').substring(0, 3)"), awaited: []string{"mutatingpolicies.policies.kyverno.io/v1"},
	},
	{
		what: "Kyverno: ImageValidatingPolicy, none of the pod's images", unit: "kyverno-image", kinds: "kyverno", one: imagePolicy,
		awaited: []string{"imagevalidatingpolicies.policies.kyverno.io/v1"}, unrefusing: true,
	},
	{
		what: "Gatekeeper: constraint", unit: "gatekeeper", kinds: "gatekeeper", first: templates, one: constraint,
		awaited: []string{"plugins.plugins.wasmplane.dev/v1"},
	},
	{
		what: "Gatekeeper: AssignMetadata", unit: "gatekeeper-mutating", kinds: "gatekeeper", one: assign, labels: true,
		awaited: []string{"assignmetadata.mutations.gatekeeper.sh/v1"},
	},
	{
		what: "Kubewarden: ClusterAdmissionPolicy", unit: "kubewarden", kinds: "kubewarden", one: kubewarden,
		awaited: []string{"clusteradmissionpolicies.policies.kubewarden.io/v1"}, unrefusing: true,
		module: func(testing.TB) ([]byte, error) { return wat.Assemble(verdict) },
	},
	{
		what: "Kubewarden: ClusterAdmissionPolicy in waPC", unit: "kubewarden-wapc", kinds: "kubewarden", one: kubewarden,
		awaited: []string{"clusteradmissionpolicies.policies.kubewarden.io/v1"}, unrefusing: true, module: inWaPC,
	},
}

// verdict is a module that answers with its settings.
const verdict = `(module
  (memory (export "memory") 4)
  (data (i32.const 0) "{\"abi\":1,\"name\":\"verdict\",\"version\":\"1\",\"settings\":true,")
  (data (i32.const 56) "\"hooks\":[{\"op\":1,\"point\":\"admission.validate\",\"fields\":[\"object\"]}]}")
  (global $length (mut i32) (i32.const 0))
  (func (export "describe") (result i64) (i64.const 124))
  (func (export "alloc") (param i32) (result i32) (i32.const 131072))
  (func (export "call") (param $op i32) (param $at i32) (param $n i32) (result i64)
    (if (i32.eqz (local.get $op)) (then
      (memory.copy (i32.const 65536) (local.get $at) (local.get $n))
      (global.set $length (local.get $n))
      (return (i64.const 0))))
    (i64.or (i64.shl (i64.const 65536) (i64.const 32)) (i64.extend_i32_u (global.get $length)))))`

// bound is a cluster with policies.
type bound struct {
	*cluster
	kube   kubernetes.Interface
	took   times
	cpu    time.Duration
	memory memory
	heap   float64       // bytes that are live
	first  time.Duration // of the first request
}

// measurePolicies has two clusters, one with the policies about pods alone and one with all of them, asked by turns.
func measurePolicies(tb testing.TB, k policyKind, pods, all, requests int) *report {
	r := newReport(fmt.Sprintf("A pod's create (dry run, over TLS), %d policies about pods in force alone, and among %d. %s", pods, all, k.what),
		"", "p50", "p99", "more at p50", "more at p99", "CPU", "first", "live heap", "anonymous")
	sides := []*bound{newBound(tb, k, pods, pods), newBound(tb, k, pods, all)}
	const block = 50
	for done := 0; done < requests+block; done += block {
		for i := range sides {
			s := sides[(i+done/block)%len(sides)]
			before := used(tb, s.cluster)
			var took times
			for n := range block {
				took = append(took, s.ask(tb, k, pods, fmt.Sprintf("example.com/a:v%d", done+n)))
			}
			if done == 0 {
				s.first = took[0]
				s.profileFrom()
				continue // the first ones warm up
			}
			s.cpu += used(tb, s.cluster) - before
			s.took = append(s.took, took...)
		}
	}
	few := sides[0]
	for i, s := range sides {
		s.endProfile()
		s.weigh(tb)
		p50, p99 := s.took.median(), s.took.quantile(0.99)
		each := s.cpu / time.Duration(len(s.took))
		name := fmt.Sprintf("%d policies", []int{pods, all}[i])
		r.row(name, short(p50), short(p99), short(p50-few.took.median()), short(p99-few.took.quantile(0.99)), short(each), short(s.first),
			mib(int64(s.heap)), mib(s.memory.anon))
		r.metric(fmt.Sprintf("us/p50-%d", []int{pods, all}[i]), float64(p50.Microseconds()))
		r.metric(fmt.Sprintf("us/cpu-%d", []int{pods, all}[i]), float64(each.Microseconds()))
	}
	r.note("%d requests of each; the memory is that after them. Each of the others takes %.1f KiB of live heap.",
		len(few.took), (sides[1].heap-few.heap)/1024/float64(max(1, all-pods)))
	return r
}

// newBound starts a cluster and has the policies in force: the first are about pods.
func newBound(tb testing.TB, k policyKind, pods, all int) *bound {
	tb.Helper()
	b := &bound{cluster: newCluster(tb, "--nodes", "none")}
	tb.Cleanup(b.purge)
	modules := b.writeModules(tb, k.module)
	b.writeConfig(fmt.Sprintf("apiVersion: wasmplane.dev/v1alpha1\nkind: Configuration\npolicyKinds: [%s]\npluginFiles: %s\n", k.kinds, modules))
	b.start()
	b.kube = b.cluster.kube()
	awaitAccount(tb, b.kube, "default")
	a := newApplier(tb, b.cluster)
	if k.first != nil {
		a.apply(tb, k.first(tb))
	}
	policies := make([]string, all)
	for i := range policies {
		on := aboutPods
		if i >= pods {
			on = elsewhere[i%len(elsewhere)]
		}
		policies[i] = k.one(i, on)
	}
	a.apply(tb, policies...)
	for _, kind := range k.awaited {
		a.awaitReady(tb, kind, all)
	}
	harness.Eventually(tb, "the policies about pods are in force", func() error {
		for i := range pods {
			if err := b.inForce(tb.Context(), k, i); err != nil {
				return err
			}
		}
		return nil
	})
	pause(tb.Context(), 5*time.Second) // what was written is still being looked at
	return b
}

// writeModules writes a module of policies, and answers the folder; nil = there is none.
func (b *bound) writeModules(tb testing.TB, module func(tb testing.TB) ([]byte, error)) string {
	tb.Helper()
	dir := filepath.Join(b.Dir, "modules")
	err := os.Mkdir(dir, 0o755)
	if err == nil && module != nil {
		var wasm []byte
		if wasm, err = module(tb); err == nil {
			err = os.WriteFile(filepath.Join(dir, "policy.wasm"), wasm, 0o600)
		}
	}
	if err != nil {
		tb.Fatal(err)
	}
	return dir
}

// inWaPC is the policy of package decisions in waPC, as Kubewarden's policies are: it reads the whole request.
func inWaPC(tb testing.TB) ([]byte, error) {
	tb.Helper()
	return guests.Build(tb, guests.Guest{
		Folder: filepath.Join("decisions", "testdata", "policy", "wapc"), Name: "policy-wapc", Language: toolchain.Rust,
	})
}

// weigh looks at the process's memory, without garbage.
func (b *bound) weigh(tb testing.TB) {
	tb.Helper()
	for range 2 { // what has a finalizer goes with the second one
		if _, err := b.kube.Discovery().RESTClient().Get().AbsPath("/debug/pprof/heap").Param("gc", "1").DoRaw(tb.Context()); err != nil {
			tb.Fatal(err)
		}
	}
	b.heap = scrape(tb, b.kube)["go_memstats_heap_alloc_bytes"]
	var err error
	if b.memory, err = memoryOf(b.pid()); err != nil {
		tb.Fatal(err)
	}
}

// profileFrom begins a profile, where they are asked for.
func (b *bound) profileFrom() {
	if built.profiles != "" {
		if err := syscall.Kill(b.pid(), syscall.SIGUSR1); err != nil {
			b.t.Fatal(err)
		}
	}
}

func (b *bound) create(ctx context.Context, image string) (*corev1.Pod, error) {
	pod := labelless()
	pod.Labels = map[string]string{"app": "bench"}
	pod.Spec.Containers[0].Image = image
	return b.kube.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
}

// inForce says why a policy about pods is not.
func (b *bound) inForce(ctx context.Context, k policyKind, i int) error {
	pod, err := b.create(ctx, fmt.Sprintf("example.com/a:bad%d", i))
	switch {
	case k.labels && err == nil && pod.Labels[fmt.Sprintf("p%d", i)] == "":
		return fmt.Errorf("policy %d put no label on a pod", i)
	case k.labels || k.unrefusing:
		return err
	case err == nil:
		return fmt.Errorf("policy %d refuses nothing", i)
	case !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err):
		return err
	}
	return nil
}

func (b *bound) ask(tb testing.TB, k policyKind, pods int, image string) time.Duration {
	began := time.Now()
	pod, err := b.create(tb.Context(), image)
	took := time.Since(began)
	if err != nil {
		tb.Fatal(err)
	}
	if k.labels && len(pod.Labels) != pods+1 {
		tb.Fatalf("%d policies were asked, expected %d", len(pod.Labels)-1, pods)
	}
	return took
}

// applier creates objects of any kind.
type applier struct {
	client dynamic.Interface
	mapper *restmapper.DeferredDiscoveryRESTMapper
}

func newApplier(tb testing.TB, c *cluster) *applier {
	tb.Helper()
	cfg, err := c.Config()
	if err != nil {
		tb.Fatal(err)
	}
	found, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	return &applier{client, restmapper.NewDeferredDiscoveryRESTMapper(cacheddiscovery.NewMemCacheClient(found))}
}

// apply creates the objects of some texts, each text's in order, eight texts at a time. What is not served yet is waited for.
func (a *applier) apply(tb testing.TB, texts ...string) {
	tb.Helper()
	var all errgroup.Group
	all.SetLimit(8)
	for _, text := range texts {
		all.Go(func() error {
			documents := yaml.NewDecoder(strings.NewReader(text))
			for {
				var o map[string]any
				if err := documents.Decode(&o); errors.Is(err, io.EOF) {
					return nil
				} else if err != nil {
					return err
				}
				if o == nil {
					continue
				}
				if err := a.create(tb.Context(), &unstructured.Unstructured{Object: o}); err != nil {
					return err
				}
			}
		})
	}
	if err := all.Wait(); err != nil {
		tb.Fatal(err)
	}
}

func (a *applier) create(ctx context.Context, o *unstructured.Unstructured) error {
	kind := o.GroupVersionKind()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var refused error
	err := harness.Poll(ctx, 200*time.Millisecond, func() error {
		mapping, err := a.mapper.RESTMapping(kind.GroupKind(), kind.Version)
		if err != nil {
			a.mapper.Reset()
			return err
		}
		_, err = a.client.Resource(mapping.Resource).Create(ctx, o, metav1.CreateOptions{})
		if apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err) {
			refused = fmt.Errorf("%s %s: %w", o.GetKind(), o.GetName(), err)
			return nil
		}
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	})
	return errors.Join(refused, err)
}

// awaitReady waits until there are n objects of a kind, RESOURCE.GROUP/VERSION, and all have the condition Ready.
func (a *applier) awaitReady(tb testing.TB, kind string, n int) {
	tb.Helper()
	name, version, _ := strings.Cut(kind, "/")
	resource, group, _ := strings.Cut(name, ".")
	client := a.client.Resource(schema.GroupVersionResource{Group: group, Version: version, Resource: resource})
	ctx, cancel := context.WithTimeout(tb.Context(), 4*patience)
	defer cancel()
	err := harness.Poll(ctx, 2*time.Second, func() error {
		list, err := client.List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		ready, last := 0, ""
		for i := range list.Items {
			conditions, _, _ := unstructured.NestedSlice(list.Items[i].Object, "status", "conditions")
			if slices.ContainsFunc(conditions, func(c any) bool {
				o, _ := c.(map[string]any)
				return o["type"] == "Ready" && o["status"] == "True"
			}) {
				ready++
			} else {
				last = fmt.Sprintf("%s: %v", list.Items[i].GetName(), conditions)
			}
		}
		if ready < n {
			return fmt.Errorf("%d of %d %s are ready; %s", ready, n, resource, last)
		}
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
}

// policiesInAll is how many policies there are.
func policiesInAll() int {
	if n, err := strconv.Atoi(os.Getenv("WASMPLANE_BENCH_POLICIES")); err == nil {
		return n
	}
	return 1000
}
