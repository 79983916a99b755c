// SPDX-License-Identifier: Apache-2.0

package linuxhost

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/counters"
	"github.com/wasmplane/wasmplane/core/kubelet/evict"
	"github.com/wasmplane/wasmplane/core/kubelet/hostcheck"
	"github.com/wasmplane/wasmplane/core/kubelet/logs"
	"github.com/wasmplane/wasmplane/core/kubelet/pod"
	"github.com/wasmplane/wasmplane/core/kubelet/reservation"
	"github.com/wasmplane/wasmplane/core/kubelet/spec"
	"github.com/wasmplane/wasmplane/core/kubelet/status"
	"github.com/wasmplane/wasmplane/core/kubelet/swap"
	"github.com/wasmplane/wasmplane/core/kubelet/threshold"
)

// Config of a Ground.
type Config struct {
	// NodeName of the node. Required.
	NodeName string
	// RootDir holds the pods' directories. Required.
	RootDir string
	// LogRoot holds the pods' logs ("/var/log/pods" if empty).
	LogRoot string
	// LinkRoot holds links to the logs, by names that log collectors know
	// ("/var/log/containers"); empty: none.
	LinkRoot string
	// CgroupRoot is the parent of the pods' cgroups; empty: pods get no cgroup of their own.
	CgroupRoot string
	// NodeIPs of the node; empty: that of the interface with the default route.
	NodeIPs []string
	// Reserve says what pods do not get, beside what Evict keeps free. More than the machine has is refused.
	Reserve reservation.Settings
	// StateDir is where the runtime makes the pods' root file systems, past which their users must
	// get; empty: somewhere else.
	StateDir string
	// MaxPods on the node (110 if zero).
	MaxPods int64
	// PodPIDs bounds the processes and threads of a pod; no bound if zero or less.
	PodPIDs int64
	// Evict says below what the node is under pressure, and evicts pods.
	Evict threshold.Settings
	// Swap is what the node does with the machine's.
	Swap swap.Config
	// HideLogs keeps the machine's logs, in /var/log, from those who may ask the kubelet
	// for them. LogQueries lets them ask for services' logs too, those of the journal.
	HideLogs, LogQueries bool
	// Checkpoints lets who has the right write containers to files in RootDir.
	Checkpoints bool
	// Version of the kubelet to report ("v1.37.1" if empty).
	Version string
	Logger  *slog.Logger
}

// Host is the machine of one node. It is a kubelet.Host.
type Host struct {
	cfg      Config
	rules    threshold.Rules
	reserved reservation.Reserved
	v2       bool
	swap     swap.Host
	users    podUsers

	counters func() *counters.Reader

	mu      sync.Mutex
	state   evict.State
	bounded bool // the pods' parent cgroup has its limits
	unbound bool // that it has not was said
}

// New checks the configuration and makes the directories.
func New(cfg Config) (*Host, error) {
	if cfg.NodeName == "" || !filepath.IsAbs(cfg.RootDir) {
		return nil, fmt.Errorf("a node needs its name and an absolute root directory, not %q and %q", cfg.NodeName, cfg.RootDir)
	}
	if cfg.LogRoot == "" {
		cfg.LogRoot = "/var/log/pods"
	}
	if cfg.MaxPods == 0 {
		cfg.MaxPods = 110
	}
	if cfg.Version == "" {
		cfg.Version = "v1.37.1"
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	rules, err := cfg.Evict.Read()
	if err != nil {
		return nil, fmt.Errorf("when the node is under pressure: %w", err)
	}
	reserved, err := cfg.Reserve.Read()
	if err != nil {
		return nil, fmt.Errorf("what the node keeps: %w", err)
	}
	h := &Host{cfg: cfg, rules: rules, reserved: reserved, v2: hostcheck.CgroupV2()}
	if h.swap, err = swap.Look(cfg.Swap, h.v2); err != nil {
		return nil, err
	}
	h.counters = sync.OnceValue(h.reader)
	for _, dir := range []string{cfg.RootDir, h.podsDir()} {
		if err := closed(dir); err != nil {
			return nil, fmt.Errorf("make the directory of pods: %w", err)
		}
	}
	for _, dir := range []string{cfg.LogRoot, cfg.LinkRoot} {
		if dir == "" {
			continue
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fmt.Errorf("make the directory of pods' logs: %w", err)
		}
	}
	if err := h.checkReserved(); err != nil {
		return nil, err
	}
	return h, h.loadUsers()
}

// Configuration is what the kubelet shows of it at /configz.
func (h *Host) Configuration() map[string]any {
	hard := threshold.Defaults()
	maps.Copy(hard, h.cfg.Evict.Hard)
	grace := map[string]string{}
	for signal, d := range h.cfg.Evict.SoftGracePeriod {
		grace[signal] = d.String()
	}
	return map[string]any{
		"evictionHard": hard, "evictionSoft": h.cfg.Evict.Soft, "evictionSoftGracePeriod": grace,
		"evictionMinimumReclaim":           h.cfg.Evict.MinimumReclaim,
		"evictionPressureTransitionPeriod": h.cfg.Evict.PressureTransitionPeriod.String(),
		"evictionMaxPodGracePeriod":        int64(h.cfg.Evict.MaxPodGracePeriod / time.Second),
		"podLogsDir":                       h.cfg.LogRoot, "cgroupRoot": h.cfg.CgroupRoot, "maxPods": h.cfg.MaxPods,
		"podPidsLimit": cmp.Or(max(h.cfg.PodPIDs, 0), -1),
		"kubeReserved": h.cfg.Reserve.Kube, "systemReserved": h.cfg.Reserve.System, "enforceNodeAllocatable": h.cfg.Reserve.Enforce,
		"enableSystemLogHandler": !h.cfg.HideLogs, "enableSystemLogQuery": h.cfg.LogQueries,
		"failSwapOn": h.cfg.Swap.Fail, "memorySwap": map[string]string{"swapBehavior": h.cfg.Swap.Behavior},
	}
}

// closed makes a directory that other users of the machine do not enter, as upstream's
// kubelet has it, or closes one that was open: what pods mount is below, Secrets
// among it, with the modes that containers need. They get it by bind mounts, which
// lead past the directories above.
func closed(dir string) error {
	const mode = 0o750
	if err := os.MkdirAll(dir, mode); err != nil {
		return err
	}
	info, err := os.Stat(dir)
	if err != nil || info.Mode().Perm()&^mode == 0 {
		return err
	}
	return os.Chmod(dir, mode)
}

func (h *Host) podsDir() string { return filepath.Join(h.cfg.RootDir, "pods") }

// PodDir is a pod's own directory.
func (h *Host) PodDir(uid types.UID) string { return filepath.Join(h.podsDir(), string(uid)) }

// safe refuses a UID that would lead out of the directory of pods.
func safe(uid types.UID) error {
	if uid == "" || strings.ContainsAny(string(uid), "/\x00") || strings.Contains(string(uid), "..") {
		return fmt.Errorf("pod UID %q is no name of a directory", uid)
	}
	return nil
}

// LogDir is where a pod's logs are.
func (h *Host) LogDir(p *corev1.Pod) string {
	return filepath.Join(h.cfg.LogRoot, p.Namespace+"_"+p.Name+"_"+string(p.UID))
}

// Claim makes a pod's directories and cgroup.
func (h *Host) Claim(_ context.Context, p *corev1.Pod) (spec.Place, error) {
	if err := safe(p.UID); err != nil {
		return spec.Place{}, err
	}
	dir := h.PodDir(p.UID)
	if err := errors.Join(closed(dir), closed(filepath.Join(dir, "containers")), os.MkdirAll(h.LogDir(p), 0o755)); err != nil {
		return spec.Place{}, fmt.Errorf("make a directory of pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	users, err := h.usersOf(p)
	if err != nil {
		return spec.Place{}, err
	}
	place := spec.Place{LogDir: h.LogDir(p), CgroupV2: h.v2, Swap: h.swap, Users: users}
	if h.cfg.CgroupRoot != "" {
		place.CgroupParent = h.podCgroup(p)
		if err := h.makeCgroup(place.CgroupParent, spec.PodResources(p)); err != nil {
			return spec.Place{}, err
		}
	}
	return place, nil
}

func qosDir(q corev1.PodQOSClass) string {
	switch q {
	case corev1.PodQOSBurstable:
		return "burstable"
	case corev1.PodQOSBestEffort:
		return "besteffort"
	case corev1.PodQOSGuaranteed: // at the top
	}
	return ""
}

func (h *Host) podCgroup(p *corev1.Pod) string {
	return filepath.Join(h.cfg.CgroupRoot, qosDir(status.QOS(p)), "pod"+string(p.UID))
}

// Release removes a pod's cgroup, and ends what runs in it: nothing should any more.
func (h *Host) Release(ctx context.Context, uid types.UID) error {
	if h.cfg.CgroupRoot == "" {
		return nil
	}
	if err := safe(uid); err != nil {
		return err
	}
	var errs []error
	for _, q := range []string{"", "burstable", "besteffort"} {
		path := filepath.Join(h.cfg.CgroupRoot, q, "pod"+string(uid))
		if err := h.empty(ctx, path); err != nil {
			errs = append(errs, err)
			continue
		}
		errs = append(errs, RemoveCgroup(path))
	}
	return errors.Join(errs...)
}

// KillStrays ends the processes that are left of a container or sandbox.
func (h *Host) KillStrays(ctx context.Context, p *corev1.Pod, container string) error {
	if h.cfg.CgroupRoot == "" || container == "" || strings.ContainsAny(container, "/\x00") {
		return nil
	}
	return h.empty(ctx, filepath.Join(h.podCgroup(p), container))
}

// empty ends the processes in a cgroup and waits until they are gone.
func (h *Host) empty(ctx context.Context, path string) error {
	const tries = 50
	for range tries {
		pids, err := CgroupProcesses(path)
		if err != nil || len(pids) == 0 {
			return err
		}
		h.cfg.Logger.WarnContext(ctx, "processes were left of a container or pod that has ended; they are killed", "cgroup", path, "pids", pids)
		for _, pid := range pids {
			if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("kill process %d in cgroup %s: %w", pid, path, err)
			}
		}
		t := time.NewTimer(20 * time.Millisecond)
		select {
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		case <-t.C:
		}
	}
	return fmt.Errorf("processes in cgroup %s do not end", path)
}

// Erase removes a pod's directories, logs and links.
func (h *Host) Erase(_ context.Context, uid types.UID) error {
	if err := safe(uid); err != nil {
		return err
	}
	dir := h.PodDir(uid)
	mounts, err := MountsBelow(dir)
	if err != nil {
		return err
	}
	if len(mounts) > 0 {
		return fmt.Errorf("the directory of pod %s is not removed: %s is still mounted", uid, mounts[0])
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove the directory of pod %s: %w", uid, err)
	}
	h.users.free(uid)
	return h.eraseLogs(uid)
}

func (h *Host) eraseLogs(uid types.UID) error {
	entries, err := os.ReadDir(h.cfg.LogRoot)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("look for logs of pod %s: %w", uid, err)
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), "_"+string(uid)) {
			continue
		}
		dir := filepath.Join(h.cfg.LogRoot, e.Name())
		h.eraseLinks(dir)
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("remove logs of pod %s: %w", uid, err)
		}
	}
	return nil
}

// eraseLinks removes the links into a directory of logs.
func (h *Host) eraseLinks(dir string) {
	if h.cfg.LinkRoot == "" {
		return
	}
	entries, err := os.ReadDir(h.cfg.LinkRoot)
	if err != nil {
		return
	}
	for _, e := range entries {
		link := filepath.Join(h.cfg.LinkRoot, e.Name())
		if to, err := os.Readlink(link); err == nil && strings.HasPrefix(to, dir+"/") {
			_ = os.Remove(link)
		}
	}
}

// Claimed are the pods that have a directory, a cgroup or logs here.
func (h *Host) Claimed(context.Context) ([]types.UID, error) {
	seen := map[types.UID]bool{}
	var out []types.UID
	add := func(uid string) {
		if u := types.UID(uid); uid != "" && !seen[u] {
			seen[u] = true
			out = append(out, u)
		}
	}
	entries, err := os.ReadDir(h.podsDir())
	if err != nil {
		return nil, fmt.Errorf("list the directories of pods: %w", err)
	}
	for _, e := range entries {
		add(e.Name())
	}
	for _, uid := range h.cgroupPods() {
		add(uid)
	}
	return out, nil
}

// Files makes a container's hosts file and the file for its last words.
func (h *Host) Files(_ context.Context, r spec.FilesRequest) ([]*cri.Mount, error) {
	var mounts []*cri.Mount
	has := func(path string) bool {
		for _, m := range r.Container.VolumeMounts {
			if filepath.Clean(m.MountPath) == path {
				return true
			}
		}
		return false
	}
	if !has("/etc/hosts") && (len(r.IPs) > 0 || r.Pod.Spec.HostNetwork) {
		file := filepath.Join(h.PodDir(r.Pod.UID), "etc-hosts")
		content, err := h.hosts(r)
		if err != nil {
			return nil, err
		}
		if err := os.WriteFile(file, content, 0o644); err != nil {
			return nil, fmt.Errorf("write the hosts file of pod %s/%s: %w", r.Pod.Namespace, r.Pod.Name, err)
		}
		mounts = append(mounts, &cri.Mount{ContainerPath: "/etc/hosts", HostPath: file})
	}
	if to := r.Container.TerminationMessagePath; to != "" && !has(filepath.Clean(to)) {
		file, err := h.messageFile(r)
		if err != nil {
			return nil, err
		}
		mounts = append(mounts, &cri.Mount{ContainerPath: to, HostPath: file})
	}
	return mounts, nil
}

func (h *Host) messageFile(r spec.FilesRequest) (string, error) {
	dir := filepath.Join(h.PodDir(r.Pod.UID), "containers", r.Container.Name)
	if err := closed(dir); err != nil {
		return "", fmt.Errorf("make the directory of container %s: %w", r.Container.Name, err)
	}
	file := filepath.Join(dir, fmt.Sprintf("message-%d", r.RestartCount))
	if err := os.WriteFile(file, nil, 0o666); err != nil {
		return "", fmt.Errorf("make the file for the last words of container %s: %w", r.Container.Name, err)
	}
	// Whoever the container runs as writes it; the umask has taken that away.
	if err := os.Chmod(file, 0o666); err != nil { //nolint:gosec // as above
		return "", fmt.Errorf("open up the file for the last words of container %s: %w", r.Container.Name, err)
	}
	return file, nil
}

func (h *Host) hosts(r spec.FilesRequest) ([]byte, error) {
	var b strings.Builder
	if err := spec.OneLine("the host name", append([]string{r.Hostname, r.Domain}, r.IPs...)...); err != nil {
		return nil, err
	}
	if r.Pod.Spec.HostNetwork {
		b.WriteString("# Kubernetes-managed hosts file (host network).\n")
		own, err := os.ReadFile("/etc/hosts")
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("read the node's hosts file: %w", err)
		}
		b.Write(own)
	} else {
		b.WriteString("# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n" +
			"fe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n")
		for _, ip := range r.IPs {
			if r.Domain != "" {
				fmt.Fprintf(&b, "%s\t%s.%s\t%s\n", ip, strings.TrimSuffix(r.Hostname, "."+r.Domain), r.Domain, r.Hostname)
			} else {
				fmt.Fprintf(&b, "%s\t%s\n", ip, r.Hostname)
			}
		}
	}
	if len(r.Pod.Spec.HostAliases) > 0 {
		b.WriteString("\n# Entries added by HostAliases.\n")
		for _, a := range r.Pod.Spec.HostAliases {
			if err := spec.OneLine("spec.hostAliases", append([]string{a.IP}, a.Hostnames...)...); err != nil {
				return nil, err
			}
			fmt.Fprintf(&b, "%s\t%s\n", a.IP, strings.Join(a.Hostnames, "\t"))
		}
	}
	return []byte(b.String()), nil
}

// Started links a container's log for log collectors.
func (h *Host) Started(p *corev1.Pod, container, id, logPath string) {
	if h.cfg.LinkRoot == "" {
		return
	}
	const longest = 251 // of a name, with room for the suffix
	name := fmt.Sprintf("%s_%s_%s-%s", p.Name, p.Namespace, container, id)
	link := filepath.Join(h.cfg.LinkRoot, name[:min(len(name), longest)]+".log")
	if err := os.Symlink(logPath, link); err != nil && !errors.Is(err, fs.ErrExist) {
		h.cfg.Logger.Warn("a container's log cannot be linked", "kind", "Pod", "namespace", p.Namespace, "name", p.Name, "container", container,
			"error", err)
	}
}

// Bounds of a container's last words, as upstream has them.
const (
	maxMessage      = 4096
	maxFromLog      = 2048
	maxLinesFromLog = 80
)

// LastWords is what a container left in its termination message file, or, if it
// failed and its policy is so, the end of its log.
func (h *Host) LastWords(ctx context.Context, _ *corev1.Pod, st *cri.ContainerStatus) string {
	to := st.Annotations[pod.TerminationMessagePathAnnotation]
	if to == "" {
		return ""
	}
	msg := ""
	for _, m := range st.Mounts {
		if m.ContainerPath == to {
			msg = readTail(m.HostPath, maxMessage)
		}
	}
	fallback := st.Annotations[pod.TerminationMessagePolicyAnnotation] == string(corev1.TerminationMessageFallbackToLogsOnError)
	if msg == "" && fallback && st.ExitCode != 0 && st.LogPath != "" {
		msg = logs.Tail(ctx, st.LogPath, maxLinesFromLog, maxFromLog)
	}
	return msg
}

// readTail reads the end of a file that a container may have written anything to.
func readTail(file string, most int64) string {
	f, err := os.OpenFile(file, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return ""
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return ""
	}
	data, err := io.ReadAll(io.NewSectionReader(f, max(info.Size()-most, 0), most))
	if err != nil {
		return ""
	}
	return strings.ToValidUTF8(string(data), "\uFFFD")
}
