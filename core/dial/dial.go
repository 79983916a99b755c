// SPDX-License-Identifier: Apache-2.0

// Package dial connects to addresses that users supply: sources of modules, webhooks,
// servers of aggregated APIs, hosts that plugins were granted. A Policy says which addresses
// may be connected to, and is asked about the address itself, at the moment of connecting:
// what a name was resolved to before, what it is resolved to next, and where a redirect
// leads make no difference.
//
// Public is for what people without rights over the machine name: the internet, and nothing that
// is near. Operator is for what operators name: every address but those at which machines tell
// about themselves (cloud metadata, link-local), which hand out the machine's own credentials.
package dial

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"syscall"
	"time"
)

// Policy decides which addresses may be connected to.
type Policy struct {
	// Private allows loopback and private addresses, and those of the cluster itself.
	Private bool
	// Metadata allows link-local addresses and those of cloud metadata services.
	Metadata bool
	// Allow is allowed whatever the rest says.
	Allow []netip.Prefix
	// Deny is refused unless Allow has it: addresses of the cluster that look public.
	Deny []netip.Prefix
	// Through, if not nil, is asked first about each address that is allowed.
	Through Through
	// Report is told of each address that was to be connected to and was refused, with the
	// context of the one who dials; nil = nobody is told. It must not wait.
	Report func(ctx context.Context, refused *RefusedError)
}

// Public reaches the internet only.
func Public(allow, deny []netip.Prefix) Policy { return Policy{Allow: allow, Deny: deny} }

// Operator reaches everything but metadata.
func Operator(allow []netip.Prefix) Policy { return Policy{Private: true, Allow: allow} }

// RefusedError is an address that the policy does not allow.
type RefusedError struct {
	Address netip.Addr
	Why     string
}

func (e *RefusedError) Error() string { return fmt.Sprintf("%s %s", e.Address, e.Why) }

// Refused says whether an error came of a policy.
func Refused(err error) bool {
	var refused *RefusedError
	return errors.As(err, &refused)
}

// Check says whether an address may be connected to; nil is yes.
func (p Policy) Check(a netip.Addr) error {
	a = a.Unmap().WithZone("")
	in := func(list []netip.Prefix) bool {
		return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	switch {
	case in(p.Allow):
		return nil
	case in(p.Deny):
		return &RefusedError{a, "is an address of the cluster"}
	case a.IsUnspecified() || a.IsMulticast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return &RefusedError{a, "is no address of a server"}
	case !p.Metadata && (a.IsLinkLocalUnicast() || in(metadata)):
		return &RefusedError{a, "is a link-local address or one of a metadata service"}
	case !p.Private && !IsPublic(a):
		return &RefusedError{a, "is a private address"}
	}
	return nil
}

// Control is a net.Dialer's: it is called with the address that is being connected to.
func (p Policy) Control(_, address string, _ syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("connect to %s: %w", address, err)
	}
	return p.Check(at.Addr())
}

// control is Control for a net.Dialer, which says for whom it dials.
func (p Policy) control(ctx context.Context, network, address string, c syscall.RawConn) error {
	err := p.Control(network, address, c)
	var refused *RefusedError
	if p.Report != nil && errors.As(err, &refused) {
		p.Report(ctx, refused)
	}
	return err
}

// Through makes a connection to an address that the machine itself may have no route to. It answers false for
// addresses that are connected to directly.
type Through func(ctx context.Context, network string, at netip.AddrPort) (conn net.Conn, ok bool, err error)

// Dialer connects by the policy, and directly.
func (p Policy) Dialer(timeout time.Duration) *net.Dialer {
	return &net.Dialer{Timeout: timeout, KeepAlive: 30 * time.Second, ControlContext: p.control}
}

// Context is the dialer's function, with ten seconds for each connection.
func (p Policy) Context() func(ctx context.Context, network, address string) (net.Conn, error) {
	return p.Within(10 * time.Second)
}

// Within is Context with another time for each connection.
func (p Policy) Within(timeout time.Duration) Connect {
	direct := p.Dialer(timeout).DialContext
	if p.Through == nil {
		return direct
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		// Only an address can be a pod's; one that the policy refuses is refused, and told of, by direct.
		if at, err := netip.ParseAddrPort(address); err == nil && p.Check(at.Addr()) == nil {
			within, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			if conn, ok, err := p.Through(within, network, at); ok {
				return conn, err
			}
		}
		return direct(ctx, network, address)
	}
}

// Guard makes a transport connect by the policy. A policy that keeps from private addresses
// uses no proxy of the environment, which would connect in its place.
func (p Policy) Guard(t *http.Transport) *http.Transport {
	t.DialContext, t.Dial, t.DialTLS, t.DialTLSContext = p.Context(), nil, nil, nil //nolint:staticcheck // they would win
	if !p.Private {
		t.Proxy = nil
	}
	return t
}

// metadata are the addresses of cloud metadata services outside of the link-local range.
var metadata = []netip.Prefix{
	netip.MustParsePrefix("fd00:ec2::254/128"), netip.MustParsePrefix("100.100.100.200/32"),
	netip.MustParsePrefix("168.63.129.16/32"), netip.MustParsePrefix("192.0.0.192/32"),
}

// reserved are ranges that lead to no public service, besides those that the
// standard library knows. Several of them embed another address, which is not looked at.
var reserved = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("192.0.0.0/24"),
	netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("198.18.0.0/15"), netip.MustParsePrefix("198.51.100.0/24"),
	netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("240.0.0.0/4"), netip.MustParsePrefix("::/96"),
	netip.MustParsePrefix("64:ff9b::/96"),
	netip.MustParsePrefix("64:ff9b:1::/48"), netip.MustParsePrefix("100::/64"), netip.MustParsePrefix("2001::/23"),
	netip.MustParsePrefix("2001:db8::/32"),
	netip.MustParsePrefix("2002::/16"), netip.MustParsePrefix("5f00::/16"), netip.MustParsePrefix("fec0::/10"),
}

// IsPublic says whether an address belongs to the public internet.
func IsPublic(a netip.Addr) bool {
	a = a.Unmap()
	if !a.IsGlobalUnicast() || a.IsPrivate() || a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsMulticast() {
		return false
	}
	in := func(list []netip.Prefix) bool {
		return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	return !in(reserved) && !in(metadata)
}
