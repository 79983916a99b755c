// SPDX-License-Identifier: Apache-2.0

// Package volume sets up the volumes of pods on a node, keeps the contents of
// those that speak of API objects up to date, and takes them down.
//
// A Plugin knows one kind of volume; Manager knows the order and the
// directories: pods/UID/volumes/KIND/NAME, as upstream lays them out. Taking down
// needs nothing but that layout: it also works for pods of which only the UID is
// known, after a restart. Nothing is removed through a mount.
package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/linuxhost"
	"github.com/wasmplane/wasmplane/core/kubelet/podidentity"
	"github.com/wasmplane/wasmplane/core/kubelet/spec"
	"github.com/wasmplane/wasmplane/core/kubelet/volume/subpath"
)

// Request for one volume of one pod.
type Request struct {
	Pod    *corev1.Pod
	Volume *corev1.Volume
	// Dir is where it is set up; the plugin makes it. Plugins that mount nothing of
	// their own leave it alone.
	Dir string
	// Persistent is the volume of the pod's claim, where it is one, and Claim the claim.
	Persistent *corev1.PersistentVolume
	Claim      *corev1.PersistentVolumeClaim
	// ReadOnly: the pod's reference to the claim says so.
	ReadOnly bool
}

// Block tells whether the volume is a device, and no file system.
func (r *Request) Block() bool { return r.Persistent != nil && block(r.Persistent) }

// Mounted is a volume that is set up.
type Mounted struct {
	// Path on the node; empty for Image.
	Path string
	// ReadOnly volumes are never mounted otherwise.
	ReadOnly bool
	// Image that the runtime is to mount, for volumes that are one.
	Image *cri.ImageSpec
	// Block: Path is that of a block device.
	Block bool
}

// Plugin sets up one kind of volume.
type Plugin interface {
	// Name of the kind, such as "kubernetes.io/empty-dir": its "/" becomes "~" in
	// the name of the directory.
	Name() string
	// Supports tells whether the volume is of this kind.
	Supports(v *corev1.Volume) bool
	// Mount sets the volume up; called again, it brings it up to date.
	Mount(ctx context.Context, r Request) (Mounted, error)
	// Unmount takes down what is in dir, and dir itself; idempotent.
	Unmount(ctx context.Context, pod types.UID, name, dir string) error
}

// Blocks is an optional power of a Persistent plugin: it sets up volumes of volumeMode
// Block too, as devices.
type Blocks interface{ Blocks() }

// Refresher is an optional power of a Plugin whose contents age: it says when
// Mount is to be called again; zero is never. A plugin that is Live too is called
// earlier as well.
type Refresher interface {
	RefreshAt(r Request) time.Time
}

// Live is an optional power of a Plugin whose contents follow the API: Mount is
// called again when an object that the pod refers to, or the pod itself, changes.
type Live interface{ Live() }

// Config of a Manager.
type Config struct {
	// RootDir under which pods/UID/volumes are. Required.
	RootDir string
	// Client requests tokens for service accounts. Required.
	Client kubernetes.Interface
	// Objects answers ConfigMaps and Secrets. Required.
	Objects spec.Objects
	// Allocatable of the node, for downward API fields of containers without limits.
	Allocatable func() corev1.ResourceList
	// Plugins for kinds beyond the built-in ones; asked first.
	Plugins []Plugin
	// Local is the directory in which the volumes of the node's own class are; empty:
	// it has none.
	Local string
	// NodeName by which the API is asked for the node's labels, by which volumes say
	// where they are reached.
	NodeName string
	Logger   *slog.Logger
}

// Manager of the volumes of a node.
type Manager struct {
	cfg     Config
	plugins []Plugin

	mu   sync.Mutex
	pods map[types.UID]*podVolumes
	due  map[types.UID]time.Time
	// owners are the pods that have volumes which only one pod may have, by the volume's name.
	owners map[string]types.UID
	wake   chan struct{}

	metrics *prometheus.Registry
	took    *prometheus.HistogramVec
}

type podVolumes struct {
	// one at a time sets up, refreshes or takes down.
	busy    sync.Mutex
	pod     *corev1.Pod
	mounted map[string]Mounted
	// kinds of the volumes of which it is known what they are, as metrics have them.
	kinds map[string]string
	// places are their directories, with the kinds of what is there.
	places map[string]string
	// again is when volumes that are not Live want to be set up again. Owned by who is busy.
	again map[string]time.Time
	gone  bool
}

// New makes a Manager; Run keeps contents up to date.
func New(cfg Config) (*Manager, error) {
	if !filepath.IsAbs(cfg.RootDir) || cfg.Client == nil || cfg.Objects == nil {
		return nil, errors.New("volumes need an absolute root directory, a client and objects")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Allocatable == nil {
		cfg.Allocatable = func() corev1.ResourceList { return nil }
	}
	m := &Manager{
		cfg: cfg, pods: map[types.UID]*podVolumes{}, due: map[types.UID]time.Time{}, owners: map[string]types.UID{}, wake: make(chan struct{}, 1),
	}
	c := &contents{
		objects: cfg.Objects, allocatable: cfg.Allocatable, tokens: podidentity.NewTokens(cfg.Client),
		trust: podidentity.NewTrustBundles(cfg.Client), certs: podidentity.NewCertificates(cfg.Client),
	}
	m.plugins = append(append([]Plugin{}, cfg.Plugins...),
		&emptyDir{}, &hostPath{}, &configMap{c}, &secret{c}, &downward{c}, &projected{c}, &image{},
		&local{root: cfg.Local, node: cfg.NodeName, client: cfg.Client, formats: make(chan struct{}, 1), logger: cfg.Logger}, &nfs{})
	m.register()
	return m, nil
}

func (m *Manager) podDir(uid types.UID) string {
	return filepath.Join(m.cfg.RootDir, "pods", string(uid))
}

func escapeName(s string) string { return strings.ReplaceAll(s, "/", "~") }

func (m *Manager) request(p *corev1.Pod, v *corev1.Volume, pl Plugin) Request {
	return Request{Pod: p, Volume: v, Dir: filepath.Join(m.podDir(p.UID), "volumes", escapeName(pl.Name()), v.Name)}
}

func (m *Manager) plugin(v *corev1.Volume) (Plugin, error) {
	for _, pl := range m.plugins {
		if pl.Supports(v) {
			return pl, nil
		}
	}
	return nil, fmt.Errorf("MountVolume.SetUp failed for volume %q : no volume plugin of this node takes %s", v.Name, sourceOf(v))
}

// sourceOf names what a volume is, for messages.
func sourceOf(v *corev1.Volume) string {
	switch {
	case v.CSI != nil:
		return "csi " + v.CSI.Driver
	case v.ISCSI != nil:
		return "iscsi"
	}
	return "its source"
}

func (m *Manager) entry(p *corev1.Pod) *podVolumes {
	m.mu.Lock()
	defer m.mu.Unlock()
	pv := m.pods[p.UID]
	if pv == nil {
		pv = &podVolumes{mounted: map[string]Mounted{}, kinds: map[string]string{}, places: map[string]string{}, again: map[string]time.Time{}}
		m.pods[p.UID] = pv
	}
	pv.pod = p
	return pv
}

// used are the volumes that a container of the pod has. As upstream, others are left alone.
func used(p *corev1.Pod) map[string]bool {
	names := map[string]bool{}
	has := func(mounts []corev1.VolumeMount, devices []corev1.VolumeDevice) {
		for i := range mounts {
			names[mounts[i].Name] = true
		}
		for i := range devices {
			names[devices[i].Name] = true
		}
	}
	for _, containers := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range containers {
			has(containers[i].VolumeMounts, containers[i].VolumeDevices)
		}
	}
	for i := range p.Spec.EphemeralContainers {
		has(p.Spec.EphemeralContainers[i].VolumeMounts, p.Spec.EphemeralContainers[i].VolumeDevices)
	}
	return names
}

// Mount sets up all volumes of a pod that its containers have.
func (m *Manager) Mount(ctx context.Context, p *corev1.Pod) error {
	pv := m.entry(p)
	pv.busy.Lock()
	defer pv.busy.Unlock()
	return m.mountAll(ctx, pv, p, false)
}

// mountAll sets up a pod's volumes, or, to refresh, those whose contents follow the API. pv.busy held.
func (m *Manager) mountAll(ctx context.Context, pv *podVolumes, p *corev1.Pod, refresh bool) error {
	var next time.Time
	wanted := used(p)
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		if !wanted[v.Name] {
			continue
		}
		name, _ := claimOf(p, v)
		at, timed := pv.again[v.Name]
		if refresh && (timed || name != "") && (at.IsZero() || time.Now().Before(at)) {
			next = earlier(next, at)
			continue // what a claim holds is not ours to bring up to date, unless its plugin says when
		}
		pl, r, err := m.resolve(ctx, p, v)
		if err != nil {
			return err
		}
		m.mu.Lock()
		pv.kinds[v.Name] = kindFor(pl, &r)
		pv.places[r.Dir] = pv.kinds[v.Name]
		m.mu.Unlock()
		_, live := pl.(Live)
		if live || timed || !refresh {
			if err := m.sole(p, &r); err != nil {
				return fmt.Errorf("MountVolume.SetUp failed for volume %q : %w", v.Name, err)
			}
			got, err := m.mountOne(ctx, pv, pl, r)
			if err != nil {
				return fmt.Errorf("MountVolume.SetUp failed for volume %q : %w", v.Name, err)
			}
			m.mu.Lock()
			pv.mounted[v.Name] = got
			m.mu.Unlock()
		}
		if f, ok := pl.(Refresher); ok {
			at := f.RefreshAt(r)
			if !live {
				pv.again[v.Name] = at
			}
			next = earlier(next, at)
		}
	}
	m.mu.Lock()
	if !next.IsZero() && !pv.gone {
		m.due[p.UID] = next
	}
	m.mu.Unlock()
	m.nudge()
	return nil
}

// earlier of two times, of which zero is never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

func (m *Manager) nudge() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// Update tells of a pod's new state: contents that speak of it are rewritten.
func (m *Manager) Update(p *corev1.Pod) {
	m.mu.Lock()
	pv := m.pods[p.UID]
	changed := false
	if pv != nil {
		changed = !sameMeta(pv.pod, p)
		pv.pod = p
	}
	m.mu.Unlock()
	if changed {
		m.Changed(p.UID)
	}
}

func sameMeta(a, b *corev1.Pod) bool {
	same := func(x, y map[string]string) bool {
		if len(x) != len(y) {
			return false
		}
		for k, v := range x {
			if w, ok := y[k]; !ok || v != w {
				return false
			}
		}
		return true
	}
	return same(a.Labels, b.Labels) && same(a.Annotations, b.Annotations)
}

// Changed tells that an object that a pod refers to changed.
func (m *Manager) Changed(uid types.UID) {
	m.mu.Lock()
	if pv := m.pods[uid]; pv != nil && len(pv.mounted) > 0 {
		m.due[uid] = time.Now()
	}
	m.mu.Unlock()
	m.nudge()
}

// Run keeps contents up to date until ctx ends.
func (m *Manager) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		ready, wait := m.take()
		for _, uid := range ready {
			wg.Go(func() { m.refresh(ctx, uid) })
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return nil
		case <-m.wake:
		case <-t.C:
		}
		t.Stop()
	}
}

func (m *Manager) take() (ready []types.UID, wait time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	wait = time.Hour
	for uid, at := range m.due {
		if d := time.Until(at); d > 0 {
			wait = min(wait, d)
			continue
		}
		delete(m.due, uid)
		ready = append(ready, uid)
	}
	return ready, wait
}

// refresh rewrites a pod's contents; what cannot be had now is tried again.
func (m *Manager) refresh(ctx context.Context, uid types.UID) {
	m.mu.Lock()
	pv := m.pods[uid]
	m.mu.Unlock()
	if pv == nil {
		return
	}
	pv.busy.Lock()
	defer pv.busy.Unlock()
	m.mu.Lock()
	p, gone := pv.pod, pv.gone
	m.mu.Unlock()
	if gone {
		return
	}
	err := m.mountAll(ctx, pv, p, true)
	if err != nil && ctx.Err() == nil {
		const again = 10 * time.Second
		m.cfg.Logger.WarnContext(ctx, "the contents of a pod's volumes cannot be brought up to date; trying again",
			"kind", "Pod", "namespace", p.Namespace, "name", p.Name, "retryIn", again, "error", err)
		m.mu.Lock()
		m.due[uid] = time.Now().Add(again)
		m.mu.Unlock()
		m.nudge()
	}
}

// mounted are the volumes of a pod that are set up.
func (m *Manager) mounted(uid types.UID) map[string]Mounted {
	m.mu.Lock()
	defer m.mu.Unlock()
	if pv := m.pods[uid]; pv != nil {
		return maps.Clone(pv.mounted)
	}
	return nil
}

// Devices are the block volumes of a container.
func (m *Manager) Devices(p *corev1.Pod, c *corev1.Container) ([]*cri.Device, error) {
	mounted := m.mounted(p.UID)
	var out []*cri.Device
	for _, d := range c.VolumeDevices {
		vol, ok := mounted[d.Name]
		if !ok {
			return nil, fmt.Errorf("cannot find volume %q to pass into container %q", d.Name, c.Name)
		}
		if !vol.Block {
			return nil, fmt.Errorf("volume %s has volumeMode Filesystem, but is specified in volumeDevices", d.Name)
		}
		permissions := "mrw"
		if vol.ReadOnly {
			permissions = "r"
		}
		out = append(out, &cri.Device{ContainerPath: d.DevicePath, HostPath: vol.Path, Permissions: permissions})
	}
	return out, nil
}

// Mounts are what a container mounts.
func (m *Manager) Mounts(ctx context.Context, p *corev1.Pod, c *corev1.Container, env map[string]string) ([]*cri.Mount, error) {
	mounted, err := m.mountedFor(ctx, p, c)
	if err != nil {
		return nil, err
	}
	var out []*cri.Mount
	for i := range c.VolumeMounts {
		vm := &c.VolumeMounts[i]
		vol, ok := mounted[vm.Name]
		if !ok {
			return nil, fmt.Errorf("cannot find volume %q to mount into container %q", vm.Name, c.Name)
		}
		if vol.Block {
			return nil, fmt.Errorf("volume %s has volumeMode Block, but is specified in volumeMounts", vm.Name)
		}
		mnt, err := m.mount(p, c, i, vm, vol, env)
		if err != nil {
			return nil, err
		}
		out = append(out, mnt)
	}
	return out, nil
}

// mountedFor are the volumes that are set up, with those that nobody had before this
// container, which was added to a pod that runs.
func (m *Manager) mountedFor(ctx context.Context, p *corev1.Pod, c *corev1.Container) (map[string]Mounted, error) {
	mounted, wanted := m.mounted(p.UID), used(p)
	for i := range c.VolumeMounts {
		if _, ok := mounted[c.VolumeMounts[i].Name]; !ok && wanted[c.VolumeMounts[i].Name] {
			err := m.Mount(ctx, p)
			return m.mounted(p.UID), err
		}
	}
	return mounted, nil
}

func (m *Manager) mount(p *corev1.Pod, c *corev1.Container, index int, vm *corev1.VolumeMount, vol Mounted,
	env map[string]string,
) (*cri.Mount, error) {
	sub := vm.SubPath
	if vm.SubPathExpr != "" {
		var err error
		if sub, err = expandAll(vm.SubPathExpr, env); err != nil {
			return nil, err
		}
	}
	if filepath.IsAbs(sub) {
		return nil, fmt.Errorf("error SubPath `%s` must not be an absolute path", sub)
	}
	for part := range strings.SplitSeq(sub, "/") {
		if part == ".." {
			return nil, fmt.Errorf("unable to provision SubPath `%s`: must not contain '..'", sub)
		}
	}
	to := vm.MountPath
	if !filepath.IsAbs(to) {
		to = "/" + to
	}
	mnt := &cri.Mount{ContainerPath: to, HostPath: vol.Path, Readonly: vm.ReadOnly || vol.ReadOnly, Propagation: propagation(vm)}
	if vol.Image != nil {
		mnt.HostPath, mnt.Image, mnt.ImageSubPath, mnt.Readonly = "", vol.Image, sub, true
		return mnt, nil
	}
	if rro := vm.RecursiveReadOnly; rro != nil && *rro == corev1.RecursiveReadOnlyEnabled {
		mnt.RecursiveReadOnly = true
	}
	if sub == "" || sub == "." {
		return mnt, nil
	}
	target := filepath.Join(m.podDir(p.UID), "volume-subpaths", vm.Name, c.Name, fmt.Sprint(index))
	if err := subpath.Bind(vol.Path, sub, target, !vol.ReadOnly); err != nil {
		return nil, fmt.Errorf("failed to prepare subPath for volumeMount %q of container %q: %w", vm.Name, c.Name, err)
	}
	mnt.HostPath = target
	return mnt, nil
}

// expandAll expands $(NAME) and refuses a name that is not set.
func expandAll(s string, env map[string]string) (string, error) {
	var missing []string
	out := spec.ExpandFunc(s, func(k string) (string, bool) {
		v, ok := env[k]
		if !ok {
			missing = append(missing, k)
		}
		return v, ok
	})
	if len(missing) > 0 {
		return "", fmt.Errorf("missing value for %q", missing[0])
	}
	return out, nil
}

func propagation(vm *corev1.VolumeMount) cri.MountPropagation {
	if vm.MountPropagation != nil {
		switch *vm.MountPropagation {
		case corev1.MountPropagationHostToContainer:
			return cri.MountPropagation_PROPAGATION_HOST_TO_CONTAINER
		case corev1.MountPropagationBidirectional:
			return cri.MountPropagation_PROPAGATION_BIDIRECTIONAL
		case corev1.MountPropagationNone:
		}
	}
	return cri.MountPropagation_PROPAGATION_PRIVATE
}

// Unmount takes a pod's volumes down.
func (m *Manager) Unmount(ctx context.Context, uid types.UID) error {
	if uid == "" || strings.ContainsAny(string(uid), "/\x00") {
		return fmt.Errorf("pod UID %q is no name of a directory", uid)
	}
	m.mu.Lock()
	pv := m.pods[uid]
	if pv != nil {
		pv.gone = true
	}
	delete(m.due, uid)
	m.mu.Unlock()
	if pv != nil {
		pv.busy.Lock()
		defer pv.busy.Unlock()
	}
	if err := m.takeDown(ctx, uid); err != nil {
		return err
	}
	m.mu.Lock()
	delete(m.pods, uid)
	maps.DeleteFunc(m.owners, func(_ string, owner types.UID) bool { return owner == uid })
	m.mu.Unlock()
	return nil
}

func (m *Manager) takeDown(ctx context.Context, uid types.UID) error {
	dir := m.podDir(uid)
	if err := subpath.Unmount(filepath.Join(dir, "volume-subpaths")); err != nil {
		return err
	}
	kinds, err := list(filepath.Join(dir, "volumes"))
	if err != nil {
		return err
	}
	for _, kind := range kinds {
		names, err := list(filepath.Join(dir, "volumes", kind))
		if err != nil {
			return err
		}
		for _, name := range names {
			if err := m.unmountOne(ctx, uid, kind, name, filepath.Join(dir, "volumes", kind, name)); err != nil {
				return fmt.Errorf("UnmountVolume.TearDown failed for volume %q of pod %s : %w", name, uid, err)
			}
		}
		if err := os.Remove(filepath.Join(dir, "volumes", kind)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove the directory of %s volumes: %w", kind, err)
		}
	}
	return nil
}

// mountOne has a plugin set a volume up. Brought up to date, it is not measured: most often there is nothing to do.
func (m *Manager) mountOne(ctx context.Context, pv *podVolumes, pl Plugin, r Request) (got Mounted, err error) {
	m.mu.Lock()
	_, again := pv.mounted[r.Volume.Name]
	m.mu.Unlock()
	if again {
		return pl.Mount(ctx, r)
	}
	err = m.measured(kindFor(pl, &r), mounting, func() error {
		got, err = pl.Mount(ctx, r)
		return err
	})
	return got, err
}

func (m *Manager) unmountOne(ctx context.Context, uid types.UID, kind, name, dir string) error {
	if pl := m.keeper(kind); pl != nil {
		return m.measured(m.kindOf(uid, dir, pl), unmounting, func() error { return pl.Unmount(ctx, uid, name, dir) })
	}
	return fmt.Errorf("no volume plugin of this node is called %s", strings.ReplaceAll(kind, "~", "/"))
}

// keeper is the plugin whose volumes are in directories of the kind; nil if there is none.
func (m *Manager) keeper(kind string) Plugin {
	for _, pl := range m.plugins {
		if escapeName(pl.Name()) == kind {
			return pl
		}
	}
	return nil
}

func list(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list volumes: %w", err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out, nil
}

// removeTree removes a directory in which nothing is mounted any more.
func removeTree(dir string) error {
	if err := linuxhost.UnmountBelow(dir); err != nil {
		return err
	}
	left, err := linuxhost.MountsBelow(dir)
	if err != nil {
		return err
	}
	if len(left) > 0 {
		return fmt.Errorf("%s is still mounted", left[0])
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove volume: %w", err)
	}
	return nil
}
