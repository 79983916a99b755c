// SPDX-License-Identifier: Apache-2.0

package neighbor

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/wasmplane/wasmplane/core/netlab"
	"github.com/wasmplane/wasmplane/core/run"
)

func TestTheLinkOfAFloatingAddress(t *testing.T) {
	link := func(name string, flags net.Flags, own ...string) attached {
		l := attached{on: net.Interface{Name: name, Flags: flags, HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 1}}}
		for _, p := range own {
			l.own = append(l.own, netip.MustParsePrefix(p))
		}
		return l
	}
	all := []attached{
		link("lo", net.FlagUp|net.FlagLoopback, "127.0.0.1/8"), link("down", 0, "198.51.100.1/24"),
		link("eth0", net.FlagUp, "192.0.2.7/24", "2001:db8::7/64"), link("eth1", net.FlagUp, "203.0.113.7/24"),
	}
	for ip, want := range map[string]string{
		"192.0.2.10": "eth0", "203.0.113.1": "eth1", "2001:db8::10": "eth0",
		"192.0.2.7":    "is this machine's own address (eth0): choose one that no machine has",
		"127.0.0.2":    "is in no network of this machine (192.0.2.0/24 at eth0, 203.0.113.0/24 at eth1): choose a free address",
		"198.51.100.9": "is in no network of this machine",
		"192.0.2.0":    "is no host's address in 192.0.2.0/24",
		"192.0.2.255":  "is no host's address in 192.0.2.0/24",
	} {
		on, err := choose(all, netip.MustParseAddr(ip))
		if err == nil && on.Name != want || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %s, %v, want %s", ip, on.Name, err, want)
		}
	}
	if _, err := choose(all[:1], netip.MustParseAddr("192.0.2.10")); err == nil ||
		!strings.Contains(err.Error(), "has none of its IP family") {
		t.Errorf("error %v", err)
	}
}

// A machine that keeps an address has it, tells the link, and gives it back; others on the link
// see that it is taken.
func TestAFloatingAddressMoves(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	l := newLab(t)
	keep := func(machine, ip string) (stop func()) {
		ctx, cancel := context.WithCancel(t.Context())
		done := run.Go("keep", func() error {
			return l.In(machine, func() error {
				on, err := LinkOf(netip.MustParseAddr(ip))
				if err != nil {
					return err
				}
				return Keep(ctx, on, netip.MustParseAddr(ip), slog.New(slog.DiscardHandler))
			})
		})
		return func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	}
	occupant := func(ip string) (has net.HardwareAddr) {
		if err := l.In("client", func() error {
			on, err := LinkOf(netip.MustParseAddr(ip))
			if err != nil {
				return err
			}
			has, err = Occupant(t.Context(), on, netip.MustParseAddr(ip))
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return has
	}
	for _, ip := range []string{"192.0.2.60", "2001:db8::60"} {
		if has := occupant(ip); has != nil {
			t.Errorf("%s has %s already", has, ip)
		}
		stopA := keep("a", ip)
		netlab.Eventually(t, ip+" is at a", func() bool { return occupant(ip).String() == "02:00:00:00:00:01" })
		// Nothing that the machine sends by itself has the address.
		source := l.Run("a", "ip", "route", "get", map[bool]string{true: "192.0.2.3", false: "2001:db8::3"}[strings.Contains(ip, ".")])
		if strings.Contains(source, "src "+ip) {
			t.Errorf("packets leave under %s: %s", ip, source)
		}
		stopA()
		if out := l.Run("a", "ip", "-o", "addr"); strings.Contains(out, ip) {
			t.Errorf("%s was left on a:\n%s", ip, out)
		}
		// The client is told by b that it is there now, without a question of its own.
		stopB := keep("b", ip)
		netlab.Eventually(t, ip+" is at b", func() bool {
			return strings.Contains(l.Run("client", "ip", "neigh", "show", ip), "02:00:00:00:00:02")
		})
		stopB()
	}
}

// What a process leaves that is killed goes by itself, sooner than another machine takes over.
func TestAFloatingAddressEndsWithItsProcess(t *testing.T) {
	l := newLab(t)
	ip := netip.MustParseAddr("192.0.2.60")
	if err := l.In("a", func() error {
		on, err := LinkOf(ip)
		if err != nil {
			return err
		}
		return put(on, ip)
	}); err != nil {
		t.Fatal(err)
	}
	if out := l.Run("a", "ip", "-o", "addr"); !strings.Contains(out, "192.0.2.60/32") {
		t.Fatalf("the address is not there:\n%s", out)
	}
	if err := l.In("a", func() error { _, err := LinkOf(ip); return err }); err != nil {
		t.Errorf("what is left of before keeps the next start: %v", err)
	}
	netlab.Eventually(t, "the address is gone", func() bool { return !strings.Contains(l.Run("a", "ip", "-o", "addr"), "192.0.2.60") })
}

// Another machine may take over at once from one whose kernel still answers: it knows whose answer that is, and the link goes to it.
func TestAFloatingAddressIsTakenOverFromAKilledProcess(t *testing.T) {
	l := newLab(t)
	ip, a := netip.MustParseAddr("192.0.2.60"), netip.MustParseAddr("192.0.2.1")
	if err := l.In("a", func() error {
		on, err := LinkOf(ip)
		if err != nil {
			return err
		}
		return put(on, ip) // and nobody takes care of it
	}); err != nil {
		t.Fatal(err)
	}
	if err := send(t.Context(), l, "client", ip.String()); err != nil {
		t.Fatal(err)
	}
	if err := send(t.Context(), l, "b", a.String()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := run.Go("keep", func() error {
		return l.In("b", func() error {
			on, err := LinkOf(ip)
			if err != nil {
				return err
			}
			who, err := Answers(ctx, on, ip)
			its, err2 := Hardware(on, a)
			if err := errors.Join(err, err2); err != nil {
				return err
			}
			if who.String() != "02:00:00:00:00:01" || its.String() != who.String() {
				t.Errorf("%s answers, and a is known as %s", who, its)
			}
			return Keep(ctx, on, ip, slog.New(slog.DiscardHandler))
		})
	})
	netlab.Eventually(t, "the client goes to b", func() bool {
		return strings.Contains(l.Run("client", "ip", "neigh", "show", ip.String()), "02:00:00:00:00:02")
	})
	netlab.Eventually(t, "a has it no more", func() bool { return !strings.Contains(l.Run("a", "ip", "-o", "addr"), ip.String()) })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
