// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// runtimeStub answers what a test wants of a runtime that real ones rarely do; all
// else is tested against containerd, in core/kubelet/realnode.
type runtimeStub struct {
	runtime.UnimplementedRuntimeServiceServer
	runtime.UnimplementedImageServiceServer
	err    error
	status *runtime.StatusResponse
	events chan *runtime.ContainerEventResponse
	hang   bool
}

func (s *runtimeStub) StopPodSandbox(context.Context, *runtime.StopPodSandboxRequest) (*runtime.StopPodSandboxResponse, error) {
	return nil, s.err
}

func (s *runtimeStub) RemoveImage(context.Context, *runtime.RemoveImageRequest) (*runtime.RemoveImageResponse, error) {
	return nil, s.err
}

func (s *runtimeStub) PullImage(context.Context, *runtime.PullImageRequest) (*runtime.PullImageResponse, error) {
	return nil, s.err
}

func (s *runtimeStub) Status(ctx context.Context, _ *runtime.StatusRequest) (*runtime.StatusResponse, error) {
	if s.hang {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return s.status, s.err
}

func (s *runtimeStub) PodSandboxStatus(context.Context, *runtime.PodSandboxStatusRequest) (*runtime.PodSandboxStatusResponse, error) {
	return &runtime.PodSandboxStatusResponse{}, nil
}

func (s *runtimeStub) ListContainers(context.Context, *runtime.ListContainersRequest) (*runtime.ListContainersResponse, error) {
	big := make([]*runtime.Container, 2000)
	for i := range big {
		big[i] = &runtime.Container{Id: strings.Repeat("x", 64), Annotations: map[string]string{"a": strings.Repeat("y", 4000)}}
	}
	return &runtime.ListContainersResponse{Containers: big}, nil
}

func (s *runtimeStub) GetContainerEvents(_ *runtime.GetEventsRequest,
	stream grpc.ServerStreamingServer[runtime.ContainerEventResponse],
) error {
	for ev := range s.events {
		if err := stream.Send(ev); err != nil {
			return err
		}
	}
	return nil
}

// start serves the stub on a socket and connects to it.
func start(t *testing.T, s *runtimeStub) (*Engine, *grpc.Server) {
	t.Helper()
	dir, err := os.MkdirTemp("", "cri") //nolint:usetesting // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	server := serve(t, s, socket)
	e, err := New(Config{Endpoint: socket, Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	return e, server
}

func serve(t *testing.T, s *runtimeStub, socket string) *grpc.Server {
	t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.MaxSendMsgSize(1 << 30))
	runtime.RegisterRuntimeServiceServer(server, s)
	runtime.RegisterImageServiceServer(server, s)
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }()
	t.Cleanup(func() { server.Stop(); <-done })
	return server
}

// What the runtime says is passed on without gRPC's words, and can be told apart.
func TestErrors(t *testing.T) {
	s := &runtimeStub{}
	e, server := start(t, s)
	ctx := t.Context()

	s.err = status.Error(codes.Unknown, "failed to pull: 401 Unauthorized")
	_, err := e.PullImage(ctx, &runtime.ImageSpec{Image: "r/x:1"}, nil, nil)
	if want := `pull image "r/x:1": failed to pull: 401 Unauthorized`; err == nil || err.Error() != want {
		t.Errorf("error %q, want %q", err, want)
	}
	s.err = status.Error(codes.NotFound, "no such image")
	if _, err := e.PullImage(ctx, &runtime.ImageSpec{Image: "r/x:1"}, nil, nil); !errors.Is(err, ErrNotFound) ||
		status.Code(err) != codes.NotFound {
		t.Errorf("%v is not of class not found", err)
	}
	// What is gone need not be stopped or removed.
	if err := e.StopSandbox(ctx, "x"); err != nil {
		t.Errorf("stopping what is not there: %v", err)
	}
	if err := e.RemoveImage(ctx, &runtime.ImageSpec{Image: "x"}); err != nil {
		t.Errorf("removing an image that is not there: %v", err)
	}
	if _, err := e.SandboxStatus(ctx, "x"); err == nil || !strings.Contains(err.Error(), "no status") {
		t.Errorf("an answer without a status: %v", err)
	}
	if cs, err := e.ListContainers(ctx); err != nil || len(cs) != 2000 {
		t.Errorf("a listing of 8 MB: %d containers (%v)", len(cs), err)
	}
	server.Stop()
	if err := e.StopSandbox(ctx, "x"); !errors.Is(err, ErrUnavailable) {
		t.Errorf("a runtime that is gone: %v", err)
	}
}

func TestTimeout(t *testing.T) {
	e, _ := start(t, &runtimeStub{hang: true})
	e.cfg.Timeout = 20 * time.Millisecond
	if err := e.Ready(t.Context()); !errors.Is(err, ErrTimeout) {
		t.Errorf("a runtime that hangs: %v", err)
	}
}

func TestReady(t *testing.T) {
	s := &runtimeStub{}
	e, _ := start(t, s)
	up := func(runtimeUp, networkUp bool) *runtime.StatusResponse {
		return &runtime.StatusResponse{Status: &runtime.RuntimeStatus{Conditions: []*runtime.RuntimeCondition{
			{Type: runtime.RuntimeReady, Status: runtimeUp},
			{Type: runtime.NetworkReady, Status: networkUp, Reason: "NetworkPluginNotReady", Message: "cni plugin not initialized"},
		}}}
	}
	for _, c := range []struct {
		status *runtime.StatusResponse
		want   string
	}{
		{up(true, true), ""},
		{up(false, true), "RuntimeReady=false"},
		{up(true, false), "NetworkReady=false reason:NetworkPluginNotReady message:cni plugin not initialized"},
		{&runtime.StatusResponse{}, "RuntimeReady is not reported"},
	} {
		s.status = c.status
		err := e.Ready(t.Context())
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%v: %v, want %q", c.status, err, c.want)
		}
	}
}

// The stream of events ends with the connection, or with its context, and can be
// had again from a runtime that came back.
func TestEvents(t *testing.T) {
	s := &runtimeStub{events: make(chan *runtime.ContainerEventResponse, 1)}
	e, server := start(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	events, err := e.Events(ctx)
	if err != nil {
		t.Fatal(err)
	}
	s.events <- &runtime.ContainerEventResponse{ContainerId: "a"}
	if ev := <-events; ev.GetContainerId() != "a" {
		t.Errorf("event %v", ev)
	}
	// A handler that waits for an event would hold the server up.
	close(s.events)
	server.Stop()
	if ev, open := <-events; open {
		t.Errorf("after the end came %v", ev)
	}
	again := &runtimeStub{events: make(chan *runtime.ContainerEventResponse, 1)}
	defer close(again.events)
	serve(t, again, e.cfg.Endpoint)
	again.events <- &runtime.ContainerEventResponse{ContainerId: "b"}
	for {
		events, err := e.Events(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if ev, open := <-events; open {
			if ev.ContainerId != "b" {
				t.Errorf("event %v", ev)
			}
			cancel()
			for range events { // until it ends
			}
			return
		}
	}
}

func TestEndpoint(t *testing.T) {
	for endpoint, ok := range map[string]bool{
		"/run/x.sock": true, "unix:///run/x.sock": true, "": false, "run/x.sock": false, "tcp://1.2.3.4:5": false,
	} {
		e, err := New(Config{Endpoint: endpoint})
		if (err == nil) != ok {
			t.Errorf("endpoint %q: %v", endpoint, err)
		}
		if e != nil {
			_ = e.Close()
		}
	}
}
