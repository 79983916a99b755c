// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
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

// late has a client whose watch of one resource brings only what the test gives it, while lists
// answer what there is. First lists of informers are as old as the watch.
type late struct {
	watch  *watch.FakeWatcher
	begun  atomic.Bool
	asked  atomic.Int32 // lists at the newest revision, after the watch has begun
	listed func() apiruntime.Object
	first  apiruntime.Object
}

func makeLate(client *fake.Clientset, resource string, first apiruntime.Object, listed func() apiruntime.Object) *late {
	w := &late{watch: watch.NewFakeWithChanSize(10, false), listed: listed, first: first}
	client.PrependWatchReactor(resource, func(clienttesting.Action) (bool, watch.Interface, error) {
		w.begun.Store(true)
		return true, w.watch, nil
	})
	client.PrependReactor("list", resource, func(a clienttesting.Action) (bool, apiruntime.Object, error) {
		if list, ok := a.(clienttesting.ListActionImpl); ok && list.ListOptions.ResourceVersion == "0" {
			return true, w.first, nil
		}
		if w.begun.Load() {
			w.asked.Add(1)
		}
		return true, w.listed(), nil
	})
	return w
}

// guarding begins to guard a pod, and waits until the API was asked twice: a first answer was not enough.
func (w *late) guarding(t *testing.T, f *Filter, p *corev1.Pod, ip string) <-chan error {
	t.Helper()
	before := w.asked.Load()
	done := run.Go("guard", func() error { return f.Guard(t.Context(), p, []string{ip}, "") })
	netlab.Eventually(t, "the API is asked again", func() bool { return w.asked.Load() > before+1 })
	select {
	case err := <-done:
		t.Fatalf("the pod may start while a watch is behind: %v", err)
	default:
	}
	return done
}

// A pod's labels have changed since its sandbox was asked for, and the watch has not heard of it: what selects
// it now is in force when it starts.
func TestGuardKnowsThePodsLabels(t *testing.T) {
	l := newLab(t)
	client := fake.NewClientset(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "x"}},
		deny("quiet", map[string]string{"app": "quiet"}, networkingv1.PolicyTypeEgress))
	now := somePod(1, "here")
	now.Labels, now.ResourceVersion = map[string]string{"app": "quiet"}, "9"
	was := now.DeepCopy()
	was.Labels, was.ResourceVersion = map[string]string{"app": "loud"}, "5"
	w := makeLate(client, "pods", &corev1.PodList{Items: []corev1.Pod{*was}},
		func() apiruntime.Object { return &corev1.PodList{Items: []corev1.Pod{*now}} })
	f, _ := l.start(t, client, nil)
	netlab.Eventually(t, "the first write", func() bool { return w.begun.Load() && closed(f.Ready()) })
	shown := was.DeepCopy()
	shown.ResourceVersion = ""
	done := w.guarding(t, f, shown, v4(1))
	w.watch.Modify(now.DeepCopy())
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if !l.cut(networkpolicy.Egress, v4(1)) {
		t.Error("the pod is quiet, and starts open")
	}
}

// A namespace has lost its label before the pod was there, and the watch has not heard of it: who is in it does
// not get in by a policy that asks for the label.
func TestGuardKnowsTheNamespacesLabels(t *testing.T) {
	l := newLab(t)
	guests := deny("guests", nil, networkingv1.PolicyTypeIngress)
	guests.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{
		{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"welcome": "yes"}}},
	}}}
	guest := withIPs(somePod(2, "there"), 6)
	guest.Namespace = "y"
	client := fake.NewClientset(guests, guest)
	now := &corev1.NamespaceList{Items: []corev1.Namespace{
		{ObjectMeta: metav1.ObjectMeta{Name: "x", ResourceVersion: "1"}}, {ObjectMeta: metav1.ObjectMeta{Name: "y", ResourceVersion: "9"}},
	}}
	was := now.DeepCopy()
	was.Items[1].Labels, was.Items[1].ResourceVersion = map[string]string{"welcome": "yes"}, "5"
	w := makeLate(client, "namespaces", was, func() apiruntime.Object { return now.DeepCopy() })
	f, _ := l.start(t, client, nil)
	netlab.Eventually(t, "the first write", func() bool { return w.begun.Load() && closed(f.Ready()) })
	done := w.guarding(t, f, somePod(1, "here"), v4(1))
	w.watch.Modify(now.Items[1].DeepCopy())
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if rules := l.nft("list", "table", "inet", "wp-lab-policy"); !l.cut(networkpolicy.Ingress, v4(1)) || strings.Contains(rules, v4(6)) {
		t.Errorf("a pod of a namespace that is not welcome any more gets in:\n%s", rules)
	}
}

// The first list after a restart comes from a cache that does not have a policy yet which the process before
// had in force: its rules stay until the policy is there.
func TestAnOldFirstListOpensNothing(t *testing.T) {
	l := newLab(t)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "x"}}
	np := deny("all", nil, networkingv1.PolicyTypeIngress)
	np.ResourceVersion = "9"
	here := withIPs(somePod(1, "here"), 1)
	f, stop := l.start(t, fake.NewClientset(namespace, np.DeepCopy(), here), nil)
	netlab.Eventually(t, "pod1 is cut off", func() bool { return closed(f.Ready()) && l.cut(networkpolicy.Ingress, v4(1)) })
	stop()
	client := fake.NewClientset(namespace, here)
	w := makeLate(client, "networkpolicies", &networkingv1.NetworkPolicyList{},
		func() apiruntime.Object {
			return &networkingv1.NetworkPolicyList{Items: []networkingv1.NetworkPolicy{*np}}
		})
	f, _ = l.start(t, client, nil)
	netlab.Eventually(t, "the API is asked again", func() bool { return w.asked.Load() > 1 })
	if !l.cut(networkpolicy.Ingress, v4(1)) {
		t.Error("a policy is there that the first list does not have, and its pod is open")
	}
	w.watch.Add(np.DeepCopy())
	netlab.Eventually(t, "the new process has written", func() bool { return closed(f.Ready()) })
	if !l.cut(networkpolicy.Ingress, v4(1)) {
		t.Error("pod1 is open")
	}
}

// Whatever the watch says of a pod that runs (that it is gone, has ended, of an earlier pod of its name, of its
// mirror), it stays as its policies say until whoever started it says that it has no network any more.
func TestTheWatchOpensNoPodThatRuns(t *testing.T) {
	l := newLab(t)
	client := fake.NewClientset(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, deny("all", nil, networkingv1.PolicyTypeEgress))
	f, _ := l.start(t, client, nil)
	guard := func(p *corev1.Pod, n int) {
		t.Helper()
		if err := f.Guard(t.Context(), p, []string{v4(n)}, ""); err != nil {
			t.Fatal(err)
		}
	}
	hears := func(what string, p *corev1.Pod, gone bool) {
		t.Helper()
		f.mu.Lock()
		f.pod(p, gone)
		f.changes++
		f.mu.Unlock()
		guard(somePod(4, "here"), 4) // what came before is in force, too
		for n := 1; n <= 2; n++ {
			if !l.cut(networkpolicy.Egress, v4(n)) {
				t.Errorf("the watch says %s, and %s is open", what, v4(n))
			}
		}
	}
	version := func(p *corev1.Pod, uid, rv string) *corev1.Pod {
		p.UID, p.ResourceVersion = types.UID("uid-"+uid), rv
		return p
	}
	earlier := func(rv string) *corev1.Pod { return version(somePod(1, "here"), "earlier", rv) }
	guard(version(somePod(1, "here"), "earlier", ""), 1)
	guard(version(somePod(1, "here"), "later", ""), 2)
	hears("something of the earlier pod", earlier("5"), false)
	ended := earlier("6")
	ended.Status.Phase = corev1.PodFailed
	hears("that it has ended", ended, false)
	hears("that it was deleted", ended, true)
	mirror := version(somePod(1, "here"), "mirror", "7")
	mirror.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "uid-later"}
	hears("that the later one has a mirror", mirror, false)
	withAddress := withIPs(mirror.DeepCopy(), 2)
	hears("that the mirror has an address", withAddress, false)
	hears("that the mirror is gone", withAddress, true)
	f.Forget(earlier(""))
	netlab.Eventually(t, "the earlier pod's address is free", func() bool { return !l.cut(networkpolicy.Egress, v4(1)) })
	if !l.cut(networkpolicy.Egress, v4(2)) {
		t.Error("the later pod is open")
	}
}

// The kernel remembers connections of a pod for longer than the pod lives. Who gets its address, and may send
// nothing, does not answer on them.
func TestANewPodDoesNotAnswerOnConnectionsOfAnEarlierOne(t *testing.T) {
	l := newLab(t)
	client := fake.NewClientset(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "x"}},
		deny("quiet", map[string]string{"pod": "pod2"}, networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress))
	f, _ := l.start(t, client, nil)
	guard := func(n int) {
		t.Helper()
		l.must("node", func() error { return f.Guard(t.Context(), somePod(n, "here"), []string{v4(2), v6(2)}, "") })
	}
	guard(3) // which no policy selects
	for family, ip := range map[string]func(int) string{"udp4": v4, "udp6": v6} {
		var server net.PacketConn
		l.must("pod2", func() (err error) {
			server, err = new(net.ListenConfig).ListenPacket(t.Context(), family, net.JoinHostPort(ip(2), "7000"))
			return err
		})
		t.Cleanup(func() { _ = server.Close() })
		go func() { // it answers whoever asks it once, and then as often as it likes
			buf := make([]byte, 1)
			for {
				_, from, err := server.ReadFrom(buf)
				if err != nil {
					return
				}
				_, _ = server.WriteTo(buf, from)
			}
		}()
		asks := l.dial(t, "far", family, net.JoinHostPort(ip(2), "7000"))
		ask(t, asks)
		guard(3)
		if _, err := server.WriteTo([]byte("?"), asks.LocalAddr()); err != nil {
			t.Fatal(err)
		}
		_ = asks.SetDeadline(time.Now().Add(time.Minute))
		if _, err := asks.Read(make([]byte, 1)); err != nil {
			t.Fatalf("%s: a pod that no policy selects does not get through: %v", family, err)
		}
		f.Forget(somePod(3, "here"))
		guard(2)
		if _, err := server.WriteTo([]byte("?"), asks.LocalAddr()); err == nil {
			ask(t, l.dial(t, "node", family, net.JoinHostPort(ip(2), "7000"))) // the network has had time
			_ = asks.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
			if n, err := asks.Read(make([]byte, 1)); err == nil {
				t.Errorf("%s: %d bytes came out on a connection of the earlier pod", family, n)
			}
		}
		f.Forget(somePod(2, "here"))
		guard(3)
	}
}
