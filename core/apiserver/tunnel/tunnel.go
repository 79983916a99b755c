// SPDX-License-Identifier: Apache-2.0

// Package tunnel hands connections on to nodes, pods and Services: logs, exec,
// attach, port-forward and proxy.
//
// It guarantees that admission has agreed to a connection before it is made, that
// who opens a stream by a GET may also create one, and that every connection ends
// with the server. It refuses to connect to addresses by which a client could reach
// the server's own machine, to follow a redirect where a stream is wanted, and to
// read more of a kubelet's error than fits into an answer. What flows through a
// connection it neither reads nor records.
package tunnel

import (
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/wasmplane/wasmplane/core/api"
	"github.com/wasmplane/wasmplane/core/apiserver/answer"
	"github.com/wasmplane/wasmplane/core/auth/authz"
	"github.com/wasmplane/wasmplane/core/registry"
	"github.com/wasmplane/wasmplane/core/run"
)

// Config is what a tunnel is made of.
type Config struct {
	// Kubelet reaches the nodes; nil = there are none, and every connection is refused.
	Kubelet    *KubeletClient
	Registries *registry.Set
	Authorizer authz.Authorizer
	Answers    *answer.Writer
	// Ends are the requests that end when the server stops.
	Ends *run.Ends
}

// Tunnel makes connections. It is safe for concurrent use.
type Tunnel struct {
	registries *registry.Set
	authorizer authz.Authorizer
	answers    *answer.Writer
	ends       *run.Ends
	backends   *backends // nil where there are no nodes
}

// New makes a tunnel.
func New(cfg Config) *Tunnel {
	return &Tunnel{
		registries: cfg.Registries, authorizer: cfg.Authorizer, answers: cfg.Answers, ends: cfg.Ends,
		backends: newBackends(cfg.Kubelet),
	}
}

// Connection is one request for a connection, which its user may make.
type Connection struct {
	W    http.ResponseWriter
	Req  *http.Request
	Info *genericrequest.RequestInfo
	// Registry, Subresource and Request are what the path of the request names.
	Registry    *registry.Registry
	Subresource *api.Subresource
	Request     *registry.Request
}

// connection is one under way.
type connection struct {
	Connection
	tunnel *Tunnel
}

func (t *Tunnel) open(c Connection) *connection { return &connection{Connection: c, tunnel: t} }

func errNoNodes() error {
	return apierrors.NewServiceUnavailable("this server is not connected to nodes")
}
