// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/linuxhost"
	"github.com/wasmplane/wasmplane/core/kubelet/volume/fsgroup"
)

// IsMount tells whether something is mounted at dir.
func IsMount(dir string) (bool, error) { return isMount(dir) }

// isMount tells whether something is mounted at dir.
func isMount(dir string) (bool, error) {
	mounts, err := linuxhost.MountsBelow(dir)
	if err != nil {
		return false, err
	}
	for _, m := range mounts {
		if m == filepath.Clean(dir) {
			return true, nil
		}
	}
	return false, nil
}

// isLocalMount is isMount for what is on no network, where asking the file system might take for ever. The kernel can tell it of the path
// since 5.8, and the table of mounts, which has lines for each pod, need not be read.
func isLocalMount(dir string) (bool, error) {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, dir, unix.AT_SYMLINK_NOFOLLOW|unix.AT_STATX_DONT_SYNC, 0, &st)
	if err != nil || st.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT == 0 {
		return isMount(dir)
	}
	return st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
}

// makeDir makes a volume's directory; what is above it is closed to other users of the machine.
func makeDir(dir string, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o750); err != nil {
		return fmt.Errorf("make directory of volumes: %w", err)
	}
	if err := os.MkdirAll(dir, mode); err != nil {
		return fmt.Errorf("make volume directory: %w", err)
	}
	return nil
}

// mountTmpfs mounts a file system in memory, if there is none yet. size 0 is half of the memory.
func mountTmpfs(dir string, size int64) error {
	if err := makeDir(dir, 0o755); err != nil {
		return err
	}
	if there, err := isLocalMount(dir); err != nil || there {
		return err
	}
	opts := "mode=0777"
	if size > 0 {
		opts += fmt.Sprintf(",size=%d", size)
	}
	// What is in it stays in memory: Secrets are not to be on a disk. Kernels before 6.4 don't know the option.
	err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, opts+",noswap")
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPERM) {
		err = unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, opts)
	}
	if err != nil {
		return fmt.Errorf("mount tmpfs at %s: %w", dir, err)
	}
	return nil
}

// emptyDir is an empty directory that lives as long as its pod.
type emptyDir struct{}

func (*emptyDir) Name() string                   { return "kubernetes.io/empty-dir" }
func (*emptyDir) Supports(v *corev1.Volume) bool { return v.EmptyDir != nil }

func (*emptyDir) Mount(_ context.Context, r Request) (Mounted, error) {
	e := r.Volume.EmptyDir
	switch e.Medium {
	case corev1.StorageMediumMemory:
		if err := mountTmpfs(r.Dir, memorySize(r.Pod, e)); err != nil {
			return Mounted{}, err
		}
	case corev1.StorageMediumDefault:
	default:
		if err := mountHugePages(r.Dir, e); err != nil {
			return Mounted{}, err
		}
	}
	if err := makeDir(r.Dir, 0o777); err != nil {
		return Mounted{}, err
	}
	// For any user, whatever the umask.
	if info, err := os.Stat(r.Dir); err == nil && info.Mode().Perm() != 0o777 {
		if err := os.Chmod(r.Dir, 0o777); err != nil { //nolint:gosec // as upstream: the pod's own directory
			return Mounted{}, fmt.Errorf("open up volume directory: %w", err)
		}
	}
	return Mounted{Path: r.Dir}, fsgroup.Own(r.Dir, r.Pod, false)
}

// memorySize is the least of the volume's limit and what the pod's containers may use together.
func memorySize(p *corev1.Pod, e *corev1.EmptyDirVolumeSource) int64 {
	var limit int64
	for i := range p.Spec.Containers {
		q := p.Spec.Containers[i].Resources.Limits[corev1.ResourceMemory]
		if q.IsZero() {
			limit = 0
			break
		}
		limit += q.Value()
	}
	if e.SizeLimit != nil && e.SizeLimit.Value() > 0 && (limit == 0 || e.SizeLimit.Value() < limit) {
		limit = e.SizeLimit.Value()
	}
	return limit
}

func mountHugePages(dir string, e *corev1.EmptyDirVolumeSource) error {
	if err := makeDir(dir, 0o755); err != nil {
		return err
	}
	if there, err := isMount(dir); err != nil || there {
		return err
	}
	opts := ""
	const prefix = "HugePages-"
	if m := string(e.Medium); len(m) > len(prefix) && m[:len(prefix)] == prefix {
		opts = "pagesize=" + m[len(prefix):len(m)-1]
	} else if m != "HugePages" {
		return fmt.Errorf("unknown medium %q", m)
	}
	if e.SizeLimit != nil {
		if opts != "" {
			opts += ","
		}
		opts += fmt.Sprintf("size=%d", e.SizeLimit.Value())
	}
	if err := unix.Mount("nodev", dir, "hugetlbfs", 0, opts); err != nil {
		return fmt.Errorf("mount huge pages: %w", err)
	}
	return nil
}

func (*emptyDir) Unmount(_ context.Context, _ types.UID, _, dir string) error { return removeTree(dir) }

// hostPath is a path of the node.
type hostPath struct{}

func (*hostPath) Name() string                   { return "kubernetes.io/host-path" }
func (*hostPath) Supports(v *corev1.Volume) bool { return v.HostPath != nil }

func (*hostPath) Mount(_ context.Context, r Request) (Mounted, error) {
	source := r.Volume.HostPath
	if r.Persistent != nil {
		source = r.Persistent.Spec.HostPath
	}
	kind := corev1.HostPathUnset
	if source.Type != nil {
		kind = *source.Type
	}
	return Mounted{Path: source.Path, ReadOnly: r.ReadOnly}, checkHostPath(source.Path, kind)
}

func (*hostPath) Unmount(context.Context, types.UID, string, string) error { return nil }

func checkHostPath(path string, kind corev1.HostPathType) error {
	info, err := os.Stat(path)
	missing := errors.Is(err, fs.ErrNotExist)
	if err != nil && !missing && kind != corev1.HostPathUnset {
		return fmt.Errorf("hostPath type check failed: %w", err)
	}
	is := func(what string, ok bool) error {
		if missing || !ok {
			return fmt.Errorf("hostPath type check failed: %s is not a %s", path, what)
		}
		return nil
	}
	switch kind {
	case corev1.HostPathUnset:
		return nil
	case corev1.HostPathDirectoryOrCreate:
		if missing {
			return os.MkdirAll(path, 0o755)
		}
		return is("directory", info.IsDir())
	case corev1.HostPathFileOrCreate:
		if missing {
			f, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o644)
			if err != nil {
				return fmt.Errorf("make hostPath file: %w", err)
			}
			return f.Close()
		}
		return is("file", info.Mode().IsRegular())
	case corev1.HostPathDirectory:
		return is("directory", !missing && info.IsDir())
	case corev1.HostPathFile:
		return is("file", !missing && info.Mode().IsRegular())
	case corev1.HostPathSocket:
		return is("socket file", !missing && info.Mode()&fs.ModeSocket != 0)
	case corev1.HostPathCharDev:
		return is("character device", !missing && info.Mode()&fs.ModeCharDevice != 0)
	case corev1.HostPathBlockDev:
		return is("block device", !missing && info.Mode()&fs.ModeDevice != 0 && info.Mode()&fs.ModeCharDevice == 0)
	}
	return fmt.Errorf("%s is an invalid volume type", kind)
}

// image is an image, which the runtime mounts.
type image struct{}

func (*image) Name() string                   { return "kubernetes.io/image" }
func (*image) Supports(v *corev1.Volume) bool { return v.Image != nil }

func (*image) Mount(_ context.Context, r Request) (Mounted, error) {
	return Mounted{Image: &cri.ImageSpec{Image: r.Volume.Image.Reference}, ReadOnly: true}, nil
}

func (*image) Unmount(context.Context, types.UID, string, string) error { return nil }
