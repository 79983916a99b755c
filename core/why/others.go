// SPDX-License-Identifier: Apache-2.0

package why

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/why/facts"
	"github.com/wasmplane/wasmplane/core/why/netrules"
	"github.com/wasmplane/wasmplane/core/why/reply"
)

func (e *explainer) claim(name string) *Answer {
	c, ok := facts.Find(e.Claims, e.in, name)
	if !ok {
		return nil
	}
	return e.explainClaim(c)
}

// podClaims is what is wrong with the claims of a pod; nil = nothing that keeps it from a node.
func (e *explainer) podClaims(p *corev1.Pod) *Answer {
	for _, v := range p.Spec.Volumes {
		if v.PersistentVolumeClaim == nil {
			continue
		}
		name := v.PersistentVolumeClaim.ClaimName
		c, ok := facts.Find(e.Claims, p.Namespace, name)
		if !ok {
			return reply.Stuck("its volume claim %s does not exist", name).
				Or("make the claim", `echo '{"apiVersion":"v1","kind":"PersistentVolumeClaim","metadata":{"name":"%s"},"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}}' | kubectl create -n %s -f -`, name, p.Namespace)
		}
		if a := e.explainClaim(c); !a.Well && !e.waitsForConsumer(c) {
			return a.Of("its volume claim %s is not bound", name)
		}
	}
	return nil
}

func (e *explainer) class(c *corev1.PersistentVolumeClaim) (name string, class *storagev1.StorageClass) {
	if c.Spec.StorageClassName != nil {
		name = *c.Spec.StorageClassName
	}
	class, _ = facts.Find(e.Classes, "", name)
	return name, class
}

func (e *explainer) waitsForConsumer(c *corev1.PersistentVolumeClaim) bool {
	_, class := e.class(c)
	return class != nil && class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
}

func (e *explainer) explainClaim(c *corev1.PersistentVolumeClaim) *Answer {
	name, class := e.class(c)
	switch {
	case c.DeletionTimestamp != nil:
		return reply.Stuck("it is being deleted and waits until no pod uses it (finalizers %s)", strings.Join(c.Finalizers, ", "))
	case c.Status.Phase == corev1.ClaimBound:
		return reply.Well("it is bound to volume %s", c.Spec.VolumeName)
	case c.Status.Phase == corev1.ClaimLost:
		return reply.Stuck("volume %s, to which it was bound, does not exist any more; what was in it is lost", c.Spec.VolumeName)
	case c.Spec.StorageClassName == nil:
		return e.anotherClass(c, reply.Stuck("it names no storage class, and the cluster had no default one when it was made"))
	case name != "" && class == nil:
		return e.anotherClass(c, reply.Stuck("its storage class %q does not exist", name))
	case class != nil && e.waitsForConsumer(c):
		for _, p := range e.Pods {
			for _, v := range p.Spec.Volumes {
				if p.Namespace == c.Namespace && v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == c.Name {
					return reply.Stuck("it is bound when pod %s, which uses it, has a node", p.Name).Or("ask why that has none",
						"wasmplane why pod/%s -n %s", p.Name, p.Namespace)
				}
			}
		}
		return reply.Stuck("it waits for the first pod that uses it: class %s binds then", name)
	}
	if ev := e.Last("PersistentVolumeClaim", c.Namespace, c.Name, "ProvisioningFailed"); ev != nil {
		return reply.Stuck("no volume could be made for it: %s", ev.Message)
	}
	if class != nil && class.Provisioner != "kubernetes.io/no-provisioner" {
		return reply.Stuck("it waits for %s to make a volume; if no such provisioner runs, nobody will", class.Provisioner)
	}
	want := c.Spec.Resources.Requests[corev1.ResourceStorage]
	return reply.Stuck("no volume of class %q that is free has %s and the access modes %s", name, want.String(), facts.Modes(c))
}

// anotherClass suggests to make the claim anew with a class that there is.
func (e *explainer) anotherClass(c *corev1.PersistentVolumeClaim, a *Answer) *Answer {
	if len(e.Classes) == 0 {
		return a.More("the cluster has no storage class at all")
	}
	class := slices.MinFunc(e.Classes, func(a, b *storagev1.StorageClass) int {
		if def := "storageclass.kubernetes.io/is-default-class"; a.Annotations[def] != b.Annotations[def] {
			return -strings.Compare(a.Annotations[def], b.Annotations[def])
		}
		return strings.Compare(a.Name, b.Name)
	})
	how := `kubectl get pvc %s -n %s -o yaml | sed 's/storageClassName: .*/storageClassName: %s/' | kubectl replace --force -f -`
	if c.Spec.StorageClassName == nil {
		how = `kubectl patch pvc %s -n %s --type=merge -p '{"spec":{"storageClassName":"%s"}}'`
	}
	return a.Or("make it of class "+class.Name, how, c.Name, c.Namespace, class.Name)
}

func (e *explainer) namespace(name string) *Answer {
	ns, ok := facts.Find(e.Namespaces, "", name)
	if !ok {
		return nil
	}
	if ns.DeletionTimestamp == nil {
		return reply.Well("it is there, and is not being deleted")
	}
	if len(e.Held) > 0 {
		h := e.Held[0]
		a := reply.Stuck("it is being deleted, and %s %s waits for whoever set its finalizers %s", h.Resource, h.Name,
			strings.Join(h.Finalizers, ", "))
		if len(e.Held) > 1 {
			a.More("%d objects in all are held", len(e.Held))
		}
		for _, h := range e.Held[:min(len(e.Held), 10)] {
			a.Or("take the finalizers off, if nobody is there to do it",
				`kubectl patch %s %s -n %s --type=merge -p '{"metadata":{"finalizers":null}}'`, h.Resource, h.Name, name)
		}
		return a
	}
	for _, c := range ns.Status.Conditions {
		if c.Status == corev1.ConditionTrue {
			return reply.Stuck("it is being deleted: %s", c.Message)
		}
	}
	if len(ns.Spec.Finalizers) > 0 {
		return reply.Stuck("it is being deleted; what is in it goes first")
	}
	return reply.Stuck("it is empty, and waits for whoever set its finalizers %s", strings.Join(ns.Finalizers, ", "))
}

func (e *explainer) node(name string) *Answer {
	n, ok := facts.Find(e.Nodes, "", name)
	if !ok {
		return nil
	}
	return e.explainNode(n)
}

func nodeReady(n *corev1.Node) bool {
	return facts.NodeCondition(n, corev1.NodeReady).Status == corev1.ConditionTrue
}

func (e *explainer) explainNode(n *corev1.Node) *Answer {
	ready := facts.NodeCondition(n, corev1.NodeReady)
	switch ready.Status {
	case corev1.ConditionUnknown:
		return e.before(n, reply.Stuck("nothing has been heard of it since %s: its agent does not run, or does not reach the API", e.heard(n, ready))).
			Or("on that machine, ask how its agent is", "wasmplane status").Or("start it there", "wasmplane agent").
			Or("if the machine will not come back, take it out", "wasmplane node remove %s", n.Name)
	case corev1.ConditionFalse:
		return e.before(n, reply.Stuck("its agent says that it is not ready: %s", strings.TrimSpace(ready.Reason+": "+ready.Message)))
	case "":
		return reply.Stuck("its agent has never reported: it has only just joined, or somebody made the Node by hand").
			Or("take it out, if there is no such machine", "kubectl delete node %s", n.Name)
	case corev1.ConditionTrue:
	}
	for _, t := range []corev1.NodeConditionType{
		corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure,
		corev1.NodeNetworkUnavailable,
	} {
		if c := facts.NodeCondition(n, t); c.Status == corev1.ConditionTrue {
			return reply.Stuck("it is ready, and takes no new pods: %s: %s", t, c.Message)
		}
	}
	if n.Spec.Unschedulable {
		return reply.Stuck("it is ready, and takes no new pods: it is cordoned").Or("use it again", "kubectl uncordon %s", n.Name)
	}
	return reply.Well("it is ready")
}

// heard is when a node gave its last sign of life.
func (e *explainer) heard(n *corev1.Node, ready corev1.NodeCondition) string {
	if l, ok := facts.Find(e.Leases, corev1.NamespaceNodeLease, n.Name); ok && l.Spec.RenewTime != nil {
		ready.LastHeartbeatTime = metav1.NewTime(l.Spec.RenewTime.Time)
	}
	return facts.Since(ready)
}

// before adds what was last said of a node, by itself or about it.
func (e *explainer) before(n *corev1.Node, a *Answer) *Answer {
	var last *corev1.Event
	for _, ev := range e.Events {
		if o := ev.InvolvedObject; o.Kind != "Node" || o.Name != n.Name || ev.Reason == "Why" {
			continue
		}
		if last == nil || facts.When(ev).After(facts.When(last)) {
			last = ev
		}
	}
	if last != nil {
		a.More("the last event about it: %s: %s", last.Reason, last.Message)
	}
	return a
}

func (e *explainer) networkPolicy(name string) *Answer {
	return netrules.Rules{Cluster: e.Cluster}.Policy(e.in, name)
}

func (e *explainer) clusterPolicy(name string) *Answer {
	return netrules.Rules{Cluster: e.Cluster}.ClusterPolicy(name)
}
