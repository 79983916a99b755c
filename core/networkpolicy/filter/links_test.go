// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/wasmplane/wasmplane/core/netlab"
	"github.com/wasmplane/wasmplane/core/networkpolicy"
)

// inbox collects what arrives at a UDP port of a pod, at whatever address.
type inbox struct {
	mu  sync.Mutex
	got []string
}

func (b *inbox) has(what string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Contains(b.got, what)
}

func (l *lab) inbox(t *testing.T, where string) *inbox {
	t.Helper()
	b := &inbox{}
	l.must(where, func() error {
		c, err := net.ListenUDP("udp", &net.UDPAddr{Port: 82})
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = c.Close() })
		go func() {
			buf := make([]byte, 256)
			for {
				n, _, err := c.ReadFrom(buf)
				if err != nil {
					return
				}
				b.mu.Lock()
				b.got = append(b.got, string(buf[:n]))
				b.mu.Unlock()
			}
		}()
		return nil
	})
	return b
}

// post sends one packet from a pod, from a source of its choice.
func (l *lab) post(t *testing.T, where, source, to, what string) error {
	t.Helper()
	return l.In(where, func() error {
		d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) (err error) {
			if e := c.Control(func(fd uintptr) { err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_BROADCAST, 1) }); e != nil {
				return e
			}
			return err
		}}
		if source != "" {
			d.LocalAddr = &net.UDPAddr{IP: net.ParseIP(source)}
		}
		c, err := d.DialContext(t.Context(), "udp", net.JoinHostPort(to, "82"))
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		_, err = c.Write([]byte(what))
		return err
	})
}

// A pod that may send nothing sends nothing under another's address either, and one that
// may be sent nothing gets nothing by an address that is nobody's or everybody's.
func TestLinks(t *testing.T) {
	l := newLab(t)
	ctx := t.Context()
	client := fake.NewClientset(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, withIPs(somePod(1, "here"), 1),
		withIPs(somePod(2, "here"), 2))
	f, stop := l.start(t, client, nil)
	box := l.inbox(t, "pod2")
	l.Run("pod1", "ip", "addr", "add", v4(30)+"/32", "dev", "eth0")
	// It may not ask for its neighbours under that address.
	l.Run("pod1", "ip", "neigh", "replace", v4(2), "lladdr", l.mac(t, "pod2").String(), "dev", "eth0", "nud", "permanent")
	l.Run("pod1", "ip", "addr", "add", v6(30)+"/128", "dev", "eth0", "nodad")
	var linkLocal string
	for _, word := range strings.Fields(l.Run("pod2", "ip", "-6", "addr", "show", "dev", "eth0", "scope", "link")) {
		if ip, _, ok := strings.Cut(word, "/"); ok && strings.HasPrefix(ip, "fe80") {
			linkLocal = ip + "%eth0"
		}
	}
	ways := map[string][2]string{
		"another IPv4 address": {v4(30), v4(2)}, "another IPv6 address": {v6(30), v6(2)},
		"link-local": {"", linkLocal}, "multicast": {"", "ff02::1%eth0"}, "broadcast": {v4(1), "255.255.255.255"},
	}
	send := func(round string) {
		for name, way := range ways {
			_ = l.post(t, "pod1", way[0], way[1], round+name) // a tentative address cannot be sent from yet
		}
	}
	for name := range ways {
		netlab.Eventually(t, name+" gets there while nothing is known of the link", func() bool { send("open "); return box.has("open " + name) })
	}
	for n := 1; n <= 2; n++ {
		if err := f.Guard(ctx, somePod(n, "here"), []string{v4(n), v6(n)}, "v"+podName(n)); err != nil {
			t.Fatal(err)
		}
	}
	quiet := func(round string) {
		t.Helper()
		send(round)
		// The node is always let in, and comes after.
		for _, to := range []string{v4(2), v6(2)} {
			what := fmt.Sprint(round, "fence ", to)
			netlab.Eventually(t, what, func() bool { return l.post(t, "node", "", to, what) == nil && box.has(what) })
		}
	}
	// Policies or none: nobody sends from an address that is not his. What has no sender's name on it gets there.
	for name, way := range ways {
		if way[0] == "" || way[0] == v4(1) {
			netlab.Eventually(t, name+" gets there from a link without policies", func() bool { send("known "); return box.has("known " + name) })
		}
	}
	quiet("known ")
	for name, way := range ways {
		if forged := way[0] != "" && way[0] != v4(1); forged && box.has("known "+name) {
			t.Errorf("%s gets through from a link without policies", name)
		}
	}
	policies := client.NetworkingV1().NetworkPolicies("x")
	set := func(name, pod string, d networkingv1.PolicyType) {
		t.Helper()
		if _, err := policies.Create(ctx, deny(name, map[string]string{"pod": pod}, d), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	isolated := func(set, link string) bool {
		return strings.Contains(l.nft("list", "set", "bridge", "wp-lab-policy", set), `"`+link+`"`)
	}
	set("in", "pod2", networkingv1.PolicyTypeIngress)
	netlab.Eventually(t, "pod2 is isolated", func() bool { return isolated(setTo, "vpod2") && l.cut(networkpolicy.Ingress, v6(2)) })
	quiet("in ")
	if err := policies.Delete(ctx, "in", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	netlab.Eventually(t, "pod2's link is open", func() bool { return !isolated(setTo, "vpod2") })
	set("out", "pod1", networkingv1.PolicyTypeEgress)
	netlab.Eventually(t, "pod1 is isolated", func() bool { return isolated(setFrom, "vpod1") && l.cut(networkpolicy.Egress, v6(1)) })
	quiet("out ")
	for name := range ways {
		for _, round := range []string{"in ", "out "} {
			if box.has(round + name) {
				t.Errorf("%s: gets through all the same by %s", round, name)
			}
		}
	}
	// The next process keeps links isolated of which nobody has told it.
	stop()
	f, _ = l.start(t, client, nil)
	netlab.Eventually(t, "the new process has written", func() bool { return closed(f.Ready()) })
	if !isolated(setFrom, "vpod1") {
		t.Error("after a restart the link is open")
	}
	f.Forget(somePod(1, "here"))
	f.Follow(somePod(2, "here"), []string{v4(2)}, "vpod1")
	netlab.Eventually(t, "another pod has the link, and is not isolated", func() bool { return !isolated(setFrom, "vpod1") })
}
