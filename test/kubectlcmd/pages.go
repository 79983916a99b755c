// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/wasmplane/wasmplane/core/run"
)

// pages serves the copy of upstream's files on this machine, for a group that has
// kubectl read one of them from a URL.
type pages struct {
	url    string // ends with a slash
	server *http.Server
	done   <-chan error
}

func servePages(ctx context.Context, dir string) (*pages, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &pages{
		url:    "http://" + l.Addr().String() + "/",
		server: &http.Server{Handler: http.FileServer(http.Dir(dir)), ReadHeaderTimeout: time.Minute},
	}
	p.done = run.Go("upstream's files", func() error { return p.server.Serve(l) })
	return p, nil
}

func (p *pages) end() error {
	err := p.server.Close()
	if served := <-p.done; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}
