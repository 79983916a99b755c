// SPDX-License-Identifier: Apache-2.0

package nodeauth

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
)

func nodeUser(name string) user.Info {
	return &user.DefaultInfo{Name: "system:node:" + name, Groups: []string{"system:nodes"}}
}

func TestANodeReadsTheSecretsOfItsPods(t *testing.T) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "d"},
		Spec: corev1.PodSpec{NodeName: "n1", Volumes: []corev1.Volume{{
			Name: "v", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}},
		}}},
	}
	on := func(name, node string) *corev1.PersistentVolume {
		return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"local.wasmplane.io/node": node}}}
	}
	f := informers.NewSharedInformerFactory(fake.NewClientset(pod, on("of-1", "n1"), on("of-2", "n2")), 0)
	a := New(f)
	f.StartWithContext(t.Context())
	t.Cleanup(f.Shutdown)
	if err := a.WaitForSync(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		u                    user.Info
		verb, resource, name string
		want                 authorizer.Decision
	}{
		{nodeUser("n1"), "get", "secrets", "s", authorizer.DecisionAllow},
		{nodeUser("n2"), "get", "secrets", "s", authorizer.DecisionNoOpinion},
		{nodeUser("n1"), "get", "secrets", "other", authorizer.DecisionNoOpinion},
		{nodeUser("n1"), "create", "pods", "", authorizer.DecisionAllow},
		{nodeUser("n1"), "delete", "nodes", "n1", authorizer.DecisionAllow},
		{nodeUser("n1"), "delete", "nodes", "n2", authorizer.DecisionNoOpinion},
		{nodeUser(""), "delete", "nodes", "", authorizer.DecisionNoOpinion},
		{nodeUser("n1"), "deletecollection", "nodes", "", authorizer.DecisionNoOpinion},
		{nodeUser("n1"), "delete", "configmaps", "n1", authorizer.DecisionNoOpinion},
		{&user.DefaultInfo{Name: "system:node:n1"}, "delete", "nodes", "n1", authorizer.DecisionNoOpinion},
		{&user.DefaultInfo{Name: "jane"}, "get", "secrets", "s", authorizer.DecisionNoOpinion},
	} {
		d, reason, err := a.Authorize(t.Context(), authorizer.AttributesRecord{
			User: tc.u, Verb: tc.verb, Resource: tc.resource, Name: tc.name, Namespace: "d", ResourceRequest: true,
		})
		if d != tc.want || err != nil {
			t.Errorf("%s %s %s/%s: %v (%s) %v", tc.u.GetName(), tc.verb, tc.resource, tc.name, d, reason, err)
		}
	}
	for _, tc := range []struct {
		u                    user.Info
		verb, name, selector string
		want                 authorizer.Decision
	}{
		{nodeUser("n1"), "watch", "", "local.wasmplane.io/node=n1", authorizer.DecisionAllow},
		{nodeUser("n1"), "list", "", "a=b,local.wasmplane.io/node in (n1)", authorizer.DecisionAllow},
		{nodeUser("n1"), "list", "", "", authorizer.DecisionNoOpinion},
		{nodeUser("n1"), "list", "", "local.wasmplane.io/node=n2", authorizer.DecisionNoOpinion},
		{nodeUser("n1"), "list", "", "local.wasmplane.io/node in (n1,n2)", authorizer.DecisionNoOpinion},
		{nodeUser("n1"), "list", "", "local.wasmplane.io/node!=n2", authorizer.DecisionNoOpinion},
		{nodeUser("n1"), "list", "", "local.wasmplane.io/node", authorizer.DecisionNoOpinion},
		{nodeUser("n1"), "update", "of-1", "", authorizer.DecisionAllow},
		{nodeUser("n1"), "update", "of-2", "", authorizer.DecisionNoOpinion},
		{nodeUser("n1"), "update", "none", "", authorizer.DecisionNoOpinion},
		{nodeUser("n1"), "patch", "of-1", "", authorizer.DecisionNoOpinion},
		{nodeUser("n1"), "delete", "of-1", "", authorizer.DecisionNoOpinion},
		{nodeUser("n1"), "create", "", "", authorizer.DecisionNoOpinion},
		{&user.DefaultInfo{Name: "jane"}, "update", "of-1", "", authorizer.DecisionNoOpinion},
	} {
		selector, err := labels.Parse(tc.selector)
		if err != nil {
			t.Fatal(err)
		}
		requirements, _ := selector.Requirements()
		d, reason, err := a.Authorize(t.Context(), authorizer.AttributesRecord{
			User: tc.u, Verb: tc.verb, Resource: "persistentvolumes", Name: tc.name, ResourceRequest: true, LabelSelectorRequirements: requirements,
		})
		if d != tc.want || err != nil {
			t.Errorf("%s %s volumes %s %s: %v (%s) %v", tc.u.GetName(), tc.verb, tc.name, tc.selector, d, reason, err)
		}
	}
	if name, is := Identify(nodeUser("n1")); name != "n1" || !is {
		t.Error(name, is)
	}
}
