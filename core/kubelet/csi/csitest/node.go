// SPDX-License-Identifier: Apache-2.0

package csitest

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wasmplane/wasmplane/core/kubelet/volume"
)

// Path of a volume's data.
func (d *Driver) Path(handle string) string { return filepath.Join(d.Dir, handle) }

func internal(err error) error { return status.Error(codes.Internal, err.Error()) }

// isMount looks at where a path leads: the kubelet may have given one through a link.
func isMount(path string) (bool, error) {
	resolved, err := filepath.EvalSymlinks(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, internal(err)
	}
	return volume.IsMount(resolved)
}

// mount binds from to to, once.
func mount(from, to string, readOnly bool) error {
	if err := os.MkdirAll(to, 0o750); err != nil {
		return internal(err)
	}
	there, err := isMount(to)
	if err != nil || there {
		return err
	}
	if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
		return internal(err)
	}
	if readOnly {
		if err := unix.Mount("", to, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
			return internal(err)
		}
	}
	return nil
}

func unmount(at string) error {
	if there, err := isMount(at); err != nil {
		return internal(err)
	} else if there {
		if err := unix.Unmount(at, unix.UMOUNT_NOFOLLOW); err != nil {
			return internal(err)
		}
	}
	if err := os.Remove(at); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return internal(err)
	}
	return nil
}

// known is the directory of a volume that is there.
func (d *Driver) known(handle string) (string, error) {
	if handle == "" || strings.ContainsAny(handle, "/\x00") || strings.HasPrefix(handle, ".") {
		return "", status.Error(codes.InvalidArgument, "this is no volume's handle")
	}
	if _, err := os.Stat(d.Path(handle)); err != nil {
		return "", status.Errorf(codes.NotFound, "there is no volume %s", handle)
	}
	return d.Path(handle), nil
}

// NodeStageVolume implements the node service.
func (d *Driver) NodeStageVolume(_ context.Context, r *spec.NodeStageVolumeRequest) (*spec.NodeStageVolumeResponse, error) {
	from, err := d.known(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	return &spec.NodeStageVolumeResponse{}, mount(from, r.GetStagingTargetPath(), false)
}

// NodeUnstageVolume implements the node service.
func (d *Driver) NodeUnstageVolume(_ context.Context, r *spec.NodeUnstageVolumeRequest) (*spec.NodeUnstageVolumeResponse, error) {
	return &spec.NodeUnstageVolumeResponse{}, unmount(r.GetStagingTargetPath())
}

// NodePublishVolume implements the node service. A pod's own volume is made here.
func (d *Driver) NodePublishVolume(_ context.Context, r *spec.NodePublishVolumeRequest) (*spec.NodePublishVolumeResponse, error) {
	if r.GetVolumeContext()["csi.storage.k8s.io/ephemeral"] == "true" {
		if err := os.MkdirAll(d.Path(r.GetVolumeId()), 0o750); err != nil {
			return nil, internal(err)
		}
	}
	from, err := d.known(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if staged := r.GetStagingTargetPath(); staged != "" {
		if there, err := isMount(staged); err != nil || !there {
			return nil, status.Errorf(codes.FailedPrecondition, "volume %s is not staged at %s", r.GetVolumeId(), staged)
		}
		from = staged
	}
	return &spec.NodePublishVolumeResponse{}, mount(from, r.GetTargetPath(), r.GetReadonly())
}

// NodeUnpublishVolume implements the node service. A pod's own volume goes with it.
func (d *Driver) NodeUnpublishVolume(_ context.Context, r *spec.NodeUnpublishVolumeRequest) (*spec.NodeUnpublishVolumeResponse, error) {
	if err := unmount(r.GetTargetPath()); err != nil {
		return nil, err
	}
	if strings.HasPrefix(r.GetVolumeId(), "csi-") {
		if err := os.RemoveAll(d.Path(r.GetVolumeId())); err != nil {
			return nil, internal(err)
		}
	}
	return &spec.NodeUnpublishVolumeResponse{}, nil
}

// NodeGetVolumeStats implements the node service: what the file system says.
func (d *Driver) NodeGetVolumeStats(_ context.Context, r *spec.NodeGetVolumeStatsRequest) (*spec.NodeGetVolumeStatsResponse, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(r.GetVolumePath(), &st); err != nil {
		return nil, status.Error(codes.NotFound, err.Error())
	}
	size := st.Bsize
	return &spec.NodeGetVolumeStatsResponse{Usage: []*spec.VolumeUsage{
		{Unit: spec.VolumeUsage_BYTES, Total: int64(st.Blocks) * size, Available: int64(st.Bavail) * size, Used: int64(st.Blocks-st.Bfree) * size}, //nolint:gosec // sizes of disks
		{Unit: spec.VolumeUsage_INODES, Total: int64(st.Files), Available: int64(st.Ffree), Used: int64(st.Files - st.Ffree)},                      //nolint:gosec // as above
	}}, nil
}

// NodeExpandVolume implements the node service.
func (d *Driver) NodeExpandVolume(_ context.Context, r *spec.NodeExpandVolumeRequest) (*spec.NodeExpandVolumeResponse, error) {
	if _, err := d.known(r.GetVolumeId()); err != nil {
		return nil, err
	}
	return &spec.NodeExpandVolumeResponse{CapacityBytes: r.GetCapacityRange().GetRequiredBytes()}, nil
}
