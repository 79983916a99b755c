// SPDX-License-Identifier: Apache-2.0

package walk

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/plugins/host"
	"github.com/wasmplane/wasmplane/plugins/plugintest"
	"github.com/wasmplane/wasmplane/test/internal/harness"
)

// The tenant, its namespace, and a namespace of somebody else's.
const (
	tina   = "tina"
	tenant = "red"
	other  = "blue"
)

// measured begins the names of objects by which requests are measured.
const measured = "beside-"

// measurements of another tenant's requests without the walk.
const measurements = 100

const configuration = `apiVersion: wasmplane.dev/v1alpha1
kind: Configuration
apiserver: {tokenFile: tokens.csv}
egress: {tenants: [127.0.0.0/8]}
policyKinds: [gatekeeper, kubewarden, kyverno]
featureGates: {GenericWorkload: true}
`

// duration is how long to walk.
func duration(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("WALK_TIME")
	if text == "" {
		return 20 * time.Second
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		t.Fatalf("WALK_TIME is %q: give a duration, such as 10m", text)
	}
	return d
}

// pace is how long a walker rests between two requests.
func pace(t *testing.T) time.Duration {
	t.Helper()
	text := cmp.Or(os.Getenv("WALK_PACE"), "0s")
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		t.Fatalf("WALK_PACE is %q: give a duration, such as 100ms", text)
	}
	return d
}

// seed is what the choices are made from.
func seed(t *testing.T) uint64 {
	t.Helper()
	text := cmp.Or(os.Getenv("WALK_SEED"), "1")
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("WALK_SEED is %q: give the number that a walk printed", text)
	}
	return n
}

// walk is a tenant on its way.
type walk struct {
	t       *testing.T
	cluster *harness.Cluster
	admin   *rest.Config
	kube    kubernetes.Interface
	modules string // where its modules are
	ca      string
	digest  string

	gate    sync.RWMutex // held for reading by each step, for writing by a pause of all walkers
	steps   atomic.Int64
	codes   [6]atomic.Int64 // answers by their class
	failed  atomic.Int64    // requests without an answer: the client or the machine was too slow
	strange sync.Map        // internal errors that no plugin explains, to be looked at
}

// TestATenantGetsNowhere: see the package.
func TestATenantGetsNowhere(t *testing.T) {
	w := newWalk(t)
	client, err := dynamic.NewForConfig(w.admin)
	if err != nil {
		t.Fatal(err)
	}
	before := w.rest(client)
	could := w.powers()
	alone := w.latency(measurements)

	n, rests := seed(t), pace(t)
	t.Logf("WALK_SEED=%d", n)
	ctx, cancel := context.WithTimeout(t.Context(), duration(t))
	defer cancel()
	var walkers sync.WaitGroup
	for i := range uint64(4) {
		walkers.Go(func() { w.walk(ctx, chance{rand.New(rand.NewPCG(n, i))}, rests) })
	}
	walkers.Go(func() { w.administer(ctx) })
	// The machine may do other work: what is measured beside the walk is compared with pauses of the same minutes.
	var beside, between []time.Duration
	for ctx.Err() == nil {
		beside = append(beside, w.latency(20)...)
		w.gate.Lock()
		between = append(between, w.latency(20)...)
		w.gate.Unlock()
		if !run.Sleep(ctx, 5*rests) {
			break
		}
	}
	walkers.Wait()
	afterwards := w.latency(measurements)

	w.judge(client, before, could)
	codes := map[string]int64{}
	for i := range w.codes {
		codes[fmt.Sprintf("%dxx", i)] = w.codes[i].Load()
	}
	t.Logf("%d requests: %v, without an answer %d; the server takes %s", w.steps.Load(), codes, w.failed.Load(), w.memory())
	t.Logf("another tenant's requests, p99: %s beside the walk (%d requests), %s in its pauses, %s before and %s after it",
		p99(beside), len(beside), p99(between), p99(alone), p99(afterwards))
}

// memory of the server's process, as the kernel counts it.
func (w *walk) memory() string {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", w.cluster.Process("up").PID()))
	if err != nil {
		w.t.Error(err)
	}
	for line := range strings.Lines(string(status)) {
		if size, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			return strings.TrimSpace(size)
		}
	}
	return "an unknown size"
}

func newWalk(t *testing.T) *walk {
	t.Helper()
	c := harness.NewFor(t, harness.Binary(t), "")
	if err := os.WriteFile(filepath.Join(c.Dir, "wasmplane.yaml"), []byte(configuration), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(c.Dir, "tokens.csv"), []byte("tinas-token,tina,tina-uid\nbobs-token,bob,bob-uid\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Up("--config", "wasmplane.yaml", "--nodes", "simulated:1"); err != nil {
		t.Fatal(err)
	}
	w := &walk{t: t, cluster: c}
	var err error
	if w.admin, err = c.Config(); err != nil {
		t.Fatal(err)
	}
	if w.kube, err = kubernetes.NewForConfig(w.admin); err != nil {
		t.Fatal(err)
	}
	module := plugintest.Canned(t)
	s := httptest.NewTLSServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { _, _ = rw.Write(module) }))
	t.Cleanup(s.Close)
	w.modules, w.digest = s.URL+"/canned.wasm", host.Digest(module)
	w.ca = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
	w.prepare()
	return w
}

// prepare makes the namespaces, with what somebody might want of the other one.
func (w *walk) prepare() {
	t, ctx := w.t, w.t.Context()
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	harness.Eventually(t, "the kinds of policies are served", func() error {
		for _, served := range []struct{ version, resource string }{
			{"policies.kyverno.io/v1", "policyexceptions"},
			{"policies.kyverno.io/v1", "namespacedmutatingpolicies"},
			{"policies.kubewarden.io/v1", "admissionpolicies"},
			{"templates.gatekeeper.sh/v1", "constrainttemplates"},
			{"syncset.gatekeeper.sh/v1alpha1", "syncsets"},
		} {
			list, err := w.kube.Discovery().ServerResourcesForGroupVersion(served.version)
			if err != nil {
				return err
			}
			if !slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == served.resource }) {
				return fmt.Errorf("%s has no %s yet", served.version, served.resource)
			}
		}
		return nil
	})
	for _, name := range []string{tenant, other} {
		_, err := w.kube.CoreV1().Namespaces().Create(ctx,
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
				Name:   name,
				Labels: map[string]string{"pod-security.kubernetes.io/enforce": "baseline"},
			}}, metav1.CreateOptions{})
		must(err)
	}
	_, err := w.kube.CoreV1().Secrets(other).Create(ctx,
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "theirs"}, StringData: map[string]string{"k": "v"}}, metav1.CreateOptions{})
	must(err)
	_, err = w.kube.RbacV1().Roles(tenant).Create(ctx, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "loads"}, Rules: []rbacv1.PolicyRule{{
		APIGroups: []string{"plugins.wasmplane.dev", "policies.kyverno.io", "policies.kubewarden.io", "scheduling.k8s.io", "resource.k8s.io"},
		Resources: []string{
			"tenantplugins", "namespacedvalidatingpolicies", "namespacedmutatingpolicies", "policyexceptions", "admissionpolicies", "podgroups",
			"resourceclaims", "resourceclaimtemplates",
		},
		Verbs: []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"},
	}}}, metav1.CreateOptions{})
	must(err)
	bind := func(namespace, name, user string, ref rbacv1.RoleRef) {
		ref.APIGroup = rbacv1.GroupName
		_, err := w.kube.RbacV1().RoleBindings(namespace).Create(ctx, &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: ref,
			Subjects: []rbacv1.Subject{{Kind: "User", Name: user, APIGroup: rbacv1.GroupName}},
		}, metav1.CreateOptions{})
		must(err)
	}
	bind(tenant, "loads", tina, rbacv1.RoleRef{Kind: "Role", Name: "loads"})
	bind(tenant, "works", tina, rbacv1.RoleRef{Kind: "ClusterRole", Name: "edit"})
	bind(other, "works", "bob", rbacv1.RoleRef{Kind: "ClusterRole", Name: "edit"})
	// What controllers make in a new namespace is there before anybody looks.
	harness.Eventually(t, "the namespaces have their own objects", func() error {
		for _, name := range []string{tenant, other} {
			if _, err := w.kube.CoreV1().ServiceAccounts(name).Get(ctx, "default", metav1.GetOptions{}); err != nil {
				return err
			}
			if _, err := w.kube.CoreV1().ConfigMaps(name).Get(ctx, "kube-root-ca.crt", metav1.GetOptions{}); err != nil {
				return err
			}
		}
		return nil
	})
}

// rest is the state of everything else, when it has come to rest.
func (w *walk) rest(client dynamic.Interface) map[string]string {
	w.t.Helper()
	var last map[string]string
	harness.Eventually(w.t, "the cluster is at rest", func() error {
		now, err := others(w.t.Context(), w.kube, client)
		if err != nil {
			return err
		}
		same := last != nil && len(differences(last, now)) == 0
		last = now
		if !same {
			return fmt.Errorf("%d objects, and still changing", len(now))
		}
		return nil
	})
	return last
}

func (w *walk) powers() (can map[string]bool) {
	w.t.Helper()
	harness.Eventually(w.t, "it is known who may do what", func() (err error) {
		can, err = powers(w.t.Context(), w.kube)
		return err
	})
	return can
}

// walk takes steps until ctx ends, with a pause after each.
func (w *walk) walk(ctx context.Context, c chance, rests time.Duration) {
	cfg := rest.AnonymousClientConfig(w.admin)
	cfg.BearerToken = "tinas-token"
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		w.t.Error(err)
		return
	}
	client.Timeout = 30 * time.Second
	for run.Sleep(ctx, rests) {
		s := c.step(w.modules, w.digest, w.ca)
		w.gate.RLock()
		code, text, err := w.do(ctx, client, s)
		w.gate.RUnlock()
		if err != nil {
			if ctx.Err() == nil {
				w.failed.Add(1)
				w.t.Logf("%s: %v", s, err)
			}
			continue
		}
		w.steps.Add(1)
		w.codes[min(code/100, 5)].Add(1)
		if code == http.StatusInternalServerError && !strings.Contains(text, "plugin") {
			w.strange.Store(s.verb+" "+s.path, text)
		}
	}
}

func (w *walk) do(ctx context.Context, client *http.Client, s step) (code int, text string, err error) {
	r, err := http.NewRequestWithContext(ctx, s.verb, "https://"+w.cluster.Listen+s.path, bytes.NewReader(s.body))
	if err != nil {
		return 0, "", err
	}
	r.Header.Set("Content-Type", s.contentType)
	for k, v := range s.header {
		r.Header.Set(k, v)
	}
	resp, err := client.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	return resp.StatusCode, string(b), err
}

// administer does what administrators do in a tenant's namespace: it is through their
// requests that the tenant's plugins would do more than the tenant.
func (w *walk) administer(ctx context.Context) {
	touch := func() []byte {
		b, err := json.Marshal(
			map[string]any{"metadata": map[string]any{"annotations": map[string]string{"touched": time.Now().Format(time.RFC3339Nano)}}})
		if err != nil {
			w.t.Error(err)
		}
		return b
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		_, err := w.kube.CoreV1().Namespaces().Patch(ctx, tenant, types.MergePatchType, touch(), metav1.PatchOptions{})
		if err == nil {
			_, err = w.kube.RbacV1().RoleBindings(tenant).Patch(ctx, "works", types.MergePatchType, touch(), metav1.PatchOptions{})
		}
		if err == nil {
			_, err = w.kube.RbacV1().Roles(tenant).Patch(ctx, "loads", types.MergePatchType, touch(), metav1.PatchOptions{})
		}
		switch {
		case err == nil || ctx.Err() != nil:
		case apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || strings.Contains(err.Error(), "plugin"):
			w.t.Errorf("the tenant is in the administrator's way: %v", err)
			return
		default: // the machine was too slow
			w.failed.Add(1)
			w.t.Logf("the administrator: %v", err)
		}
	}
}

// latency is what another tenant's requests take.
func (w *walk) latency(n int) []time.Duration {
	cfg := rest.AnonymousClientConfig(w.admin)
	cfg.BearerToken, cfg.QPS = "bobs-token", -1
	kube, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		w.t.Error(err)
		return nil
	}
	var took []time.Duration
	for range n {
		began := time.Now()
		m, err := kube.CoreV1().ConfigMaps(other).Create(w.t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: measured}},
			metav1.CreateOptions{})
		if err == nil {
			err = kube.CoreV1().ConfigMaps(other).Delete(w.t.Context(), m.Name, metav1.DeleteOptions{})
		}
		if err != nil { // too much is asked of this machine, by this test or by others
			w.failed.Add(1)
			w.t.Logf("another tenant: %v", err)
			return took
		}
		took = append(took, time.Since(began)/2)
	}
	return took
}

func p99(of []time.Duration) time.Duration {
	if len(of) == 0 {
		return 0
	}
	of = slices.Sorted(slices.Values(of))
	return of[len(of)*99/100].Round(100 * time.Microsecond)
}

// judge holds what there is now against what was.
func (w *walk) judge(client dynamic.Interface, before map[string]string, could map[string]bool) {
	t, ctx := w.t, w.t.Context()
	select {
	case <-w.cluster.Process("up").Done():
		t.Fatal("the control plane has ended")
	default:
	}
	for _, d := range differences(before, w.rest(client)) {
		t.Errorf("outside of the tenant's namespace: %s", d)
	}
	can := w.powers()
	for _, g := range gained(could, can) {
		if !strings.HasPrefix(g, "system:serviceaccount:") { // a new account, of which all answers are new
			t.Errorf("gained: %s", g)
		} else {
			t.Errorf("an account of the tenant's: %s", g)
		}
	}
	var ns *corev1.Namespace
	var bindings *rbacv1.RoleBindingList
	var pods *corev1.PodList
	harness.Eventually(t, "the tenant's namespace can be read", func() (err error) {
		ns, err = w.kube.CoreV1().Namespaces().Get(ctx, tenant, metav1.GetOptions{})
		if err == nil {
			bindings, err = w.kube.RbacV1().RoleBindings(tenant).List(ctx, metav1.ListOptions{})
		}
		if err == nil {
			pods, err = w.kube.CoreV1().Pods(tenant).List(ctx, metav1.ListOptions{})
		}
		return err
	})
	if ns.Labels["pod-security.kubernetes.io/enforce"] != "baseline" || ns.DeletionTimestamp != nil {
		t.Errorf("the tenant's namespace: %+v", ns)
	}
	if len(bindings.Items) != 2 {
		t.Errorf("bindings of the tenant's namespace: %+v", bindings)
	}
	for _, p := range pods.Items {
		if p.Spec.HostNetwork || p.Spec.HostPID ||
			p.Spec.Containers[0].SecurityContext != nil && p.Spec.Containers[0].SecurityContext.Privileged != nil {
			t.Errorf("a pod that Pod Security refuses: %+v", p.Spec)
		}
	}
	w.strange.Range(func(what, text any) bool {
		t.Logf("an internal error: %s: %.500s", what, text)
		return true
	})
	if _, err := w.kube.CoreV1().Secrets(other).Get(ctx, "theirs", metav1.GetOptions{}); apierrors.IsNotFound(err) {
		t.Error("the other tenant's Secret is gone")
	}
}
