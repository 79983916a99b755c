// SPDX-License-Identifier: Apache-2.0

package localcsi

import (
	"context"
	"path"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// CreateSnapshot implements the controller service.
func (d *Driver) CreateSnapshot(ctx context.Context, r *spec.CreateSnapshotRequest) (*spec.CreateSnapshotResponse, error) {
	name, from := r.GetName(), r.GetSourceVolumeId()
	if name == "" || len(name) > mostName || from == "" {
		return nil, status.Error(codes.InvalidArgument, "a snapshot needs a name and source_volume_id")
	}
	id := idOf(name)
	have, err := d.disk.get(snapshots, id)
	if err != nil {
		return nil, internal(err)
	}
	if have == nil {
		v, err := d.volume(from)
		if err != nil {
			return nil, err
		}
		want := &record{Name: name, Block: v.Block, Limit: v.Limit, Bytes: v.Bytes, Source: path.Join(volumes, v.id), Made: time.Now().UTC()}
		if err := d.ensure(ctx, snapshots, want, d.reserve); err != nil {
			return nil, err
		}
		have, err = d.disk.get(snapshots, id)
		if err != nil {
			return nil, internal(err)
		}
		if have == nil {
			return nil, status.Errorf(codes.Aborted, "snapshot %s was deleted as it was made", name)
		}
	}
	if have.Source != path.Join(volumes, from) || have.Name != name {
		return nil, status.Errorf(codes.AlreadyExists, "there is a snapshot %s of another volume: %s", name, have.Source)
	}
	return &spec.CreateSnapshotResponse{Snapshot: have.snapshot()}, nil
}

func (i *item) snapshot() *spec.Snapshot {
	return &spec.Snapshot{
		SnapshotId: i.id, SourceVolumeId: path.Base(i.Source), SizeBytes: i.Bytes, CreationTime: timestamppb.New(i.Made), ReadyToUse: true,
	}
}

// DeleteSnapshot implements the controller service.
func (d *Driver) DeleteSnapshot(ctx context.Context, r *spec.DeleteSnapshotRequest) (*spec.DeleteSnapshotResponse, error) {
	id := r.GetSnapshotId()
	if id == "" {
		return nil, status.Error(codes.InvalidArgument, "snapshot_id is empty")
	}
	release, err := d.begin(path.Join(snapshots, id))
	if err != nil {
		return nil, err
	}
	defer release()
	if err := d.jobs.end(ctx, path.Join(snapshots, id)); err != nil {
		return nil, err
	}
	s, err := d.disk.get(snapshots, id)
	if err != nil {
		return nil, internal(err)
	}
	if s != nil {
		if err := s.release(); err != nil { // a copy of it may have been cut short
			return nil, err
		}
	}
	return &spec.DeleteSnapshotResponse{}, internal(d.disk.remove(snapshots, id))
}

// ListSnapshots implements the controller service.
func (d *Driver) ListSnapshots(_ context.Context, r *spec.ListSnapshotsRequest) (*spec.ListSnapshotsResponse, error) {
	all, err := d.disk.list(snapshots)
	if err != nil {
		return nil, internal(err)
	}
	var matching []*item
	for _, s := range all {
		if id := r.GetSnapshotId(); id != "" && id != s.id {
			continue
		}
		if from := r.GetSourceVolumeId(); from != "" && path.Join(volumes, from) != s.Source {
			continue
		}
		matching = append(matching, s)
	}
	some, next, err := page(matching, r.GetStartingToken(), r.GetMaxEntries())
	if err != nil {
		return nil, err
	}
	out := &spec.ListSnapshotsResponse{NextToken: next}
	for _, s := range some {
		out.Entries = append(out.Entries, &spec.ListSnapshotsResponse_Entry{Snapshot: s.snapshot()})
	}
	return out, nil
}
