// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/localsocket"
	"github.com/wasmplane/wasmplane/core/secureserving"
)

// listen listens where the configuration says, and, where that is loopback and
// pods of this machine need the API, at the address by which they reach it; and at
// a socket of the data directory, for the day when the port cannot be reached.
func (s site) listen(ctx context.Context, forPods bool) (net.Listener, error) {
	host, _, err := net.SplitHostPort(s.o.Config.APIServer.Listen)
	if err != nil {
		return nil, fmt.Errorf("apiserver.listen: %w", err)
	}
	addrs := []string{s.o.Config.APIServer.Listen}
	if local, err := netip.ParseAddr(host); forPods && (host == "localhost" || err == nil && local.IsLoopback()) && !s.advertise.IsLoopback() {
		addrs = append(addrs, net.JoinHostPort(s.advertise.String(), strconv.Itoa(s.port)))
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
	local, err := localsocket.Listen(ctx, s.o.Dir.Socket(), s.o.Logger)
	if err != nil {
		closeAll()
		return nil, err
	}
	return secureserving.Join(append(all, local)...), nil
}
