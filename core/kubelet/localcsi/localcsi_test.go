// SPDX-License-Identifier: Apache-2.0

package localcsi_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wasmplane/wasmplane/core/kubelet/localcsi"
)

const once = spec.VolumeCapability_AccessMode_SINGLE_NODE_WRITER

func capability(block bool) *spec.VolumeCapability {
	c := &spec.VolumeCapability{
		AccessMode: &spec.VolumeCapability_AccessMode{Mode: once},
		AccessType: &spec.VolumeCapability_Mount{Mount: &spec.VolumeCapability_MountVolume{}},
	}
	if block {
		c.AccessType = &spec.VolumeCapability_Block{Block: &spec.VolumeCapability_BlockVolume{}}
	}
	return c
}

func asked(name string, size int64, block bool, source *spec.VolumeContentSource) *spec.CreateVolumeRequest {
	return &spec.CreateVolumeRequest{
		Name: name, CapacityRange: &spec.CapacityRange{RequiredBytes: size}, VolumeCapabilities: []*spec.VolumeCapability{capability(block)},
		VolumeContentSource: source,
	}
}

func create(t *testing.T, d *localcsi.Driver, r *spec.CreateVolumeRequest) string {
	t.Helper()
	got, err := d.CreateVolume(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return got.GetVolume().GetVolumeId()
}

func ofVolume(id string) *spec.VolumeContentSource {
	return &spec.VolumeContentSource{Type: &spec.VolumeContentSource_Volume{Volume: &spec.VolumeContentSource_VolumeSource{VolumeId: id}}}
}

func ofSnapshot(id string) *spec.VolumeContentSource {
	return &spec.VolumeContentSource{
		Type: &spec.VolumeContentSource_Snapshot{Snapshot: &spec.VolumeContentSource_SnapshotSource{SnapshotId: id}},
	}
}

// publish stages a volume and mounts it, and answers where.
func publish(t *testing.T, d *localcsi.Driver, id string, block bool) string {
	t.Helper()
	dir := shortDir(t)
	staging, target := filepath.Join(dir, "staging"), filepath.Join(dir, "target")
	if _, err := d.NodeStageVolume(t.Context(), &spec.NodeStageVolumeRequest{
		VolumeId: id, StagingTargetPath: staging,
		VolumeCapability: capability(block),
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := d.NodePublishVolume(t.Context(), &spec.NodePublishVolumeRequest{
		VolumeId: id, StagingTargetPath: staging, TargetPath: target,
		VolumeCapability: capability(block),
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unpublish(context.WithoutCancel(t.Context()), t, d, id, target) })
	return target
}

func unpublish(ctx context.Context, t *testing.T, d *localcsi.Driver, id, target string) {
	t.Helper()
	if _, err := d.NodeUnpublishVolume(ctx, &spec.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: target}); err != nil {
		t.Error(err)
	}
	if _, err := d.NodeUnstageVolume(ctx,
		&spec.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: filepath.Join(filepath.Dir(target), "staging")}); err != nil {
		t.Error(err)
	}
}

func is(t *testing.T, err error, want codes.Code, what string) {
	t.Helper()
	if status.Code(err) != want {
		t.Errorf("%s: %v, want %s", what, err, want)
	}
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// TestACloneIsWhatTheVolumeWas: owners, modes, times, holes, names and links; nothing that
// a link leads to outside.
func TestACloneIsWhatTheVolumeWas(t *testing.T) {
	d, _ := start(t, t.TempDir())
	id := create(t, d, asked("data", 1<<20, false, nil))
	outside := filepath.Join(t.TempDir(), "secret")
	in := publish(t, d, id, false)
	then := time.Unix(1e9, 0)
	path := func(name string) string { return filepath.Join(in, name) }
	must(
		t, os.WriteFile(outside, []byte("secret"), 0o600), os.Mkdir(path("dir"), 0o700), os.WriteFile(path("dir/file"), []byte("kept"), 0o600),
		os.Link(path("dir/file"), path("again")), os.Symlink(outside, path("link")), syscall.Mkfifo(path("pipe"), 0o640),
		os.WriteFile(path("program"), nil, 0o755), os.Chown(path("program"), 1000, 2000), os.Chmod(path("program"), 0o755|fs.ModeSetuid),
		os.WriteFile(path("hole"), nil, 0o600), os.Truncate(path("hole"), 64<<20), unix.Setxattr(path("dir"), "user.x", []byte("y"), 0),
		os.Chtimes(path("dir"), then, then),
	)
	snap, err := d.CreateSnapshot(t.Context(), &spec.CreateSnapshotRequest{Name: "snap", SourceVolumeId: id})
	must(t, err)
	must(t, os.WriteFile(path("dir/file"), []byte("later"), 0o600))
	for name, from := range map[string]*spec.VolumeContentSource{
		"kept":  ofSnapshot(snap.GetSnapshot().GetSnapshotId()),
		"later": ofVolume(id),
	} {
		t.Run(name, func(t *testing.T) {
			copied := publish(t, d, create(t, d, asked("of-"+name, 1<<20, false, from)), false)
			path := func(name string) string { return filepath.Join(copied, name) }
			if got, err := os.ReadFile(path("again")); err != nil || string(got) != name {
				t.Errorf("a file says %q (%v)", got, err)
			}
			stat := func(name string) syscall.Stat_t {
				var st syscall.Stat_t
				must(t, syscall.Lstat(path(name), &st))
				return st
			}
			if a, b := stat("again"), stat("dir/file"); a.Ino != b.Ino {
				t.Error("a file with two names became two files")
			}
			if to, err := os.Readlink(path("link")); err != nil || to != outside {
				t.Errorf("a link leads to %q (%v)", to, err)
			}
			if st := stat("pipe"); st.Mode&syscall.S_IFMT != syscall.S_IFIFO {
				t.Errorf("a pipe became %o", st.Mode)
			}
			if st := stat("program"); st.Uid != 1000 || st.Gid != 2000 || st.Mode&0o7777 != 0o4755 {
				t.Errorf("a program is %d:%d's with mode %o", st.Uid, st.Gid, st.Mode)
			}
			if st := stat("hole"); st.Size != 64<<20 || st.Blocks > 1024 {
				t.Errorf("a hole became %d bytes with %d blocks", st.Size, st.Blocks)
			}
			value := make([]byte, 10)
			if n, err := unix.Getxattr(path("dir"), "user.x", value); err != nil || string(value[:n]) != "y" {
				t.Errorf("an attribute became %q (%v)", value[:max(n, 0)], err)
			}
			if st := stat("dir"); st.Mtim.Sec != then.Unix() {
				t.Errorf("a directory is of %d", st.Mtim.Sec)
			}
			if st := stat("."); st.Mode&0o7777 != 0o777 {
				t.Errorf("the volume has mode %o", st.Mode)
			}
		})
	}
	if got, err := os.ReadFile(outside); err != nil || string(got) != "secret" {
		t.Errorf("what a link leads to says %q (%v)", got, err)
	}
}

// sharesBlocks says whether the file system of the tests can.
func sharesBlocks(t *testing.T) bool {
	t.Helper()
	a, err := os.Create(filepath.Join(t.TempDir(), "a"))
	must(t, err)
	defer a.Close()
	b, err := os.Create(filepath.Join(t.TempDir(), "b"))
	must(t, err)
	defer b.Close()
	_, err = a.WriteString("x")
	must(t, err)
	return unix.IoctlFileClone(int(b.Fd()), int(a.Fd())) == nil
}

// TestABlockVolume: a device of the size, which grows as it is used, and is copied.
func TestABlockVolume(t *testing.T) {
	d, _ := start(t, t.TempDir())
	const size = 8 << 20
	id := create(t, d, asked("disk", size, true, nil))
	target := publish(t, d, id, true)
	device, err := os.OpenFile(target, os.O_RDWR|unix.O_SYNC, 0)
	must(t, err)
	defer device.Close()
	length := func() int64 {
		end, err := device.Seek(0, 2)
		must(t, err)
		return end
	}
	if got := length(); got != size {
		t.Errorf("the device has %d bytes", got)
	}
	_, err = device.WriteAt([]byte("kept"), size-4096)
	must(t, err)
	_, err = d.NodeExpandVolume(t.Context(),
		&spec.NodeExpandVolumeRequest{VolumeId: id, VolumePath: target, CapacityRange: &spec.CapacityRange{RequiredBytes: 2 * size}})
	must(t, err)
	if got := length(); got != 2*size {
		t.Errorf("the device has grown to %d bytes", got)
	}
	_, err = d.DeleteVolume(t.Context(), &spec.DeleteVolumeRequest{VolumeId: id})
	is(t, err, codes.FailedPrecondition, "deleted in use")
	_, err = d.NodeUnstageVolume(t.Context(),
		&spec.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: filepath.Join(filepath.Dir(target), "staging")})
	is(t, err, codes.FailedPrecondition, "unstaged in use")
	// Without shared blocks, a copy of a device at work would be of no moment.
	want := codes.FailedPrecondition
	if sharesBlocks(t) {
		want = codes.OK
	}
	_, err = d.CreateSnapshot(t.Context(), &spec.CreateSnapshotRequest{Name: "at-work", SourceVolumeId: id})
	is(t, err, want, "a snapshot at work")
	must(t, device.Close())
	unpublish(t.Context(), t, d, id, target)
	_, err = d.CreateVolume(t.Context(), asked("smaller", size, true, ofVolume(id)))
	is(t, err, codes.OutOfRange, "a smaller clone")
	_, err = d.CreateVolume(t.Context(), asked("directory", 2*size, false, ofVolume(id)))
	is(t, err, codes.InvalidArgument, "a directory of a device")
	copied := publish(t, d, create(t, d, asked("clone", 3*size, true, ofVolume(id))), true)
	got := make([]byte, 4)
	in, err := os.Open(copied)
	must(t, err)
	defer in.Close()
	_, err = in.ReadAt(got, size-4096)
	if err != nil || string(got) != "kept" {
		t.Errorf("the clone says %q (%v)", got, err)
	}
	must(t, in.Close())
}

// TestWhatACrashLeaves: half-made and half-removed things are gone, whole ones are there,
// and making one again is the same one.
func TestWhatACrashLeaves(t *testing.T) {
	root := t.TempDir()
	first, _ := start(t, root)
	id := create(t, first, asked("data", 1<<20, false, nil))
	must(t, os.MkdirAll(filepath.Join(root, "new/volumes/half/data"), 0o700),
		os.MkdirAll(filepath.Join(root, "old/snapshots/half/data"), 0o700))
	second, _ := start(t, root)
	for _, left := range []string{"new/volumes/half", "old/snapshots/half"} {
		if _, err := os.Lstat(filepath.Join(root, left)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", left, err)
		}
	}
	if again := create(t, second, asked("data", 1<<20, false, nil)); again != id {
		t.Errorf("%s became %s", id, again)
	}
	all, err := second.ListVolumes(t.Context(), &spec.ListVolumesRequest{})
	if err != nil || len(all.GetEntries()) != 1 {
		t.Errorf("volumes %v (%v)", all, err)
	}
}

// TestIDsAreNoPaths: whatever is asked for stays in the driver's directory.
func TestIDsAreNoPaths(t *testing.T) {
	base := t.TempDir()
	root := filepath.Join(base, "root")
	d, _ := start(t, root)
	outside := filepath.Join(base, "outside")
	must(t, os.MkdirAll(filepath.Join(outside, "data"), 0o755), os.WriteFile(filepath.Join(outside, "record.json"), []byte(`{"bytes":1}`),
		0o600))
	for _, id := range []string{"../../outside", "..", ".", outside, "a/../../../outside", "a\x00b"} {
		if _, err := d.DeleteVolume(t.Context(), &spec.DeleteVolumeRequest{VolumeId: id}); err != nil {
			t.Errorf("delete %q: %v", id, err) // there is no such volume
		}
		_, err := d.DeleteSnapshot(t.Context(), &spec.DeleteSnapshotRequest{SnapshotId: id})
		is(t, err, codes.OK, "delete snapshot "+id)
		_, err = d.CreateSnapshot(t.Context(), &spec.CreateSnapshotRequest{Name: "s", SourceVolumeId: id})
		is(t, err, codes.NotFound, "snapshot of "+id)
		_, err = d.CreateVolume(t.Context(), asked("clone", 1<<20, false, ofVolume(id)))
		is(t, err, codes.NotFound, "clone of "+id)
		_, err = d.CreateVolume(t.Context(), asked("restored", 1<<20, false, ofSnapshot(id)))
		is(t, err, codes.NotFound, "restore of "+id)
		made := create(t, d, asked(id, 1<<20, false, nil)) // a name is another thing
		if entries, err := os.ReadDir(filepath.Join(root, "volumes")); err != nil || len(entries) != 1 || entries[0].Name() != made {
			t.Errorf("a volume called %q is %v (%v)", id, entries, err)
		}
		_, err = d.DeleteVolume(t.Context(), &spec.DeleteVolumeRequest{VolumeId: made})
		must(t, err)
	}
	if _, err := os.Stat(filepath.Join(outside, "record.json")); err != nil {
		t.Error(err)
	}
}

// TestTheDiskIsPromisedOnce: sizes are counted, those of snapshots too, until what has
// them is gone.
func TestTheDiskIsPromisedOnce(t *testing.T) {
	d, _ := start(t, t.TempDir())
	room, err := d.GetCapacity(t.Context(), &spec.GetCapacityRequest{})
	must(t, err)
	size := room.GetAvailableCapacity() / 4 * 3
	if _, err := d.CreateVolume(t.Context(), asked("larger", 1<<60, false, nil)); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("more than the disk has: %v", err)
	}
	id := create(t, d, asked("first", size, false, nil))
	// What others have used of the disk leaves room in what is counted.
	var st unix.Statfs_t
	must(t, unix.Statfs(t.TempDir(), &st))
	total := int64(st.Blocks) * st.Bsize
	second := total - size + 1<<20
	_, err = d.CreateVolume(t.Context(), asked("second", second, false, nil))
	is(t, err, codes.ResourceExhausted, "promised twice")
	_, err = d.ControllerExpandVolume(t.Context(),
		&spec.ControllerExpandVolumeRequest{VolumeId: id, CapacityRange: &spec.CapacityRange{RequiredBytes: total + 1<<30}})
	is(t, err, codes.OutOfRange, "grown beyond the disk")
	_, err = d.DeleteVolume(t.Context(), &spec.DeleteVolumeRequest{VolumeId: id})
	must(t, err)
	create(t, d, asked("third", min(size, second), false, nil))
}
