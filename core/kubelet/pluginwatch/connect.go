// SPDX-License-Identifier: Apache-2.0

package pluginwatch

import (
	"context"
	"fmt"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/wasmplane/wasmplane/core/kubelet/linuxhost"
)

// most is the largest answer that a plugin may give unless its caller says otherwise.
const most = 1 << 20

// Connect reaches the socket of a plugin, of a path of any length. Options come after
// our own, and replace them.
func Connect(path string, more ...grpc.DialOption) (*grpc.ClientConn, error) {
	dial := func(ctx context.Context, _ string) (net.Conn, error) {
		at, done, err := linuxhost.ShortSocket(path)
		if err != nil {
			return nil, err
		}
		defer done()
		var d net.Dialer
		return d.DialContext(ctx, "unix", at)
	}
	options := append([]grpc.DialOption{
		grpc.WithContextDialer(dial), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(most)), grpc.WithDisableServiceConfig(),
	}, more...)
	c, err := grpc.NewClient("passthrough:///plugin", options...)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", path, err)
	}
	return c, nil
}
