// SPDX-License-Identifier: Apache-2.0

package addresses

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/admissiontest"
	"github.com/wasmplane/wasmplane/core/auth/authz"
	"github.com/wasmplane/wasmplane/core/loadbalancer"
	"github.com/wasmplane/wasmplane/core/object"
)

// everywhere lets balancers and controllers write what they write in all namespaces, and
// tenants nothing beyond theirs.
type everywhere struct{}

func (everywhere) Name() string { return "everywhere" }

func (everywhere) Authorize(_ context.Context, a authz.Attributes) (authz.Decision, string, error) {
	what := a.GetUser().GetName() + " " + a.GetVerb() + " " + a.GetResource() + "/" + a.GetSubresource()
	switch {
	case a.GetNamespace() != "":
		return authz.Allow, "", nil // a tenant may write in its own
	case what == "balancer update services/status", what == "controller update endpoints/", what == "controller update endpointslices/":
		return authz.Allow, "", nil
	}
	return authz.NoOpinion, "", nil
}

// TestAddressesOfOthers is how somebody with rights in one namespace draws traffic that is
// for others, or sends load balancers to kubelets.
func TestAddressesOfOthers(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
		{Type: corev1.NodeHostName, Address: "n"}, {Type: corev1.NodeInternalIP, Address: "192.0.2.7"}, {Type: corev1.NodeInternalIP, Address: "2001:db8::7"},
	}}}
	factory := informers.NewSharedInformerFactory(fake.NewClientset(node), 0)
	p := New(everywhere{}, factory, time.Minute)
	factory.Core().V1().Nodes().Informer()
	factory.Start(t.Context().Done())
	factory.WaitForCacheSync(t.Context().Done())

	in := metav1.ObjectMeta{Name: "s", Namespace: "red"}
	service := func(wanted string, balanced ...string) *corev1.Service {
		s := &corev1.Service{ObjectMeta: in, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, LoadBalancerIP: wanted}}
		for _, ip := range balanced {
			s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip})
		}
		return s
	}
	annotated := service("")
	annotated.Annotations = map[string]string{loadbalancer.AddressesAnnotation: "198.51.100.1"}
	endpoints := func(ips ...string) *corev1.Endpoints { //nolint:staticcheck // it is still served
		e := &corev1.Endpoints{ObjectMeta: in, Subsets: []corev1.EndpointSubset{{}}} //nolint:staticcheck // as above
		for _, ip := range ips {
			e.Subsets[0].NotReadyAddresses = append(e.Subsets[0].NotReadyAddresses, corev1.EndpointAddress{IP: ip})
		}
		return e
	}
	slice := func(ips ...string) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{ObjectMeta: in, Endpoints: []discoveryv1.Endpoint{{Addresses: ips}}}
	}
	const all = " may be used by those only who may update "
	for _, c := range []struct {
		name, resource, sub string
		old, now            runtime.Object
		right               string // of whoever may
		denied              string
	}{
		{"a Service", "services", "", nil, service(""), "", ""},
		{"an address by its annotation", "services", "", nil, annotated, "balancer", "198.51.100.1" + all + "services/status in all namespaces"},
		{"an address of the load balancer's", "services", "", nil, service("198.51.100.1"), "balancer", "spec.loadBalancerIP: 198.51.100.1" + all + "services/status in all namespaces"},
		{"another one", "services", "", service("198.51.100.1"), service("198.51.100.2"), "balancer", "spec.loadBalancerIP: 198.51.100.2"},
		{"the same one", "services", "", service("198.51.100.1", "198.51.100.1"), service("198.51.100.1", "198.51.100.1"), "", ""},
		{"an address in the status", "services", "status", service(""), service("", "10.96.0.1"), "balancer", "status.loadBalancer.ingress[0].ip: 10.96.0.1"},
		{"one fewer in the status", "services", "status", service("", "10.96.0.1", "10.96.0.2"), service("", "10.96.0.2"), "", ""},
		{"endpoints elsewhere", "endpoints", "", nil, endpoints("203.0.113.1"), "", ""},
		{"endpoints that are a node", "endpoints", "", nil, endpoints("203.0.113.1", "192.0.2.7"), "controller", "subsets[0].addresses[1].ip: 192.0.2.7" + all + "endpoints in all namespaces"},
		{"a slice elsewhere", "endpointslices", "", nil, slice("203.0.113.1"), "", ""},
		{"a slice that is a node", "endpointslices", "", nil, slice("2001:db8::7"), "controller", "endpoints[0].addresses[0]: 2001:db8::7" + all + "endpointslices"},
		{"a slice that is a node in other words", "endpointslices", "", slice("203.0.113.1"), slice("::ffff:192.0.2.7"), "controller", "endpoints[0].addresses[0]"},
		{"a slice that was a node before", "endpointslices", "", slice("192.0.2.7"), slice("192.0.2.7", "203.0.113.1"), "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			request := func(who string) func() *admission.Request {
				return func() *admission.Request {
					by := admissiontest.By(&user.DefaultInfo{Name: who})
					if c.old == nil {
						return admissiontest.Creating(c.resource, c.now.DeepCopyObject(), by, admissiontest.Subresource(c.sub))
					}
					return admissiontest.Updating(c.resource, c.old.DeepCopyObject(), c.now.DeepCopyObject(), by, admissiontest.Subresource(c.sub))
				}
			}
			cases := []admissiontest.Case{{Name: "a tenant", Request: request("tina"), Denied: c.denied}}
			if c.right != "" {
				cases = append(cases, admissiontest.Case{Name: "who may everywhere", Request: request(c.right)})
			}
			admissiontest.Run(t, p, cases...)
		})
	}
}

// Before it is known which addresses are nodes', nobody is believed that his are none.
func TestNodesHaveToBeKnown(t *testing.T) {
	p := New(everywhere{}, informers.NewSharedInformerFactory(fake.NewClientset(), 0), time.Millisecond)
	kind := discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice")
	request := func(name string) *admission.Request {
		return &admission.Request{
			Operation: admission.Create, Kind: kind, Resource: discoveryv1.SchemeGroupVersion.WithResource("endpointslices"), Namespace: "red",
			Name: "s",
			User: &user.DefaultInfo{Name: name},
			Object: object.FromVersioned(object.Unstructured{GVK: kind}, &discoveryv1.EndpointSlice{
				ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "red"}, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.7"}}},
			}),
		}
	}
	if err := p.Validate(t.Context(), request("tenant")); !apierrors.IsForbidden(err) {
		t.Errorf("a tenant: %v", err)
	}
	if err := p.Validate(t.Context(), request("controller")); err != nil {
		t.Errorf("who may write endpoints everywhere waits for nothing: %v", err)
	}
}
