// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/wasmplane/wasmplane/core/netlab"
	"github.com/wasmplane/wasmplane/core/networkpolicy"
	"github.com/wasmplane/wasmplane/core/run"
)

// BenchmarkChange is the time from a change of one object until it is in the kernel, on a
// node with 1,000 pods that 1,000 policies select, each with peers of its own.
func BenchmarkChange(b *testing.B) {
	const many = 1000
	p := networkpolicy.New()
	for n := range 20 {
		p.SetNamespace(fmt.Sprint("n", n), labels.Set{"n": fmt.Sprint(n)})
	}
	pod := func(n int, label string) networkpolicy.Pod {
		return networkpolicy.Pod{
			NamespacedName: types.NamespacedName{Namespace: fmt.Sprint("n", n%20), Name: fmt.Sprint("pod", n)}, Here: true,
			Labels: labels.Set{"app": fmt.Sprint(n), "as": label}, IPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, byte(n >> 8), byte(n)})},
		}
	}
	policy := func(n int) *networkingv1.NetworkPolicy {
		np := deny(fmt.Sprint("policy", n), map[string]string{"app": fmt.Sprint(n)}, networkingv1.PolicyTypeIngress)
		np.Namespace = fmt.Sprint("n", n%20)
		peer := networkingv1.NetworkPolicyPeer{
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"n": fmt.Sprint((n + 1) % 20)}},
			PodSelector:       &metav1.LabelSelector{MatchLabels: map[string]string{"as": fmt.Sprint("client", n)}},
		}
		np.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{peer}}}
		return np
	}
	for n := range many {
		p.SetPod(pod(n, "nobody"))
		p.SetPolicy(policy(n))
	}
	l := &lab{netlab.New(b), b}
	l.Namespace("node")
	table, err := openTable("wp-lab-policy")
	if err != nil {
		b.Fatal(err)
	}
	began := time.Now()
	l.must("node", func() error { return table.rewrite(b.Context(), p.Whole(), nil) })
	b.Logf("the whole table: %s", time.Since(began))
	for name, change := range map[string]func(i int){
		"peer":   func(i int) { p.SetPod(pod(i%many, fmt.Sprint("client", (i+many-1)%many))) },
		"policy": func(i int) { p.SetPolicy(withBlock(policy(i%many), i)) },
	} {
		b.Run(name, func(b *testing.B) {
			var took []time.Duration
			l.must("node", func() error {
				for i := range b.N {
					began := time.Now()
					change(i)
					if err := table.update(b.Context(), p.Flush()); err != nil {
						return err
					}
					took = append(took, time.Since(began))
				}
				return nil
			})
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
		})
	}
}

// withBlock gives a policy one more block, so that it is another.
func withBlock(np *networkingv1.NetworkPolicy, i int) *networkingv1.NetworkPolicy {
	block := networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: fmt.Sprintf("192.%d.%d.0/24", i>>8&0xff, i&0xff)}}
	np.Spec.Ingress[0].From = append(np.Spec.Ingress[0].From, block)
	return np
}

// BenchmarkGuard is how long the start of a pod waits for its rules, on a node with 100 pods that a policy
// isolates, each new one too; the API answers at once.
func BenchmarkGuard(b *testing.B) {
	l := &lab{netlab.New(b), b}
	l.Namespace("node")
	client := fake.NewClientset(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "x"}},
		deny("all", nil, networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress))
	f, err := New(Config{Table: "wp-lab-policy", Node: "here", Client: client, Patience: time.Minute})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	done := run.Go("filter", func() error { return l.In("node", func() error { return f.Run(ctx) }) })
	b.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			b.Error(err)
		}
	})
	<-f.Ready()
	guard := func(n int) {
		l.must("node", func() error {
			return f.Guard(b.Context(), somePod(n, "here"), []string{fmt.Sprintf("10.1.%d.%d", n/200, n%200)}, "")
		})
	}
	for n := range 100 {
		guard(n)
	}
	var took []time.Duration
	for i := range b.N {
		began := time.Now()
		guard(100 + i%100)
		took = append(took, time.Since(began))
		f.Forget(somePod(100+i%100, "here"))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
}
