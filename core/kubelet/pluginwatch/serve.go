// SPDX-License-Identifier: Apache-2.0

package pluginwatch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"google.golang.org/grpc"

	"github.com/wasmplane/wasmplane/core/kubelet/linuxhost"
	"github.com/wasmplane/wasmplane/core/run"
)

// Serve serves gRPC at a socket that only root can reach, of a path of any length, until ctx
// ends. Its folder is made, and the socket of a former server, which was killed, replaced.
func Serve(ctx context.Context, path string, register func(*grpc.Server), options ...grpc.ServerOption) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return fmt.Errorf("make the folder of a socket: %w", err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove a former socket: %w", err)
	}
	at, done, err := linuxhost.ShortSocket(path)
	if err != nil {
		return err
	}
	defer done() // closing the listener removes the socket by this name
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "unix", at)
	if err != nil {
		return fmt.Errorf("listen at %s: %w", path, err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return errors.Join(fmt.Errorf("close the socket to others: %w", err), l.Close())
	}
	s := grpc.NewServer(options...)
	register(s)
	served := run.Go("gRPC at "+filepath.Base(path), func() error { return s.Serve(l) })
	select {
	case err := <-served:
		return fmt.Errorf("serve at %s: %w", path, err)
	case <-ctx.Done():
	}
	s.Stop()
	if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serve at %s: %w", path, err)
	}
	return nil
}
