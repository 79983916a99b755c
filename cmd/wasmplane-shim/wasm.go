// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"
	"github.com/opencontainers/go-digest"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/types/known/emptypb"
)

// What the kubelet says of a container whose image is a WebAssembly module: the image's ID, and the
// container's ports.
const (
	wasmAnnotation  = "kubelet.wasmplane.dev/wasm"
	portsAnnotation = "io.kubernetes.container.ports"
)

// Where containerd keeps its blobs, and shims the native code of modules; containerd's environment
// is the shim's.
const (
	contentVariable = "WASMPLANE_CONTENT"
	cacheVariable   = "WASMPLANE_WASM_CACHE"
)

// engineName is the program that runs a module; it lies beside the shim.
const engineName = "wasm"

// Where the engine, and the module of an image without files, are in the container.
const (
	engineDirectory = "/.wasmplane"
	engineFile      = engineDirectory + "/engine"
	moduleFile      = engineDirectory + "/module.wasm"
	codeDirectory   = engineDirectory + "/code"
)

// mostConfig bounds the files that are read here.
const mostConfig = 8 << 20

var errNoExec = fmt.Errorf("the container runs a WebAssembly module: there is no other program in it to execute (use probes over HTTP, gRPC or TCP): %w", errdefs.ErrNotImplemented)

// wasmTasks are runc's tasks, of which those with WebAssembly modules are given the engine
// as their process. runc isolates it as it does any other process.
type wasmTasks struct {
	taskapi.TTRPCTaskService

	mu      sync.Mutex
	modules map[string]bool // containers by ID
}

// RegisterTTRPC is what the shim library looks for.
func (s *wasmTasks) RegisterTTRPC(server *ttrpc.Server) error {
	taskapi.RegisterTTRPCTaskService(server, s)
	return nil
}

// Create implements the task service.
func (s *wasmTasks) Create(ctx context.Context, r *taskapi.CreateTaskRequest) (*taskapi.CreateTaskResponse, error) {
	wasm, err := prepare(ctx, r)
	if err != nil {
		return nil, errgrpc.ToGRPC(fmt.Errorf("prepare the WebAssembly module: %w", err))
	}
	created, err := s.TTRPCTaskService.Create(ctx, r)
	if err == nil && wasm {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.modules[r.ID] = true
	}
	return created, err
}

// Exec implements the task service.
func (s *wasmTasks) Exec(ctx context.Context, r *taskapi.ExecProcessRequest) (*emptypb.Empty, error) {
	s.mu.Lock()
	wasm := s.modules[r.ID]
	s.mu.Unlock()
	if wasm {
		return nil, errgrpc.ToGRPC(errNoExec)
	}
	return s.TTRPCTaskService.Exec(ctx, r)
}

// Delete implements the task service.
func (s *wasmTasks) Delete(ctx context.Context, r *taskapi.DeleteRequest) (*taskapi.DeleteResponse, error) {
	deleted, err := s.TTRPCTaskService.Delete(ctx, r)
	if err == nil && r.ExecID == "" {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.modules, r.ID)
	}
	return deleted, err
}

// prepare rewrites the bundle of a container with a WebAssembly module, and says whether it is one.
func prepare(ctx context.Context, r *taskapi.CreateTaskRequest) (bool, error) {
	file := filepath.Join(r.Bundle, "config.json")
	text, err := bounded(file)
	if err != nil {
		return false, err
	}
	if !strings.Contains(string(text), wasmAnnotation) {
		return false, nil // nearly all
	}
	var spec specs.Spec
	if err := json.Unmarshal(text, &spec); err != nil {
		return false, fmt.Errorf("read the container's configuration: %w", err)
	}
	image := spec.Annotations[wasmAnnotation]
	if image == "" || spec.Process == nil {
		return false, nil
	}
	self, err := os.Executable()
	if err != nil {
		return false, fmt.Errorf("find the engine: %w", err)
	}
	engine := filepath.Join(filepath.Dir(self), engineName)
	module, err := blob(os.Getenv(contentVariable), image)
	if err != nil {
		return false, err
	}
	code := compiled(ctx, engine, func(read func(*os.File) error) error {
		return withModule(ctx, r, module, spec.Process.Args, read)
	})
	if err := rewrite(&spec, engine, module, code); err != nil {
		return false, err
	}
	if text, err = json.Marshal(&spec); err != nil {
		return false, fmt.Errorf("write the container's configuration: %w", err)
	}
	return true, os.WriteFile(file, text, 0o600)
}

// bounded reads a small file.
func bounded(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, mostConfig+1))
	if err == nil && len(text) > mostConfig {
		err = fmt.Errorf("%s has more than %d bytes", file, mostConfig)
	}
	return text, err
}

// blob is the file of the module of an image that is an artifact: a configuration that lists its only layer's digest
// and has no root file system. Empty for an image whose entry point is a file in it.
func blob(content, image string) (string, error) {
	file, err := blobFile(content, image)
	if err != nil {
		return "", fmt.Errorf("find the image's configuration: %w", err)
	}
	text, err := bounded(file)
	if err != nil {
		return "", fmt.Errorf("read the image's configuration: %w", err)
	}
	var config struct {
		LayerDigests []string `json:"layerDigests"`
		RootFS       struct {
			DiffIDs []string `json:"diff_ids"`
		} `json:"rootfs"`
	}
	if err := json.Unmarshal(text, &config); err != nil {
		return "", fmt.Errorf("read the image's configuration: %w", err)
	}
	if len(config.LayerDigests) == 0 {
		if len(config.RootFS.DiffIDs) == 0 {
			return "", errors.New("the image has neither files nor layerDigests in its configuration: build it with a tool for the Wasm OCI artifact (config application/vnd.wasm.config.v0+json)")
		}
		return "", nil
	}
	if len(config.LayerDigests) > 1 {
		return "", fmt.Errorf("the image's configuration lists %d layers: an artifact with one module is run", len(config.LayerDigests))
	}
	if file, err = blobFile(content, config.LayerDigests[0]); err != nil {
		return "", fmt.Errorf("find the image's module: %w", err)
	}
	if _, err := os.Stat(file); err != nil {
		return "", fmt.Errorf("find the image's module: %w", err)
	}
	return file, nil
}

func blobFile(content, name string) (string, error) {
	d, err := digest.Parse(name)
	if err != nil {
		return "", fmt.Errorf("%q: %w", name, err)
	}
	if content == "" {
		return "", fmt.Errorf("%s is not set: this shim is started by wasmplane's containerd", contentVariable)
	}
	return filepath.Join(content, "blobs", d.Algorithm().String(), d.Encoded()), nil
}

// workload is what the engine is told (plugins/workload, Config).
type workload struct {
	Module string   `json:"module,omitempty"`
	Mounts []string `json:"mounts,omitempty"`
	Listen []port   `json:"listen,omitempty"`
	Memory int64    `json:"memory,omitempty"`
	Cache  string   `json:"cache,omitempty"`
}

type port struct {
	Name string `json:"name,omitempty"`
	Port int    `json:"port"`
}

// rewrite makes the engine the container's process. module and code may be empty.
func rewrite(spec *specs.Spec, engine, module, code string) error {
	w := workload{Mounts: volumes(spec.Mounts), Listen: ports(spec.Annotations[portsAnnotation])}
	if r := spec.Linux; r != nil && r.Resources != nil && r.Resources.Memory != nil && r.Resources.Memory.Limit != nil {
		w.Memory = max(*r.Resources.Memory.Limit, 0)
	}
	bind := func(source, destination string) {
		spec.Mounts = append(spec.Mounts, specs.Mount{
			Source: source, Destination: destination, Type: "bind", Options: []string{"bind", "ro", "nosuid", "nodev"},
		})
	}
	bind(engine, engineFile)
	if module != "" {
		w.Module = moduleFile
		bind(module, moduleFile)
	}
	if code != "" {
		w.Cache = codeDirectory
		bind(code, codeDirectory)
	}
	config, err := json.Marshal(w)
	if err != nil {
		return fmt.Errorf("write the engine's configuration: %w", err)
	}
	spec.Process.Args = append([]string{engineFile, "run", string(config), "--"}, spec.Process.Args...)
	restrict(spec)
	return nil
}

// volumes are the mounts that the kubelet asked for: no file systems of the kernel, and not those that containerd adds.
func volumes(mounts []specs.Mount) []string {
	var out []string
	for _, m := range mounts {
		at := path.Clean(m.Destination)
		kernel := slices.ContainsFunc([]string{"/proc", "/sys", "/dev"}, func(dir string) bool {
			return at == dir || strings.HasPrefix(at, dir+"/")
		})
		switch {
		case at == "/dev/termination-log":
		case m.Type != "bind" || kernel:
			continue
		}
		out = append(out, at)
	}
	return out
}

// ports are those for TCP of what the kubelet says that the container declares.
func ports(text string) []port {
	var declared []struct {
		Name          string `json:"name"`
		ContainerPort int    `json:"containerPort"`
		Protocol      string `json:"protocol"`
	}
	if text == "" || json.Unmarshal([]byte(text), &declared) != nil {
		return nil
	}
	var out []port
	for _, p := range declared {
		if p.Protocol == "" || p.Protocol == "TCP" {
			out = append(out, port{p.Name, p.ContainerPort})
		}
	}
	return out
}

// kept are the capabilities that make a difference to what a module can ask for: files of others in its volumes, and
// low ports. It gets them where the container would.
var kept = []string{"CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_NET_BIND_SERVICE"}

// restrict takes away what a module has no use for, also from a privileged container.
func restrict(spec *specs.Spec) {
	spec.Process.NoNewPrivileges = true
	if c := spec.Process.Capabilities; c != nil {
		for _, set := range []*[]string{&c.Bounding, &c.Effective, &c.Inheritable, &c.Permitted, &c.Ambient} {
			*set = slices.DeleteFunc(slices.Clone(*set), func(name string) bool { return !slices.Contains(kept, name) })
		}
	}
	if spec.Linux != nil {
		spec.Linux.Devices = nil
		if spec.Linux.Resources != nil {
			spec.Linux.Resources.Devices = []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}
		}
	}
}
