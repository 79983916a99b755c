// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic/fake"
	typed "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/yaml"

	"github.com/wasmplane/wasmplane/core/netlab"
	"github.com/wasmplane/wasmplane/core/networkpolicy"
	"github.com/wasmplane/wasmplane/core/run"
)

func object(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	if err := yaml.UnmarshalStrict([]byte(text), &u.Object); err != nil {
		t.Fatal(err)
	}
	return u
}

// definition is that of ClusterNetworkPolicies with one version.
func definition(t *testing.T, version string) *unstructured.Unstructured {
	t.Helper()
	return object(t, `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: clusternetworkpolicies.policy.networking.k8s.io, uid: `+version+`}
spec: {group: policy.networking.k8s.io, versions: [{name: `+version+`, served: true}]}
status: {conditions: [{type: Established, status: "True"}]}
`)
}

func clusterPolicy(t *testing.T, name, spec string) *unstructured.Unstructured {
	t.Helper()
	return object(
		t,
		"apiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\nmetadata: {name: "+name+", uid: "+name+"}\nspec: "+spec,
	)
}

const denyNodes = `{tier: Admin, priority: 1, subject: {namespaces: {}}, egress: [{action: Deny, to: [{nodes: {matchLabels: {zone: far}}}]}]}`

func dynamicClient(objects ...apiruntime.Object) *fake.FakeDynamicClient {
	return fake.NewSimpleDynamicClientWithCustomListKinds(apiruntime.NewScheme(), map[schema.GroupVersionResource]string{
		definitions: "CustomResourceDefinitionList", clusterPolicies: "ClusterNetworkPolicyList",
	}, objects...)
}

func clusterOf() *typed.Clientset {
	far := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "far", Labels: map[string]string{"zone": "far"}}}
	far.Status.Addresses = []corev1.NodeAddress{
		{Type: corev1.NodeHostName, Address: "far"},
		{Type: corev1.NodeInternalIP, Address: "10.0.0.7"},
	}
	return typed.NewClientset(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, far)
}

// Policies of the cluster come into force with their definition, and end with it.
func TestDefinitionComesAndGoes(t *testing.T) {
	l := newLab(t)
	client, dyn := clusterOf(), dynamicClient()
	f, _ := l.start(t, client, func(c *Config) { c.Dynamic = dyn })
	netlab.Eventually(t, "the first write", func() bool { return closed(f.Ready()) })
	if err := f.Guard(t.Context(), somePod(1, "here"), []string{v4(1), v6(1)}, "vpod1"); err != nil {
		t.Fatal(err)
	}
	if _, err := dyn.Resource(definitions).Create(t.Context(), definition(t, "v1alpha2"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := dyn.Resource(clusterPolicies).Create(t.Context(), clusterPolicy(t, "nodes", denyNodes), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	netlab.Eventually(t, "the policy", func() bool {
		return l.cut(networkpolicy.Egress, v4(1)) && strings.Contains(l.nft("list", "ruleset"), "elements = { 10.0.0.7 }")
	})
	if out := l.nft("list", "map", "inet", "wp-lab-policy", toNode+"4"); !strings.Contains(out, v4(1)+" :") {
		t.Errorf("what the pod sends to its own node is not judged: %s", out)
	}
	if err := dyn.Resource(definitions).Delete(t.Context(), Definition, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	netlab.Eventually(t, "the end of the policy", func() bool {
		return !l.cut(networkpolicy.Egress, v4(1)) && !strings.Contains(l.nft("list", "ruleset"), "10.0.0.7")
	})
}

// A pod that starts finds in force what was created before it, and so does the next process, also where
// the watch of policies of the cluster is behind.
func TestGuardKnowsPoliciesOfTheCluster(t *testing.T) {
	l := newLab(t)
	client, dyn := clusterOf(), dynamicClient(definition(t, "v1alpha2"))
	policies := watch.NewFake()
	var watching atomic.Bool
	dyn.PrependWatchReactor(clusterPolicies.Resource, func(clienttesting.Action) (bool, watch.Interface, error) {
		watching.Store(true)
		return true, policies, nil
	})
	f, stop := l.start(t, client, func(c *Config) { c.Dynamic = dyn })
	netlab.Eventually(t, "the first write", func() bool { return watching.Load() && closed(f.Ready()) })
	np := clusterPolicy(t, "nodes", denyNodes)
	var lists atomic.Int32
	dyn.PrependReactor("list", clusterPolicies.Resource, func(clienttesting.Action) (bool, apiruntime.Object, error) {
		lists.Add(1)
		list := &unstructured.UnstructuredList{Items: []unstructured.Unstructured{*np}}
		list.SetAPIVersion("policy.networking.k8s.io/v1alpha2")
		list.SetKind("ClusterNetworkPolicyList")
		return true, list, nil
	})
	guarded := run.Go("guard", func() error { return f.Guard(t.Context(), somePod(1, "here"), []string{v4(1)}, "vpod1") })
	netlab.Eventually(t, "two questions", func() bool { return lists.Load() >= 2 })
	select {
	case err := <-guarded:
		t.Fatalf("the pod may start before the policy is known: %v", err)
	default:
	}
	policies.Add(np)
	if err := <-guarded; err != nil {
		t.Fatal(err)
	}
	if !l.cut(networkpolicy.Egress, v4(1)) {
		t.Error("the pod may start, and the policy is not in force")
	}
	stop()
	if !l.cut(networkpolicy.Egress, v4(1)) {
		t.Error("the process ended, and the rules did too")
	}
	// The next one does not replace what is there before it has all policies.
	late := watch.NewFake()
	var opened atomic.Bool
	second := dynamicClient(definition(t, "v1alpha2"))
	second.PrependWatchReactor(clusterPolicies.Resource, func(clienttesting.Action) (bool, watch.Interface, error) {
		opened.Store(true)
		return true, late, nil
	})
	var asked atomic.Int32
	second.PrependReactor("list", clusterPolicies.Resource, func(clienttesting.Action) (bool, apiruntime.Object, error) {
		list := &unstructured.UnstructuredList{}
		list.SetAPIVersion("policy.networking.k8s.io/v1alpha2")
		list.SetKind("ClusterNetworkPolicyList")
		if opened.Load() { // the first list comes from a cache that is behind
			asked.Add(1)
			list.Items = []unstructured.Unstructured{*np}
		}
		return true, list, nil
	})
	next, _ := l.start(t, client, func(c *Config) { c.Dynamic = second })
	next.Follow(somePod(1, "here"), []string{v4(1)}, "vpod1")
	netlab.Eventually(t, "questions of the next process", func() bool { return opened.Load() && asked.Load() >= 2 })
	if closed(next.Ready()) {
		t.Error("the next process has replaced the rules before it knows all policies")
	}
	late.Add(np)
	netlab.Eventually(t, "its first write", func() bool { return closed(next.Ready()) })
	if !l.cut(networkpolicy.Egress, v4(1)) {
		t.Error("the next process has opened the pod")
	}
}

// What is not enforced is told of where users look.
func TestClusterEvents(t *testing.T) {
	l := newLab(t)
	client := clusterOf()
	dyn := dynamicClient(
		definition(t, "v1alpha2"),
		clusterPolicy(
			t,
			"names",
			`{tier: Admin, priority: 1, subject: {namespaces: {}}, egress: [{action: Accept, to: [{domainNames: [a.example]}]}]}`,
		),
		clusterPolicy(t, "foreign", `{tier: Admin, priority: high}`),
	)
	f, _ := l.start(t, client, func(c *Config) { c.Dynamic = dyn })
	if err := f.Guard(t.Context(), somePod(1, "here"), []string{v4(1)}, "vpod1"); err != nil {
		t.Fatal(err)
	}
	said := func(kind, name, text string) func() bool {
		return func() bool {
			events, err := client.CoreV1().Events("").List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range events.Items {
				if o := e.InvolvedObject; o.Kind == kind && o.Name == name && o.UID != "" && e.Reason == "NotEnforced" &&
					strings.Contains(e.Message, text) {
					return true
				}
			}
			return false
		}
	}
	netlab.Eventually(t, "an event of the policy", said("ClusterNetworkPolicy", "names", "domainNames are not supported"))
	netlab.Eventually(t, "an event of what cannot be read", said("ClusterNetworkPolicy", "foreign", "cannot be read"))
	if _, err := dyn.Resource(definitions).Update(t.Context(), definition(t, "v1beta1"), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	netlab.Eventually(t, "an event of the definition", said("CustomResourceDefinition", Definition, "does not serve the version v1alpha2"))
}
