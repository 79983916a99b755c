// SPDX-License-Identifier: Apache-2.0

package nodeipam

import (
	"fmt"
	"net/netip"
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
			for ; len(c.Events.Events) > 0; events++ {
				<-c.Events.Events
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
