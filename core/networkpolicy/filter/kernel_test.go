// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"fmt"
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"github.com/wasmplane/wasmplane/core/networkpolicy"
	"github.com/wasmplane/wasmplane/core/networkpolicy/policytest"
)

// history is how a cluster came to be, as changes of the table.
type history struct {
	world   policytest.World
	changes []*networkpolicy.Change
}

var histories = rapid.Custom(func(t *rapid.T) history {
	h, p := history{world: policytest.NewWorld()}, networkpolicy.New()
	h.world.Begin(t, p)
	for range rapid.IntRange(3, 12).Draw(t, "writes") {
		for range rapid.IntRange(1, 4).Draw(t, "steps") {
			h.world.Step(t, p)
		}
		h.changes = append(h.changes, p.Flush())
	}
	return h
})

// In the kernel every packet has the fate that a reader of the objects expects: through
// a bridge and routed, of both families, after any number of changes.
func TestTruthInTheKernel(t *testing.T) {
	l := newLab(t)
	post := l.newPost()
	table := openLabTable(t)
	all := policytest.Packets()
	allowed, denied, deniedNode := 0, 0, 0
	for round := range 40 {
		h := histories.Example(round)
		l.must("node", func() error {
			if err := table.rewrite(t.Context(), h.changes[0], nil); err != nil {
				return err
			}
			for _, c := range h.changes[1:] {
				if err := table.update(t.Context(), c); err != nil {
					return err
				}
			}
			return nil
		})
		var arrive, stay []string
		for _, k := range all {
			if k.Proto != "udp" {
				continue
			}
			what := fmt.Sprint(round, k)
			switch {
			case owner(k.From) == owner(k.To): // passes no filter
				continue
			case h.world.Allowed(k):
				arrive = append(arrive, what)
			default:
				stay = append(stay, what)
				if k.ToThisNode() {
					deniedNode++
				}
			}
			post.send(k.From, netip.AddrPortFrom(k.To, k.Port), what)
		}
		post.await(arrive)
		post.fence(fmt.Sprint(round))
		for _, what := range stay {
			if post.has(what) {
				t.Errorf("round %d: a packet that is not allowed has arrived: %s", round, what)
			}
		}
		if t.Failed() {
			t.Fatal(l.node("nft", "list", "ruleset"))
		}
		allowed, denied = allowed+len(arrive), denied+len(stay)
	}
	if allowed < 1000 || denied < 1000 || deniedNode < 10 {
		t.Errorf("%d packets were allowed and %d denied, %d of them to the node: that shows little", allowed, denied, deniedNode)
	}
	t.Logf("%d packets allowed, %d denied, %d of them to the node", allowed, denied, deniedNode)
}

func openLabTable(t *testing.T) *table {
	t.Helper()
	table, err := openTable("wp-lab-policy")
	if err != nil {
		t.Fatal(err)
	}
	return table
}
