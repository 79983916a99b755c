// SPDX-License-Identifier: Apache-2.0

package fit_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/kubelet/fit"
)

func node() *corev1.Node {
	n := &corev1.Node{}
	n.Name = "n"
	n.Labels = map[string]string{corev1.LabelOSStable: "linux", "disk": "ssd"}
	n.Status.Allocatable = corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("1Gi"),
		corev1.ResourcePods: resource.MustParse("3"),
	}
	return n
}

func pod(name, cpu string) *corev1.Pod {
	p := &corev1.Pod{}
	p.Name, p.UID = name, types.UID(name)
	c := corev1.Container{Name: "c"}
	if cpu != "" {
		c.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
	}
	p.Spec.Containers = []corev1.Container{c}
	return p
}

func withPort(name, hostIP string, port int32, protocol corev1.Protocol) *corev1.Pod {
	p := pod(name, "")
	p.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostIP: hostIP, HostPort: port, Protocol: protocol}}
	return p
}

// The checks of one pod on an empty node.
func TestANodeRefusesWhatItCannotRun(t *testing.T) {
	for name, c := range map[string]struct {
		pod    func(*corev1.Pod)
		node   func(*corev1.Node)
		reason string
	}{
		"nothing asked":  {},
		"another system": {pod: func(p *corev1.Pod) { p.Spec.OS = &corev1.PodOS{Name: corev1.Windows} }, reason: "PodOSNotSupported"},
		"a system's label": {
			pod:    func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{corev1.LabelOSStable: "windows"} },
			reason: "PodOSSelectorNodeLabelDoesNotMatch",
		},
		"a label that the node has": {pod: func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "ssd"} }},
		"a label that it lacks":     {pod: func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "tape"} }, reason: "NodeAffinity"},
		"a taint that ends pods": {
			node:   func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoExecute}} },
			reason: "TaintToleration",
		},
		"a taint that only keeps from scheduling": {
			node: func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoSchedule}} },
		},
		"a safe sysctl, written with slashes": {pod: sysctl("net/ipv4/tcp_syncookies")},
		"an unsafe sysctl":                    {pod: sysctl("kernel.msgmax"), reason: "SysctlForbidden"},
		"the host network's sysctl": {
			pod:    func(p *corev1.Pod) { sysctl("net.ipv4.tcp_syncookies")(p); p.Spec.HostNetwork = true },
			reason: "SysctlForbidden",
		},
		"best effort, short of memory": {node: condition(corev1.NodeMemoryPressure), reason: "Evicted"},
		"burstable, short of memory": {
			pod:  func(p *corev1.Pod) { *p = *pod("p", "1") },
			node: condition(corev1.NodeMemoryPressure),
		},
		"burstable, short of disk": {
			pod:  func(p *corev1.Pod) { *p = *pod("p", "1") },
			node: condition(corev1.NodeDiskPressure), reason: "Evicted",
		},
		"critical, short of disk": {
			pod:  func(p *corev1.Pod) { p.Spec.Priority = new(int32(2_000_000_000)) },
			node: condition(corev1.NodeDiskPressure),
		},
		"the node's own port":        {pod: func(p *corev1.Pod) { *p = *withPort("p", "", 6443, "") }, reason: "HostPortReserved"},
		"its number, as UDP":         {pod: func(p *corev1.Pod) { *p = *withPort("p", "", 6443, corev1.ProtocolUDP) }},
		"of the nodes' tunnel":       {pod: func(p *corev1.Pod) { *p = *withPort("p", "", 4789, corev1.ProtocolUDP) }, reason: "HostPortReserved"},
		"the tunnel's, as TCP":       {pod: func(p *corev1.Pod) { *p = *withPort("p", "", 4789, "") }},
		"the tunnel's, as SCTP":      {pod: func(p *corev1.Pod) { *p = *withPort("p", "", 4789, corev1.ProtocolSCTP) }},
		"the tunnel's, at loopback":  {pod: func(p *corev1.Pod) { *p = *withPort("p", "127.0.0.1", 4789, corev1.ProtocolUDP) }, reason: "HostPortReserved"},
		"the node's own, at ::":      {pod: func(p *corev1.Pod) { *p = *withPort("p", "::", 6443, "") }, reason: "HostPortReserved"},
		"the node's own, at one":     {pod: func(p *corev1.Pod) { *p = *withPort("p", "192.0.2.7", 6443, "") }, reason: "HostPortReserved"},
		"its number, in its network": {pod: func(p *corev1.Pod) { *p = *withPort("p", "", 6443, ""); p.Spec.HostNetwork = true }},
		"more than there is":         {pod: func(p *corev1.Pod) { *p = *pod("p", "3") }, reason: "OutOfcpu"},
		"what the node does not have": {
			pod: func(p *corev1.Pod) {
				p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"example.org/gpu": resource.MustParse("1")}
			},
			reason: "OutOfexample.org/gpu",
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, n := pod("p", ""), node()
			if c.pod != nil {
				c.pod(p)
			}
			if c.node != nil {
				c.node(n)
			}
			v := fit.NewRoom([]int32{6443}, []int32{4789}).Reserve(p, n)
			if v.Reason != c.reason || v.Refused != (c.reason != "") {
				t.Errorf("%+v, want the reason %q", v, c.reason)
			}
		})
	}
}

func sysctl(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.SecurityContext = &corev1.PodSecurityContext{Sysctls: []corev1.Sysctl{{Name: name, Value: "1"}}}
	}
}

func condition(kind corev1.NodeConditionType) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Status.Conditions = []corev1.NodeCondition{{Type: kind, Status: corev1.ConditionTrue}}
	}
}

func TestPodsShareANodesResources(t *testing.T) {
	r, n := fit.NewRoom(nil, nil), node()
	step := func(what string, v fit.Verdict, want string) {
		t.Helper()
		if v.Reason != want {
			t.Errorf("%s: %+v, want the reason %q", what, v, want)
		}
	}
	r.Keep(pod("adopted", "1"))
	step("a second", r.Reserve(pod("a", "500m"), n), "")
	step("one too many", r.Reserve(pod("b", "600m"), n), "OutOfcpu")
	step("the same again takes its place once", r.Reserve(pod("a", "500m"), n), "")
	step("grown within the node", r.Resize(pod("a", "1"), n), "")
	step("grown beyond it", r.Resize(pod("a", "1100m"), n), "OutOfcpu")
	step("what was refused has changed nothing", r.Reserve(pod("b", "1m"), n), "OutOfcpu")
	r.Release("adopted")
	step("in a place that is free again", r.Reserve(pod("b", "1"), n), "")
	step("more than can be counted", r.Reserve(pod("c", "1e17"), n), "OutOfcpu")
	step("one that asks for nothing", r.Reserve(pod("c", ""), n), "")
	step("more pods than the node takes", r.Reserve(pod("d", ""), n), "OutOfpods")
}

func TestPodsShareANodesPorts(t *testing.T) {
	for i, c := range []struct {
		has, wants *corev1.Pod
		reason     string
	}{
		{withPort("a", "", 80, corev1.ProtocolTCP), withPort("b", "", 80, corev1.ProtocolTCP), "NodePorts"},
		{withPort("a", "", 80, corev1.ProtocolTCP), withPort("b", "", 81, corev1.ProtocolTCP), ""},
		{withPort("a", "", 80, corev1.ProtocolTCP), withPort("b", "", 80, corev1.ProtocolUDP), ""},
		{withPort("a", "10.0.0.1", 80, corev1.ProtocolTCP), withPort("b", "10.0.0.2", 80, corev1.ProtocolTCP), ""},
		{withPort("a", "10.0.0.1", 80, corev1.ProtocolTCP), withPort("b", "0.0.0.0", 80, corev1.ProtocolTCP), "NodePorts"},
		{withPort("a", "", 80, corev1.ProtocolTCP), withPort("a", "", 80, corev1.ProtocolTCP), ""},
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			r, n := fit.NewRoom(nil, nil), node()
			r.Keep(c.has)
			if v := r.Reserve(c.wants, n); v.Reason != c.reason {
				t.Errorf("%+v, want the reason %q", v, c.reason)
			}
		})
	}
}
