// SPDX-License-Identifier: Apache-2.0

package localcsi

import (
	"context"
	"errors"
	"math"
	"path"
	"slices"
	"strings"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wasmplane/wasmplane/core/kubelet/diskimage"
	"github.com/wasmplane/wasmplane/core/localvolume"
)

const (
	// bySize is the size of a volume for which none is asked.
	bySize = 1 << 30
	// sector: sizes are multiples of it.
	sector = 4096
	// mostName is the specification's bound of a name.
	mostName = 128
)

// internal is an error as the caller gets it: its code where it has one.
func internal(err error) error {
	if err == nil {
		return nil
	}
	if s, ok := status.FromError(err); ok {
		return s.Err()
	}
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return status.Error(codes.ResourceExhausted, err.Error())
	}
	if errors.Is(err, diskimage.ErrNoPrograms) || errors.Is(err, diskimage.ErrWhileMounted) {
		return status.Error(codes.FailedPrecondition, err.Error())
	}
	return status.Error(codes.Internal, err.Error())
}

// begin has a call be the only one about a volume or a snapshot.
func (d *Driver) begin(key string) (func(), error) {
	release, _ := d.take(key)
	if release == nil {
		return nil, status.Errorf(codes.Aborted, "another call about %s is at work", key)
	}
	return release, nil
}

// wait begins once whatever else is at work about a volume or a snapshot has ended.
func (d *Driver) wait(ctx context.Context, key string) (func(), error) {
	for {
		release, ended := d.take(key)
		if release != nil {
			return release, nil
		}
		select {
		case <-ended:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// take answers a release, or, where another call is at work, when that has ended.
func (d *Driver) take(key string) (release func(), ended <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if other, busy := d.busy[key]; busy {
		return nil, other
	}
	done := make(chan struct{})
	d.busy[key] = done
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.busy, key)
		close(done)
	}, nil
}

// volume that has to be there.
func (d *Driver) volume(id string) (*item, error) {
	if id == "" {
		return nil, status.Error(codes.InvalidArgument, "volume_id is empty")
	}
	v, err := d.disk.get(volumes, id)
	if err != nil {
		return nil, internal(err)
	}
	if v == nil {
		return nil, status.Errorf(codes.NotFound, "there is no volume %q on this node", id)
	}
	return v, nil
}

// fit says why a capability cannot be had; "" = it can.
func fit(c *spec.VolumeCapability) string {
	switch c.GetAccessMode().GetMode() {
	case spec.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, spec.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY,
		spec.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER, spec.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:
	default:
		return "local volumes are of one node: the access mode may be ReadWriteOnce or ReadWriteOncePod"
	}
	switch {
	case c.GetBlock() == nil && c.GetMount() == nil:
		return "neither a block volume nor a mounted one is asked for"
	case c.GetMount().GetFsType() != "":
		return "the driver chooses the file system of local volumes: leave its type out"
	}
	return ""
}

// smallest is the least size that it may have.
func (r *record) smallest() int64 {
	if r.image() {
		return diskimage.Smallest
	}
	return sector
}

// sizeOf is the size to make, of smallest or more.
func sizeOf(r *spec.CapacityRange, smallest int64) (int64, error) {
	required, limit := r.GetRequiredBytes(), r.GetLimitBytes()
	if required < 0 || limit < 0 || limit > 0 && limit < required {
		return 0, status.Errorf(codes.InvalidArgument, "capacity_range: required_bytes %d, limit_bytes %d", required, limit)
	}
	size := required
	if size == 0 {
		size = bySize
		if limit > 0 {
			size = min(size, limit/sector*sector)
		}
	}
	size = max((size+sector-1)/sector*sector, smallest)
	if required > math.MaxInt64-sector || limit > 0 && size > limit {
		return 0, status.Errorf(codes.OutOfRange, "sizes are multiples of %d bytes, and %d at the least: none is within capacity_range (required_bytes %d, limit_bytes %d)", sector, smallest, required, limit)
	}
	return size, nil
}

// plan is what a call asks to be made.
func (d *Driver) plan(r *spec.CreateVolumeRequest) (*record, error) {
	name, capabilities := r.GetName(), r.GetVolumeCapabilities()
	if name == "" || len(name) > mostName {
		return nil, status.Errorf(codes.InvalidArgument, "a volume's name has 1 to %d bytes", mostName)
	}
	if len(capabilities) == 0 {
		return nil, status.Error(codes.InvalidArgument, "volume_capabilities is empty")
	}
	block := capabilities[0].GetBlock() != nil
	for _, c := range capabilities {
		if why := fit(c); why != "" {
			return nil, status.Error(codes.InvalidArgument, why)
		}
		if (c.GetBlock() != nil) != block {
			return nil, status.Error(codes.InvalidArgument, "a volume is a block device or a directory, and both are asked for")
		}
	}
	limit, err := localvolume.LimitOf(r.GetParameters())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	for key := range r.GetParameters() {
		if !strings.HasPrefix(key, "csi.storage.k8s.io/") && key != localvolume.LimitParameter { // the former are of those who call
			return nil, status.Errorf(codes.InvalidArgument, "local volumes have no parameter %q: leave it out of the class", key)
		}
	}
	if !d.here(r.GetAccessibilityRequirements()) {
		return nil, status.Errorf(codes.ResourceExhausted, "volumes of this driver are on node %s (%s)", d.cfg.Node, d.cfg.TopologyKey)
	}
	want := &record{Name: name, Block: block, Source: sourceOf(r.GetVolumeContentSource()), Made: time.Now().UTC()}
	if !block {
		want.Limit = limit
	}
	if want.Bytes, err = sizeOf(r.GetCapacityRange(), want.smallest()); err != nil {
		return nil, err
	}
	return want, nil
}

// here tells whether a volume may be on this node.
func (d *Driver) here(r *spec.TopologyRequirement) bool {
	all := append(slices.Clone(r.GetRequisite()), r.GetPreferred()...)
	return len(all) == 0 || slices.ContainsFunc(all, func(t *spec.Topology) bool {
		value, has := t.GetSegments()[d.cfg.TopologyKey]
		return !has || value == d.cfg.Node
	})
}

func sourceOf(s *spec.VolumeContentSource) string {
	switch {
	case s.GetSnapshot() != nil:
		return path.Join(snapshots, s.GetSnapshot().GetSnapshotId())
	case s.GetVolume() != nil:
		return path.Join(volumes, s.GetVolume().GetVolumeId())
	}
	return ""
}

// source is what a record says that it is made of; nil: of nothing.
func (d *Driver) source(r *record) (*item, error) {
	if r.Source == "" {
		return nil, nil
	}
	shelf, id := path.Split(r.Source)
	from, err := d.disk.get(path.Clean(shelf), id)
	switch {
	case err != nil:
		return nil, internal(err)
	case from == nil || path.Clean(shelf) != volumes && path.Clean(shelf) != snapshots:
		return nil, status.Errorf(codes.NotFound, "what volume %s is to be made of is not on this node: %s", r.Name, r.Source)
	case from.Block != r.Block:
		return nil, status.Errorf(codes.InvalidArgument, "%s cannot become a volume of another volumeMode", r.Source)
	case from.Bytes > r.Bytes:
		return nil, status.Errorf(codes.OutOfRange, "%s has %d bytes, and a volume of %d is asked for: ask for as much", r.Source, from.Bytes,
			r.Bytes)
	}
	return from, nil
}

// same says whether a volume is what is asked for.
func (r *record) same(want *record, limits *spec.CapacityRange) bool {
	limit := limits.GetLimitBytes()
	return r.Name == want.Name && r.Block == want.Block && r.Limit == want.Limit && r.Source == want.Source &&
		r.Bytes >= limits.GetRequiredBytes() && (limit == 0 || r.Bytes <= limit)
}

// CreateVolume implements the controller service.
func (d *Driver) CreateVolume(ctx context.Context, r *spec.CreateVolumeRequest) (*spec.CreateVolumeResponse, error) {
	want, err := d.plan(r)
	if err != nil {
		return nil, err
	}
	id := idOf(want.Name)
	have, err := d.disk.get(volumes, id)
	if err != nil {
		return nil, internal(err)
	}
	if have == nil {
		if err := d.ensure(ctx, volumes, want, d.reserve); err != nil {
			return nil, err
		}
		if have, err = d.volume(id); err != nil {
			return nil, err
		}
	}
	if !have.same(want, r.GetCapacityRange()) {
		return nil, status.Errorf(codes.AlreadyExists, "there is a volume %s, which is another: %d bytes, block device: %v, limit %q, made of %q",
			want.Name, have.Bytes, have.Block, have.Limit, have.Source)
	}
	v := d.describe(have)
	v.ContentSource = r.GetVolumeContentSource()
	return &spec.CreateVolumeResponse{Volume: v}, nil
}

func (d *Driver) describe(v *item) *spec.Volume {
	return &spec.Volume{VolumeId: v.id, CapacityBytes: v.Bytes, AccessibleTopology: []*spec.Topology{d.topology()}}
}

// reserver counts with a size from now on, or refuses it.
type reserver func(key string, size int64) (release func(), err error)

// promised is the reserver of who has counted already.
func promised(string, int64) (func(), error) { return func() {}, nil }

// ensure makes what is not there: once, however often it is asked for.
func (d *Driver) ensure(ctx context.Context, shelf string, want *record, reserve reserver) error {
	id := idOf(want.Name)
	return d.jobs.make(ctx, path.Join(shelf, id), want.Source != "", func(ctx context.Context) error {
		if have, err := d.disk.get(shelf, id); err != nil || have != nil {
			return internal(err)
		}
		from, err := d.source(want)
		if err != nil {
			return err
		}
		release, err := reserve(path.Join(shelf, id), want.Bytes)
		if err != nil {
			return err
		}
		defer release()
		return internal(d.disk.create(shelf, id, want, func(data string) error { return d.fill(ctx, from, want, data) }))
	})
}

// reserve counts with a size from now on, until what has it is on the disk.
func (d *Driver) reserve(key string, size int64) (func(), error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	room, err := d.room()
	if err != nil {
		return nil, err
	}
	if size > room {
		return nil, status.Errorf(codes.ResourceExhausted, "%d bytes are asked for, and the disk of node %s has room for %d", size, d.cfg.Node,
			room)
	}
	d.reserved[key] = size
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.reserved, key)
	}, nil
}

// room for another volume: what of the disk no other has been promised. d.mu held.
func (d *Driver) room() (int64, error) {
	total, _, err := d.disk.space()
	if err != nil {
		return 0, internal(err)
	}
	for _, shelf := range []string{volumes, snapshots} {
		all, err := d.disk.list(shelf)
		if err != nil {
			return 0, internal(err)
		}
		for _, i := range all {
			total -= i.Bytes
			if _, twice := d.reserved[path.Join(shelf, i.id)]; twice {
				total += i.Bytes
			}
		}
	}
	for _, size := range d.reserved {
		total -= size
	}
	return max(0, total), nil
}

// DeleteVolume implements the controller service. What is being made is not made any more.
func (d *Driver) DeleteVolume(ctx context.Context, r *spec.DeleteVolumeRequest) (*spec.DeleteVolumeResponse, error) {
	id := r.GetVolumeId()
	if id == "" {
		return nil, status.Error(codes.InvalidArgument, "volume_id is empty")
	}
	release, err := d.begin(path.Join(volumes, id))
	if err != nil {
		return nil, err
	}
	defer release()
	if err := d.jobs.end(ctx, path.Join(volumes, id)); err != nil {
		return nil, err
	}
	v, err := d.disk.get(volumes, id)
	if err != nil {
		return nil, internal(err)
	}
	if v != nil {
		if err := v.unused(); err != nil {
			return nil, err
		}
		if err := v.release(); err != nil {
			return nil, err
		}
	}
	return &spec.DeleteVolumeResponse{}, internal(d.disk.remove(volumes, id))
}

// ValidateVolumeCapabilities implements the controller service.
func (d *Driver) ValidateVolumeCapabilities(_ context.Context,
	r *spec.ValidateVolumeCapabilitiesRequest,
) (*spec.ValidateVolumeCapabilitiesResponse, error) {
	v, err := d.volume(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if len(r.GetVolumeCapabilities()) == 0 {
		return nil, status.Error(codes.InvalidArgument, "volume_capabilities is empty")
	}
	for _, c := range r.GetVolumeCapabilities() {
		why := fit(c)
		if why == "" && (c.GetBlock() != nil) != v.Block {
			why = "the volume is of the other volumeMode"
		}
		if why != "" {
			return &spec.ValidateVolumeCapabilitiesResponse{Message: why}, nil
		}
	}
	return &spec.ValidateVolumeCapabilitiesResponse{Confirmed: &spec.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeContext: r.GetVolumeContext(), VolumeCapabilities: r.GetVolumeCapabilities(), Parameters: r.GetParameters(),
	}}, nil
}

// GetCapacity implements the controller service.
func (d *Driver) GetCapacity(_ context.Context, r *spec.GetCapacityRequest) (*spec.GetCapacityResponse, error) {
	if t := r.GetAccessibleTopology(); t != nil && !d.here(&spec.TopologyRequirement{Requisite: []*spec.Topology{t}}) {
		return &spec.GetCapacityResponse{}, nil
	}
	for _, c := range r.GetVolumeCapabilities() {
		if fit(c) != "" {
			return &spec.GetCapacityResponse{}, nil
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	room, err := d.room()
	if err != nil {
		return nil, err
	}
	_, free, err := d.disk.space()
	if err != nil {
		return nil, internal(err)
	}
	return &spec.GetCapacityResponse{AvailableCapacity: min(room, free)}, nil
}

// page is the part of a sorted list that a caller asks for, and where the next begins.
func page(all []*item, token string, most int32) ([]*item, string, error) {
	const after = "after:"
	if token != "" {
		id, ok := strings.CutPrefix(token, after)
		if !ok {
			return nil, "", status.Errorf(codes.Aborted, "starting_token %q was not given out: begin anew", token)
		}
		all = slices.DeleteFunc(slices.Clone(all), func(i *item) bool { return i.id <= id })
	}
	if most < 0 {
		return nil, "", status.Error(codes.InvalidArgument, "max_entries is below zero")
	}
	if most == 0 || len(all) <= int(most) {
		return all, "", nil
	}
	return all[:most], after + all[most-1].id, nil
}

// ListVolumes implements the controller service.
func (d *Driver) ListVolumes(_ context.Context, r *spec.ListVolumesRequest) (*spec.ListVolumesResponse, error) {
	all, err := d.disk.list(volumes)
	if err != nil {
		return nil, internal(err)
	}
	some, next, err := page(all, r.GetStartingToken(), r.GetMaxEntries())
	if err != nil {
		return nil, err
	}
	out := &spec.ListVolumesResponse{NextToken: next}
	for _, v := range some {
		out.Entries = append(out.Entries, &spec.ListVolumesResponse_Entry{Volume: d.describe(v)})
	}
	return out, nil
}

// ControllerExpandVolume implements the controller service: it does the node's part too.
func (d *Driver) ControllerExpandVolume(ctx context.Context,
	r *spec.ControllerExpandVolumeRequest,
) (*spec.ControllerExpandVolumeResponse, error) {
	size, err := d.expand(ctx, r.GetVolumeId(), r.GetCapacityRange())
	if err != nil {
		return nil, err
	}
	return &spec.ControllerExpandVolumeResponse{CapacityBytes: size}, nil
}

// expand makes a volume larger, never smaller, and answers how large it is.
func (d *Driver) expand(ctx context.Context, id string, limits *spec.CapacityRange) (int64, error) {
	v, err := d.volume(id)
	if err != nil {
		return 0, err
	}
	if limits == nil {
		return 0, status.Error(codes.InvalidArgument, "capacity_range is missing")
	}
	size, err := sizeOf(limits, v.smallest())
	if err != nil {
		return 0, err
	}
	release, err := d.begin(path.Join(volumes, id))
	if err != nil {
		return 0, err
	}
	defer release()
	if size > v.Bytes {
		free, err := d.reserve(path.Join("more", id), size-v.Bytes)
		if status.Code(err) == codes.ResourceExhausted {
			err = status.Error(codes.OutOfRange, err.Error()) // final, until somebody asks for less
		}
		if err != nil {
			return 0, err
		}
		defer free()
	} else {
		size = v.Bytes
	}
	// The device and the file system first: called again after a crash in between, they are as large already.
	if v.Block {
		if err := diskimage.Enlarge(v.data(), size); err != nil {
			return 0, internal(err)
		}
	}
	if v.image() {
		if err := diskimage.Grow(ctx, v.data(), size); err != nil {
			return 0, internal(err)
		}
	}
	if size > v.Bytes {
		v.Bytes = size
		if err := v.write(v.dir); err != nil {
			return 0, internal(err)
		}
	}
	return size, nil
}
