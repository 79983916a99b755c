// SPDX-License-Identifier: Apache-2.0

package why

import (
	"fmt"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/wasmplane/wasmplane/core/why/facts"
	"github.com/wasmplane/wasmplane/core/why/reply"
)

func (e *explainer) pod(name string) *Answer {
	p, ok := facts.Find(e.Pods, e.in, name)
	if !ok {
		return e.gone(name)
	}
	return e.explainPod(p)
}

func (e *explainer) explainPod(p *corev1.Pod) *Answer {
	switch {
	case p.DeletionTimestamp != nil:
		return e.ending(p)
	case p.Status.Phase == corev1.PodSucceeded:
		return reply.Well("it has ended, successfully")
	case p.Status.Phase == corev1.PodFailed:
		return e.failed(p)
	case p.Spec.NodeName == "":
		return e.pending(p)
	}
	if a := e.onNode(p); a != nil {
		return a
	}
	if a := e.containers(p); a != nil {
		return a
	}
	if condition(p, corev1.PodReady).Status == corev1.ConditionTrue {
		return reply.Well("it runs and is ready, on node %s", p.Spec.NodeName)
	}
	return e.unready(p)
}

func condition(p *corev1.Pod, t corev1.PodConditionType) corev1.PodCondition {
	for _, c := range p.Status.Conditions {
		if c.Type == t {
			return c
		}
	}
	return corev1.PodCondition{}
}

// ending: a pod that is deleted and still there.
func (e *explainer) ending(p *corev1.Pod) *Answer {
	if len(p.Finalizers) > 0 {
		return reply.Stuck("it is being deleted and waits for whoever set its finalizers %s", strings.Join(p.Finalizers, ", ")).
			Or("take the finalizers off, if nobody is there to do it",
				`kubectl patch pod %s -n %s --type=merge -p '{"metadata":{"finalizers":null}}'`, p.Name, p.Namespace)
	}
	a := reply.Stuck("it is being deleted%s; node %s has until %s to stop it", e.disrupted(p), p.Spec.NodeName,
		p.DeletionTimestamp.UTC().Format("15:04:05"))
	if n := e.onNode(p); n != nil {
		a = n.Of("it is being deleted, and its node cannot confirm that it has stopped")
	}
	return a.Or("forget it now; its containers may still run", "kubectl delete pod %s -n %s --grace-period=0 --force", p.Name, p.Namespace)
}

// onNode is what is wrong with the pod's node; nil = nothing.
func (e *explainer) onNode(p *corev1.Pod) *Answer {
	if len(e.Nodes) == 0 {
		return nil
	}
	n, ok := facts.Find(e.Nodes, "", p.Spec.NodeName)
	if !ok {
		return reply.Stuck("node %s, to which it is bound, does not exist", p.Spec.NodeName).
			Or("delete it, so that its controller makes another", "kubectl delete pod %s -n %s --grace-period=0 --force", p.Name, p.Namespace)
	}
	if a := e.explainNode(n); !a.Well && !nodeReady(n) {
		return a.Of("its node %s is not ready", n.Name).Publicly("its node %s is not ready", n.Name)
	}
	return nil
}

// containers is why a container does not start or does not stay; nil = they do.
func (e *explainer) containers(p *corev1.Pod) *Answer {
	for _, list := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
		for i := range list {
			if a := e.container(p, &list[i]); a != nil {
				return a
			}
		}
	}
	if len(p.Status.ContainerStatuses) == 0 {
		if ev := e.Last("Pod", p.Namespace, p.Name, "FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox",
			"FailedCreatePodContainer"); ev != nil {
			return e.missing(p, reply.Stuck("node %s cannot prepare it: %s", p.Spec.NodeName, ev.Message), ev.Message)
		}
	}
	return nil
}

func (e *explainer) container(p *corev1.Pod, s *corev1.ContainerStatus) *Answer {
	w := s.State.Waiting
	if w == nil {
		return nil
	}
	if a := e.image(p, s); a != nil {
		return a
	}
	switch w.Reason {
	case "CrashLoopBackOff":
		if a := e.outOfMemory(p, s); a != nil {
			return a
		}
		ended := ""
		if t := s.LastTerminationState.Terminated; t != nil {
			ended = fmt.Sprintf(" with exit code %d (%s) %s", t.ExitCode, t.Reason, t.Message)
		}
		a := reply.Stuck("container %s ends again and again, %d times so far, at last%s", s.Name, s.RestartCount, strings.TrimRight(ended, " "))
		if ev := e.Last("Pod", p.Namespace, p.Name, "Unhealthy"); ev != nil && strings.HasPrefix(ev.Message, "Liveness") {
			a.More("its liveness probe failed: %s", ev.Message)
		}
		return a.Or("read what it wrote before it ended", "kubectl logs %s -n %s -c %s --previous", p.Name, p.Namespace, s.Name)
	case "CreateContainerConfigError", "CreateContainerError", "RunContainerError":
		return e.missing(p, reply.Stuck("container %s cannot be made: %s", s.Name, w.Message), w.Message)
	}
	return nil
}

// missing suggests to make what a message says is not there.
func (e *explainer) missing(p *corev1.Pod, a *Answer, message string) *Answer {
	if class := p.Spec.RuntimeClassName; class != nil && noHandler.MatchString(message) {
		return e.noHandler(p, a, *class)
	}
	for _, kind := range []string{"configmap", "secret"} {
		_, after, ok := strings.Cut(strings.ReplaceAll(message, kind+"s ", kind+" "), kind+` "`)
		if name, _, quoted := strings.Cut(after, `"`); ok && quoted {
			name = name[strings.LastIndex(name, "/")+1:]
			create := facts.Words("configmap")
			if kind == "secret" {
				create = "secret generic"
			}
			return a.Or("make the "+kind, "kubectl create %s %s -n %s --from-literal=KEY=VALUE", create, name, p.Namespace)
		}
	}
	return a
}

// noHandler is what runtimes say of a handler that they do not have (containerd, CRI-O).
var noHandler = regexp.MustCompile(`no runtime for ".*" is configured|failed to find runtime handler`)

// noHandler: the pod's RuntimeClass has a handler that its node's runtime does not know.
func (e *explainer) noHandler(p *corev1.Pod, a *Answer, class string) *Answer {
	if n, ok := facts.Find(e.Nodes, "", p.Spec.NodeName); ok {
		var have []string
		for _, h := range n.Status.RuntimeHandlers {
			if h.Name != "" { // the default has no name of its own
				have = append(have, h.Name)
			}
		}
		a.More("RuntimeClass %s names a handler that is none of node %s: it has %s", class, n.Name, strings.Join(have, ", "))
	}
	return a.Or("look at the class's handler; a node gets others by node.runtimeHandlers of its configuration", "kubectl get runtimeclass %s -o yaml", class)
}

// unready: its containers run, and it is not ready.
func (e *explainer) unready(p *corev1.Pod) *Answer {
	for _, s := range p.Status.ContainerStatuses {
		if s.Ready || s.State.Running == nil {
			continue
		}
		if ev := e.Last("Pod", p.Namespace, p.Name, "Unhealthy"); ev != nil {
			return reply.Stuck("container %s runs, and its probe fails: %s", s.Name, ev.Message).
				Or("read what it writes", "kubectl logs %s -n %s -c %s", p.Name, p.Namespace, s.Name).
				Or("change the probe", "kubectl edit %s -n %s", e.Owner(p), p.Namespace)
		}
		return reply.Stuck("container %s runs, and is not ready yet", s.Name)
	}
	for _, g := range p.Spec.ReadinessGates {
		if condition(p, g.ConditionType).Status != corev1.ConditionTrue {
			return reply.Stuck("its readiness gate %s is not true; whoever is to set it has not", g.ConditionType)
		}
	}
	a := reply.Stuck("node %s has not started it yet", p.Spec.NodeName)
	if c := condition(p, corev1.PodReady); c.Message != "" {
		a.More("%s", c.Message)
	}
	if ev := e.Last("Pod", p.Namespace, p.Name, "Failed", "FailedMount", "FailedCreatePodSandBox", "BackOff", "Unhealthy"); ev != nil {
		return e.missing(p, a.More("%s", ev.Message), ev.Message)
	}
	return a
}
