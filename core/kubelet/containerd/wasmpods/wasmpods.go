// SPDX-License-Identifier: Apache-2.0

// Package wasmpods keeps the sandboxes of pods whose containers are all WebAssembly modules (the handler
// "wasm-only"). Such a pod has no pause process and no shim of its own: its sandbox is a network namespace, which CRI
// makes and removes, and a file; one shim serves all these pods of a node (cmd/wasmplane-shim). A sandbox lives as long as
// that shim does, and is known again after containerd was started anew.
package wasmpods

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/v2/core/runtime"
	"github.com/containerd/containerd/v2/core/runtime/v2"
	"github.com/containerd/containerd/v2/core/sandbox"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/containerd/platforms"
	"github.com/containerd/ttrpc"
	"github.com/containerd/typeurl/v2"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/protobuf/types/known/anypb"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/run"
)

const (
	// Name of the controller, in the configuration of the handler and of containerd's directories.
	Name = "wasm-pods"
	// ShimID is what the node's shim of these pods is called; a sandbox is called by 64 digits.
	ShimID = Name
	// folder is below the shim's bundle, and has a file for each sandbox.
	folder = "sandboxes"
	// namespace is where CRI's containers are.
	namespace = "k8s.io"
	// groupLabel makes the shim's socket known by ShimID.
	groupLabel = "io.containerd.runc.v2.group"
)

// controller implements sandbox.Controller.
type controller struct {
	root, state string
	shims       *v2.ShimManager

	mu    sync.Mutex
	boxes map[string]*box
}

// box is a sandbox. The shim reads what is exported from its file.
type box struct {
	Netns     string            `json:"netns,omitempty"` // empty in the node's network
	Sysctls   map[string]string `json:"sysctls,omitempty"`
	Resolv    string            `json:"resolv,omitempty"` // what /etc/resolv.conf says
	Cgroup    string            `json:"cgroup,omitempty"` // of the pod
	CreatedAt time.Time         `json:"createdAt"`

	ended    chan struct{}
	exitedAt time.Time
}

func newController(root, state string, shims *v2.ShimManager) *controller {
	return &controller{root: root, state: state, shims: shims, boxes: map[string]*box{}}
}

// load finds the shim and the sandboxes of a containerd before this one. What cannot be read is lost and said: an error would leave the
// node without containers of any kind.
func (c *controller) load(ctx context.Context) error {
	for _, dir := range []string{c.root, c.state} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	if err := c.shims.LoadExistingShims(ctx, c.state, c.root); err != nil {
		log.G(ctx).WithError(err).Error("find the shim of WebAssembly pods")
		return nil
	}
	shim, err := c.shims.Get(namespaces.WithNamespace(ctx, namespace), ShimID)
	if err != nil {
		return nil //nolint:nilerr // none: no such pod runs
	}
	if c.boxes, err = readBoxes(filepath.Join(shim.Bundle(), folder)); err != nil {
		log.G(ctx).WithError(err).Error("find the sandboxes of WebAssembly pods")
	}
	c.watch(shim) //nolint:contextcheck // it outlives the request
	return nil
}

// readBoxes answers the sandboxes that have a file, and what is wrong with the others.
func readBoxes(dir string) (map[string]*box, error) {
	boxes := map[string]*box{}
	files, err := os.ReadDir(dir)
	for _, f := range files {
		if strings.HasPrefix(f.Name(), ".") {
			continue
		}
		b := &box{ended: make(chan struct{})}
		text, bad := os.ReadFile(filepath.Join(dir, f.Name()))
		if bad == nil {
			bad = json.Unmarshal(text, b)
		}
		if bad != nil {
			err = errors.Join(err, fmt.Errorf("read the sandbox %s: %w", f.Name(), bad))
			continue
		}
		boxes[f.Name()] = b
	}
	return boxes, err
}

// watch ends all sandboxes when the shim ends.
func (c *controller) watch(shim v2.ShimInstance) {
	client, ok := shim.Client().(*ttrpc.Client)
	if !ok {
		return
	}
	run.Go("shim of WebAssembly pods", func() error { // ends with the connection, and so at the latest with the process
		_ = client.UserOnCloseWait(context.Background()) //nolint:forbidigo // see above
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, b := range c.boxes {
			b.end()
		}
		return nil
	})
}

// end is called with the controller's lock.
func (b *box) end() {
	select {
	case <-b.ended:
	default:
		b.exitedAt = time.Now()
		close(b.ended)
	}
}

// shim answers the node's shim, and starts it for the first pod. The caller has the lock.
func (c *controller) shim(ctx context.Context, info sandbox.Sandbox) (v2.ShimInstance, error) {
	if shim, err := c.shims.Get(ctx, ShimID); err == nil {
		return shim, nil
	}
	for _, b := range c.boxes { // of a shim that died a moment ago
		b.end()
	}
	if old, err := v2.LoadBundle(ctx, c.state, ShimID); err == nil {
		if err := old.Delete(); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("remove what the last shim left: %w", err)
		}
	}
	spec, err := json.Marshal(map[string]any{"annotations": map[string]string{groupLabel: ShimID}})
	if err != nil {
		return nil, err
	}
	bundle, err := v2.NewBundle(ctx, c.root, c.state, ShimID, &anypb.Any{Value: spec})
	if err != nil {
		return nil, err
	}
	if err := os.Mkdir(filepath.Join(bundle.Path, folder), 0o700); err != nil {
		return nil, errors.Join(err, bundle.Delete())
	}
	shim, err := c.shims.Start(ctx, ShimID, bundle, runtime.CreateOpts{Runtime: info.Runtime.Name, RuntimeOptions: info.Runtime.Options})
	if err != nil {
		return nil, errors.Join(err, bundle.Delete())
	}
	c.watch(shim) //nolint:contextcheck // it outlives the request
	return shim, nil
}

// Create implements sandbox.Controller.
func (c *controller) Create(ctx context.Context, info sandbox.Sandbox, opts ...sandbox.CreateOpt) error {
	var o sandbox.CreateOptions
	for _, opt := range opts {
		if err := opt(&o); err != nil {
			return err
		}
	}
	var config cri.PodSandboxConfig
	if o.Options != nil {
		if err := typeurl.UnmarshalTo(o.Options, &config); err != nil {
			return fmt.Errorf("read the sandbox's configuration: %w", err)
		}
	}
	// The mode of none is POD, by its number.
	if users := config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetUsernsOptions(); users != nil &&
		users.GetMode() == cri.NamespaceMode_POD {
		return fmt.Errorf(
			"pods with hostUsers: false cannot have the runtime handler wasm-only; give them runtimeClassName: wasm: %w",
			errdefs.ErrInvalidArgument,
		)
	}
	b := &box{
		Netns: o.NetNSPath, Sysctls: config.GetLinux().GetSysctls(), Resolv: resolv(config.GetDnsConfig()),
		Cgroup:    config.GetLinux().GetCgroupParent(),
		CreatedAt: time.Now(), ended: make(chan struct{}),
	}
	text, err := json.Marshal(b)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	shim, err := c.shim(ctx, info)
	if err != nil {
		return fmt.Errorf("start the shim of WebAssembly pods: %w", err)
	}
	dir := filepath.Join(shim.Bundle(), folder)
	// Whole or not at all: the next containerd reads it.
	next := filepath.Join(dir, "."+info.ID)
	if err := os.WriteFile(next, text, 0o600); err != nil {
		return err
	}
	if err := os.Rename(next, filepath.Join(dir, info.ID)); err != nil {
		return err
	}
	c.boxes[info.ID] = b
	return nil
}

// resolv is the text of a pod's /etc/resolv.conf.
func resolv(dns *cri.DNSConfig) string {
	var b strings.Builder
	if len(dns.GetSearches()) > 0 {
		fmt.Fprintln(&b, "search", strings.Join(dns.GetSearches(), " "))
	}
	for _, s := range dns.GetServers() {
		fmt.Fprintln(&b, "nameserver", s)
	}
	if len(dns.GetOptions()) > 0 {
		fmt.Fprintln(&b, "options", strings.Join(dns.GetOptions(), " "))
	}
	return b.String()
}

func (c *controller) box(id string) (*box, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b, ok := c.boxes[id]
	if !ok {
		return nil, fmt.Errorf("sandbox %s: %w", id, errdefs.ErrNotFound)
	}
	return b, nil
}

// Start implements sandbox.Controller. The process that it answers is containerd itself: no process of the pod is a sandbox's,
// and the shim joins the network namespace by its path.
func (c *controller) Start(ctx context.Context, id string) (sandbox.ControllerInstance, error) {
	b, err := c.box(id)
	if err != nil {
		return sandbox.ControllerInstance{}, err
	}
	shim, err := c.shims.Get(ctx, ShimID)
	if err != nil {
		return sandbox.ControllerInstance{}, fmt.Errorf("find the shim of WebAssembly pods: %w", err)
	}
	address, version := shim.Endpoint()
	return sandbox.ControllerInstance{
		SandboxID: id, Pid: uint32(os.Getpid()), CreatedAt: b.CreatedAt, Address: address, Version: uint32(version),
	}, nil
}

// Platform implements sandbox.Controller.
func (c *controller) Platform(context.Context, string) (imagespec.Platform, error) {
	return platforms.DefaultSpec(), nil
}

// Stop implements sandbox.Controller. CRI has ended the containers by then.
func (c *controller) Stop(_ context.Context, id string, _ ...sandbox.StopOpt) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if b, ok := c.boxes[id]; ok {
		b.end()
	}
	return nil
}

// Wait implements sandbox.Controller.
func (c *controller) Wait(ctx context.Context, id string) (sandbox.ExitStatus, error) {
	b, err := c.box(id)
	if err != nil {
		return sandbox.ExitStatus{}, err
	}
	select {
	case <-ctx.Done():
		return sandbox.ExitStatus{}, context.Cause(ctx)
	case <-b.ended:
		return sandbox.ExitStatus{ExitedAt: b.exitedAt}, nil
	}
}

// Status implements sandbox.Controller.
func (c *controller) Status(ctx context.Context, id string, verbose bool) (sandbox.ControllerStatus, error) {
	b, err := c.box(id)
	if err != nil {
		return sandbox.ControllerStatus{}, err
	}
	st := sandbox.ControllerStatus{
		SandboxID: id,
		CreatedAt: b.CreatedAt,
		State:     cri.PodSandboxState_SANDBOX_READY.String(),
		Pid:       uint32(os.Getpid()),
	}
	select {
	case <-b.ended:
		st.State, st.Pid, st.ExitedAt = cri.PodSandboxState_SANDBOX_NOTREADY.String(), 0, b.exitedAt
	default:
		if shim, err := c.shims.Get(ctx, ShimID); err == nil {
			address, version := shim.Endpoint()
			st.Address, st.Version = address, uint32(version)
		}
	}
	if verbose {
		// The namespace's path tells the node that it is in use.
		text, err := json.Marshal(map[string]any{"netNS": b.Netns, "sysctls": b.Sysctls})
		if err != nil {
			return st, err
		}
		st.Info = map[string]string{"info": string(text)}
	}
	return st, nil
}

// Shutdown implements sandbox.Controller. With its last pod the shim goes, so that another version's can come.
func (c *controller) Shutdown(ctx context.Context, id string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	b, ok := c.boxes[id]
	if !ok {
		return fmt.Errorf("sandbox %s: %w", id, errdefs.ErrNotFound)
	}
	b.end()
	shim, err := c.shims.Get(ctx, ShimID)
	if err == nil {
		if err := os.Remove(filepath.Join(shim.Bundle(), folder, id)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("forget the sandbox: %w", err)
		}
	}
	delete(c.boxes, id)
	if err != nil || len(c.boxes) > 0 {
		return nil // the shim died before
	}
	client, ok := shim.Client().(*ttrpc.Client)
	if !ok {
		return nil
	}
	_, err = taskapi.NewTTRPCTaskClient(client).Shutdown(ctx, &taskapi.ShutdownRequest{ID: ShimID})
	if err != nil && !errors.Is(err, ttrpc.ErrClosed) {
		return fmt.Errorf("end the shim of WebAssembly pods: %w", err)
	}
	if err := c.shims.Delete(ctx, ShimID); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("end the shim of WebAssembly pods: %w", err)
	}
	return nil
}

// Update implements sandbox.Controller: limits are those of the pod's cgroup, and of the containers.
func (c *controller) Update(context.Context, string, sandbox.Sandbox, ...string) error { return nil }
