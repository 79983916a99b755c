// SPDX-License-Identifier: Apache-2.0

// Package enginetest is what every engine.Engine must pass: the simulated one,
// the CRI adapter over containerd, and whatever comes next. It tells the story
// of a pod, and of the ways in which one goes wrong.
package enginetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/engine"
)

// Options say what the engine at hand can do.
type Options struct {
	// Image that is there or can be pulled. Its default command runs until it is stopped.
	Image string
	// Absent is an image that can be removed and pulled again; empty: none.
	Absent string
	// Exit is a command in Image that exits with the code; nil: the engine runs no processes.
	Exit func(code int) []string
	// Shell is a command in Image that runs a shell script; nil: the engine runs no processes.
	Shell func(script string) []string
	// CgroupParent of the sandboxes; empty: the engine's choice, which for containerd
	// means no statistics.
	CgroupParent string
	// LogDir is where logs may be written; empty: nowhere.
	LogDir string
	// Read reads a container's log, given the path that its status tells.
	Read func(path string) (string, error)
}

// Run runs the suite.
func Run(t *testing.T, newEngine func(*testing.T) engine.Engine, o Options) {
	t.Run("a pod's life", func(t *testing.T) { podLife(t, newEngine(t), o) })
	t.Run("events tell it", func(t *testing.T) { events(t, newEngine(t), o) })
	t.Run("ends are idempotent", func(t *testing.T) { idempotent(t, newEngine(t), o) })
	t.Run("stopping a sandbox ends its containers", func(t *testing.T) { stopSandbox(t, newEngine(t), o) })
	t.Run("images", func(t *testing.T) { images(t, newEngine(t), o) })
	t.Run("what is not there", func(t *testing.T) { unknown(t, newEngine(t)) })
	t.Run("two of a name", func(t *testing.T) { namesakes(t, newEngine(t), o) })
	t.Run("it says who it is", func(t *testing.T) { identity(t, newEngine(t)) })
	if o.Exit != nil {
		t.Run("exit codes", func(t *testing.T) { exitCodes(t, newEngine(t), o) })
	}
	if o.Shell != nil {
		t.Run("exec", func(t *testing.T) { exec(t, newEngine(t), o) })
		t.Run("a container that ignores TERM is killed", func(t *testing.T) { stubborn(t, newEngine(t), o) })
	}
	if o.Shell != nil && o.LogDir != "" && o.Read != nil {
		t.Run("logs", func(t *testing.T) { logs(t, newEngine(t), o) })
	}
}

type scene struct {
	t    *testing.T
	ctx  context.Context //nolint:containedctx // of one test
	e    engine.Engine
	o    Options
	conf *cri.PodSandboxConfig
	sb   string
	ref  string
}

func (s *scene) must(err error, what string) {
	s.t.Helper()
	if err != nil {
		s.t.Fatalf("%s: %v", what, err)
	}
}

// set up a sandbox, with the image at hand.
func set(t *testing.T, e engine.Engine, o Options) *scene {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	s := &scene{t: t, ctx: ctx, e: e, o: o}
	uid := fmt.Sprintf("uid-%d", time.Now().UnixNano())
	s.conf = &cri.PodSandboxConfig{
		Metadata: &cri.PodSandboxMetadata{Name: "pod", Namespace: "enginetest", Uid: uid},
		Hostname: "pod",
		Labels: map[string]string{
			"io.kubernetes.pod.uid": uid, "io.kubernetes.pod.name": "pod",
			"io.kubernetes.pod.namespace": "enginetest",
		},
		Annotations: map[string]string{"enginetest": "yes"},
		Linux: &cri.LinuxPodSandboxConfig{
			SecurityContext: &cri.LinuxSandboxSecurityContext{NamespaceOptions: &cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER}},
		},
	}
	s.conf.LogDirectory = o.LogDir
	s.conf.Linux.CgroupParent = o.CgroupParent
	var err error
	s.sb, err = e.RunSandbox(ctx, s.conf, "")
	s.must(err, "run sandbox")
	t.Cleanup(func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		if err := e.StopSandbox(end, s.sb); err != nil {
			t.Errorf("stop sandbox: %v", err)
		}
		if err := e.RemoveSandbox(end, s.sb); err != nil {
			t.Errorf("remove sandbox: %v", err)
		}
	})
	s.ref = s.image(o.Image)
	return s
}

func (s *scene) image(name string) string {
	s.t.Helper()
	img, err := s.e.ImageStatus(s.ctx, &cri.ImageSpec{Image: name})
	s.must(err, "image status")
	if img != nil {
		return img.Id
	}
	ref, err := s.e.PullImage(s.ctx, &cri.ImageSpec{Image: name}, nil, s.conf)
	s.must(err, "pull image")
	return ref
}

func (s *scene) create(name string, attempt uint32, cmd ...string) string {
	s.t.Helper()
	id, err := s.e.CreateContainer(s.ctx, s.sb, s.config(name, attempt, cmd...), s.conf)
	s.must(err, "create container")
	return id
}

func (s *scene) config(name string, attempt uint32, cmd ...string) *cri.ContainerConfig {
	c := &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: name, Attempt: attempt},
		Image:    &cri.ImageSpec{Image: s.ref, UserSpecifiedImage: s.o.Image},
		Command:  cmd,
		Labels:   map[string]string{"io.kubernetes.container.name": name, "io.kubernetes.pod.uid": s.conf.Metadata.Uid},
		Annotations: map[string]string{
			"io.kubernetes.container.restartCount": fmt.Sprint(attempt),
		},
		Linux: &cri.LinuxContainerConfig{
			SecurityContext: &cri.LinuxContainerSecurityContext{NamespaceOptions: &cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER}},
		},
	}
	if s.o.LogDir != "" {
		c.LogPath = fmt.Sprintf("%s-%d.log", name, attempt)
	}
	return c
}

func (s *scene) state(id string, want cri.ContainerState) *cri.ContainerStatus {
	s.t.Helper()
	for {
		st, err := s.e.ContainerStatus(s.ctx, id)
		s.must(err, "container status")
		if st.State == want {
			return st
		}
		select {
		case <-s.ctx.Done():
			s.t.Fatalf("container is %v, want %v", st.State, want)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// says waits until the container's log has word, and gives the log.
func (s *scene) says(path, word string) string {
	s.t.Helper()
	for {
		text, err := s.o.Read(path)
		if err != nil && !errors.Is(err, io.EOF) {
			s.must(err, "read log")
		}
		if strings.Contains(text, word) {
			return text
		}
		select {
		case <-s.ctx.Done():
			s.t.Fatalf("log %q", text)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func podLife(t *testing.T, e engine.Engine, o Options) {
	s := set(t, e, o)
	sb, err := e.SandboxStatus(s.ctx, s.sb)
	s.must(err, "sandbox status")
	if sb.State != cri.PodSandboxState_SANDBOX_READY || sb.GetNetwork().GetIp() == "" || sb.Labels["io.kubernetes.pod.name"] != "pod" ||
		sb.Annotations["enginetest"] != "yes" {
		t.Errorf("sandbox %+v", sb)
	}
	id := s.create("main", 0)
	st := s.state(id, cri.ContainerState_CONTAINER_CREATED)
	if st.GetMetadata().GetName() != "main" || st.CreatedAt == 0 || st.StartedAt != 0 {
		t.Errorf("created container %+v", st)
	}
	s.must(e.StartContainer(s.ctx, id), "start container")
	st = s.state(id, cri.ContainerState_CONTAINER_RUNNING)
	if st.StartedAt == 0 || st.ImageRef == "" || st.Labels["io.kubernetes.container.name"] != "main" {
		t.Errorf("running container %+v", st)
	}
	list, err := e.ListContainers(s.ctx)
	s.must(err, "list containers")
	if !slices.ContainsFunc(list, func(c *cri.Container) bool { return c.Id == id && c.PodSandboxId == s.sb }) {
		t.Errorf("the container is not in the list %v", list)
	}
	boxes, err := e.ListSandboxes(s.ctx)
	s.must(err, "list sandboxes")
	if !slices.ContainsFunc(boxes, func(b *cri.PodSandbox) bool { return b.Id == s.sb && b.State == cri.PodSandboxState_SANDBOX_READY }) {
		t.Errorf("the sandbox is not in the list %v", boxes)
	}
	stats, err := e.Stats(s.ctx)
	s.must(err, "stats")
	if !slices.ContainsFunc(stats, func(p *cri.PodSandboxStats) bool { return p.GetAttributes().GetId() == s.sb }) {
		t.Errorf("no stats of the sandbox in %v", stats)
	}
	s.must(e.StopContainer(s.ctx, id, 5), "stop container")
	if st = s.state(id, cri.ContainerState_CONTAINER_EXITED); st.FinishedAt == 0 || st.FinishedAt < st.StartedAt {
		t.Errorf("exited container %+v", st)
	}
	s.must(e.RemoveContainer(s.ctx, id), "remove container")
	if _, err := e.ContainerStatus(s.ctx, id); status.Code(err) != codes.NotFound {
		t.Errorf("status of a removed container: %v, want NotFound", err)
	}
}

func events(t *testing.T, e engine.Engine, o Options) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ch, err := e.Events(ctx)
	if err != nil {
		t.Fatal(err)
	}
	s := set(t, e, o)
	id := s.create("main", 0)
	s.must(e.StartContainer(s.ctx, id), "start container")
	s.must(e.StopContainer(s.ctx, id, 5), "stop container")
	s.must(e.RemoveContainer(s.ctx, id), "remove container")
	want := []cri.ContainerEventType{
		cri.ContainerEventType_CONTAINER_CREATED_EVENT, cri.ContainerEventType_CONTAINER_STARTED_EVENT,
		cri.ContainerEventType_CONTAINER_STOPPED_EVENT, cri.ContainerEventType_CONTAINER_DELETED_EVENT,
	}
	for len(want) > 0 {
		select {
		case ev, ok := <-ch:
			if !ok {
				t.Fatal("the channel was closed")
			}
			if ev.ContainerId != id {
				continue
			}
			if ev.ContainerEventType != want[0] {
				t.Fatalf("event %v, want %v", ev.ContainerEventType, want[0])
			}
			if ev.ContainerEventType != cri.ContainerEventType_CONTAINER_DELETED_EVENT &&
				ev.GetPodSandboxStatus().GetLabels()["io.kubernetes.pod.uid"] != s.conf.Metadata.Uid {
				t.Errorf("event of another pod: %+v", ev)
			}
			want = want[1:]
		case <-s.ctx.Done():
			t.Fatalf("no event %v", want[0])
		}
	}
	cancel()
	for {
		select {
		case _, ok := <-ch:
			if !ok {
				return
			}
		case <-s.ctx.Done():
			t.Fatal("the channel stays open after its context ended")
		}
	}
}

func idempotent(t *testing.T, e engine.Engine, o Options) {
	s := set(t, e, o)
	id := s.create("main", 0)
	s.must(e.StartContainer(s.ctx, id), "start container")
	for range 2 {
		s.must(e.StopContainer(s.ctx, id, 1), "stop container")
	}
	for range 2 {
		s.must(e.RemoveContainer(s.ctx, id), "remove container")
	}
	for range 2 {
		s.must(e.StopSandbox(s.ctx, s.sb), "stop sandbox")
	}
	for range 2 {
		s.must(e.RemoveSandbox(s.ctx, s.sb), "remove sandbox")
	}
	if _, err := e.SandboxStatus(s.ctx, s.sb); status.Code(err) != codes.NotFound {
		t.Errorf("status of a removed sandbox: %v, want NotFound", err)
	}
}

func stopSandbox(t *testing.T, e engine.Engine, o Options) {
	s := set(t, e, o)
	id := s.create("main", 0)
	s.must(e.StartContainer(s.ctx, id), "start container")
	s.must(e.StopSandbox(s.ctx, s.sb), "stop sandbox")
	s.state(id, cri.ContainerState_CONTAINER_EXITED)
	sb, err := e.SandboxStatus(s.ctx, s.sb)
	s.must(err, "sandbox status")
	if sb.State != cri.PodSandboxState_SANDBOX_NOTREADY {
		t.Errorf("the sandbox is %v", sb.State)
	}
	s.must(e.RemoveSandbox(s.ctx, s.sb), "remove sandbox")
	if _, err := e.ContainerStatus(s.ctx, id); status.Code(err) != codes.NotFound {
		t.Errorf("status of a container whose sandbox was removed: %v, want NotFound", err)
	}
}

func images(t *testing.T, e engine.Engine, o Options) {
	s := set(t, e, o)
	list, err := e.ListImages(s.ctx)
	s.must(err, "list images")
	if !slices.ContainsFunc(list, func(i *cri.Image) bool { return i.Id == s.ref && i.Size > 0 }) {
		t.Errorf("image %s is not in %v", s.ref, list)
	}
	byID, err := e.ImageStatus(s.ctx, &cri.ImageSpec{Image: s.ref})
	s.must(err, "image status by ID")
	if byID == nil || byID.Id != s.ref {
		t.Errorf("image by its ID: %v", byID)
	}
	none, err := e.ImageStatus(s.ctx, &cri.ImageSpec{Image: "enginetest.invalid/nothing:1"})
	if err != nil || none != nil {
		t.Errorf("image that is not there: %v, %v", none, err)
	}
	if o.Absent == "" {
		return
	}
	ref := s.image(o.Absent)
	s.must(e.RemoveImage(s.ctx, &cri.ImageSpec{Image: ref}), "remove image")
	gone, err := e.ImageStatus(s.ctx, &cri.ImageSpec{Image: o.Absent})
	if err != nil || gone != nil {
		t.Errorf("image after its removal: %v, %v", gone, err)
	}
	s.image(o.Absent)
}

func unknown(t *testing.T, e engine.Engine) {
	ctx := t.Context()
	const id = "0000000000000000000000000000000000000000000000000000000000000000"
	if _, err := e.ContainerStatus(ctx, id); status.Code(err) != codes.NotFound {
		t.Errorf("status of no container: %v, want NotFound", err)
	}
	if _, err := e.SandboxStatus(ctx, id); status.Code(err) != codes.NotFound {
		t.Errorf("status of no sandbox: %v, want NotFound", err)
	}
	if err := e.StartContainer(ctx, id); err == nil {
		t.Error("no container was started")
	}
	if err := e.StopContainer(ctx, id, 1); err != nil {
		t.Errorf("stop of no container: %v", err)
	}
	if err := e.RemoveContainer(ctx, id); err != nil {
		t.Errorf("removal of no container: %v", err)
	}
	if _, err := e.Exec(ctx, &cri.ExecRequest{ContainerId: id, Cmd: []string{"true"}, Stdout: true}); err == nil {
		t.Error("a command in no container")
	}
}

func namesakes(t *testing.T, e engine.Engine, o Options) {
	s := set(t, e, o)
	first := s.create("main", 0)
	if _, err := e.CreateContainer(s.ctx, s.sb, s.config("main", 0), s.conf); err == nil {
		t.Error("the same attempt of a container was made twice")
	}
	s.must(e.StartContainer(s.ctx, first), "start")
	s.must(e.StopContainer(s.ctx, first, 1), "stop")
	second := s.create("main", 1)
	if first == second {
		t.Error("two containers have one ID")
	}
	s.state(first, cri.ContainerState_CONTAINER_EXITED)
	if st := s.state(second, cri.ContainerState_CONTAINER_CREATED); st.GetMetadata().GetAttempt() != 1 {
		t.Errorf("second container %+v", st)
	}
}

func identity(t *testing.T, e engine.Engine) {
	name, version, err := e.Version(t.Context())
	if err != nil || name == "" || version == "" {
		t.Errorf("version %q %q, %v", name, version, err)
	}
	if err := e.Ready(t.Context()); err != nil {
		t.Errorf("not ready: %v", err)
	}
}

func exitCodes(t *testing.T, e engine.Engine, o Options) {
	s := set(t, e, o)
	for i, code := range []int{0, 3, 137} {
		id := s.create("exit", uint32(i), o.Exit(code)...)
		s.must(e.StartContainer(s.ctx, id), "start")
		if st := s.state(id, cri.ContainerState_CONTAINER_EXITED); int(st.ExitCode) != code || st.FinishedAt == 0 {
			t.Errorf("exit code %d, want %d", st.ExitCode, code)
		}
	}
}

func exec(t *testing.T, e engine.Engine, o Options) {
	s := set(t, e, o)
	id := s.create("main", 0)
	s.must(e.StartContainer(s.ctx, id), "start")
	out, errs, code, err := e.ExecSync(s.ctx, id, o.Shell("echo out; echo err >&2; exit 7"), 10)
	s.must(err, "exec")
	if string(out) != "out\n" || string(errs) != "err\n" || code != 7 {
		t.Errorf("exec answered %q, %q, %d", out, errs, code)
	}
	began := time.Now()
	if _, _, _, err := e.ExecSync(s.ctx, id, o.Shell("sleep 60"), 1); err == nil {
		t.Error("a command outlived its timeout")
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("a timeout of 1 s took %v", took)
	}
	url, err := e.Exec(s.ctx, &cri.ExecRequest{ContainerId: id, Cmd: o.Shell("true"), Stdout: true, Stderr: true})
	if err != nil || !strings.HasPrefix(url, "http") {
		t.Errorf("exec URL %q, %v", url, err)
	}
}

func stubborn(t *testing.T, e engine.Engine, o Options) {
	s := set(t, e, o)
	id := s.create("main", 0, o.Shell("trap '' TERM; echo ready; while :; do sleep 1; done")...)
	s.must(e.StartContainer(s.ctx, id), "start")
	// Until the trap is set, TERM ends the process like any other.
	s.says(s.state(id, cri.ContainerState_CONTAINER_RUNNING).LogPath, "ready")
	began := time.Now()
	s.must(e.StopContainer(s.ctx, id, 1), "stop")
	if st := s.state(id, cri.ContainerState_CONTAINER_EXITED); st.ExitCode != 137 {
		t.Errorf("exit code %d, want 137", st.ExitCode)
	}
	if took := time.Since(began); took < time.Second || took > 20*time.Second {
		t.Errorf("a grace period of 1 s took %v", took)
	}
}

func logs(t *testing.T, e engine.Engine, o Options) {
	s := set(t, e, o)
	id := s.create("main", 0, o.Shell("echo one; echo two >&2")...)
	s.must(e.StartContainer(s.ctx, id), "start")
	st := s.state(id, cri.ContainerState_CONTAINER_EXITED)
	text := s.says(st.LogPath, "two")
	if !strings.Contains(text, " stdout F one\n") || !strings.Contains(text, " stderr F two\n") {
		t.Errorf("log %q", text)
	}
}
