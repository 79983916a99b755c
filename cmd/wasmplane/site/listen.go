// SPDX-License-Identifier: Apache-2.0

package site

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/localsocket"
	"github.com/wasmplane/wasmplane/core/secureserving"
)

// Listen listens where the configuration says, and, where that is loopback and
// pods of this machine need the API, at the address by which they reach it; and at
// a socket of the data directory, for the day when the port cannot be reached.
func (s Site) Listen(ctx context.Context, forPods bool) (net.Listener, error) {
	host, _, err := net.SplitHostPort(s.Options.Config.APIServer.Listen)
	if err != nil {
		return nil, fmt.Errorf("apiserver.listen: %w", err)
	}
	addrs := []string{s.Options.Config.APIServer.Listen}
	if local, err := netip.ParseAddr(host); forPods && (host == "localhost" || err == nil && local.IsLoopback()) && !s.Advertise.IsLoopback() {
		addrs = append(addrs, net.JoinHostPort(s.Advertise.String(), strconv.Itoa(s.Port)))
	}
	var all []net.Listener
	closeAll := func() {
		for _, l := range all {
			_ = l.Close()
		}
	}
	var lc net.ListenConfig
	for _, addr := range addrs {
		l, err := lc.Listen(ctx, "tcp", addr)
		if err != nil {
			closeAll()
			return nil, fmt.Errorf("%w; choose another address with --listen", err)
		}
		all = append(all, l)
	}
	local, err := localsocket.Listen(ctx, s.Options.Dir.Socket(), s.Options.Logger)
	if err != nil {
		closeAll()
		return nil, err
	}
	return secureserving.Join(append(all, local)...), nil
}
