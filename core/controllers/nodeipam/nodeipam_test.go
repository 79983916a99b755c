// SPDX-License-Identifier: Apache-2.0

package nodeipam

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/wasmplane/wasmplane/core/controllers/controllertest"
)

// Parts never overlap, whatever nodes come and go with; a node that asks again gets
// the same part; a full pool says so and works again when somebody leaves.
func TestPartsNeverOverlap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		network := rapid.SampledFrom([]string{"10.0.0.0/20", "192.168.0.0/24", "fd00:1::/60"}).Draw(t, "network")
		prefix := netip.MustParsePrefix(network)
		p, err := newPool(prefix, prefix.Bits()+rapid.IntRange(0, 4).Draw(t, "bits"))
		if err != nil {
			t.Fatal(err)
		}
		held := map[string]netip.Prefix{}
		for range rapid.IntRange(0, 60).Draw(t, "steps") {
			name := fmt.Sprint("n", rapid.IntRange(0, 20).Draw(t, "node"))
			if rapid.Bool().Draw(t, "leaves") {
				p.release(name)
				delete(held, name)
				continue
			}
			got, ok := p.take(name)
			if !ok {
				if len(held) < p.size() {
					t.Fatalf("full with %d of %d", len(held), p.size())
				}
				continue
			}
			if was, had := held[name]; had && was != got {
				t.Fatalf("%s had %s and now gets %s", name, was, got)
			}
			if !prefix.Overlaps(got) || got.Bits() != p.bits {
				t.Fatalf("%s is not a part of %s", got, prefix)
			}
			for other, has := range held {
				if other != name && has.Overlaps(got) {
					t.Fatalf("%s of %s overlaps %s of %s", got, name, has, other)
				}
			}
			held[name] = got
		}
	})
}

func TestOccupied(t *testing.T) {
	p, err := newPool(netip.MustParsePrefix("10.0.0.0/22"), 24)
	if err != nil {
		t.Fatal(err)
	}
	p.occupy(netip.MustParsePrefix("10.0.0.0/23"), "big")
	p.exclude(netip.MustParsePrefix("10.0.2.128/25"))
	p.occupy(netip.MustParsePrefix("172.16.0.0/24"), "elsewhere")
	if got, ok := p.take("a"); !ok || got.String() != "10.0.3.0/24" {
		t.Errorf("got %s, %v", got, ok)
	}
	if _, ok := p.take("b"); ok {
		t.Error("nothing is left")
	}
}

// A node that was deleted and comes back has pods with addresses of its part.
func TestANodeThatComesBackGetsItsPart(t *testing.T) {
	p, err := newPool(netip.MustParsePrefix("10.0.0.0/22"), 24)
	if err != nil {
		t.Fatal(err)
	}
	take := func(node, want string) {
		t.Helper()
		if got, _ := p.take(node); got.String() != want {
			t.Errorf("%s got %s, want %s", node, got, want)
		}
	}
	take("a", "10.0.0.0/24")
	take("b", "10.0.1.0/24")
	p.release("a")
	take("c", "10.0.2.0/24")
	take("a", "10.0.0.0/24")
	p.release("b")
	take("d", "10.0.3.0/24")
	take("e", "10.0.1.0/24") // nothing else is free
	p.release("c")
	take("b", "10.0.2.0/24")
}

func node(name, cidr string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if cidr != "" {
		n.Spec.PodCIDR, n.Spec.PodCIDRs = cidr, []string{cidr}
	}
	return n
}

// A node that has a part keeps it; another gets one that is free; when the pool is
// full the third waits until one leaves.
func TestAllocates(t *testing.T) {
	c := controllertest.New(node("old", "10.0.0.0/24"), node("new", ""))
	ipam, err := New(c.Env(t), Config{CIDRs: []string{"10.0.0.0/23"}})
	if err != nil {
		t.Fatal(err)
	}
	c.Start(t, ipam)
	has := func(name, cidr string) func() error {
		return func() error {
			n, err := c.Client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if n.Spec.PodCIDR != cidr {
				return fmt.Errorf("%s has %q, want %q", name, n.Spec.PodCIDR, cidr)
			}
			return nil
		}
	}
	controllertest.Eventually(t, has("new", "10.0.1.0/24"))
	if _, err := c.Client.CoreV1().Nodes().Create(t.Context(), node("third", ""), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if event := <-c.Events.Events; event != "Normal CIDRNotAvailable Node third status is now: CIDRNotAvailable" {
		t.Errorf("event %q", event)
	}
	label := []byte(`{"metadata":{"labels":{"changed":"yes"}}}`)
	if _, err := c.Client.CoreV1().Nodes().Patch(t.Context(), "third", types.MergePatchType, label, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Client.CoreV1().Nodes().Create(t.Context(), node("fourth", ""), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if event := <-c.Events.Events; event != "Normal CIDRNotAvailable Node fourth status is now: CIDRNotAvailable" {
		t.Errorf("after a change of a node that waits: event %q", event)
	}
	if err := c.Client.CoreV1().Nodes().Delete(t.Context(), "old", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	controllertest.Eventually(t, func() error {
		if err := has("third", "10.0.0.0/24")(); err != nil {
			return has("fourth", "10.0.0.0/24")()
		}
		return nil
	})
}

// Nodes that wait are told of once, whatever happens to them, and one that leaves calls as many as it makes room for:
// none is left out, also where a node has its part of one family and waits for that of the other.
func TestManyWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const nodes = 50
		c := controllertest.New()
		ipam, err := New(c.Env(t), Config{CIDRs: []string{"10.0.0.0/20", "fd00:1::/62"}}) // 16 and 4 parts
		if err != nil {
			t.Fatal(err)
		}
		c.Start(t, ipam)
		api := c.Client.CoreV1().Nodes()
		events := 0
		settle := func() {
			time.Sleep(time.Minute)
			synctest.Wait()
			for len(c.Events.Events) > 0 {
				if strings.Contains(<-c.Events.Events, " CIDRNotAvailable ") {
					events++
				}
			}
		}
		for i := range nodes {
			if _, err := api.Create(t.Context(), node(fmt.Sprint("n", i), ""), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			settle()
		}
		for i := range nodes {
			for _, value := range []string{"1", "2"} {
				patch := `{"metadata":{"labels":{"changed":"` + value + `"}}}`
				if _, err := api.Patch(t.Context(), fmt.Sprint("n", i), types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			settle()
		}
		if events != nodes-4 {
			t.Errorf("%d events for %d nodes that wait", events, nodes-4)
		}
		given := map[string]bool{}
		for left := nodes; left > 0; left-- {
			list, err := api.List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			have := ""
			for i := range list.Items {
				if len(list.Items[i].Spec.PodCIDRs) == 2 {
					given[list.Items[i].Name] = true
					have = list.Items[i].Name
				}
			}
			if n := nodes - left + min(left, 4); len(given) != n {
				t.Fatalf("%d nodes have had a part of each network, want %d", len(given), n)
			}
			if err := api.Delete(t.Context(), have, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			settle()
		}
	})
}

// TestOneEventForTheCluster: that the network is full is said once for all nodes, again only when their number is another
// one and ten minutes have passed, and taken back once none waits. Each node has its own event nevertheless.
func TestOneEventForTheCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := controllertest.New()
		ipam, err := New(c.Env(t), Config{CIDRs: []string{"10.0.0.0/22"}})
		if err != nil {
			t.Fatal(err)
		}
		c.Start(t, ipam)
		api := c.Client.CoreV1().Nodes()
		create := func(from, to int) {
			t.Helper()
			for i := from; i < to; i++ {
				if _, err := api.Create(t.Context(), node(fmt.Sprintf("n%03d", i), ""), metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
				synctest.Wait() // the fake's watch holds a hundred events
			}
		}
		events := func(after time.Duration) (cluster []string, nodes int) {
			time.Sleep(after)
			synctest.Wait()
			for len(c.Events.Events) > 0 {
				if e := <-c.Events.Events; strings.HasPrefix(e, "Normal CIDRNotAvailable Node n") {
					nodes++
				} else {
					cluster = append(cluster, e)
				}
			}
			return cluster, nodes
		}
		want := func(step string, got []string, nodes int, wanted []string, wantedNodes int) {
			t.Helper()
			if !slices.Equal(got, wanted) || nodes != wantedNodes {
				t.Errorf("%s: %d events of nodes, of the cluster %q; want %d and %q", step, nodes, got, wantedNodes, wanted)
			}
		}
		full := func(n int, names string) []string {
			return []string{fmt.Sprintf("Warning PodNetworkFull the pod network 10.0.0.0/22 has no /24 left for a node; it holds 4; nodes that "+
				"wait for a part: %d (%s). Their pods get no addresses of it. Delete Node objects of machines that are gone, or make the parts "+
				"of new nodes smaller by a larger cluster.nodeCIDRMaskSize", n, names)}
		}
		create(0, 104)
		first, nodes := events(time.Minute)
		waiting := 100
		if len(first) != 1 || nodes != waiting || !strings.Contains(first[0], "nodes that wait for a part: 100 (") ||
			!strings.Contains(first[0], " and 95 more). ") {
			t.Fatalf("a hundred nodes wait: %d events of nodes, of the cluster %q", nodes, first)
		}
		again, nodes := events(time.Hour)
		want("nothing changes", again, nodes, nil, 0)
		create(104, 105)
		more, nodes := events(time.Minute)
		if len(more) != 1 || nodes != 1 || !strings.Contains(more[0], ": 101 (") {
			t.Errorf("one more, long afterwards: %d, %q", nodes, more)
		}
		create(105, 110)
		soon, nodes := events(5 * time.Minute)
		want("some more, soon afterwards", soon, nodes, nil, 5)
		later, _ := events(5 * time.Minute)
		if len(later) != 1 || !strings.Contains(later[0], ": 106 (") {
			t.Errorf("ten minutes later: %q", later)
		}
		list, err := api.List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		left := ""
		for i, kept := 0, 0; i < len(list.Items); i++ {
			n := &list.Items[i]
			if kept < 5 && (len(n.Spec.PodCIDRs) > 0 || kept == 4) { // the four that have a part, and one that waits
				if kept++; len(n.Spec.PodCIDRs) == 0 {
					left = n.Name
				}
				continue
			}
			if err := api.Delete(t.Context(), n.Name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		last, nodes := events(11 * time.Minute)
		want("all but one go", last, nodes, full(1, left), 0)
		if err := api.Delete(t.Context(), left, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		none, nodes := events(time.Minute)
		want("it goes too", none, nodes, []string{"Normal PodNetworkAvailable Every node has its part of the pod network again"}, 0)
	})
}

// A node that was called and gets its part by somebody else passes the call on.
func TestACallIsPassedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := controllertest.New(node("old", "10.0.0.0/24"), node("a", ""), node("b", ""))
		ipam, err := New(c.Env(t), Config{CIDRs: []string{"10.0.0.0/24"}})
		if err != nil {
			t.Fatal(err)
		}
		c.Start(t, ipam)
		synctest.Wait()
		ipam.mu.Lock()
		ipam.pools[0].release("old") // and a is called, which somebody gives another network at the same time
		ipam.mu.Unlock()
		api := c.Client.CoreV1().Nodes()
		if _, err := api.Update(t.Context(), node("a", "172.16.0.0/24"), metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		n, err := api.Get(t.Context(), "b", metav1.GetOptions{})
		if err != nil || n.Spec.PodCIDR != "10.0.0.0/24" {
			t.Errorf("b has %q, %v", n.Spec.PodCIDR, err)
		}
	})
}

func TestBadConfig(t *testing.T) {
	for name, cfg := range map[string]Config{
		"none":        {},
		"not a CIDR":  {CIDRs: []string{"10.0.0.0"}},
		"too small":   {CIDRs: []string{"10.0.0.0/25"}},
		"same family": {CIDRs: []string{"10.0.0.0/16", "10.1.0.0/16"}},
		"excluded":    {CIDRs: []string{"10.0.0.0/16"}, Excluded: []string{"x"}},
	} {
		if _, err := newPools(cfg); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
