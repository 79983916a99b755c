// SPDX-License-Identifier: Apache-2.0

package servicecidr

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/wasmplane/wasmplane/core/loadbalancer"
)

var begin = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func cidr(name string, cidrs ...string) *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: []string{finalizer}}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: cidrs},
	}
}

func deleted(r *networkingv1.ServiceCIDR, after time.Duration) *networkingv1.ServiceCIDR {
	at := metav1.NewTime(begin.Add(after))
	r.DeletionTimestamp = &at
	return r
}

func addrs(texts ...string) (out []netip.Addr) {
	for _, t := range texts {
		out = append(out, netip.MustParseAddr(t))
	}
	return out
}

// told is a plan in words.
func told(steps []step) string {
	var out []string
	for _, s := range steps {
		text := s.of.Name + ":"
		if s.protect {
			text += " protect"
		}
		if s.release {
			text += " release"
		}
		if s.ready != nil {
			text += " " + string(s.ready.Status) + "/" + s.ready.Reason
		}
		if s.wait > 0 {
			text += " wait " + s.wait.String()
		}
		out = append(out, text)
	}
	return strings.Join(out, "; ")
}

func TestPlan(t *testing.T) {
	fresh := cidr("new", "203.0.113.0/24")
	fresh.Finalizers = nil
	for name, c := range map[string]struct {
		ranges    []*networkingv1.ServiceCIDR
		addresses []netip.Addr
		now       time.Duration
		want      string
	}{
		"a new range":            {ranges: []*networkingv1.ServiceCIDR{fresh}, want: "new: protect True/NetworkReady"},
		"a deleted one, at once": {ranges: []*networkingv1.ServiceCIDR{deleted(cidr("a", "10.1.0.0/24"), 0)}, now: 3 * time.Second, want: "a: wait 7s"},
		"a deleted one, later":   {ranges: []*networkingv1.ServiceCIDR{deleted(cidr("a", "10.1.0.0/24"), 0)}, now: grace, want: "a: release"},
		"a deleted one, in use":  {ranges: []*networkingv1.ServiceCIDR{deleted(cidr("a", "10.1.0.0/24"), 0)}, addresses: addrs("10.1.0.7"), now: grace, want: "a: False/Terminating"},
		"an address of another":  {ranges: []*networkingv1.ServiceCIDR{deleted(cidr("a", "10.1.0.0/24"), 0)}, addresses: addrs("10.2.0.7"), now: grace, want: "a: release"},
		"in use, within a wider": {ranges: []*networkingv1.ServiceCIDR{deleted(cidr("a", "10.1.0.0/24"), 0), ready(cidr("b", "10.1.0.0/16"))}, addresses: addrs("10.1.0.7"), now: grace, want: "b:; a: release"},
		"in use, the addresses in narrower ones": {
			ranges: []*networkingv1.ServiceCIDR{
				deleted(cidr("a", "10.1.0.0/24"), 0), ready(cidr("b", "10.1.0.0/25")), ready(cidr("c", "10.1.0.128/25")),
			},
			addresses: addrs("10.1.0.7", "10.1.0.200"), now: grace, want: "b:; c:; a: release",
		},
		"in use, and one family is within a wider": {
			ranges:    []*networkingv1.ServiceCIDR{deleted(cidr("a", "10.1.0.0/24", "fd00::/112"), 0), ready(cidr("b", "10.1.0.0/16"))},
			addresses: addrs("10.1.0.7", "fd00::7"), now: grace, want: "b:; a: False/Terminating",
		},
		"twins, both deleted: one stays": {
			ranges:    []*networkingv1.ServiceCIDR{deleted(cidr("a", "10.1.0.0/24"), 0), deleted(cidr("b", "10.1.0.0/24"), time.Second)},
			addresses: addrs("10.1.0.7"), now: time.Minute, want: "a: release; b: False/Terminating",
		},
		"others hold it up": {ranges: []*networkingv1.ServiceCIDR{func() *networkingv1.ServiceCIDR {
			r := deleted(cidr("a", "10.1.0.0/24"), 0)
			r.Finalizers = []string{"example.com/theirs"}
			return r
		}()}, addresses: addrs("10.1.0.7"), now: grace},
	} {
		t.Run(name, func(t *testing.T) {
			if got := told(plan(snapshot{ranges: c.ranges, addresses: c.addresses, now: begin.Add(c.now)})); got != c.want {
				t.Errorf("%s\nwant %s", got, c.want)
			}
		})
	}
}

func ready(r *networkingv1.ServiceCIDR) *networkingv1.ServiceCIDR {
	c := judge(r, nil)
	c.Type = networkingv1.ServiceCIDRConditionReady
	r.Status.Conditions = []metav1.Condition{c}
	return r
}

// What is somebody else's gives no addresses, and the message says whose it is.
func TestRangesThatAreSomebodyElses(t *testing.T) {
	of := append(always(), network(netip.MustParsePrefix("10.244.0.0/16"), "pods' addresses"),
		address(netip.MustParseAddr("192.0.2.9"), "node n1"),
		reserved{loadbalancer.Range{
			First: netip.MustParseAddr("198.51.100.10"), Last: netip.MustParseAddr("198.51.100.20"),
		}, "the pool lan"})
	for text, want := range map[string]string{
		"203.0.113.0/24":      "",
		"10.0.0.0/9":          "", // ends before the pods
		"10.244.7.0/24":       "pods' addresses",
		"10.0.0.0/8":          "pods' addresses",
		"192.0.2.0/24":        "node n1",
		"198.51.100.16/28":    "the pool lan",
		"198.51.100.0/24":     "the pool lan",
		"198.51.100.32/27":    "",
		"169.254.169.0/24":    "link-local",
		"127.0.0.0/24":        "loopback",
		"224.1.0.0/16":        "multicast",
		"255.255.255.0/24":    "broadcast",
		"0.0.0.0/1":           "this network",
		"203.0.113.7/32":      "from /1 to /30",
		"203.0.113.8/31":      "from /1 to /30",
		"fd00:1::/112":        "",
		"fd00:1::/48":         "from /64 to /126",
		"fe80::/64":           "link-local",
		"::/112":              "loopback unspecified",
		"::ffff:a00:0/112":    "IPv4 written as IPv6",
		"fd00:ec2::200/120":   "metadata",
		"2001:db8:cb00::/64":  "",
		"ff02::1:0/112":       "multicast",
		"198.51.100.20/30":    "the pool lan",
		"198.51.100.128/25":   "",
		"192.0.2.8/30":        "node n1",
		"192.0.2.10/31":       "from /1 to /30",
		"192.0.2.12/30":       "",
		"2001:db8:cb00::/126": "",
	} {
		got := judge(cidr("r", text), of)
		ok := got.Status == metav1.ConditionTrue && want == ""
		for _, w := range strings.Fields(want) {
			ok = ok || got.Status == metav1.ConditionFalse && strings.Contains(got.Message, w)
		}
		if !ok {
			t.Errorf("%s: %s %s %s, want %q", text, got.Status, got.Reason, got.Message, want)
		}
	}
	if got := judge(cidr(defaultName, "10.244.0.0/16"), of); got.Status != metav1.ConditionTrue {
		t.Errorf("the configured range was judged when it was read, and here it is %+v", got)
	}
}

// Whatever ranges, addresses and times: no address that was in a range is in none after
// the plan was carried out, and a plan that was carried out comes to an end.
func TestNoAddressLosesItsRange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s snapshot
		s.now = begin.Add(time.Duration(rapid.IntRange(0, 40).Draw(t, "now")) * time.Second)
		for i := range rapid.IntRange(1, 6).Draw(t, "ranges") {
			bits := rapid.IntRange(24, 30).Draw(t, "bits")
			p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, 0, byte(rapid.IntRange(0, 255).Draw(t, "at"))}), bits).Masked()
			cidrs := []string{p.String()}
			if rapid.Bool().Draw(t, "two families") {
				at, bits := rapid.IntRange(0, 15).Draw(t, "at6"), rapid.SampledFrom([]int{120, 124}).Draw(t, "bits6")
				cidrs = append(cidrs, fmt.Sprintf("fd00::%x/%d", at<<4, bits))
			}
			r := cidr(fmt.Sprint("r", i), cidrs...)
			if rapid.Bool().Draw(t, "deleted") {
				deleted(r, time.Duration(rapid.IntRange(0, 30).Draw(t, "when"))*time.Second)
			}
			s.ranges = append(s.ranges, r)
		}
		for range rapid.IntRange(0, 6).Draw(t, "addresses") {
			if rapid.Bool().Draw(t, "v6") {
				s.addresses = append(s.addresses, netip.MustParseAddr(fmt.Sprintf("fd00::%x", rapid.IntRange(0, 255).Draw(t, "a6"))))
				continue
			}
			s.addresses = append(s.addresses, netip.AddrFrom4([4]byte{10, 1, 0, byte(rapid.IntRange(0, 255).Draw(t, "a"))}))
		}
		had := covered(s)
		for round := 0; ; round++ {
			steps := plan(s)
			slices.SortStableFunc(steps, func(step, step) int { return rapid.IntRange(-1, 1).Draw(t, "order") }) // carried out in any order
			released := false
			for _, step := range steps {
				if step.release {
					released = true
					s.ranges = slices.DeleteFunc(s.ranges, func(r *networkingv1.ServiceCIDR) bool { return r == step.of })
					if got := covered(s); !slices.Equal(got, had) {
						t.Fatalf("round %d: without %s, %v are in no range any more, and were", round, step.of.Name, had)
					}
				}
			}
			if !released && !slices.ContainsFunc(steps, func(s step) bool { return s.wait > 0 }) {
				return
			}
			if round > 20 {
				t.Fatalf("it does not end: %s", told(steps))
			}
			s.now = s.now.Add(grace)
		}
	})
}

// covered are the addresses that are in a range.
func covered(s snapshot) (out []netip.Addr) {
	for _, a := range s.addresses {
		for _, r := range s.ranges {
			if slices.ContainsFunc(prefixes(r), func(p netip.Prefix) bool { return p.Contains(a) }) {
				out = append(out, a)
				break
			}
		}
	}
	return out
}
