// SPDX-License-Identifier: Apache-2.0

package check

import (
	"bytes"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/wasmplane/wasmplane/core/kubelet/reach"
)

func three() *network {
	at := func(name, ip string) place {
		return place{name: name, address: netip.MustParseAddr(ip), node: true, kubelet: ip + ":10250", dns: "10.244." + ip[len(ip)-1:] + ".1:53"}
	}
	a, b, c := at("a", "192.0.2.1"), at("b", "192.0.2.2"), at("c", "192.0.2.3")
	a.api, a.store, b.api, b.store = "192.0.2.1:6443", "192.0.2.1:2380", "192.0.2.2:6443", "192.0.2.2:2380"
	c.idle = "is not ready since noon (the machine is off)"
	all := []place{a, b, c}
	return &network{nodes: all, places: all, service: "10.96.0.1:443"}
}

func TestWhatEachNodeTries(t *testing.T) {
	m := three()
	for name, want := range map[string]string{
		"a": "a DNS 10.244.1.1:53, a SERVICE 10.96.0.1:443, b API 192.0.2.2:6443, b KUBELET 192.0.2.2:10250, b STORE 192.0.2.2:2380, b PODS 10.244.2.1:53, " +
			"c KUBELET 192.0.2.3:10250, c PODS 10.244.3.1:53",
		"c": "a API 192.0.2.1:6443, a PODS 10.244.1.1:53, b API 192.0.2.2:6443, b PODS 10.244.2.1:53, c DNS 10.244.3.1:53, c SERVICE 10.96.0.1:443",
	} {
		i := slices.IndexFunc(m.nodes, func(p place) bool { return p.name == name })
		var got []string
		var targets []reach.Target
		for _, a := range m.targets(m.nodes[i], "cluster.local") {
			got, targets = append(got, a.to.name+" "+a.column+" "+a.Address), append(targets, a.Target)
		}
		if text := strings.Join(got, ", "); text != want {
			t.Errorf("%s tries %s\nwant %s", name, text, want)
		}
		if err := reach.Validate(targets); err != nil {
			t.Error(err)
		}
	}
}

func TestTheTableSaysWhatIsBlockedAndWhatToDo(t *testing.T) {
	m := three()
	var trials []trial
	for _, n := range m.nodes {
		one := trial{from: n, problem: n.idle}
		if n.idle == "" {
			one.attempts = m.targets(n, "cluster.local")
		}
		trials = append(trials, one)
	}
	fail := func(from, to, column string, r reach.Result) {
		for i := range trials {
			for j := range trials[i].attempts {
				if a := &trials[i].attempts[j]; trials[i].from.name == from && a.to.name == to && a.column == column {
					a.Result = r
				}
			}
		}
	}
	silent := reach.Result{Problem: "no answer within 2s"}
	fail("a", "b", pods, silent)
	fail("a", "b", peer, silent)
	fail("b", "a", api, reach.Result{Problem: "connection refused", Refused: true})
	fail("b", "c", kubelet, silent)
	var out bytes.Buffer
	if show(&out, trials, []string{"the clock of server b is off"}) {
		t.Error("nothing is lacking, it says")
	}
	for _, want := range []string{
		"FROM  TO  API      KUBELET  STORE    PODS     DNS  SERVICE\n",
		"a     b   ok       ok       BLOCKED  BLOCKED  -    -\n",
		"b     a   REFUSED  ok       ok       ok       -    -\n",
		"c         ?        ?        ?        ?        ?    ?\n",
		"- the clock of server b is off\n",
		"- from a to b, the store at 192.0.2.2:2380: no answer within 2s; let TCP 2380 pass from a to b\n",
		"- from a to b, the network of the pods (the DNS there) at 10.244.2.1:53: no answer within 2s; let UDP 4789 pass between a and b in both directions",
		"- from b to a, the API at 192.0.2.1:6443: connection refused; the machine answers, and nothing listens there: start that server, with --listen :6443\n",
		"- from b to c, the kubelet at 192.0.2.3:10250: no answer within 2s; c is not ready since noon (the machine is off): look after that first\n",
		"- node c is not ready since noon (the machine is off)\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("it lacks %q:\n%s", want, out.String())
		}
	}
	out.Reset()
	well := []trial{{from: m.nodes[0], attempts: m.targets(m.nodes[0], "x")}}
	if !show(&out, well, nil) || !strings.Contains(out.String(), "Everything is reached.") {
		t.Errorf("all is well, and it says:\n%s", out.String())
	}
}

// TestUnknownStoresAreNamed: what was not tried must not look as if it were reached.
func TestUnknownStoresAreNamed(t *testing.T) {
	m := three()
	if notes := m.notes(); len(notes) > 0 {
		t.Errorf("nothing is to be said, it says %q", notes)
	}
	m.store = errors.New("403 Forbidden")
	if notes := m.notes(); len(notes) != 1 || !strings.Contains(notes[0], "stores were not tried") ||
		!strings.Contains(notes[0], "403 Forbidden") {
		t.Errorf("it says %q of stores that are not known", notes)
	}
}
