// SPDX-License-Identifier: Apache-2.0

package localcsi_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/wasmplane/wasmplane/core/kubelet/diskimage"
	"github.com/wasmplane/wasmplane/core/kubelet/linuxhost"
	"github.com/wasmplane/wasmplane/core/kubelet/localcsi"
	"github.com/wasmplane/wasmplane/core/localvolume"
)

// imageSize is small, so that a volume is soon full.
const imageSize = 16 << 20

func limited(r *spec.CreateVolumeRequest) *spec.CreateVolumeRequest {
	r.Parameters = map[string]string{localvolume.LimitParameter: localvolume.LimitImage}
	return r
}

// images runs a driver whose mounts are gone when the test ends.
func images(t *testing.T) (*localcsi.Driver, string) {
	t.Helper()
	root := shortDir(t)
	d, _ := start(t, root)
	return d, root
}

// devices of volume id.
func devices(t *testing.T, root, id string) []diskimage.Device {
	t.Helper()
	all, err := diskimage.Devices(filepath.Join(root, "volumes", id, "data"))
	must(t, err)
	return all
}

// noDevices tells whether there is no loop device over volume id, as soon as nobody looks at it.
func noDevices(t *testing.T, root, id string) bool {
	t.Helper()
	unused, err := diskimage.Unused(t.Context(), filepath.Join(root, "volumes", id, "data"))
	must(t, err)
	return unused
}

// write fills a file, until it has as much or the file system is full, and answers how much it has.
func write(path string, size int) (int, error) {
	f, err := os.Create(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	done, piece := 0, bytes.Repeat([]byte("x"), 64<<10)
	for done < size {
		n, err := f.Write(piece)
		if done += n; err != nil {
			return done, err
		}
	}
	return done, f.Sync()
}

func statsOf(t *testing.T, d *localcsi.Driver, id, target string) *spec.VolumeUsage {
	t.Helper()
	got, err := d.NodeGetVolumeStats(t.Context(), &spec.NodeGetVolumeStatsRequest{VolumeId: id, VolumePath: target})
	must(t, err)
	return got.GetUsage()[0]
}

// expand makes a volume larger that is in use, and answers where it is. A process that may not is refused, and may once
// the volume was out of use.
func expand(t *testing.T, d *localcsi.Driver, id, target string, size int64) string {
	t.Helper()
	var have [2]unix.CapUserData
	must(t, unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &have[0]))
	request := &spec.NodeExpandVolumeRequest{VolumeId: id, VolumePath: target, CapacityRange: &spec.CapacityRange{RequiredBytes: size}}
	_, err := d.NodeExpandVolume(t.Context(), request)
	if have[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0 {
		must(t, err)
		return target
	}
	is(t, err, codes.FailedPrecondition, "expanded in use without the right to")
	if !strings.Contains(err.Error(), "CAP_SYS_RESOURCE") {
		t.Errorf("expanded in use without the right to: %v", err)
	}
	unpublish(t.Context(), t, d, id, target)
	request.VolumePath = publish(t, d, id, false)
	_, err = d.NodeExpandVolume(t.Context(), request)
	must(t, err)
	return request.GetVolumePath()
}

// TestAnImageIsAsLargeAsItsSize: who fills it gets an error and harms no other volume; it grows as it is used; its device
// goes with its last user.
func TestAnImageIsAsLargeAsItsSize(t *testing.T) {
	d, root := images(t)
	id, other := create(t, d, limited(asked("full", imageSize, false, nil))), create(t, d, limited(asked("other", imageSize, false, nil)))
	target, beside := publish(t, d, id, false), publish(t, d, other, false)
	if entries, err := os.ReadDir(target); err != nil || len(entries) > 0 {
		t.Errorf("a new volume has %v (%v)", entries, err)
	}
	if info, err := os.Stat(target); err != nil || info.Mode().Perm() != 0o777 {
		t.Errorf("a new volume is %v (%v)", info.Mode(), err)
	}
	written, err := write(filepath.Join(target, "all"), 2*imageSize)
	if !errors.Is(err, unix.ENOSPC) || written > imageSize || written < imageSize/2 {
		t.Errorf("%d bytes were written to %d (%v)", written, imageSize, err)
	}
	if n, err := write(filepath.Join(beside, "file"), imageSize/2); err != nil {
		t.Errorf("the other volume takes %d bytes: %v", n, err)
	}
	if u := statsOf(t, d, id, target); u.GetTotal() > imageSize || u.GetAvailable() > imageSize/64 || u.GetUsed() < int64(written) {
		t.Errorf("the full volume has %v", u)
	}
	if u := statsOf(t, d, other, beside); u.GetAvailable() < imageSize/8 || u.GetUsed() < imageSize/2 {
		t.Errorf("the other volume has %v", u)
	}
	const more = 4 * imageSize
	target = expand(t, d, id, target, more)
	if u := statsOf(t, d, id, target); u.GetTotal() < more/4*3 {
		t.Errorf("a volume that has grown has %v", u)
	}
	if n, err := write(filepath.Join(target, "more"), imageSize); err != nil {
		t.Errorf("a volume that has grown takes %d bytes: %v", n, err)
	}
	_, err = d.DeleteVolume(t.Context(), &spec.DeleteVolumeRequest{VolumeId: id})
	is(t, err, codes.FailedPrecondition, "deleted in use")
	_, err = d.NodeUnstageVolume(t.Context(),
		&spec.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: filepath.Join(filepath.Dir(target), "staging")})
	is(t, err, codes.FailedPrecondition, "unstaged in use")
	if all := devices(t, root, id); len(all) != 1 || !all[0].Leaves {
		t.Errorf("its devices are %v", all)
	}
	unpublish(t.Context(), t, d, id, target)
	if !noDevices(t, root, id) {
		t.Errorf("unstaged, it has the devices %v", devices(t, root, id))
	}
	// Expanded while nobody uses it, it is as large when it is reported, and no device is left.
	_, err = d.ControllerExpandVolume(t.Context(),
		&spec.ControllerExpandVolumeRequest{VolumeId: id, CapacityRange: &spec.CapacityRange{RequiredBytes: 2 * more}})
	must(t, err)
	if !noDevices(t, root, id) {
		t.Errorf("expanded, it has the devices %v", devices(t, root, id))
	}
	target = publish(t, d, id, false)
	if u := statsOf(t, d, id, target); u.GetTotal() < 2*more/4*3 || u.GetUsed() < int64(written)+imageSize {
		t.Errorf("a volume that has grown unused has %v", u)
	}
	unpublish(t.Context(), t, d, id, target)
	_, err = d.DeleteVolume(t.Context(), &spec.DeleteVolumeRequest{VolumeId: id})
	must(t, err)
	if _, err := os.Stat(filepath.Join(root, "volumes", id)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("deleted, it is there: %v", err)
	}
}

// TestSizesOfImages: one below the least is rounded up; the limit is part of what a volume is.
func TestSizesOfImages(t *testing.T) {
	d, _ := images(t)
	got, err := d.CreateVolume(t.Context(), limited(asked("small", 1, false, nil)))
	must(t, err)
	if size := got.GetVolume().GetCapacityBytes(); size != diskimage.Smallest {
		t.Errorf("the least size is %d", size)
	}
	exact := limited(asked("exact", 4096, false, nil))
	exact.CapacityRange.LimitBytes = 1 << 20
	_, err = d.CreateVolume(t.Context(), exact)
	is(t, err, codes.OutOfRange, "smaller than a file system can be")
	_, err = d.CreateVolume(t.Context(), asked("small", 1, false, nil))
	is(t, err, codes.AlreadyExists, "the same name without a limit")
	wrong := limited(asked("wrong", imageSize, false, nil))
	wrong.Parameters[localvolume.LimitParameter] = "quota"
	_, err = d.CreateVolume(t.Context(), wrong)
	is(t, err, codes.InvalidArgument, "a limit that there is not")
}

// TestCopiesOfImages: of one that is written to, as it was at one moment; larger ones have a larger file system; and a
// directory becomes an image, and an image a directory, with what is in it.
func TestCopiesOfImages(t *testing.T) {
	d, root := images(t)
	id := create(t, d, limited(asked("data", imageSize, false, nil)))
	in := publish(t, d, id, false)
	must(t, os.WriteFile(filepath.Join(in, "file"), []byte("first"), 0o640), os.Chown(filepath.Join(in, "file"), 1000, 2000))
	snap, err := d.CreateSnapshot(t.Context(), &spec.CreateSnapshotRequest{Name: "snap", SourceVolumeId: id})
	must(t, err)
	must(t, os.WriteFile(filepath.Join(in, "file"), []byte("second"), 0o640)) // it goes on
	of := ofSnapshot(snap.GetSnapshot().GetSnapshotId())
	_, err = d.CreateVolume(t.Context(), limited(asked("raw", imageSize, true, of)))
	is(t, err, codes.InvalidArgument, "a device of a file system")
	directory := create(t, d, asked("directory", imageSize, false, of))
	for name, c := range map[string]struct {
		request *spec.CreateVolumeRequest
		want    string
	}{
		"restored":           {limited(asked("restored", imageSize, false, of)), "first"},
		"cloned in use":      {limited(asked("cloned", imageSize, false, ofVolume(id))), "second"},
		"larger":             {limited(asked("larger", 4*imageSize, false, of)), "first"},
		"image to directory": {asked("plain", imageSize, false, ofVolume(id)), "second"},
		"directory to image": {limited(asked("image", imageSize, false, ofVolume(directory))), "first"},
	} {
		t.Run(name, func(t *testing.T) {
			made := create(t, d, c.request)
			copied := publish(t, d, made, false)
			if got, err := os.ReadFile(filepath.Join(copied, "file")); err != nil || string(got) != c.want {
				t.Errorf("a file says %q (%v), want %q", got, err, c.want)
			}
			var st unix.Stat_t
			if err := unix.Stat(filepath.Join(copied, "file"), &st); err != nil || st.Uid != 1000 || st.Gid != 2000 || st.Mode&0o777 != 0o640 {
				t.Errorf("a file is %d:%d's, with mode %o (%v)", st.Uid, st.Gid, st.Mode, err)
			}
			if entries, err := os.ReadDir(copied); err != nil || len(entries) != 1 {
				t.Errorf("it has %v (%v)", entries, err)
			}
			want := c.request.GetCapacityRange().GetRequiredBytes()
			if u := statsOf(t, d, made, copied); c.request.GetParameters() != nil && (u.GetTotal() > want || u.GetTotal() < want/4*3) {
				t.Errorf("of %d bytes, it has %v", want, u)
			}
			must(t, os.WriteFile(filepath.Join(copied, "own"), nil, 0o600))
		})
	}
	if entries, err := os.ReadDir(in); err != nil || len(entries) != 1 {
		t.Errorf("the source has %v (%v)", entries, err)
	}
	left, err := linuxhost.MountsBelow(filepath.Join(root, "snapshots"))
	if err != nil || len(left) > 0 {
		t.Errorf("snapshots are mounted at %v (%v)", left, err)
	}
	_, err = d.DeleteSnapshot(t.Context(), &spec.DeleteSnapshotRequest{SnapshotId: snap.GetSnapshot().GetSnapshotId()})
	must(t, err)
}

// TestAnImageAfterACrash: of the process, which may leave it frozen, mounted half way, or with a file that has grown
// alone; and of the machine, after which nothing is mounted.
func TestAnImageAfterACrash(t *testing.T) {
	first, root := images(t)
	id := create(t, first, limited(asked("data", imageSize, false, nil)))
	target := publish(t, first, id, false)
	file := filepath.Join(root, "volumes", id, "data")
	must(t, os.WriteFile(filepath.Join(target, "file"), []byte("kept"), 0o600), diskimage.Freeze(filepath.Join(root, "volumes", id, "mount")))
	half := filepath.Join(root, "new/volumes/half")
	must(t, os.MkdirAll(half, 0o700), diskimage.Format(t.Context(), filepath.Join(half, "data"), imageSize),
		diskimage.Mount(t.Context(), filepath.Join(half, "data"), filepath.Join(half, "mount")))
	second, _ := start(t, root)
	must(t, os.WriteFile(filepath.Join(target, "more"), nil, 0o600)) // would wait for ever
	if _, err := os.Lstat(half); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what was half made: %v", err)
	}
	// Staged again, it is the same mount.
	stage := &spec.NodeStageVolumeRequest{
		VolumeId: id, StagingTargetPath: filepath.Join(filepath.Dir(target), "staging"), VolumeCapability: capability(false),
	}
	_, err := second.NodeStageVolume(t.Context(), stage)
	must(t, err)
	if all := devices(t, root, id); len(all) != 1 {
		t.Errorf("its devices are %v", all)
	}
	// After a restart of the machine there is no mount, and no device.
	must(t, unix.Unmount(target, 0), diskimage.Unmount(filepath.Join(root, "volumes", id, "mount")))
	if !noDevices(t, root, id) {
		t.Fatalf("its devices are %v", devices(t, root, id))
	}
	again := &spec.NodePublishVolumeRequest{
		VolumeId: id, StagingTargetPath: stage.GetStagingTargetPath(), TargetPath: target, VolumeCapability: capability(false),
	}
	_, err = second.NodePublishVolume(t.Context(), again)
	is(t, err, codes.FailedPrecondition, "published unstaged")
	must(t, os.Truncate(file, 2*imageSize)) // the crash came as it was expanded
	_, err = second.NodeStageVolume(t.Context(), stage)
	must(t, err)
	_, err = second.NodePublishVolume(t.Context(), again)
	must(t, err)
	_, err = second.NodeExpandVolume(t.Context(),
		&spec.NodeExpandVolumeRequest{VolumeId: id, VolumePath: target, CapacityRange: &spec.CapacityRange{RequiredBytes: 2 * imageSize}})
	must(t, err)
	if u := statsOf(t, second, id, target); u.GetTotal() < 2*imageSize/4*3 {
		t.Errorf("expanded again, it has %v", u)
	}
	if got, err := os.ReadFile(filepath.Join(target, "file")); err != nil || string(got) != "kept" {
		t.Errorf("a file says %q (%v)", got, err)
	}
	unpublish(t.Context(), t, second, id, target)
	if !noDevices(t, root, id) {
		t.Errorf("unstaged, it has the devices %v", devices(t, root, id))
	}
}

// TestAnImageOfANodesVolume: as the volume's attributes say, and made when it is staged.
func TestAnImageOfANodesVolume(t *testing.T) {
	d, root := images(t)
	dir := shortDir(t)
	_, err := d.NodeStageVolume(t.Context(), &spec.NodeStageVolumeRequest{
		VolumeId: "pvc-1", StagingTargetPath: filepath.Join(dir, "staging"), VolumeCapability: capability(false),
		VolumeContext: map[string]string{"size": "1", "limit": localvolume.LimitImage},
	})
	must(t, err)
	if all := devices(t, root, "pvc-1"); len(all) != 1 {
		t.Errorf("its devices are %v", all)
	}
	must(t, linuxhost.UnmountBelow(root), localcsi.Release(root))
	if !noDevices(t, root, "pvc-1") {
		t.Errorf("released, it has the devices %v", devices(t, root, "pvc-1"))
	}
}
