// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/mount-utils"
	"k8s.io/utils/exec"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/kubelet/volume/fsgroup"
	"github.com/wasmplane/wasmplane/core/localvolume"
)

// look is how often the claim of a volume is asked for whether it has grown.
const look = time.Minute

// local is a directory of this node that outlives pods, or the file system of a device. A directory
// that this node's class offers is made with its first pod.
type local struct {
	root   string // where directories of the class are; "" = nowhere
	node   string
	client kubernetes.Interface
	// formats is held while a device is formatted and mounted, or its file system grows.
	formats chan struct{}
	logger  *slog.Logger
	// given has the places of volumes that belong to their pod's group: when one is
	// looked at again, what the pod has made of its files is left alone.
	given sync.Map
}

func (*local) Name() string                                        { return "kubernetes.io/local-volume" }
func (*local) Supports(*corev1.Volume) bool                        { return false }
func (*local) SupportsPersistent(pv *corev1.PersistentVolume) bool { return pv.Spec.Local != nil }

// Blocks implements Blocks: containers get the device itself then.
func (*local) Blocks() {}

func (l *local) Mount(ctx context.Context, r Request) (Mounted, error) {
	pv := r.Persistent
	// The scheduler has looked at it; a pod that names its node has not been there.
	node, err := l.client.CoreV1().Nodes().Get(ctx, l.node, metav1.GetOptions{})
	if err != nil {
		return Mounted{}, fmt.Errorf("ask for the labels of this node: %w", err)
	}
	if err := volume.CheckNodeAffinity(pv, node.Labels); err != nil {
		return Mounted{}, fmt.Errorf("PV %s is of another node: %w", pv.Name, err)
	}
	path := pv.Spec.Local.Path
	if localvolume.Ours(pv) && !r.Block() {
		if err := localvolume.Make(l.root, pv); err != nil {
			return Mounted{}, err
		}
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Mounted{}, fmt.Errorf("path %q of PV %s does not exist on this node", path, pv.Name)
	case err != nil:
		return Mounted{}, fmt.Errorf("look at path %q of PV %s: %w", path, pv.Name, err)
	case r.Block() && info.Mode().Type() != fs.ModeDevice:
		return Mounted{}, fmt.Errorf("path %q of PV %s, which has volumeMode Block, is no block device", path, pv.Name)
	case r.Block():
		return Mounted{Path: path, ReadOnly: r.ReadOnly, Block: true}, nil
	case info.Mode().Type() == fs.ModeDevice:
		if err := l.mountDevice(ctx, pv, path, r.Dir); err != nil {
			return Mounted{}, fmt.Errorf("file system of %q of PV %s: %w", path, pv.Name, err)
		}
		if !r.ReadOnly {
			l.grow(ctx, &r, path)
		}
		path = r.Dir
	case !info.IsDir():
		return Mounted{}, fmt.Errorf("path %q of PV %s is neither a directory nor a block device", path, pv.Name)
	default:
		l.larger(ctx, &r)
	}
	m := Mounted{Path: path, ReadOnly: r.ReadOnly}
	if r.ReadOnly {
		return m, nil
	}
	if _, given := l.given.Load(r.Dir); given {
		return m, nil
	}
	if err := fsgroup.Own(path, r.Pod, false); err != nil {
		return Mounted{}, err
	}
	l.given.Store(r.Dir, true)
	return m, nil
}

// RefreshAt implements Refresher: the file system of a device is to grow with the volume, and the claim of a directory is told.
// Claims of the directories that this node's class offers do not grow.
func (*local) RefreshAt(r Request) time.Time {
	if r.Persistent == nil || r.Claim == nil || r.ReadOnly || r.Block() || localvolume.Ours(r.Persistent) {
		return time.Time{}
	}
	return time.Now().Add(look)
}

// alone waits for its turn with file systems: another pod may want the same device, which
// is formatted once.
func (l *local) alone(ctx context.Context) (release func(), err error) {
	select {
	case l.formats <- struct{}{}:
		return func() { <-l.formats }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// mountDevice mounts the file system of a device, which is made if the device has none. All pods have
// the same: those that only read it do so by their containers' mounts.
func (l *local) mountDevice(ctx context.Context, pv *corev1.PersistentVolume, device, dir string) error {
	release, err := l.alone(ctx)
	if err != nil {
		return err
	}
	defer release()
	if err := makeDir(dir, 0o750); err != nil {
		return err
	}
	if there, err := isMount(dir); err != nil || there {
		return err
	}
	if err := programs("blkid", "mount"); err != nil {
		return err
	}
	disk := mount.NewSafeFormatAndMount(mount.New(""), exec.New())
	has, err := disk.GetDiskFormat(device)
	if err != nil {
		return fmt.Errorf("look for it: %w", err)
	}
	format := cmp.Or(ptr.Deref(pv.Spec.Local.FSType, ""), has, "ext4")
	if has == "" {
		if err := programs("mkfs." + format); err != nil {
			return err
		}
	}
	return disk.FormatAndMount(device, dir, format, pv.Spec.MountOptions)
}

// Unmount takes away the mount of a device; of a directory nothing was mounted.
func (l *local) Unmount(_ context.Context, _ types.UID, _, dir string) error {
	l.given.Delete(dir)
	return unmount(dir)
}

// SupportsPersistent implements Persistent.
func (*hostPath) SupportsPersistent(pv *corev1.PersistentVolume) bool { return pv.Spec.HostPath != nil }

// nfs is a directory of a server, mounted by the host's tool.
type nfs struct{}

func (*nfs) Name() string                                        { return "kubernetes.io/nfs" }
func (*nfs) Supports(v *corev1.Volume) bool                      { return v.NFS != nil }
func (*nfs) SupportsPersistent(pv *corev1.PersistentVolume) bool { return pv.Spec.NFS != nil }

func (*nfs) Mount(ctx context.Context, r Request) (Mounted, error) {
	source, options := r.Volume.NFS, []string(nil)
	if pv := r.Persistent; pv != nil {
		source, options = pv.Spec.NFS, pv.Spec.MountOptions
	}
	readOnly := source.ReadOnly || r.ReadOnly
	m := Mounted{Path: r.Dir, ReadOnly: readOnly}
	if err := makeDir(r.Dir, 0o750); err != nil {
		return Mounted{}, err
	}
	if there, err := isMount(r.Dir); err != nil || there {
		return m, err
	}
	if err := programs("mount", "mount.nfs"); err != nil {
		return Mounted{}, err
	}
	if readOnly {
		options = append(append([]string{}, options...), "ro")
	}
	args := []string{"-t", "nfs"}
	if len(options) > 0 {
		args = append(args, "-o", strings.Join(options, ","))
	}
	args = append(args, "--", source.Server+":"+source.Path, r.Dir)
	//nolint:gosec // no shell: what pods and volumes say are arguments, after "--"
	if out, err := osexec.CommandContext(ctx, "mount", args...).CombinedOutput(); err != nil {
		_ = os.Remove(r.Dir)
		return Mounted{}, fmt.Errorf("mount %s:%s: %w: %s", source.Server, source.Path, err, strings.TrimSpace(string(out)))
	}
	return m, nil
}

// Unmount takes away the mount.
func (*nfs) Unmount(_ context.Context, _ types.UID, _, dir string) error { return unmount(dir) }

// unmount never removes through the mount: what is left when it is gone is an empty directory.
func unmount(dir string) error {
	if there, err := isMount(dir); err != nil {
		return err
	} else if there {
		if err := unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("unmount %s: %w", dir, err)
		}
	}
	if err := os.Remove(filepath.Clean(dir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the place of a volume: %w", err)
	}
	return nil
}
