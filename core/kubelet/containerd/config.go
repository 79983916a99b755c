// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"time"

	"github.com/containerd/containerd/v2/version"
	"github.com/opencontainers/runtime-spec/specs-go/features"

	"github.com/wasmplane/wasmplane/core/kubelet/containerd/bounds"
	"github.com/wasmplane/wasmplane/core/kubelet/containerd/wasmpods"
	"github.com/wasmplane/wasmplane/core/kubelet/hostcheck"
	"github.com/wasmplane/wasmplane/core/kubelet/linuxhost"
	"github.com/wasmplane/wasmplane/core/kubelet/pod"
	"github.com/wasmplane/wasmplane/core/kubelet/runtimehandler"
	"github.com/wasmplane/wasmplane/core/kubelet/spec"
)

const (
	// maxSocketDir is containerd's own limit for shim.socket_dir: a shim's socket is
	// named by 64 hexadecimal digits, and a unix socket's path has at most 107 bytes.
	maxSocketDir = 42
	// DefaultSandboxImage is the pause image that the node builds itself.
	DefaultSandboxImage = "wasmplane.local/pause:1"
	defaultLogLimit     = 16 << 20
	configVersion       = "1" // raised when an older child must not be adopted
)

// Config says what the containerd of one cluster on one machine looks like.
type Config struct {
	// Dir is the private directory: images, state, sockets, logs, helpers. Absolute.
	Dir string
	// Names are the host-wide names of the cluster.
	Names linuxhost.Names
	// Runc is the path of runc; the one on PATH when empty.
	Runc string
	// SandboxImage is the pause image, DefaultSandboxImage when empty.
	SandboxImage string
	// Snapshotter is "overlayfs" when empty; "native" works where overlayfs does not.
	Snapshotter string
	// CNIConfDir is where the CNI configuration lies: Dir/etc/cni when empty.
	CNIConfDir string
	// CNIBinDirs are searched for CNI plugins after our own.
	CNIBinDirs []string
	// Limits of images; zero = none.
	Limits bounds.Limits
	// Handlers that a RuntimeClass may name, beside those that every node has.
	Handlers []runtimehandler.Handler
	// Checkpoints: containers may be written to files by criu.
	Checkpoints bool
	// Facts about the machine; found out when nil.
	Facts *hostcheck.Facts
	// Helpers holds the small binaries; those embedded in this one when nil.
	Helpers fs.FS
	// Launching is called when no containerd runs, before one is launched, and what it
	// answers when that one does, before anybody else can use it: to remove records of
	// sandboxes that it does not know. Nil for none; errors are logged.
	Launching func() func(ctx context.Context, known func(id string) bool) error
	// LogLevel of containerd, "info" when empty, and LogLimit the size in bytes at
	// which its log is turned over (16 MiB when zero; one older log is kept).
	LogLevel string
	LogLimit int64
	// Log receives what happens to the child, not what it says: that is in LogFile.
	Log *slog.Logger

	volatile string // "/run" when empty
}

// complete checks the configuration and fills in the defaults.
func (c Config) complete() (Config, error) {
	if !filepath.IsAbs(c.Dir) {
		return c, fmt.Errorf("containerd's directory %q is not an absolute path", c.Dir)
	}
	if c.Names.ID == "" {
		return c, errors.New("containerd needs the host-wide names of its cluster (linuxhost.NamesOf)")
	}
	c.Dir = filepath.Clean(c.Dir)
	if c.Facts == nil {
		c.Facts = hostcheck.Discover()
	}
	if c.Runc == "" {
		c.Runc = c.Facts.Runc
	}
	if c.Runc == "" {
		return c, errors.New("runc is not installed; install it: apt-get install runc")
	}
	if err := runtimehandler.Check(c.Handlers); err != nil {
		return c, err
	}
	setDefault(&c.SandboxImage, DefaultSandboxImage)
	setDefault(&c.Snapshotter, "overlayfs")
	setDefault(&c.CNIConfDir, filepath.Join(c.Dir, "etc/cni"))
	setDefault(&c.LogLevel, "info")
	if c.LogLimit == 0 {
		c.LogLimit = defaultLogLimit
	}
	if c.Helpers == nil {
		c.Helpers = embeddedHelpers()
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

func setDefault(s *string, v string) {
	if *s == "" {
		*s = v
	}
}

// Socket is the path of the gRPC socket for CRI and for containerd's own API.
func (c Config) Socket() string { return filepath.Join(c.stateDir(), "containerd.sock") }

// LogFile is containerd's log.
func (c Config) LogFile() string { return filepath.Join(c.Dir, "log/containerd.log") }

// RegistryDir is where hosts.toml files of registries lie (certs.d).
func (c Config) RegistryDir() string { return filepath.Join(c.Dir, "etc/certs.d") }

// Paths of what lies in the private directory.
func (c Config) root() string { return filepath.Join(c.Dir, "root") }

func (c Config) pidFile() string    { return filepath.Join(c.Dir, "containerd.pid") }
func (c Config) lockFile() string   { return filepath.Join(c.Dir, "containerd.lock") }
func (c Config) configFile() string { return filepath.Join(c.Dir, "etc/containerd.toml") }
func (c Config) crashFile() string  { return filepath.Join(c.Dir, "log/containerd.stderr") }

// stateDir holds what is void after a reboot: sockets, mounts, shims' state. It is
// in the private directory unless that path is too long for unix sockets, or
// chooseStateDir has chosen the other.
func (c Config) stateDir() string {
	dir, short := c.privateStateDir(), c.shortStateDir()
	if len(dir)+len("/s") > maxSocketDir || (!exists(dir) && exists(short)) {
		return short
	}
	return dir
}

func (c Config) privateStateDir() string { return filepath.Join(c.Dir, "run") }

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// chooseStateDir makes the directory of containerd's state where there is none yet: the one in /run where
// runc can give a pod a user namespace. Such a pod's users are nobody on this machine, and have
// to pass on the way to its root file system; nobody passes the private directory. What
// a former boot has left there is no state.
func (c Config) chooseStateDir(ctx context.Context) error {
	dir, short := c.privateStateDir(), c.shortStateDir()
	if exists(short) {
		return nil
	}
	if was, err := os.ReadFile(filepath.Join(dir, bootFile)); err == nil && string(was) == bootID() {
		return nil
	}
	if mounts, err := linuxhost.MountsBelow(dir); err != nil || len(mounts) > 0 {
		return err
	}
	if !mapsUsers(ctx, c.Runc) {
		return nil
	}
	if err := errors.Join(os.RemoveAll(dir), os.Mkdir(short, 0o711)); err != nil {
		return fmt.Errorf("make the directory of containerd's state: %w", err)
	}
	return nil
}

// mapsUsers asks runc whether it can mount files for users of a user namespace. One
// that does not know the question cannot.
func mapsUsers(ctx context.Context, runc string) bool {
	ctx, cancel := context.WithTimeout(ctx, featuresTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, runc, "features").Output()
	var says features.Features
	if err != nil || json.Unmarshal(out, &says) != nil || says.Linux == nil {
		return false
	}
	mounts := says.Linux.MountExtensions
	return mounts != nil && mounts.IDMap != nil && mounts.IDMap.Enabled != nil && *mounts.IDMap.Enabled
}

const featuresTimeout = 10 * time.Second

// shortStateDir stands in for a directory whose path is too long, or through which nobody may pass.
func (c Config) shortStateDir() string {
	sum := sha256.Sum256([]byte(c.Dir))
	return filepath.Join(cmp.Or(c.volatile, "/run"), c.Names.ID+"-"+hex.EncodeToString(sum[:4]))
}

// hash tells two containerds apart that must not be taken for one another.
func hash(config []byte) string {
	h := sha256.New()
	fmt.Fprintln(h, configVersion, version.Version)
	h.Write(config)
	return hex.EncodeToString(h.Sum(nil))[:16]
}

// render writes the configuration file. bin is the directory of the helpers.
func (c Config) render(bin string) ([]byte, error) {
	funcs := template.FuncMap{"q": strconv.Quote, "value": runtimehandler.Literal, "list": tomlList}
	t, err := template.New("config.toml").Funcs(funcs).Parse(configTemplate)
	if err != nil {
		return nil, fmt.Errorf("read containerd's configuration template: %w", err)
	}
	var b bytes.Buffer
	err = t.Execute(&b, map[string]any{
		"Root": c.root(), "State": c.stateDir(), "Temp": filepath.Join(c.Dir, "tmp"),
		"Socket": c.Socket(), "LogLevel": c.LogLevel,
		"Snapshotter": c.Snapshotter, "SandboxImage": c.SandboxImage, "RegistryDir": c.RegistryDir(),
		"DisableAppArmor": !c.Facts.AppArmor, "RestrictOOMScore": !c.Facts.SysResource, "Checkpoints": c.Checkpoints,
		"CNIBinDirs": append([]string{bin}, c.CNIBinDirs...), "CNIConfDir": c.CNIConfDir,
		"Shim": filepath.Join(bin, shimName), "Runc": c.Runc,
		"RuncRoot": c.runcRoot(), "Limits": c.Limits,
		"Handlers": runtimehandler.Builtin(), "More": c.Handlers,
		"Options":  c.options,
		"WasmOnly": spec.WasmOnlyHandler, "WasmPods": wasmpods.Name,
		"BaseSpec":    c.baseSpecFile(),
		"Annotations": []string{spec.WasmAnnotation, pod.PortsAnnotation},
	})
	if err != nil {
		return nil, fmt.Errorf("write containerd's configuration: %w", err)
	}
	return b.Bytes(), nil
}

// options of a handler's shim. What runs as runc does has its state with that of runc,
// where Remove finds the processes of containers.
func (c Config) options(h runtimehandler.Handler) map[string]any {
	all := map[string]any{}
	if h.Type == runtimehandler.Runc {
		all["BinaryName"], all["Root"], all["SystemdCgroup"] = c.Runc, c.runcRoot(), false
	}
	for name, value := range h.Options {
		if value != "" {
			all[name] = value
		}
	}
	return all
}

func (c Config) runcRoot() string { return filepath.Join(c.stateDir(), "runc") }

// tomlList is a list of text in TOML's notation.
func tomlList(lists ...[]string) string {
	var quoted []string
	for _, s := range slices.Concat(lists...) {
		quoted = append(quoted, strconv.Quote(s))
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

// configTemplate is in version 4 of containerd's format. The ttrpc address is not
// derived from the gRPC one in that version. The image pull goes through the
// transfer service, which reads registry hosts from its own section's twin.
const configTemplate = `version = 4
root = {{q .Root}}
state = {{q .State}}
temp = {{q .Temp}}

[debug]
  level = {{q .LogLevel}}

[plugins.'io.containerd.server.v1.grpc']
  address = {{q .Socket}}
[plugins.'io.containerd.server.v1.ttrpc']
  address = {{q (printf "%s.ttrpc" .Socket)}}
[plugins.'io.containerd.shim.v1.manager']
  socket_dir = {{q (printf "%s/s" .State)}}
[plugins.'io.containerd.nri.v1.nri']
  disable = true

[plugins.'io.containerd.content.v1.content']
  layer_bytes = {{.Limits.LayerBytes}}
  layer_files = {{.Limits.LayerFiles}}
  image_bytes = {{.Limits.ImageBytes}}
  image_files = {{.Limits.ImageFiles}}

[plugins.'io.containerd.cri.v1.images']
  snapshotter = {{q .Snapshotter}}
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = {{q .SandboxImage}}
  [plugins.'io.containerd.cri.v1.images'.registry]
    config_path = {{q .RegistryDir}}

[plugins.'io.containerd.cri.v1.runtime']
  disable_apparmor = {{.DisableAppArmor}}
  # Without CAP_SYS_RESOURCE runc dies on a lower score ("can't get final child's PID").
  restrict_oom_score_adj = {{.RestrictOOMScore}}
  netns_mounts_under_state_dir = true
  # Where drivers of devices say what a device is; nothing of ours is in there.
  cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
  enable_criu = {{.Checkpoints}}
  # As often as a kubelet looks at its containers elsewhere. Each second, as is the default, the cgroups of 120 pods were a fifth of
  # containerd's work, for the one figure of their present use of processors.
  stats_collect_period = "10s"
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = {{list .CNIBinDirs}}
    conf_dir = {{q .CNIConfDir}}
    use_internal_loopback = true
  [plugins.'io.containerd.cri.v1.runtime'.containerd]
    default_runtime_name = "runc"
    {{- range .Handlers}}
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.{{.}}]
      runtime_type = "io.containerd.runc.v2"
      runtime_path = {{q $.Shim}}
      {{- if eq . $.WasmOnly}}
      sandboxer = {{q $.WasmPods}}
      disable_pause_image_pull = true
      base_runtime_spec = {{q $.BaseSpec}}
      {{- end}}
      # What the shim is told of a container whose image is a WebAssembly module; pods have no say in these.
      container_annotations = {{list $.Annotations}}
      [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.{{.}}.options]
        BinaryName = {{q $.Runc}}
        Root = {{q $.RuncRoot}}
        SystemdCgroup = false
    {{- end}}
    {{- range .More}}
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.{{q .Name}}]
      runtime_type = {{q .Type}}
      {{- if .OwnShim}}
      runtime_path = {{q $.Shim}}
      {{- else if .Path}}
      runtime_path = {{q .Path}}
      {{- end}}
      {{- if .PodAnnotations}}
      pod_annotations = {{list .PodAnnotations}}
      {{- end}}
      container_annotations = {{if .OwnShim}}{{list $.Annotations .ContainerAnnotations}}{{else}}{{list .ContainerAnnotations}}{{end}}
      privileged_without_host_devices = {{.PrivilegedWithoutHostDevices}}
      base_runtime_spec = {{q .BaseRuntimeSpec}}
      [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.{{q .Name}}.options]
        {{- range $name, $value := call $.Options .}}
        {{q $name}} = {{value $value}}
        {{- end}}
    {{- end}}

[plugins.'io.containerd.grpc.v1.cri']
  disable_tcp_service = true
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
`
