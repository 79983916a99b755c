// SPDX-License-Identifier: Apache-2.0

package why

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/wasmplane/wasmplane/core/why/facts"
	"github.com/wasmplane/wasmplane/core/why/reply"
)

func (e *explainer) service(name string) *Answer {
	s, ok := facts.Find(e.Services, e.in, name)
	if !ok {
		return nil
	}
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		return reply.Well("it is a name for %s and has no endpoints", s.Spec.ExternalName)
	}
	if ready := e.endpoints(s); ready > 0 {
		return reply.Well("it has ready endpoints: %d", ready)
	}
	if len(s.Spec.Selector) == 0 {
		return reply.Stuck("it has no endpoints: it selects no pods, and nobody has made EndpointSlices for it").
			Or("let it select pods", "kubectl set selector service/%s KEY=VALUE -n %s", name, e.in)
	}
	selector := labels.SelectorFromSet(s.Spec.Selector)
	var chosen []*corev1.Pod
	for _, p := range e.Pods {
		if p.Namespace == e.in && selector.Matches(labels.Set(p.Labels)) {
			chosen = append(chosen, p)
		}
	}
	if len(chosen) == 0 {
		return e.nobody(s)
	}
	for _, p := range chosen {
		if a := e.explainPod(p); !a.Well {
			return a.Of("it has no endpoints that are ready: pod %s", p.Name)
		}
	}
	for _, port := range s.Spec.Ports {
		if a := unnamed(s, port, chosen); a != nil {
			return a
		}
	}
	return reply.Stuck("it has no endpoints yet, although %d pods that it selects are ready", len(chosen))
}

func (e *explainer) endpoints(s *corev1.Service) (ready int) {
	for _, slice := range e.Slices {
		if slice.Namespace != s.Namespace || slice.Labels[discoveryv1.LabelServiceName] != s.Name ||
			len(slice.Ports) == 0 && len(s.Spec.Ports) > 0 {
			continue
		}
		for _, ep := range slice.Endpoints {
			if ep.Conditions.Ready == nil || *ep.Conditions.Ready {
				ready++
			}
		}
	}
	return ready
}

// nobody has the labels that a Service selects. Where pods have the same keys with other
// values, those are probably the ones that were meant.
func (e *explainer) nobody(s *corev1.Service) *Answer {
	a := reply.Stuck("it has no endpoints: no pod in the namespace has the labels %s that it selects", labels.Set(s.Spec.Selector))
	seen := map[string]bool{}
	for _, p := range e.Pods {
		meant, all := labels.Set{}, true
		for key := range s.Spec.Selector {
			v, ok := p.Labels[key]
			meant[key], all = v, all && ok
		}
		if p.Namespace == e.in && p.DeletionTimestamp == nil && all && !seen[meant.String()] && len(seen) < 3 {
			seen[meant.String()] = true
			a.Or("select "+meant.String()+", as pod "+p.Name+" has", "kubectl set selector service/%s %s -n %s", s.Name, meant.String(), e.in)
		}
	}
	if len(a.Changes) == 0 {
		pairs := []string{}
		for _, k := range slices.Sorted(maps.Keys(s.Spec.Selector)) {
			pairs = append(pairs, k+"="+s.Spec.Selector[k])
		}
		a.Or("make pods that have the labels, or give them to pods that there are", "kubectl label pod POD -n %s %s", e.in,
			facts.Join(pairs, " "))
	}
	return a
}

// unnamed: the Service's targetPort is a name that the pods' containers don't give a port.
func unnamed(s *corev1.Service, port corev1.ServicePort, pods []*corev1.Pod) *Answer {
	if port.TargetPort.Type != intstr.String {
		return nil
	}
	var names []string
	for _, p := range pods {
		for _, c := range p.Spec.Containers {
			for _, of := range c.Ports {
				if of.Name == port.TargetPort.StrVal {
					return nil
				}
				names = append(names, of.Name)
			}
		}
	}
	slices.Sort(names)
	names = slices.DeleteFunc(slices.Compact(names), func(n string) bool { return n == "" })
	a := reply.Stuck("it has no endpoints: no container of its pods has a port of the name %q, its targetPort (theirs: %s)", port.TargetPort.StrVal, strings.Join(names, ", "))
	for i, of := range s.Spec.Ports {
		if len(names) > 0 && of.Port == port.Port {
			a.Or("use the port "+names[0], `kubectl patch service %s -n %s --type=json -p '[{"op":"replace","path":"/spec/ports/%d/targetPort","value":%s}]'`, s.Name, s.Namespace, i, facts.JSON([]string{fmt.Sprintf("%q", names[0])}))
		}
	}
	return a
}
