// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// upstreamRegistry is where the suite's images have their names. Pods that insist
// on pulling are answered by a registry of our own, as its mirror.
const (
	upstreamRegistry = "registry.k8s.io"
	mirrorPort       = "35127" // always the same: a cluster that was kept knows it
)

// mirror serves the images of an archive.
type mirror struct {
	server *http.Server
	url    string
}

// startMirror listens at an address that both nodes reach.
func startMirror(ctx context.Context, cache, archive string) (*mirror, error) {
	host, err := hostAddress()
	if err != nil {
		return nil, err
	}
	blobs := filepath.Join(cache, "blobs")
	if err := os.MkdirAll(blobs, 0o755); err != nil {
		return nil, err
	}
	address := net.JoinHostPort(host, mirrorPort)
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("registry of the suite's images: %w", err)
	}
	quiet := log.New(io.Discard, "", 0)
	m := &mirror{url: "http://" + address, server: &http.Server{
		Handler:           registry.New(registry.Logger(quiet), registry.WithBlobHandler(registry.NewDiskBlobHandler(blobs))),
		ReadHeaderTimeout: 30 * time.Second, ErrorLog: quiet,
	}}
	go func() { _ = m.server.Serve(l) }() // ends with stop
	if err := m.fill(ctx, address, archive); err != nil {
		return nil, errors.Join(err, m.stop())
	}
	return m, nil
}

func (m *mirror) stop() error { return m.server.Close() }

func (m *mirror) fill(ctx context.Context, address, archive string) error {
	manifest, err := tarball.LoadManifest(func() (io.ReadCloser, error) { return openFile(archive) })
	if err != nil {
		return fmt.Errorf("read %s: %w", archive, err)
	}
	for _, one := range manifest {
		for _, n := range one.RepoTags {
			tag, err := name.NewTag(n)
			if err != nil {
				return err
			}
			if tag.RegistryStr() != upstreamRegistry {
				continue
			}
			img, err := tarball.ImageFromPath(archive, &tag)
			if err != nil {
				return fmt.Errorf("read %s: %w", n, err)
			}
			to, err := name.NewTag(address+"/"+tag.RepositoryStr()+":"+tag.TagStr(), name.Insecure)
			if err != nil {
				return err
			}
			if err := remote.Write(to, img, remote.WithContext(ctx)); err != nil {
				return fmt.Errorf("serve %s: %w", n, err)
			}
		}
	}
	return nil
}

// hostAddress is this machine's address towards the outside. Nothing is sent:
// connecting a datagram socket only chooses a route.
func hostAddress() (string, error) {
	conn, err := net.Dial("udp4", "203.0.113.1:9") //nolint:noctx // returns at once
	if err != nil {
		return "", fmt.Errorf("this machine has no route to the outside, and no address that a second node could reach: %w", err)
	}
	defer func() { _ = conn.Close() }()
	host, _, err := net.SplitHostPort(conn.LocalAddr().String())
	return host, err
}
