// SPDX-License-Identifier: Apache-2.0

// Package cri implements the engine contract over CRI, the gRPC interface of
// container runtimes: containerd's own, or any other's.
//
// It is an adapter and nothing more: every call has a deadline, a gRPC status
// becomes an error that says what was attempted and answers errors.Is for the
// classes below, and what the contract promises (idempotence, nil for an absent
// image) holds whichever way the runtime words it.
package cri

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/engine"
)

// Error classes, for errors.Is.
var (
	ErrNotFound    = errors.New("not found")
	ErrUnavailable = errors.New("the container runtime is not reachable")
	ErrTimeout     = errors.New("the container runtime did not answer in time")
)

const (
	// maxMessage bounds a reply. A listing of 1,000 containers with their
	// annotations takes a few megabytes; upstream's kubelet allows as much.
	maxMessage = 16 << 20

	defaultTimeout = 2 * time.Minute
	// defaultPullTimeout is the end of a pull that makes progress; one that does not
	// is ended by the runtime long before.
	defaultPullTimeout = 2 * time.Hour
	// eventBuffer absorbs a burst while the caller works on an earlier event.
	eventBuffer = 256
)

// Config says where the runtime is.
type Config struct {
	// Endpoint is the runtime's socket: a path, or unix:// and a path.
	Endpoint string
	// ImageEndpoint is the socket of the image service, Endpoint when empty.
	ImageEndpoint string
	// Timeout ends a call, 2 minutes when zero. A call that waits for the container
	// (stop, exec) has that time on top.
	Timeout time.Duration
	// PullTimeout ends a pull, 2 hours when zero.
	PullTimeout time.Duration
}

// Engine talks to one runtime.
type Engine struct {
	cfg     Config
	conns   []*grpc.ClientConn
	runtime runtime.RuntimeServiceClient
	images  runtime.ImageServiceClient
}

var _ engine.Engine = (*Engine)(nil)

// New makes the adapter. It does not connect: the first call does, and a runtime
// that comes and goes is found again within 100 ms.
func New(cfg Config) (*Engine, error) {
	if cfg.Endpoint == "" {
		return nil, errors.New("the CRI endpoint is missing; set node.criEndpoint to the runtime's socket")
	}
	if cfg.ImageEndpoint == "" {
		cfg.ImageEndpoint = cfg.Endpoint
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = defaultTimeout
	}
	if cfg.PullTimeout == 0 {
		cfg.PullTimeout = defaultPullTimeout
	}
	e := &Engine{cfg: cfg}
	conn, err := e.dial(cfg.Endpoint)
	if err != nil {
		return nil, err
	}
	imageConn := conn
	if cfg.ImageEndpoint != cfg.Endpoint {
		if imageConn, err = e.dial(cfg.ImageEndpoint); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
	}
	e.runtime, e.images = runtime.NewRuntimeServiceClient(conn), runtime.NewImageServiceClient(imageConn)
	return e, nil
}

func (e *Engine) dial(endpoint string) (*grpc.ClientConn, error) {
	target, err := socketTarget(endpoint)
	if err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient(target,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
		// A proxy variable in the environment must not be asked about a local socket.
		grpc.WithNoProxy(),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 10 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 100 * time.Millisecond},
			MinConnectTimeout: time.Second,
		}))
	if err != nil {
		return nil, fmt.Errorf("connect to the container runtime at %s: %w", endpoint, err)
	}
	e.conns = append(e.conns, conn)
	return conn, nil
}

// Close closes the connections; calls that run end with an error.
func (e *Engine) Close() error {
	var errs []error
	for _, c := range e.conns {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// failure is what a call ended in: a readable message over a class.
type failure struct {
	message string
	class   error
	cause   error
}

func (f *failure) Error() string { return f.message }

// Unwrap gives the class first; the gRPC status stays reachable for its code.
func (f *failure) Unwrap() []error {
	if f.class == nil {
		return []error{f.cause}
	}
	return []error{f.class, f.cause}
}

// explain words an error of the runtime: what was attempted, then the runtime's
// own words, without gRPC's ("rpc error: code = Unknown desc = ").
func explain(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	st, _ := status.FromError(err)
	f := &failure{cause: err}
	said := st.Message()
	switch st.Code() {
	case codes.NotFound:
		f.class = ErrNotFound
	case codes.Unavailable:
		f.class, said = ErrUnavailable, ErrUnavailable.Error()+": "+said
	case codes.DeadlineExceeded:
		f.class, said = ErrTimeout, ErrTimeout.Error()+": "+said
	default: // the runtime's own words say what it is
	}
	f.message = fmt.Sprintf(format, args...) + ": " + said
	return f
}

// forgiven turns "not found" into success, for calls that are idempotent.
func forgiven(err error) error {
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}

// deadline is for a call that may itself take up to extra.
func (e *Engine) deadline(ctx context.Context, extra time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, e.cfg.Timeout+extra)
}
