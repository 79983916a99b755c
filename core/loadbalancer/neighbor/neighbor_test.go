// SPDX-License-Identifier: Apache-2.0

package neighbor

import (
	"context"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/wasmplane/wasmplane/core/loadbalancer"
	"github.com/wasmplane/wasmplane/core/netlab"
	"github.com/wasmplane/wasmplane/core/run"
)

// newLab is a link of three machines: nodes a and b, and a client, on one bridge.
func newLab(t *testing.T) netlab.Lab {
	t.Helper()
	l := netlab.New(t)
	for _, machine := range []string{"switch", "a", "b", "client"} {
		l.Namespace(machine)
	}
	l.Run("switch", "ip", "link", "add", "br0", "type", "bridge", "mcast_snooping", "0")
	l.Run("switch", "ip", "link", "set", "br0", "up")
	for i, machine := range []string{"a", "b", "client"} {
		l.Run("switch", "ip", "link", "add", "port-"+machine, "type", "veth", "peer", "name", "eth0", "netns", l.Name(machine))
		l.Run("switch", "ip", "link", "set", "port-"+machine, "master", "br0", "up")
		l.Run(machine, "ip", "addr", "add", fmt.Sprintf("192.0.2.%d/24", i+1), "dev", "eth0")
		l.Run(machine, "ip", "addr", "add", fmt.Sprintf("2001:db8::%d/64", i+1), "dev", "eth0", "nodad")
		l.Run(machine, "ip", "link", "set", "eth0", "address", fmt.Sprintf("02:00:00:00:00:0%d", i+1), "up")
	}
	return l
}

// announce runs an Announcer on a node of the lab.
func announce(t *testing.T, l netlab.Lab, node string, client *fake.Clientset) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	factory := informers.NewSharedInformerFactory(client, 0)
	done := run.Go("announcer of "+node, func() error {
		return l.In(node, func() error {
			a, err := New(Config{Node: node, Informers: factory, Check: 100 * time.Millisecond})
			if err != nil {
				return err
			}
			factory.Start(ctx.Done())
			return a.Run(ctx)
		})
	})
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		factory.Shutdown()
	}
}

// send makes a machine ask who has an address: nobody takes what it sends there.
func send(ctx context.Context, l netlab.Lab, machine, ip string) error {
	return l.In(machine, func() error {
		var d net.Dialer
		c, err := d.DialContext(ctx, "udp", net.JoinHostPort(ip, "9"))
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		_, err = c.Write([]byte("x"))
		return err
	})
}

// A client learns from the link which node has an address, and learns anew when another has.
func TestAddressesMoveBetweenNodes(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	l := newLab(t)
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", Annotations: map[string]string{loadbalancer.NodeAnnotation: "a"}},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer},
		Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{
			{IP: "192.0.2.50"}, {IP: "2001:db8::50"}, {IP: "198.51.100.1"}, // of no link
		}}},
	}
	client := fake.NewClientset(s)
	stopA, stopB := announce(t, l, "a", client), announce(t, l, "b", client)
	defer stopB()
	knows := func(ip, hardware string) func() bool {
		return func() bool {
			out := l.Run("client", "ip", "neigh", "show", ip)
			return strings.Contains(out, hardware)
		}
	}
	for _, ip := range []string{"192.0.2.50", "2001:db8::50"} {
		netlab.Eventually(t, ip+" is at a", func() bool {
			if err := send(t.Context(), l, "client", ip); err != nil {
				t.Log(err) // a link that has just come up
			}
			return knows(ip, "02:00:00:00:00:01")()
		})
	}
	if out := l.Run("a", "ip", "addr"); strings.Contains(out, "192.0.2.50") {
		t.Errorf("the address is on the node:\n%s", out)
	}
	// Node a is gone, and the controller names b: the client does not ask, and is told.
	stopA()
	moved := s.DeepCopy()
	moved.Annotations[loadbalancer.NodeAnnotation] = "b"
	if _, err := client.CoreV1().Services("default").Update(t.Context(), moved, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, ip := range []string{"192.0.2.50", "2001:db8::50"} {
		netlab.Eventually(t, ip+" is at b", knows(ip, "02:00:00:00:00:02"))
	}
	// Nobody answers once the Service has it no more.
	moved.Status = corev1.ServiceStatus{}
	if _, err := client.CoreV1().Services("default").Update(t.Context(), moved, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	netlab.Eventually(t, "the address is nowhere", func() bool {
		now := l.Run("client", "ip", "neigh", "show", "192.0.2.50")
		if strings.Contains(now, "lladdr") {
			l.Run("client", "ip", "neigh", "flush", "to", "192.0.2.50")
		}
		_ = send(t.Context(), l, "client", "192.0.2.50") // the entry is looked at
		return strings.Contains(now, "FAILED")
	})
}

func TestParseARP(t *testing.T) {
	good, err := hex.DecodeString("0001" + "0800" + "06" + "04" + "0001" + "020000000003" + "c0000203" + "000000000000" + "c0000232")
	if err != nil {
		t.Fatal(err)
	}
	q, ok := parseARP(append(good, make([]byte, 18)...)) // Ethernet's padding
	if !ok || q.about != netip.MustParseAddr("192.0.2.50") || q.from != netip.MustParseAddr("192.0.2.3") ||
		q.hardware.String() != "02:00:00:00:00:03" {
		t.Errorf("%+v, %v", q, ok)
	}
	for name, change := range map[string]func([]byte) []byte{
		"short":             func(b []byte) []byte { return b[:27] },
		"no Ethernet":       func(b []byte) []byte { b[1] = 6; return b },
		"no IPv4":           func(b []byte) []byte { b[2] = 0; return b },
		"a reply":           func(b []byte) []byte { b[7] = 2; return b },
		"of its own":        func(b []byte) []byte { copy(b[24:], b[14:18]); return b },
		"long addresses":    func(b []byte) []byte { b[4] = 8; return b },
		"another's lengths": func(b []byte) []byte { b[5] = 16; return b },
	} {
		if q, ok := parseARP(change(append([]byte(nil), good...))); ok {
			t.Errorf("%s: %+v", name, q)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte{135, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		if q, ok := parseARP(b); ok && (!q.about.Is4() || len(q.hardware) != 6) {
			t.Errorf("%+v", q)
		}
		if q, ok := parseSolicitation(b, netip.IPv6Unspecified()); ok && (!q.about.Is6() || q.about.IsMulticast()) {
			t.Errorf("%+v", q)
		}
	})
}

func TestSolicitedNodeGroups(t *testing.T) {
	if got := groupOf(netip.MustParseAddr("2001:db8::1:2:345")); got != netip.MustParseAddr("ff02::1:ff02:345") {
		t.Error(got)
	}
}
