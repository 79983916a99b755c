// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"time"

	eventtypes "github.com/containerd/containerd/api/events"
	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/runtime"
	"github.com/containerd/containerd/v2/pkg/shim"
	"github.com/containerd/containerd/v2/pkg/shutdown"
	"github.com/containerd/containerd/v2/pkg/sys/reaper"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	runcexit "github.com/containerd/go-runc"
	"github.com/containerd/log"
	"github.com/containerd/ttrpc"
	"github.com/containerd/typeurl/v2"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wasmplane/wasmplane/core/run"
)

// podsID is the identity of the shim that serves all pods of a node whose containers are WebAssembly modules alone
// (core/kubelet/containerd/wasmpods): they need neither a shim each, nor a pause process, nor runc.
const podsID = "wasm-pods"

// sandboxFolder is in that shim's bundle.
const sandboxFolder = "sandboxes"

const sandboxAnnotation = "io.kubernetes.cri.sandbox-id"

var sandboxID = regexp.MustCompile(`^[0-9a-f]{64}$`)

// podTasks are containers with modules, of many pods. Each is a process of the engine, in its own namespaces and cgroup.
type podTasks struct {
	bundle    string // the shim's own
	engine    string // the program of the processes
	publisher events.Publisher
	down      shutdown.Service

	mu     sync.Mutex
	tasks  map[string]*podTask
	byPID  map[int]*podTask
	starts sync.Mutex // held while a process is started and noted, so that its end finds it
}

func newPodTasks(ctx context.Context, publisher shim.Publisher, down shutdown.Service) (*podTasks, error) {
	bundle, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the engine: %w", err)
	}
	s := &podTasks{
		bundle:    bundle,
		engine:    filepath.Join(filepath.Dir(self), engineName),
		publisher: publisher,
		down:      down,
		tasks:     map[string]*podTask{},
		byPID:     map[int]*podTask{},
	}
	exits := reaper.Default.Subscribe()
	run.Go("ends of processes", func() error { s.reap(ctx, exits); return nil }) // ends with the shim
	if address, err := shim.ReadAddress("address"); err == nil {
		down.RegisterCallback(func(context.Context) error { return shim.RemoveSocket(address) })
	}
	return s, nil
}

// RegisterTTRPC is what the shim library looks for.
func (s *podTasks) RegisterTTRPC(server *ttrpc.Server) error {
	taskapi.RegisterTTRPCTaskService(server, s)
	return nil
}

func (s *podTasks) publish(ctx context.Context, topic string, event any) {
	if err := s.publisher.Publish(context.WithoutCancel(ctx), topic, event); err != nil {
		log.G(ctx).WithError(err).WithField("topic", topic).Warn("tell containerd")
	}
}

// reap hears of every process that ends.
func (s *podTasks) reap(ctx context.Context, exits chan runcexit.Exit) {
	for e := range exits {
		s.starts.Lock()
		s.mu.Lock()
		t := s.byPID[e.Pid]
		delete(s.byPID, e.Pid)
		s.mu.Unlock()
		s.starts.Unlock()
		if t != nil {
			run.Go("end of a container", func() error { // it publishes, and the next end must not wait for that
				s.end(ctx, t, e.Status, e.Timestamp)
				return nil
			})
		}
	}
}

func (s *podTasks) end(ctx context.Context, t *podTask, status int, at time.Time) {
	if t.outOfMemory() {
		s.publish(ctx, runtime.TaskOOMEventTopic, &eventtypes.TaskOOM{ContainerID: t.id})
	}
	_ = t.cmd.Wait() // was reaped; this releases what the command holds
	t.closeStreams()
	t.mu.Lock()
	t.status, t.exitedAt = uint32(status), at
	t.mu.Unlock()
	close(t.exited)
	s.publish(ctx, runtime.TaskExitEventTopic, &eventtypes.TaskExit{
		ContainerID: t.id, ID: t.id, Pid: uint32(t.pid), ExitStatus: uint32(status), ExitedAt: timestamppb.New(at),
	})
}

func (s *podTasks) task(id string) (*podTask, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok := s.tasks[id]
	if !ok {
		return nil, errgrpc.ToGRPCf(errdefs.ErrNotFound, "container %s", id)
	}
	return t, nil
}

// sandbox is what the node's containerd says of a pod.
func (s *podTasks) sandbox(id string) (podSandbox, error) {
	var box podSandbox
	if !sandboxID.MatchString(id) {
		return box, fmt.Errorf("the container's sandbox is %q: this is no sandbox of CRI", id)
	}
	text, err := bounded(filepath.Join(s.bundle, sandboxFolder, id))
	if err != nil {
		return box, fmt.Errorf("find the container's sandbox: %w", err)
	}
	return box, json.Unmarshal(text, &box)
}

// Create implements the task service: the process is there, isolated, and waits.
func (s *podTasks) Create(ctx context.Context, r *taskapi.CreateTaskRequest) (*taskapi.CreateTaskResponse, error) {
	t, err := s.create(ctx, r)
	if err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	s.publish(ctx, runtime.TaskCreateEventTopic, &eventtypes.TaskCreate{
		ContainerID: r.ID, Bundle: r.Bundle, Rootfs: r.Rootfs, Pid: uint32(t.pid),
		IO: &eventtypes.TaskIO{Stdin: r.Stdin, Stdout: r.Stdout, Stderr: r.Stderr},
	})
	return &taskapi.CreateTaskResponse{Pid: uint32(t.pid)}, nil
}

func (s *podTasks) create(ctx context.Context, r *taskapi.CreateTaskRequest) (_ *podTask, err error) {
	text, err := bounded(filepath.Join(r.Bundle, "config.json"))
	if err != nil {
		return nil, err
	}
	var spec specs.Spec
	if err := json.Unmarshal(text, &spec); err != nil {
		return nil, fmt.Errorf("read the container's configuration: %w", err)
	}
	switch {
	case spec.Annotations[wasmAnnotation] == "":
		return nil, fmt.Errorf(
			"the container's image is no WebAssembly module, and a pod of the runtime handler wasm-only has nothing else: give the pod runtimeClassName: wasm; to look into a pod that runs, use kubectl debug node/NAME: %w",
			errdefs.ErrInvalidArgument,
		)
	case r.Terminal:
		return nil, fmt.Errorf(
			"a container of the runtime handler wasm-only has no terminal: leave tty out, or give the pod runtimeClassName: wasm: %w",
			errdefs.ErrInvalidArgument,
		)
	case spec.Process == nil || spec.Linux == nil:
		return nil, fmt.Errorf("the container's configuration has no process: %w", errdefs.ErrInvalidArgument)
	}
	box, err := s.sandbox(spec.Annotations[sandboxAnnotation])
	if err != nil {
		return nil, err
	}
	t := &podTask{
		id:      r.ID,
		bundle:  r.Bundle,
		root:    filepath.Join(r.Bundle, "rootfs"),
		streams: [3]string{r.Stdin, r.Stdout, r.Stderr},
		exited:  make(chan struct{}),
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.remove())
		}
	}()
	config, err := t.prepare(ctx, r, s.engine, &spec, box)
	if err != nil {
		return nil, err
	}
	if err := t.start(s.engine, box, s.track(t)); err != nil {
		return nil, fmt.Errorf("start the module's process: %w", err)
	}
	if err := t.configure(config, spec.Process); err != nil {
		// Its end is waited for: with it in there, its cgroup could not be removed.
		return nil, errors.Join(fmt.Errorf("isolate the module's process: %w", err), t.cmd.Process.Kill(), waitFor(ctx, t.exited))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tasks[t.id] = t
	return t, nil
}

// track begins a process so that its end is found to be the container's, however soon that is.
func (s *podTasks) track(t *podTask) func(begin func() error) error {
	return func(begin func() error) error {
		s.starts.Lock()
		defer s.starts.Unlock()
		if err := begin(); err != nil {
			return err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.byPID[t.pid] = t
		return nil
	}
}

func waitFor(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-done:
		return nil
	}
}

// Start implements the task service.
func (s *podTasks) Start(ctx context.Context, r *taskapi.StartRequest) (*taskapi.StartResponse, error) {
	t, err := s.task(r.ID)
	if err != nil {
		return nil, err
	}
	if err := t.goOn(); err != nil {
		return nil, errgrpc.ToGRPC(fmt.Errorf("start the module: %w", err))
	}
	s.publish(ctx, runtime.TaskStartEventTopic, &eventtypes.TaskStart{ContainerID: t.id, Pid: uint32(t.pid)})
	return &taskapi.StartResponse{Pid: uint32(t.pid)}, nil
}

// State implements the task service.
func (s *podTasks) State(_ context.Context, r *taskapi.StateRequest) (*taskapi.StateResponse, error) {
	t, err := s.task(r.ID)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	out := &taskapi.StateResponse{
		ID: t.id, Bundle: t.bundle, Pid: uint32(t.pid), Status: task.Status_CREATED,
		Stdin: t.streams[0], Stdout: t.streams[1], Stderr: t.streams[2],
	}
	switch {
	case t.hasExited():
		out.Status, out.ExitStatus, out.ExitedAt = task.Status_STOPPED, t.status, timestamppb.New(t.exitedAt)
	case t.started:
		out.Status = task.Status_RUNNING
	}
	return out, nil
}

// Delete implements the task service.
func (s *podTasks) Delete(ctx context.Context, r *taskapi.DeleteRequest) (*taskapi.DeleteResponse, error) {
	t, err := s.task(r.ID)
	if err != nil {
		return nil, err
	}
	if !t.hasExited() {
		return nil, errgrpc.ToGRPCf(errdefs.ErrFailedPrecondition, "container %s runs", t.id)
	}
	if err := t.remove(); err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	s.mu.Lock()
	delete(s.tasks, t.id)
	s.mu.Unlock()
	s.publish(ctx, runtime.TaskDeleteEventTopic, &eventtypes.TaskDelete{
		ContainerID: t.id, Pid: uint32(t.pid), ExitStatus: t.status, ExitedAt: timestamppb.New(t.exitedAt),
	})
	return &taskapi.DeleteResponse{Pid: uint32(t.pid), ExitStatus: t.status, ExitedAt: timestamppb.New(t.exitedAt)}, nil
}

// Pids implements the task service. Of the shim itself it answers its own: containerd keeps a shim that has processes.
func (s *podTasks) Pids(_ context.Context, r *taskapi.PidsRequest) (*taskapi.PidsResponse, error) {
	if r.ID == podsID {
		return &taskapi.PidsResponse{Processes: []*task.ProcessInfo{{Pid: uint32(os.Getpid())}}}, nil
	}
	t, err := s.task(r.ID)
	if err != nil {
		return nil, err
	}
	pids, err := t.cgroup.pids()
	if err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	out := &taskapi.PidsResponse{}
	for _, pid := range pids {
		out.Processes = append(out.Processes, &task.ProcessInfo{Pid: uint32(pid)})
	}
	return out, nil
}

// Kill implements the task service.
func (s *podTasks) Kill(_ context.Context, r *taskapi.KillRequest) (*emptypb.Empty, error) {
	t, err := s.task(r.ID)
	if err != nil {
		return nil, err
	}
	if t.hasExited() {
		return nil, errgrpc.ToGRPCf(errdefs.ErrNotFound, "the process of container %s has ended", t.id)
	}
	// By its descriptor, not its number: that may be another process' by now.
	if err := t.cmd.Process.Signal(unix.Signal(r.Signal)); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return nil, errgrpc.ToGRPC(err)
	}
	return &emptypb.Empty{}, nil
}

// Exec implements the task service.
func (s *podTasks) Exec(context.Context, *taskapi.ExecProcessRequest) (*emptypb.Empty, error) {
	return nil, errgrpc.ToGRPC(errNoExec)
}

// CloseIO implements the task service.
func (s *podTasks) CloseIO(_ context.Context, r *taskapi.CloseIORequest) (*emptypb.Empty, error) {
	t, err := s.task(r.ID)
	if err != nil {
		return nil, err
	}
	if r.Stdin {
		t.closeStdin()
	}
	return &emptypb.Empty{}, nil
}

// Update implements the task service.
func (s *podTasks) Update(_ context.Context, r *taskapi.UpdateTaskRequest) (*emptypb.Empty, error) {
	t, err := s.task(r.ID)
	if err != nil {
		return nil, err
	}
	var res specs.LinuxResources
	if err := typeurl.UnmarshalTo(r.Resources, &res); err != nil {
		return nil, errgrpc.ToGRPC(fmt.Errorf("read the new limits: %w", err))
	}
	if err := t.cgroup.limit(&res); err != nil {
		return nil, errgrpc.ToGRPC(fmt.Errorf("change the container's limits: %w", err))
	}
	return &emptypb.Empty{}, nil
}

// Wait implements the task service.
func (s *podTasks) Wait(ctx context.Context, r *taskapi.WaitRequest) (*taskapi.WaitResponse, error) {
	t, err := s.task(r.ID)
	if err != nil {
		return nil, err
	}
	select {
	case <-ctx.Done():
		return nil, errgrpc.ToGRPC(ctx.Err())
	case <-t.exited:
		return &taskapi.WaitResponse{ExitStatus: t.status, ExitedAt: timestamppb.New(t.exitedAt)}, nil
	}
}

// Stats implements the task service.
func (s *podTasks) Stats(_ context.Context, r *taskapi.StatsRequest) (*taskapi.StatsResponse, error) {
	t, err := s.task(r.ID)
	if err != nil {
		return nil, err
	}
	stats, err := t.cgroup.stat()
	if err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	data, err := typeurl.MarshalAnyToProto(stats)
	if err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	return &taskapi.StatsResponse{Stats: data}, nil
}

// Connect implements the task service.
func (s *podTasks) Connect(_ context.Context, r *taskapi.ConnectRequest) (*taskapi.ConnectResponse, error) {
	out := &taskapi.ConnectResponse{ShimPid: uint32(os.Getpid())}
	if r.ID == podsID {
		return out, nil
	}
	t, err := s.task(r.ID)
	if err != nil {
		return nil, err
	}
	out.TaskPid = uint32(t.pid)
	return out, nil
}

// Shutdown implements the task service. It is also called for each container that is deleted, which is not meant.
func (s *podTasks) Shutdown(_ context.Context, r *taskapi.ShutdownRequest) (*emptypb.Empty, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.ID == podsID && len(s.tasks) == 0 {
		s.down.Shutdown()
	}
	return &emptypb.Empty{}, nil
}

// What modules cannot do.
func notHere(what string) error {
	return errgrpc.ToGRPCf(errdefs.ErrNotImplemented, "a WebAssembly module cannot be %s", what)
}

// Pause implements the task service.
func (s *podTasks) Pause(context.Context, *taskapi.PauseRequest) (*emptypb.Empty, error) {
	return nil, notHere("paused")
}

// Resume implements the task service.
func (s *podTasks) Resume(context.Context, *taskapi.ResumeRequest) (*emptypb.Empty, error) {
	return nil, notHere("resumed")
}

// Checkpoint implements the task service.
func (s *podTasks) Checkpoint(context.Context, *taskapi.CheckpointTaskRequest) (*emptypb.Empty, error) {
	return nil, notHere("written to a checkpoint")
}

// ResizePty implements the task service.
func (s *podTasks) ResizePty(context.Context, *taskapi.ResizePtyRequest) (*emptypb.Empty, error) {
	return nil, notHere("given a terminal's size")
}

// podManager is runc's, but for what that shim left when it died: containerd asks for each of its containers then.
type podManager struct{ shim.Shim }

// Stop implements shim.Shim.
func (m podManager) Stop(ctx context.Context, id string) (shim.StopStatus, error) {
	cwd, err := os.Getwd()
	if err != nil {
		return shim.StopStatus{}, err
	}
	bundle := filepath.Join(filepath.Dir(cwd), filepath.Base(id))
	text, err := os.ReadFile(filepath.Join(bundle, cgroupFile))
	if errors.Is(err, os.ErrNotExist) && id != podsID {
		return m.Shim.Stop(ctx, id)
	}
	if err == nil {
		t := &podTask{id: id, bundle: bundle, root: filepath.Join(bundle, "rootfs")}
		if len(text) > 0 {
			if t.cgroup, err = loadCgroup(string(text)); err == nil && t.cgroup != nil {
				err = killAll(ctx, t.cgroup)
			}
		}
		err = errors.Join(err, t.remove())
	} else if id == podsID {
		err = nil
	}
	if err != nil {
		log.G(ctx).WithError(err).Warn("remove what a container left")
	}
	// containerd removes the bundle next: not through a mount.
	_ = mount.UnmountAll(filepath.Join(bundle, "rootfs"), unix.MNT_DETACH)
	return shim.StopStatus{ExitedAt: time.Now(), ExitStatus: 128 + int(unix.SIGKILL)}, nil
}
