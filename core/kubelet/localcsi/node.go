// SPDX-License-Identifier: Apache-2.0

package localcsi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wasmplane/wasmplane/core/kubelet/diskimage"
	"github.com/wasmplane/wasmplane/core/kubelet/volume"
	"github.com/wasmplane/wasmplane/core/localvolume"
)

// use begins a call about a volume and answers it. The call is the only one about it
// until release.
func (d *Driver) use(id string, required ...string) (v *item, release func(), err error) {
	for _, path := range required {
		if !filepath.IsAbs(path) {
			return nil, nil, status.Errorf(codes.InvalidArgument, "an absolute path is needed, found %q", path)
		}
	}
	if id == "" {
		return nil, nil, status.Error(codes.InvalidArgument, "volume_id is empty")
	}
	if release, err = d.begin(path.Join(volumes, id)); err != nil {
		return nil, nil, err
	}
	if v, err = d.volume(id); err != nil {
		release()
		return nil, nil, err
	}
	return v, release, nil
}

func (i *item) fits(c *spec.VolumeCapability) error {
	if c == nil {
		return status.Error(codes.InvalidArgument, "volume_capability is missing")
	}
	if why := fit(c); why != "" {
		return status.Error(codes.InvalidArgument, why)
	}
	if (c.GetBlock() != nil) != i.Block {
		return status.Errorf(codes.FailedPrecondition, "volume %s is of the other volumeMode", i.id)
	}
	return nil
}

// Provide makes a volume that was counted for before, unless it is there; asked for while
// it is being made, it waits.
func (d *Driver) Provide(ctx context.Context, want *localvolume.Wanted) error {
	if idOf(want.ID) != want.ID {
		return status.Errorf(codes.InvalidArgument, "%q is no ID of a volume", want.ID)
	}
	if have, err := d.disk.get(volumes, want.ID); err != nil || have != nil {
		return internal(err)
	}
	r := &record{Name: want.ID, Block: want.Block, Limit: want.Limit, Source: want.Source, Made: time.Now().UTC()}
	size, err := sizeOf(&spec.CapacityRange{RequiredBytes: want.Bytes}, r.smallest())
	if err != nil {
		return err
	}
	r.Bytes = size
	return d.ensure(ctx, volumes, r, promised)
}

// Remove removes a volume, and what is being made of it. One that is in use stays.
func (d *Driver) Remove(ctx context.Context, id string) error {
	_, err := d.DeleteVolume(ctx, &spec.DeleteVolumeRequest{VolumeId: id})
	return err
}

// Release takes the devices of all volumes of a driver away that does not run any more.
func Release(root string) error {
	all, err := disk{root}.list(volumes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, v := range all {
		if v.image() {
			errs = append(errs, diskimage.Thaw(v.mount()), diskimage.Unmount(v.mount()))
		}
		if v.Block {
			errs = append(errs, diskimage.Detach(v.data()))
		}
	}
	return errors.Join(errs...)
}

// Has tells whether a volume is there.
func (d *Driver) Has(id string) (bool, error) {
	v, err := d.disk.get(volumes, id)
	return v != nil, err
}

// NodeStageVolume implements the node service: a block volume's device is made, an image is mounted, and before
// it a volume is made that is only wanted yet. Where it is staged, nothing is mounted: what there is of it is in the driver's
// own directory.
func (d *Driver) NodeStageVolume(ctx context.Context, r *spec.NodeStageVolumeRequest) (*spec.NodeStageVolumeResponse, error) {
	if r.GetVolumeCapability() == nil {
		return nil, status.Error(codes.InvalidArgument, "volume_capability is missing")
	}
	want, err := localvolume.ByAttributes(r.GetVolumeId(), r.GetVolumeCapability().GetBlock() != nil, r.GetVolumeContext())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if want != nil {
		if err := d.Provide(ctx, want); err != nil {
			return nil, err
		}
	}
	v, release, err := d.use(r.GetVolumeId(), r.GetStagingTargetPath())
	if err != nil {
		return nil, err
	}
	defer release()
	if err := v.fits(r.GetVolumeCapability()); err != nil {
		return nil, err
	}
	if v.Block {
		if _, err := diskimage.Attach(v.data()); err != nil {
			return nil, internal(err)
		}
	}
	if v.image() {
		if err := v.stage(ctx); err != nil {
			return nil, internal(err)
		}
	}
	return &spec.NodeStageVolumeResponse{}, nil
}

// NodeUnstageVolume implements the node service.
func (d *Driver) NodeUnstageVolume(_ context.Context, r *spec.NodeUnstageVolumeRequest) (*spec.NodeUnstageVolumeResponse, error) {
	v, release, err := d.use(r.GetVolumeId(), r.GetStagingTargetPath())
	if status.Code(err) == codes.NotFound {
		return &spec.NodeUnstageVolumeResponse{}, nil // its device went with it
	}
	if err != nil {
		return nil, err
	}
	defer release()
	if err := v.release(); err != nil {
		return nil, err
	}
	return &spec.NodeUnstageVolumeResponse{}, nil
}

// release takes away what a volume is staged by.
func (i *item) release() error {
	if !i.Block && !i.image() {
		return nil
	}
	// A device that is let go of becomes another volume's: nobody may have it at hand.
	if err := i.unused(); err != nil {
		return err
	}
	if i.Block {
		return internal(diskimage.Detach(i.data()))
	}
	return internal(diskimage.Unmount(i.mount()))
}

// NodePublishVolume implements the node service: the directory, or the device, is mounted
// at the target.
func (d *Driver) NodePublishVolume(_ context.Context, r *spec.NodePublishVolumeRequest) (*spec.NodePublishVolumeResponse, error) {
	if r.GetVolumeCapability() == nil {
		return nil, status.Error(codes.InvalidArgument, "volume_capability is missing")
	}
	v, release, err := d.use(r.GetVolumeId(), r.GetStagingTargetPath(), r.GetTargetPath())
	if err != nil {
		return nil, err
	}
	defer release()
	if err := v.fits(r.GetVolumeCapability()); err != nil {
		return nil, err
	}
	flags, err := flagsOf(r)
	if err != nil {
		return nil, err
	}
	from, target := v.data(), filepath.Clean(r.GetTargetPath())
	if r.GetVolumeCapability().GetAccessMode().GetMode() == spec.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER {
		if err := v.alone(target); err != nil {
			return nil, err
		}
	}
	if v.image() {
		from = filepath.Join(v.mount(), treeName)
		if there, err := diskimage.Mounted(v.mount()); err != nil || !there {
			return nil, errors.Join(internal(err), status.Errorf(codes.FailedPrecondition, "volume %s is not staged", v.id))
		}
	}
	if v.Block {
		if from, err = diskimage.Attached(v.data()); err != nil {
			return nil, internal(err)
		}
		if from == "" {
			return nil, status.Errorf(codes.FailedPrecondition, "volume %s is not staged", v.id)
		}
	}
	return &spec.NodePublishVolumeResponse{}, internal(publish(from, target, v.Block, flags))
}

// alone refuses a second place for a volume of a single pod.
func (i *item) alone(target string) error {
	if dir, err := filepath.EvalSymlinks(filepath.Dir(target)); err == nil {
		target = filepath.Join(dir, filepath.Base(target))
	}
	users, err := i.users()
	if err != nil {
		return internal(err)
	}
	if len(users) > 0 && !slices.Contains(users, target) {
		return status.Errorf(codes.FailedPrecondition, "volume %s is for a single pod, and is in use at %s", i.id, users[0])
	}
	return nil
}

var mountFlags = map[string]uintptr{
	"ro": unix.MS_RDONLY, "rw": 0, "noexec": unix.MS_NOEXEC, "nosuid": unix.MS_NOSUID, "nodev": unix.MS_NODEV, "noatime": unix.MS_NOATIME,
	"nodiratime": unix.MS_NODIRATIME,
}

func flagsOf(r *spec.NodePublishVolumeRequest) (uintptr, error) {
	var flags uintptr
	for _, name := range r.GetVolumeCapability().GetMount().GetMountFlags() {
		f, known := mountFlags[name]
		if !known {
			return 0, status.Errorf(codes.InvalidArgument, "a directory cannot be mounted with the option %q: ro, noexec, nosuid, nodev, noatime and nodiratime are known", name)
		}
		flags |= f
	}
	if r.GetReadonly() || r.GetVolumeCapability().GetAccessMode().GetMode() == spec.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY {
		flags |= unix.MS_RDONLY
	}
	return flags, nil
}

// publish mounts, once. A device is mounted over a file.
func publish(from, target string, device bool, flags uintptr) error {
	if err := os.MkdirAll(filepath.Dir(target), 0o750); err != nil {
		return fmt.Errorf("make the target: %w", err)
	}
	if device {
		f, err := os.OpenFile(target, os.O_CREATE|os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
		if err != nil {
			return fmt.Errorf("make the target: %w", err)
		}
		if err := f.Close(); err != nil {
			return fmt.Errorf("make the target: %w", err)
		}
	} else if err := os.Mkdir(target, 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make the target: %w", err)
	}
	if there, err := isMount(target); err != nil || there {
		return err
	}
	if err := unix.Mount(from, target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s at %s: %w", from, target, err)
	}
	if flags == 0 {
		return nil
	}
	if err := unix.Mount("", target, "", unix.MS_REMOUNT|unix.MS_BIND|flags, ""); err != nil {
		return errors.Join(fmt.Errorf("mount %s with its options: %w", target, err), unix.Unmount(target, unix.UMOUNT_NOFOLLOW))
	}
	return nil
}

// isMount looks at where a path leads: the kubelet may give one through a link.
func isMount(target string) (bool, error) {
	dir, err := filepath.EvalSymlinks(filepath.Dir(target))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look at the target: %w", err)
	}
	return volume.IsMount(filepath.Join(dir, filepath.Base(target)))
}

// NodeUnpublishVolume implements the node service. It needs no volume: what is mounted
// has to go also where the disk was lost.
func (*Driver) NodeUnpublishVolume(_ context.Context, r *spec.NodeUnpublishVolumeRequest) (*spec.NodeUnpublishVolumeResponse, error) {
	target := filepath.Clean(r.GetTargetPath())
	if r.GetVolumeId() == "" || !filepath.IsAbs(target) {
		return nil, status.Error(codes.InvalidArgument, "volume_id and an absolute target_path are needed")
	}
	for {
		there, err := isMount(target)
		if err != nil {
			return nil, internal(err)
		}
		if !there {
			break
		}
		if err := unix.Unmount(target, unix.UMOUNT_NOFOLLOW); err != nil {
			return nil, internal(fmt.Errorf("unmount %s: %w", target, err))
		}
	}
	// A file or an empty directory: nothing is removed through a mount that came meanwhile.
	if err := os.Remove(target); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, internal(fmt.Errorf("remove the target: %w", err))
	}
	return &spec.NodeUnpublishVolumeResponse{}, nil
}

// NodeGetVolumeStats implements the node service: what the file system says, which a directory shares and an image has
// for itself; of a device, its size.
func (d *Driver) NodeGetVolumeStats(_ context.Context, r *spec.NodeGetVolumeStatsRequest) (*spec.NodeGetVolumeStatsResponse, error) {
	if r.GetVolumeId() == "" || r.GetVolumePath() == "" {
		return nil, status.Error(codes.InvalidArgument, "volume_id and volume_path are needed")
	}
	v, err := d.volume(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if there, err := isMount(filepath.Clean(r.GetVolumePath())); err != nil || !there {
		return nil, errors.Join(internal(err), status.Errorf(codes.NotFound, "volume %s is not at %s", v.id, r.GetVolumePath()))
	}
	if v.Block {
		return &spec.NodeGetVolumeStatsResponse{Usage: []*spec.VolumeUsage{{Unit: spec.VolumeUsage_BYTES, Total: v.Bytes}}}, nil
	}
	var st unix.Statfs_t
	if err := unix.Statfs(r.GetVolumePath(), &st); err != nil {
		return nil, internal(err)
	}
	size := st.Bsize
	return &spec.NodeGetVolumeStatsResponse{Usage: []*spec.VolumeUsage{
		{Unit: spec.VolumeUsage_BYTES, Total: int64(st.Blocks) * size, Available: int64(st.Bavail) * size, Used: int64(st.Blocks-st.Bfree) * size}, //nolint:gosec // sizes of disks
		{Unit: spec.VolumeUsage_INODES, Total: int64(st.Files), Available: int64(st.Ffree), Used: int64(st.Files - st.Ffree)},                      //nolint:gosec // as above
	}}, nil
}

// NodeExpandVolume implements the node service: what the controller's part does, for
// whoever asks the node alone.
func (d *Driver) NodeExpandVolume(ctx context.Context, r *spec.NodeExpandVolumeRequest) (*spec.NodeExpandVolumeResponse, error) {
	if r.GetVolumeId() == "" || r.GetVolumePath() == "" {
		return nil, status.Error(codes.InvalidArgument, "volume_id and volume_path are needed")
	}
	limits := r.GetCapacityRange()
	if limits == nil {
		limits = &spec.CapacityRange{RequiredBytes: 1}
	}
	size, err := d.expand(ctx, r.GetVolumeId(), limits)
	if err != nil {
		return nil, err
	}
	return &spec.NodeExpandVolumeResponse{CapacityBytes: size}, nil
}
