// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/wasmplane/wasmplane/core/auth/authz"
	"github.com/wasmplane/wasmplane/core/auth/authz/authztest"
	"github.com/wasmplane/wasmplane/core/controllers"
	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/plugins/host"
	"github.com/wasmplane/wasmplane/plugins/loader"
	"github.com/wasmplane/wasmplane/plugins/plugintest"
)

// loaded loads one example, with more lines for its entry.
func loaded(tb testing.TB, name string, more ...string) *loader.Loader {
	tb.Helper()
	plugintest.Example(tb, name)
	text := "plugins:\n  - name: " + name + "\n    source: file:build/wasm/" + name + ".wasm\n"
	for _, line := range more {
		text += "    " + line + "\n"
	}
	l := newLoader(tb, loader.Config{InProcess: true, Dir: plugintest.Root(tb), Entries: entries(tb, text)})
	if err := l.Load(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	return l
}

func TestAnAuthorizerKeepsAPersonOutOfANamespace(t *testing.T) {
	l := loaded(t, "namespace-guard", `settings: {deny: [{namespaces: [production], users: [jane], groups: [interns], reason: "production is closed"}]}`)
	before, after := l.Authorizers()
	if len(before) != 1 || len(after) != 0 {
		t.Fatalf("%d before and %d behind RBAC", len(before), len(after))
	}
	question := func(name, group, namespace string) authorizer.AttributesRecord {
		return authorizer.AttributesRecord{
			User: &user.DefaultInfo{Name: name, Groups: []string{group}}, Verb: "get", Namespace: namespace,
			Resource: "pods", APIVersion: "v1", ResourceRequest: true,
		}
	}
	authztest.Run(t, before[0],
		authztest.Case{
			Name: "a user is kept out", Question: question("jane", "x", "production"), Want: authz.Deny,
			Reason: `plugin "namespace-guard": production is closed`,
		},
		authztest.Case{Name: "a group is kept out", Question: question("tim", "interns", "production"), Want: authz.Deny},
		authztest.Case{Name: "elsewhere others decide", Question: question("jane", "interns", "default"), Want: authz.NoOpinion},
		authztest.Case{Name: "for others, others decide", Question: question("ann", "staff", "production"), Want: authz.NoOpinion},
		authztest.Case{
			Name: "break-glass is out of reach", Question: question("jane", user.SystemPrivilegedGroup, "production"),
			Want: authz.NoOpinion,
		},
	)
}

func node(name string, labels map[string]string, pods int, generation int64) *framework.NodeInfo {
	n := &framework.NodeInfo{
		Node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Status: corev1.NodeStatus{
			Allocatable: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("110")},
		}},
		Allocatable: framework.Resources{Pods: 110, MilliCPU: 4000},
		Generation:  generation,
	}
	for range pods {
		n.Pods = append(n.Pods, &framework.PodInfo{Pod: pod("a:1", nil)})
	}
	return n
}

func snapshotOf(nodesGeneration int64, nodes ...*framework.NodeInfo) *framework.Snapshot {
	s := &framework.Snapshot{Nodes: nodes, Index: map[string]int{}, NodesGeneration: nodesGeneration}
	for i, n := range nodes {
		s.Index[n.Node.Name] = i
		s.Generation = max(s.Generation, n.Generation)
	}
	return s
}

func TestANodeTableFollowsTheCluster(t *testing.T) {
	l := loaded(t, "least-pods", "scheduling: {weight: 7}")
	plugins := l.SchedulerPlugins()
	if len(plugins) != 1 || plugins[0].Weight != 7 {
		t.Fatalf("plugins %+v", plugins)
	}
	judge := plugins[0].Plugin.(framework.Judge)
	p := &framework.PodInfo{Pod: pod("a:1", nil)}
	scores := func(s *framework.Snapshot) []int64 {
		t.Helper()
		verdicts, st := judge.Judge(t.Context(), p, s)
		if !st.IsSuccess() || len(verdicts) != len(s.Nodes) {
			t.Fatalf("%d verdicts, status %+v", len(verdicts), st)
		}
		var out []int64
		for _, v := range verdicts {
			out = append(out, v.Score)
		}
		return out
	}
	expect := func(got []int64, want ...int64) {
		t.Helper()
		for i := range want {
			if got[i] != want[i] {
				t.Fatalf("scores %v, want %v", got, want)
			}
		}
	}
	a, b := node("a", nil, 0, 1), node("b", nil, 55, 2)
	expect(scores(snapshotOf(1, a, b)), 100, 50)
	b = node("b", nil, 110, 3)
	expect(scores(snapshotOf(1, a, b)), 100, 0)
	expect(scores(snapshotOf(2, b, node("c", nil, 11, 4), a)), 0, 90, 100)
	var many []*framework.NodeInfo
	for range 5000 {
		many = append(many, node("n", nil, 55, 5))
	}
	for _, s := range scores(snapshotOf(3, many...)) {
		expect([]int64{s}, 50)
	}
}

// A trial has a table of its own: nodes that are not there, under the generations of those that are, reach
// neither the scheduler's table nor the other way round.
func TestATrialHasANodeTableOfItsOwn(t *testing.T) {
	l := loaded(t, "least-pods", "scheduling: {weight: 7}")
	trials, untried, release := l.SchedulerTrials()
	if len(trials) != 1 || trials[0].Weight != 7 || len(untried) != 0 {
		t.Fatalf("trials %+v, untried %v", trials, untried)
	}
	p := &framework.PodInfo{Pod: pod("a:1", nil)}
	score := func(w framework.Plugin, pods int) int64 {
		t.Helper()
		verdicts, st := w.(framework.Judge).Judge(host.WithAside(host.WithDryRun(t.Context())), p, snapshotOf(1, node("a", nil, pods, 1)))
		if !st.IsSuccess() || len(verdicts) != 1 {
			t.Fatalf("%d verdicts, status %+v", len(verdicts), st)
		}
		return verdicts[0].Score
	}
	own := l.SchedulerPlugins()[0].Plugin
	if got := score(own, 55); got != 50 {
		t.Errorf("the scheduler's: %d", got)
	}
	if got := score(trials[0].Plugin, 0); got != 100 {
		t.Errorf("the trial's: %d", got)
	}
	release()
	if got := score(own, 55); got != 50 {
		t.Errorf("the scheduler's, after the trial: %d", got)
	}
}

func TestANodeTableFilters(t *testing.T) {
	l := loaded(t, "prefer-label", "settings: {label: example.com/disk, value: ssd, required: true}")
	judge := l.SchedulerPlugins()[0].Plugin.(framework.Judge)
	verdicts, st := judge.Judge(t.Context(), &framework.PodInfo{Pod: pod("a:1", nil)}, snapshotOf(1,
		node("fast", map[string]string{"example.com/disk": "ssd"}, 0, 1), node("slow", map[string]string{"example.com/disk": "tape"}, 0, 2)))
	if !st.IsSuccess() {
		t.Fatalf("status %+v", st)
	}
	if verdicts[0].Score != 100 || verdicts[0].Status != nil {
		t.Errorf("the node with the label: %+v", verdicts[0])
	}
	if s := verdicts[1].Status; s == nil || s.Code != framework.Unresolvable ||
		s.Reasons[0] != "node(s) didn't have the label example.com/disk=ssd" {
		t.Errorf("the node without the label: %+v", s)
	}
}

func TestSingleNodesAreFilteredAndScored(t *testing.T) {
	l := loaded(t, "dedicated-nodes")
	plugin := l.SchedulerPlugins()[0].Plugin
	filter, score := plugin.(framework.Filter), plugin.(framework.Score)
	mine := &framework.PodInfo{Pod: pod("a:1", map[string]string{"dedicated": "blue"})}
	other := &framework.PodInfo{Pod: pod("a:1", nil)}
	blue := node("n", map[string]string{"dedicated": "blue"}, 0, 1)
	if st := filter.Filter(t.Context(), framework.NewState(), mine, blue); !st.IsSuccess() {
		t.Errorf("its own node: %+v", st)
	}
	if st := filter.Filter(t.Context(), framework.NewState(), other, blue); st == nil || st.Code != framework.Unschedulable ||
		st.Reasons[0] != "node(s) were kept for another team" {
		t.Errorf("another team's node: %+v", st)
	}
	if s, st := score.Score(t.Context(), framework.NewState(), mine, blue); s != 100 || !st.IsSuccess() {
		t.Errorf("score %d, %+v", s, st)
	}
}

func TestAReconcilerPlansAService(t *testing.T) {
	l := loaded(t, "service-for-deployment")
	r := l.Reconcilers()[0]
	in := r.Inputs()
	if in.Primary.Resource.Resource != "deployments" || in.Owned[0].Kind != "Service" ||
		in.ServiceAccount != "kube-system/service-for-deployment" {
		t.Fatalf("inputs %+v", in)
	}
	deployment := func(annotation string) *unstructured.Unstructured {
		u := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "apps/v1", "kind": "Deployment",
			"metadata": map[string]any{"name": "web", "namespace": "default"},
			"spec": map[string]any{
				"selector": map[string]any{"matchLabels": map[string]any{"app": "web"}},
				"template": map[string]any{
					"spec": map[string]any{
						"containers": []any{map[string]any{"name": "c", "ports": []any{map[string]any{"containerPort": int64(8080)}}}},
					},
				},
			},
		}}
		if annotation != "" {
			u.SetAnnotations(map[string]string{"wasmplane.dev/expose": annotation})
		}
		return u
	}
	snapshot := controllers.Snapshot{Namespace: "default", Name: "web", Now: time.Unix(0, 0), Primary: deployment("80")}
	plan, err := r.Reconcile(t.Context(), snapshot)
	if err != nil || len(plan.Apply) != 1 {
		t.Fatalf("plan %+v, error %v", plan, err)
	}
	service := plan.Apply[0]
	ports, _, _ := unstructured.NestedSlice(service.Object, "spec", "ports")
	selector, _, _ := unstructured.NestedStringMap(service.Object, "spec", "selector")
	if service.GetKind() != "Service" || service.GetName() != "web" || selector["app"] != "web" ||
		ports[0].(map[string]any)["targetPort"] != int64(8080) || ports[0].(map[string]any)["port"] != int64(80) {
		t.Errorf("service %+v", service.Object)
	}
	snapshot.Primary, snapshot.Owned = deployment(""), []*unstructured.Unstructured{service}
	if plan, err = r.Reconcile(t.Context(), snapshot); err != nil || len(plan.Delete) != 1 || plan.Delete[0].Name != "web" {
		t.Errorf("without the annotation: plan %+v, error %v", plan, err)
	}
	snapshot.Primary, snapshot.Owned = nil, nil
	if plan, err = r.Reconcile(t.Context(), snapshot); err != nil || len(plan.Apply)+len(plan.Delete) != 0 {
		t.Errorf("without the deployment: plan %+v, error %v", plan, err)
	}
	snapshot.Primary = deployment("http")
	if plan, err = r.Reconcile(t.Context(), snapshot); err != nil || len(plan.Events) != 1 || !strings.Contains(plan.Events[0].Message,
		"a port was expected") {
		t.Errorf("with a wrong annotation: plan %+v, error %v", plan, err)
	}
}

func TestANodeRefusesAPod(t *testing.T) {
	l := loaded(t, "no-host-network")
	a := l.NodeAdmitters()[0]
	p := pod("a:1", nil)
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	if ok, _, _, err := a.Admit(t.Context(), p, n); !ok || err != nil {
		t.Errorf("an ordinary pod: %v, %v", ok, err)
	}
	p.Spec.HostNetwork = true
	if ok, reason, message, err := a.Admit(t.Context(), p, n); ok || err != nil || reason != "HostNetworkForbidden" ||
		message != "node n1 runs no pods of namespace default in its own network" {
		t.Errorf("a pod in the node's network: %v, %q, %q, %v", ok, reason, message, err)
	}
}
