// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/wasmplane/wasmplane/core/netlab"
	"github.com/wasmplane/wasmplane/core/networkpolicy"
	"github.com/wasmplane/wasmplane/core/run"
)

func somePod(n int, node string) *corev1.Pod {
	p := &corev1.Pod{}
	p.Namespace, p.Name, p.UID = "x", podName(n), types.UID(podName(n))
	p.Labels = map[string]string{"pod": podName(n)}
	p.Spec.NodeName = node
	return p
}

func withIPs(p *corev1.Pod, n int) *corev1.Pod {
	p.Status.PodIP, p.Status.PodIPs = v4(n), []corev1.PodIP{{IP: v4(n)}, {IP: v6(n)}}
	return p
}

func deny(name string, who map[string]string, d ...networkingv1.PolicyType) *networkingv1.NetworkPolicy {
	np := &networkingv1.NetworkPolicy{}
	np.Namespace, np.Name, np.UID = "x", name, types.UID(name)
	np.Spec.PodSelector.MatchLabels, np.Spec.PolicyTypes = who, d
	return np
}

// start runs a Filter on the lab's node until stop.
func (l *lab) start(t *testing.T, client *fake.Clientset, change func(*Config)) (f *Filter, stop func()) {
	t.Helper()
	cfg := Config{Table: "wp-lab-policy", Node: "here", Client: client, Patience: time.Minute, Check: time.Hour, Bridge: true}
	if change != nil {
		change(&cfg)
	}
	f, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := l.In("node", func() error { return f.Run(ctx) }); err != nil {
			t.Error(err)
		}
	}()
	stop = func() {
		cancel()
		<-done
	}
	t.Cleanup(stop)
	return f, stop
}

// cut says whether the table cuts an address off from what is not allowed; one that is
// not there cuts nobody off.
func (l *lab) cut(d networkpolicy.Direction, ip string) bool {
	return strings.Contains(
		l.nft("list", "map", "inet", "wp-lab-policy", mapName(d, networkpolicy.Forwarded, strings.Contains(ip, ":"))),
		ip+" :",
	)
}

// nft says what nft answers, also that there is nothing.
func (l *lab) nft(args ...string) string {
	out, _ := exec.Command("ip", append([]string{"netns", "exec", l.Name("node"), "nft"}, args...)...).CombinedOutput()
	return string(out)
}

// A pod that starts finds in force what was created before it, also where the watch of
// policies is behind.
func TestGuardKnowsWhatTheWatchHasNotBrought(t *testing.T) {
	l := newLab(t)
	np := deny("all", nil, networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress)
	client := fake.NewClientset(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "x"}})
	policies := watch.NewFake()
	var watching atomic.Bool
	client.PrependWatchReactor("networkpolicies", func(clienttesting.Action) (bool, watch.Interface, error) {
		watching.Store(true)
		return true, policies, nil
	})
	f, _ := l.start(t, client, nil)
	netlab.Eventually(t, "the first write", func() bool { return watching.Load() && closed(f.Ready()) })
	var lists atomic.Int32
	client.PrependReactor("list", "networkpolicies", func(clienttesting.Action) (bool, apiruntime.Object, error) {
		lists.Add(1)
		return true, &networkingv1.NetworkPolicyList{Items: []networkingv1.NetworkPolicy{*np}}, nil
	})
	guarded := run.Go("guard", func() error { return f.Guard(t.Context(), somePod(1, "here"), []string{v4(1), v6(1)}, "") })
	netlab.Eventually(t, "the API is asked again", func() bool { return lists.Load() > 1 })
	select {
	case err := <-guarded:
		t.Fatalf("the pod may start before its policy is known: %v", err)
	default:
	}
	policies.Add(np.DeepCopy())
	if err := <-guarded; err != nil {
		t.Fatal(err)
	}
	for _, d := range []networkpolicy.Direction{networkpolicy.Ingress, networkpolicy.Egress} {
		for _, ip := range []string{v4(1), v6(1)} {
			if !l.cut(d, ip) {
				t.Errorf("the pod may start, and its %s at %s is open", d, ip)
			}
		}
	}
}

// The watch may be so late that it brings a pod which runs already as one that has no node yet.
func TestALateWatchOpensNoPod(t *testing.T) {
	l := newLab(t)
	client := fake.NewClientset(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, deny("all", nil, networkingv1.PolicyTypeEgress))
	f, _ := l.start(t, client, nil)
	guard := func(n int) {
		t.Helper()
		if err := f.Guard(t.Context(), somePod(n, "here"), []string{v4(n)}, ""); err != nil {
			t.Fatal(err)
		}
	}
	guard(1)
	for _, node := range []string{"", "here"} {
		p := somePod(1, node)
		p.ResourceVersion = "5"
		f.mu.Lock()
		f.pod(p, false)
		f.changes++
		f.mu.Unlock()
		guard(2) // what came before is in force, too
		if !l.cut(networkpolicy.Egress, v4(1)) {
			t.Errorf("the watch says that the pod's node is %q, and it is open", node)
		}
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// A pod whose rules cannot be had does not start, and its event says why.
func TestGuardFails(t *testing.T) {
	l := newLab(t)
	client := fake.NewClientset(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "x"}},
		deny("one", map[string]string{"pod": "pod1"}, networkingv1.PolicyTypeIngress))
	blind := errors.New("br_netfilter is not loaded")
	f, stop := l.start(t, client, func(c *Config) { c.Sees = func() error { return blind } })
	if err := f.Guard(t.Context(), somePod(1, "here"), []string{v4(1)}, ""); !errors.Is(err, blind) {
		t.Errorf("packets pass no filter, and the pod: %v", err)
	}
	if err := f.Guard(t.Context(), somePod(2, "here"), []string{v4(2)}, ""); err != nil {
		t.Errorf("no policy selects the pod: %v", err)
	}
	stop()
	f.cfg.Patience = time.Millisecond
	if err := f.Guard(t.Context(), somePod(3, "here"), []string{v4(3)}, ""); err == nil || !strings.Contains(err.Error(),
		"not in force after 1ms") {
		t.Errorf("nobody writes rules, and the pod: %v", err)
	}
	client.PrependReactor("list", "networkpolicies", func(clienttesting.Action) (bool, apiruntime.Object, error) {
		return true, nil, errors.New("no server")
	})
	if err := f.Guard(t.Context(), somePod(4, "here"), []string{v4(4)}, ""); err == nil || !strings.Contains(err.Error(), "no server") {
		t.Errorf("nobody says which policies there are, and a new pod: %v", err)
	}
}

// Rules stay while the process is away. The next one keeps those cut off of whom it does
// not know whose they are, until somebody says so.
func TestRestart(t *testing.T) {
	l := newLab(t)
	np := deny("all", nil, networkingv1.PolicyTypeIngress)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "x"}}
	f, stop := l.start(t, fake.NewClientset(namespace, np, withIPs(somePod(1, "here"), 1)), nil)
	if err := f.Guard(t.Context(), somePod(2, "here"), []string{v4(2)}, ""); err != nil {
		t.Fatal(err)
	}
	netlab.Eventually(t, "pod1 is cut off", func() bool { return l.cut(networkpolicy.Ingress, v4(1)) })
	stop()
	if !l.cut(networkpolicy.Ingress, v4(1)) || !l.cut(networkpolicy.Ingress, v4(2)) {
		t.Error("the process has ended, and its rules with it")
	}
	// The API never learnt of pod2's address; meanwhile the policy went.
	f, _ = l.start(t, fake.NewClientset(namespace, withIPs(somePod(1, "here"), 1), somePod(2, "here")), nil)
	netlab.Eventually(t, "the new process has written", func() bool { return closed(f.Ready()) })
	if l.cut(networkpolicy.Ingress, v4(1)) {
		t.Error("pod1 is known, no policy selects it, and it is cut off")
	}
	if !l.cut(networkpolicy.Ingress, v4(2)) {
		t.Error("whose address pod2's is is not known, and it is open")
	}
	f.Follow(somePod(2, "here"), []string{v4(2)}, "")
	netlab.Eventually(t, "pod2 is open", func() bool { return !l.cut(networkpolicy.Ingress, v4(2)) })
}

// An address that goes from one pod to another is judged by what selects the new one,
// though the API still says that the old one has it.
func TestAddressOfAnother(t *testing.T) {
	l := newLab(t)
	ctx := t.Context()
	client := fake.NewClientset(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "x"}},
		deny("one", map[string]string{"pod": "pod1"}, networkingv1.PolicyTypeIngress),
		deny("three", map[string]string{"pod": "pod3"}, networkingv1.PolicyTypeEgress))
	f, _ := l.start(t, client, nil)
	guard := func(n int, ip string) {
		t.Helper()
		if err := f.Guard(ctx, somePod(n, "here"), []string{ip}, ""); err != nil {
			t.Fatal(err)
		}
	}
	guard(1, v4(1))
	if !l.cut(networkpolicy.Ingress, v4(1)) {
		t.Fatal("pod1 is open")
	}
	guard(2, v4(1))
	if l.cut(networkpolicy.Ingress, v4(1)) {
		t.Error("pod2 has the address, no policy selects it, and it is cut off")
	}
	old := withIPs(somePod(1, "here"), 1)
	old.ResourceVersion = "9"
	if _, err := client.CoreV1().Pods("x").Create(ctx, old, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	guard(3, v4(1))
	if l.cut(networkpolicy.Ingress, v4(1)) || !l.cut(networkpolicy.Egress, v4(1)) {
		t.Error("pod3 has the address, and is not treated as its policy says")
	}
	f.Forget(somePod(3, "here"))
	netlab.Eventually(t, "nobody has the address", func() bool { return !l.cut(networkpolicy.Egress, v4(1)) })
}

// Answers pass, what goes to oneself passes, and a policy that comes ends what it does
// not allow, also connections that there are.
func TestConnections(t *testing.T) {
	l := newLab(t)
	ctx := t.Context()
	client := fake.NewClientset(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "x"}},
		withIPs(somePod(1, "here"), 1), withIPs(somePod(2, "here"), 2),
		deny("two", map[string]string{"pod": "pod2"}, networkingv1.PolicyTypeIngress))
	f, _ := l.start(t, client, nil)
	netlab.Eventually(t, "pod2 is cut off", func() bool { return closed(f.Ready()) && l.cut(networkpolicy.Ingress, v6(2)) })
	for _, family := range []string{"tcp4", "tcp6"} {
		ip := map[string]func(int) string{"tcp4": v4, "tcp6": v6}[family]
		echo(t, l, "pod1", net.JoinHostPort(ip(1), "80"))
		echo(t, l, "pod2", net.JoinHostPort(ip(2), "80"))
		// Out of the one that nobody may reach.
		out := l.dial(t, "pod2", family, net.JoinHostPort(ip(1), "80"))
		ask(t, out)
		// To itself by another's address: the node sends it back.
		self := netip.MustParseAddr(ip(2))
		l.node(
			"nft",
			fmt.Sprintf(
				"add table inet lab; add chain inet lab pre { type nat hook prerouting priority -100; }; add rule inet lab pre %s daddr %s dnat %s to %s",
				map[bool]string{true: "ip", false: "ip6"}[self.Is4()],
				ip(100),
				map[bool]string{true: "ip", false: "ip6"}[self.Is4()],
				ip(2),
			),
		)
		l.node(
			"nft",
			fmt.Sprintf(
				"add chain inet lab post { type nat hook postrouting priority 100; }; add rule inet lab post %s saddr %s %s daddr %s masquerade",
				map[bool]string{true: "ip", false: "ip6"}[self.Is4()],
				ip(2),
				map[bool]string{true: "ip", false: "ip6"}[self.Is4()],
				ip(2),
			),
		)
		ask(t, l.dial(t, "pod2", family, net.JoinHostPort(ip(100), "80")))
		// The node reaches all its pods.
		ask(t, l.dial(t, "node", family, net.JoinHostPort(ip(2), "80")))
	}
	// A connection that a policy ends: nothing more arrives, in either family.
	first := l.dial(t, "pod2", "tcp4", net.JoinHostPort(v4(1), "80"))
	ask(t, first)
	if _, err := client.NetworkingV1().NetworkPolicies("x").Create(ctx,
		deny("out", map[string]string{"pod": "pod2"}, networkingv1.PolicyTypeEgress), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	netlab.Eventually(t, "pod2 may send nothing", func() bool { return l.cut(networkpolicy.Egress, v4(2)) })
	if _, err := first.Write([]byte("?")); err != nil {
		t.Fatal(err)
	}
	ask(t, l.dial(t, "node", "tcp4", net.JoinHostPort(v4(1), "80"))) // the network has had time
	_ = first.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
	if n, err := first.Read(make([]byte, 1)); err == nil {
		t.Errorf("%d bytes came back on a connection that a policy forbids", n)
	}
}

// echo answers whatever comes on a connection.
func echo(t *testing.T, l *lab, where, address string) {
	t.Helper()
	l.must(where, func() error {
		var lc net.ListenConfig
		s, err := lc.Listen(t.Context(), "tcp", address)
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = s.Close() })
		go func() {
			for {
				c, err := s.Accept()
				if err != nil {
					return
				}
				go func() {
					_, _ = io.Copy(c, c)
					_ = c.Close()
				}()
			}
		}()
		return nil
	})
}

func (l *lab) dial(t *testing.T, where, network, address string) (c net.Conn) {
	t.Helper()
	l.must(where, func() (err error) {
		d := net.Dialer{Timeout: time.Minute}
		c, err = d.DialContext(t.Context(), network, address)
		return err
	})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func ask(t *testing.T, c net.Conn) {
	t.Helper()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	if _, err := c.Write([]byte("?")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Fatalf("from %s: no answer of %s: %v", c.LocalAddr(), c.RemoteAddr(), err)
	}
}

// What somebody else removed is written anew.
func TestTableOfAnother(t *testing.T) {
	l := newLab(t)
	client := fake.NewClientset(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, withIPs(somePod(1, "here"), 1),
		deny("all", nil, networkingv1.PolicyTypeIngress))
	f, _ := l.start(t, client, func(c *Config) { c.Check = 10 * time.Millisecond })
	netlab.Eventually(t, "pod1 is cut off", func() bool { return closed(f.Ready()) && l.cut(networkpolicy.Ingress, v4(1)) })
	l.node("nft", "flush", "ruleset")
	netlab.Eventually(t, "pod1 is cut off again", func() bool {
		return l.cut(networkpolicy.Ingress, v4(1))
	})
	l.node("nft", "delete", "table", "bridge", "wp-lab-policy")
	netlab.Eventually(t, "the table of links is there again",
		func() bool { return strings.Contains(l.nft("list", "tables"), "bridge wp-lab-policy") })
}

// Problems of policies and pods are told once, by an event that names them.
func TestEvents(t *testing.T) {
	l := newLab(t)
	odd := deny("odd", nil, networkingv1.PolicyTypeIngress)
	odd.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{
		{From: []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: "10.0.0"}}}},
	}
	client := fake.NewClientset(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, withIPs(somePod(1, "here"), 1), odd)
	l.start(t, client, nil)
	netlab.Eventually(t, "an event", func() bool {
		list, err := client.CoreV1().Events("x").List(t.Context(), metav1.ListOptions{})
		return err == nil && slices.ContainsFunc(list.Items, func(e corev1.Event) bool {
			return e.InvolvedObject.Name == "odd" && e.Reason == "NotEnforced" && strings.Contains(e.Message, "spec.ingress[0]: ipBlock")
		})
	})
}

// Policies for the DNS of a cluster name pods that it does not have here: it answers on
// nodes. They mean it all the same.
func TestDNSIsAPeer(t *testing.T) {
	l := newLab(t)
	np := deny("names", nil, networkingv1.PolicyTypeEgress)
	np.Spec.Egress = []networkingv1.NetworkPolicyEgressRule{{To: []networkingv1.NetworkPolicyPeer{{
		NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": "kube-system"}},
		PodSelector:       &metav1.LabelSelector{MatchLabels: map[string]string{"k8s-app": "kube-dns"}},
	}}}}
	slice := &discoveryv1.EndpointSlice{
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{v4(6)}}},
	}
	slice.Namespace, slice.Name, slice.Labels = "kube-system", "kube-dns-far", map[string]string{discoveryv1.LabelServiceName: "kube-dns"}
	client := fake.NewClientset(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "x"}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name:   "kube-system",
			Labels: map[string]string{"kubernetes.io/metadata.name": "kube-system"},
		}},
		withIPs(somePod(1, "here"), 1), np, slice)
	f, _ := l.start(t, client, nil)
	netlab.Eventually(t, "the DNS of another node is in a set of peers", func() bool {
		return closed(f.Ready()) && l.cut(networkpolicy.Egress, v4(1)) && strings.Contains(l.nft("list", "table", "inet", "wp-lab-policy"),
			"elements = { "+v4(6)+" }")
	})
	if err := client.DiscoveryV1().EndpointSlices("kube-system").Delete(t.Context(), slice.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	netlab.Eventually(t, "it is gone", func() bool { return !strings.Contains(l.nft("list", "table", "inet", "wp-lab-policy"), v4(6)) })
}
