// SPDX-License-Identifier: Apache-2.0

package why

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/wasmplane/wasmplane/core/why/facts"
	"github.com/wasmplane/wasmplane/core/why/reply"
)

// defaultIngressClass marks the class of Ingresses that name none.
const defaultIngressClass = "ingressclass.kubernetes.io/is-default-class"

// ingress: why nothing is let in by it.
func (e *explainer) ingress(name string) *Answer {
	in, ok := facts.Find(e.Ingresses, e.in, name)
	if !ok {
		return nil
	}
	class, a := e.ingressClass(in)
	if a != nil {
		return a
	}
	var backends []networkingv1.IngressBackend
	if in.Spec.DefaultBackend != nil {
		backends = append(backends, *in.Spec.DefaultBackend)
	}
	for _, r := range in.Spec.Rules {
		if r.HTTP == nil {
			continue
		}
		for _, p := range r.HTTP.Paths {
			backends = append(backends, p.Backend)
		}
	}
	for _, b := range backends {
		if b.Service != nil {
			if a := e.backend(b.Service); a != nil {
				return a
			}
		}
	}
	if len(in.Status.LoadBalancer.Ingress) == 0 {
		return reply.Stuck("nobody has taken it on: the controller of its class, %s, has written no address", class).
			Or("see whether such a controller runs; if not, install one", "kubectl get pods -A")
	}
	return reply.Well("it has an address, and its backends have endpoints")
}

// ingressClass is the class's controller, or what is wrong with the class.
func (e *explainer) ingressClass(in *networkingv1.Ingress) (controller string, a *Answer) {
	name := in.Annotations["kubernetes.io/ingress.class"]
	if in.Spec.IngressClassName != nil {
		name = *in.Spec.IngressClassName
	}
	for _, c := range e.IngressClasses {
		if c.Name == name || name == "" && c.Annotations[defaultIngressClass] == "true" {
			return c.Spec.Controller, nil
		}
	}
	if name != "" {
		a = reply.Stuck("its class %s does not exist", name)
	} else {
		a = reply.Stuck("it names no class, and there is no default class: no controller takes it on")
	}
	for _, c := range e.IngressClasses[:min(len(e.IngressClasses), 3)] {
		a.Or("use class "+c.Name, `kubectl patch ingress %s -n %s --type=merge -p '{"spec":{"ingressClassName":"%s"}}'`, in.Name, in.Namespace, c.Name)
	}
	if len(e.IngressClasses) == 0 {
		a.More("the cluster has no class at all: an ingress controller has to be installed, which brings one")
	}
	return "", a
}

// backend is what is wrong with the Service behind a path; nil = nothing.
func (e *explainer) backend(b *networkingv1.IngressServiceBackend) *Answer {
	s, ok := facts.Find(e.Services, e.in, b.Name)
	if !ok {
		return reply.Stuck("its backend, service %s, does not exist", b.Name).
			Or("make the service; its pods have the label app="+b.Name, "kubectl create service clusterip %s -n %s --tcp=%d", b.Name, e.in,
				cmp.Or(b.Port.Number, 80))
	}
	var ports []string
	for _, p := range s.Spec.Ports {
		if p.Port == b.Port.Number || p.Name != "" && p.Name == b.Port.Name {
			if a := e.service(b.Name); !a.Well {
				return a.Of("its backend, service %s", b.Name)
			}
			return nil
		}
		ports = append(ports, fmt.Sprint(p.Port))
	}
	return reply.Stuck("its backend, service %s, has no port %s (its ports: %s)", b.Name, cmp.Or(b.Port.Name, fmt.Sprint(b.Port.Number)),
		strings.Join(ports, ", "))
}

// definition: why the objects of a custom kind are not served.
func (e *explainer) definition(name string) *Answer {
	d, ok := facts.Find(e.Definitions, "", name)
	if !ok {
		return nil
	}
	state := map[apiextensionsv1.CustomResourceDefinitionConditionType]apiextensionsv1.CustomResourceDefinitionCondition{}
	for _, c := range d.Status.Conditions {
		state[c.Type] = c
	}
	names, established := state[apiextensionsv1.NamesAccepted], state[apiextensionsv1.Established]
	switch {
	case d.DeletionTimestamp != nil:
		return reply.Stuck("it is being deleted, and objects of its kind remain: %s", state[apiextensionsv1.Terminating].Message).
			Or("see which remain, and what holds them", "kubectl get %s -A -o yaml", name)
	case names.Status == apiextensionsv1.ConditionFalse:
		return reply.Stuck("its objects are not served, as its names are taken: %s", names.Message).
			Or("see whose they are", "kubectl get crds")
	case established.Status != apiextensionsv1.ConditionTrue:
		return reply.Stuck("its objects are not served yet: %s", cmp.Or(established.Message, "its controller has not looked at it"))
	case state[apiextensionsv1.NonStructuralSchema].Status == apiextensionsv1.ConditionTrue:
		return reply.Stuck("its schema is not structural: %s", state[apiextensionsv1.NonStructuralSchema].Message)
	}
	if conv := d.Spec.Conversion; conv != nil && conv.Webhook != nil && conv.Webhook.ClientConfig != nil &&
		conv.Webhook.ClientConfig.Service != nil {
		s := conv.Webhook.ClientConfig.Service
		if a := e.called(s.Namespace, s.Name, s.Port); a != nil {
			return a.Of("its versions cannot be converted")
		}
	}
	return reply.Well("its objects are served")
}

// apiService: why a part of the API is not available.
func (e *explainer) apiService(name string) *Answer {
	a, ok := facts.Find(e.APIs, "", name)
	if !ok {
		return nil
	}
	return e.explainAPI(a)
}

func (e *explainer) explainAPI(api *apiregistrationv1.APIService) *Answer {
	if api.Spec.Service == nil {
		return reply.Well("this server serves it")
	}
	i := slices.IndexFunc(api.Status.Conditions, func(c apiregistrationv1.APIServiceCondition) bool {
		return c.Type == apiregistrationv1.Available
	})
	if i >= 0 && api.Status.Conditions[i].Status == apiregistrationv1.ConditionTrue {
		return reply.Well("it is available")
	}
	said := "nobody has looked yet"
	if i >= 0 {
		said = api.Status.Conditions[i].Reason + ": " + api.Status.Conditions[i].Message
	}
	a := reply.Stuck("it is not available: %s", said)
	if called := e.called(api.Spec.Service.Namespace, api.Spec.Service.Name, api.Spec.Service.Port); called != nil {
		a = called.Of("it is not available").More("%s", said)
	}
	return a.Or("if nobody is to serve it any more, take it out", "kubectl delete apiservice %s", api.Name)
}

// called is why a Service that the API server calls does not answer; nil = it has endpoints, or its namespace
// was not read.
func (e *explainer) called(namespace, name string, port *int32) *Answer {
	s, ok := facts.Find(e.Services, namespace, name)
	switch {
	case !ok && slices.ContainsFunc(e.Unread, func(u string) bool { return strings.HasPrefix(u, "what services") }):
		return nil
	case !ok:
		return reply.Stuck("service %s/%s does not exist", namespace, name)
	}
	want := int32(443)
	if port != nil {
		want = *port
	}
	var ports []string
	for _, p := range s.Spec.Ports {
		if p.Port == want {
			there := *e
			there.in = namespace
			if a := there.service(name); !a.Well {
				return a.Of("service %s/%s", namespace, name)
			}
			return nil
		}
		ports = append(ports, fmt.Sprint(p.Port))
	}
	return reply.Stuck("service %s/%s has no port %d (its ports: %s)", namespace, name, want, strings.Join(ports, ", "))
}

func (e *explainer) validatingWebhook(name string) *Answer {
	if _, ok := facts.Find(e.Validating, "", name); !ok {
		return nil
	}
	return e.webhooks("validatingwebhookconfiguration", name)
}

func (e *explainer) mutatingWebhook(name string) *Answer {
	if _, ok := facts.Find(e.Mutating, "", name); !ok {
		return nil
	}
	return e.webhooks("mutatingwebhookconfiguration", name)
}

// webhooks: which of them cannot be asked, and what that refuses.
func (e *explainer) webhooks(kind, name string) *Answer {
	around, known := "", true
	for i, w := range e.Webhooks(kind, name) {
		if w.Client.Service == nil {
			known = false
			continue
		}
		s := w.Client.Service
		if around = cmp.Or(around, s.Namespace); around != s.Namespace {
			known = false // the Services of one namespace were read
			continue
		}
		a := e.called(s.Namespace, s.Name, s.Port)
		if a == nil {
			continue
		}
		if !w.Fails {
			return a.Of("webhook %s is passed over (failurePolicy: Ignore)", w.Name)
		}
		a.Of("webhook %s cannot be asked, and so %s is refused (failurePolicy: Fail)", w.Name, covered(w.Rules))
		return a.Or("let what it would judge through while it cannot be asked",
			`kubectl patch %s %s --type=json -p '[{"op":"replace","path":"/webhooks/%d/failurePolicy","value":"Ignore"}]'`, kind, name, i).
			Or("take it out", "kubectl delete %s %s", kind, name)
	}
	a := reply.Well("the services of its webhooks have endpoints")
	if !known {
		a.Unknown = append(a.Unknown, "whether webhooks answer that are called by URL, or in further namespaces")
	}
	return a
}

// covered is what rules cover, in words.
func covered(rules []admissionv1.RuleWithOperations) string {
	var parts []string
	for _, r := range rules {
		var ops []string
		for _, o := range r.Operations {
			ops = append(ops, strings.ToLower(string(o)))
		}
		parts = append(parts, fmt.Sprintf("every %s of %s", strings.Join(ops, ", "), strings.Join(r.Resources, ", ")))
	}
	text := facts.Some(parts)
	return strings.NewReplacer("every *", "everything that is done", "of *", "of every resource").Replace(text)
}

// refusedBy is who refused an object, by the words of the API; nil = none of these.
func (e *explainer) refusedBy(message string) *Answer {
	between := func(before, after string) (string, bool) {
		_, text, ok := strings.Cut(message, before)
		text, _, closed := strings.Cut(text, after)
		return text, ok && closed
	}
	if name, ok := between(`failed calling webhook "`, `"`); ok {
		a := reply.Stuck("webhook %s cannot be asked, and so its pods are refused: %s", name, message)
		for _, kind := range []string{"validatingwebhookconfiguration", "mutatingwebhookconfiguration"} {
			for _, config := range e.Configurations(kind) {
				if slices.ContainsFunc(e.Webhooks(kind, config), func(w facts.Webhook) bool { return w.Name == name }) {
					a.Or("see why it cannot be asked", "wasmplane why %s/%s", kind, config)
				}
			}
		}
		return a.Or("see which webhooks there are", "kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations")
	}
	if name, ok := between(`admission webhook "`, `" denied the request`); ok {
		return reply.Stuck("webhook %s refuses its pods: %s", name, message)
	}
	if name, ok := between("ValidatingAdmissionPolicy '", "'"); ok {
		binding, _ := between("with binding '", "'")
		return reply.Stuck("policy %s refuses its pods: %s", name, message).
			Or("read the policy", "kubectl get validatingadmissionpolicy %s -o yaml", name).
			Or("if it should not hold here, take its binding out", "kubectl delete validatingadmissionpolicybinding %s", binding)
	}
	if name, ok := between(`plugin "`, `" denied the request`); ok && !strings.Contains(message, `admission plugin "`) {
		return reply.Stuck("plugin %s refuses its pods: %s", name, message).
			Or("see which plugins there are", "wasmplane plugin list")
	}
	if level, ok := between(`violates PodSecurity "`, `"`); ok {
		return reply.Stuck("the namespace allows only pods of the Pod Security level %s: %s", level, message).
			Or("allow all pods there", "kubectl label namespace %s pod-security.kubernetes.io/enforce=privileged --overwrite", e.in)
	}
	return nil
}
