// SPDX-License-Identifier: Apache-2.0

package why

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/why/facts"
	"github.com/wasmplane/wasmplane/core/why/reply"
)

// failed: a pod that has ended and is not started again. Its status says who ended it; where nobody has, a container of
// its own failed.
func (e *explainer) failed(p *corev1.Pod) *Answer {
	said := strings.TrimSuffix(strings.TrimSpace(p.Status.Message), ".")
	switch reason := p.Status.Reason; {
	case reason == "Evicted":
		a := reply.Stuck("node %s evicted it: %s", p.Spec.NodeName, said)
		if _, about, ok := strings.Cut(said, "low on resource: "); ok {
			what, _, _ := strings.Cut(about, ".")
			e.spared(p, a, what)
		} else if strings.Contains(said, "exceed") && metav1.GetControllerOfNoCopy(p) == nil {
			return a.More("it writes more to its node's disk than its own limits allow").
				Or("make it anew, without a limit of its disk",
					"kubectl get pod %s -n %s -o yaml | sed -e '/^  nodeName:/d' -e '/ephemeral-storage:/d' -e '/sizeLimit:/d' | kubectl replace --force -f -",
					p.Name, p.Namespace)
		}
		return e.anew(p, a)
	case reason == "Preempting":
		return e.anew(p, reply.Stuck("node %s ended it, to have room for a critical pod: %s", p.Spec.NodeName, said))
	case reason == "DeadlineExceeded" && p.Spec.ActiveDeadlineSeconds != nil:
		return e.anew(p, reply.Stuck("it was ended after %d seconds, its activeDeadlineSeconds", *p.Spec.ActiveDeadlineSeconds))
	case reason == "NodeLost" || reason == "NodeShutdown" || reason == "Terminated":
		return e.anew(p, reply.Stuck("it ended with its node %s: %s", p.Spec.NodeName, said))
	case len(p.Status.ContainerStatuses) == 0 && reason != "":
		return e.anew(p, reply.Stuck("node %s did not take it: %s: %s", p.Spec.NodeName, reason, said))
	}
	if said == "" {
		for _, s := range p.Status.ContainerStatuses {
			if t := s.State.Terminated; t != nil && t.ExitCode != 0 {
				said = fmt.Sprintf("container %s ended with exit code %d (%s)", s.Name, t.ExitCode, t.Reason)
			}
		}
	}
	return reply.Stuck("it has failed for good: %s", strings.TrimSpace(p.Status.Reason+" "+said)).
		Or("read what it wrote", "kubectl logs %s -n %s", p.Name, p.Namespace)
}

// spared: what pods request is theirs, and who uses more than that goes first.
func (e *explainer) spared(p *corev1.Pod, a *Answer, what string) {
	name, amount := corev1.ResourceMemory, "256Mi"
	switch what {
	case "memory":
	case "ephemeral-storage":
		name, amount = corev1.ResourceEphemeralStorage, "1Gi"
	default: // inodes and process numbers cannot be requested
		return
	}
	for i := range p.Spec.Containers {
		c := &p.Spec.Containers[i]
		if q, asked := c.Resources.Requests[name]; !asked || q.IsZero() {
			a.More("container %s requests no %s: pods that use more than they request are evicted first", c.Name, name)
			if metav1.GetControllerOfNoCopy(p) != nil {
				a.Or("have it request what it uses", "kubectl set resources %s -n %s -c %s --requests=%s=%s", e.Owner(p), p.Namespace, c.Name,
					string(name), amount)
			}
			return
		}
	}
}

// anew: what has ended does not start again. A controller makes another one; without one, somebody has to.
func (e *explainer) anew(p *corev1.Pod, a *Answer) *Answer {
	if metav1.GetControllerOfNoCopy(p) != nil {
		return a.Or("forget it; its controller makes another", "kubectl delete pod %s -n %s", p.Name, p.Namespace)
	}
	return a.Or("make it anew, for any node", "kubectl get pod %s -n %s -o yaml | sed '/^  nodeName:/d' | kubectl replace --force -f -",
		p.Name, p.Namespace)
}

// disrupted is who had a pod removed that is still there, as its condition says; "" = nobody but who deleted it.
func (e *explainer) disrupted(p *corev1.Pod) string {
	c := condition(p, corev1.DisruptionTarget)
	if c.Status != corev1.ConditionTrue {
		return ""
	}
	switch c.Reason {
	case corev1.PodReasonPreemptionByScheduler:
		by := "a pod that is more important"
		if ev := e.Last("Pod", p.Namespace, p.Name, facts.Preempted); ev != nil {
			by = e.Preemptor(ev.Message, e.in)
		}
		return ", as " + by + " gets its place (preemption)"
	case "DeletionByTaintManager":
		return ", as it does not tolerate a taint of its node"
	case "EvictionByEvictionAPI":
		return ", as somebody evicted it (a drain of its node does so)"
	}
	return ", " + c.Reason + ": " + c.Message
}

// gone is an answer about a pod that there is no more, while an event tells who removed it; nil = none does.
func (e *explainer) gone(name string) *Answer {
	ev := e.Last("Pod", e.in, name, facts.Preempted, facts.TaintEvicted)
	if ev == nil || strings.HasPrefix(ev.Message, "Cancelling") {
		return nil
	}
	a := reply.Stuck("it is gone: %s", e.Removal(ev, e.in))
	for _, rs := range e.ReplicaSets {
		if rs.Namespace == e.in && strings.HasPrefix(name, rs.Name+"-") {
			owner := "replicaset/" + rs.Name
			if of := metav1.GetControllerOfNoCopy(rs); of != nil {
				owner = strings.ToLower(of.Kind) + "/" + of.Name
			}
			return a.Or("see how the one does that was made in its place", "wasmplane why %s -n %s", owner, e.in)
		}
	}
	return a.More("nothing makes it anew, unless a controller made it")
}

// replaced tells of the last pod of a controller that somebody else removed: without that the one that waits would not be there.
func (e *explainer) replaced(m made, waits *corev1.Pod) string {
	var last *corev1.Event
	for _, ev := range e.Events {
		o := ev.InvolvedObject
		if o.Kind == "Pod" && o.Namespace == e.in && strings.HasPrefix(o.Name, m.name+"-") && o.Name != waits.Name &&
			(ev.Reason == facts.Preempted || ev.Reason == facts.TaintEvicted) && !strings.HasPrefix(ev.Message, "Cancelling") &&
			(last == nil || facts.When(ev).After(facts.When(last))) {
			last = ev
		}
	}
	if last == nil {
		return ""
	}
	return fmt.Sprintf(", made for %s, which is gone as %s", last.InvolvedObject.Name, e.Removal(last, e.in))
}

// outOfMemory: the kernel ended a container, which had reached its limit or its node's memory; nil = it did not.
func (e *explainer) outOfMemory(p *corev1.Pod, s *corev1.ContainerStatus) *Answer {
	t := s.LastTerminationState.Terminated
	// A limit that is too low for the runtime's own start is said in words.
	if t == nil || t.Reason != "OOMKilled" && !strings.Contains(t.Message, "OOM-killed") {
		return nil
	}
	var limit resource.Quantity
	for _, list := range [][]corev1.Container{p.Spec.Containers, p.Spec.InitContainers} {
		for i := range list {
			if list[i].Name == s.Name {
				limit = list[i].Resources.Limits[corev1.ResourceMemory]
			}
		}
	}
	if limit.IsZero() {
		return reply.Stuck("container %s is ended for want of memory on its node (OOMKilled), %d times so far", s.Name, s.RestartCount).
			Or("read what it wrote before it ended", "kubectl logs %s -n %s -c %s --previous", p.Name, p.Namespace, s.Name)
	}
	more := limit.DeepCopy()
	more.Add(limit)
	a := reply.Stuck("container %s needs more memory than its limit of %s (OOMKilled), %d times so far", s.Name, limit.String(), s.RestartCount)
	if metav1.GetControllerOfNoCopy(p) != nil {
		return a.Or("raise the limit", "kubectl set resources %s -n %s -c %s --limits=memory=%s", e.Owner(p), p.Namespace, s.Name, more.String())
	}
	return a.Or("raise the limit",
		`kubectl patch pod %s -n %s --subresource resize -p '{"spec":{"containers":[{"name":"%s","resources":{"limits":{"memory":"%s"}}}]}}'`,
		p.Name, p.Namespace, s.Name, more.String())
}
