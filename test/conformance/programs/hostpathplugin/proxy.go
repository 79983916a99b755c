// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"sync"
)

// runProxy hands each connection of the first endpoint to one of the second, in the
// order in which they come, until ctx ends.
func runProxy(ctx context.Context, first, second string, logger *slog.Logger) error {
	clients, err := listen(ctx, first)
	if err != nil {
		return err
	}
	defer func() { _ = clients.Close() }()
	servers, err := listen(ctx, second)
	if err != nil {
		return err
	}
	defer func() { _ = servers.Close() }()
	logger.InfoContext(ctx, "handing connections on", "from", first, "to", second)
	defer context.AfterFunc(ctx, func() { _, _ = clients.Close(), servers.Close() })()
	var pairs sync.WaitGroup
	defer pairs.Wait()
	for {
		client, err := clients.Accept()
		if err != nil {
			return ended(ctx, err)
		}
		server, err := servers.Accept()
		if err != nil {
			return errors.Join(ended(ctx, err), client.Close())
		}
		pairs.Go(func() { join(ctx, client, server) })
	}
}

// ended is no error where it was asked for.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// listen replaces the socket of a program that was killed.
func listen(ctx context.Context, endpoint string) (net.Listener, error) {
	network, address, err := place(endpoint)
	if err != nil {
		return nil, err
	}
	if network == "unix" {
		if err := os.Remove(address); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("remove a former socket: %w", err)
		}
	}
	var lc net.ListenConfig
	return lc.Listen(ctx, network, address)
}

// join copies both ways until one side ends, or ctx.
func join(ctx context.Context, a, b net.Conn) {
	var once sync.Once
	end := func() { once.Do(func() { _, _ = a.Close(), b.Close() }) }
	defer context.AfterFunc(ctx, end)()
	var ways sync.WaitGroup
	for _, way := range [][2]net.Conn{{a, b}, {b, a}} {
		ways.Go(func() {
			defer end()
			_, _ = io.Copy(way[0], way[1])
		})
	}
	ways.Wait()
}
