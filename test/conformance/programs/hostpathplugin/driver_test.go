// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func testDriver(t *testing.T, args ...string) *driver {
	t.Helper()
	o, err := parse(append([]string{"--nodeid=here", "--statedir=" + t.TempDir()}, args...), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	d, err := newDriver(o, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

var mounted = &spec.VolumeCapability{
	AccessType: &spec.VolumeCapability_Mount{Mount: &spec.VolumeCapability_MountVolume{FsType: "ext4"}},
	AccessMode: &spec.VolumeCapability_AccessMode{Mode: spec.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY},
}

func (d *driver) make(t *testing.T, name string, mutable map[string]string) (*spec.Volume, error) {
	t.Helper()
	running, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- d.Run(running) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	answer, err := d.CreateVolume(t.Context(), &spec.CreateVolumeRequest{
		Name: name, VolumeCapabilities: []*spec.VolumeCapability{mounted}, CapacityRange: &spec.CapacityRange{RequiredBytes: 1 << 20},
		MutableParameters: mutable,
	})
	return answer.GetVolume(), err
}

func wantCode(t *testing.T, what string, err error, want codes.Code) {
	t.Helper()
	if got := status.Code(err); got != want {
		t.Errorf("%s: %v (%v), want %v", what, got, err, want)
	}
}

// TestAttachedVolumes: the order of calls is checked, the limit kept, and what was
// done known to a driver that starts again.
func TestAttachedVolumes(t *testing.T) {
	d := testDriver(t, "--enable-attach", "--attach-limit=1", "--check-volume-lifecycle")
	v, err := d.make(t, "one", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.make(t, "two", nil); err != nil {
		t.Fatal(err)
	}
	info, err := d.NodeGetInfo(t.Context(), &spec.NodeGetInfoRequest{})
	if err != nil || info.GetMaxVolumesPerNode() != 1 || info.GetAccessibleTopology().GetSegments()[topologyKey] != "here" {
		t.Errorf("of the node it says %v (%v)", info, err)
	}
	stage := &spec.NodeStageVolumeRequest{VolumeId: v.GetVolumeId(), StagingTargetPath: t.TempDir(), VolumeCapability: mounted}
	_, err = d.NodeStageVolume(t.Context(), stage)
	wantCode(t, "staged before it is attached", err, codes.FailedPrecondition)
	attach := func(d *driver, id, node string) error {
		request := &spec.ControllerPublishVolumeRequest{VolumeId: id, NodeId: node, VolumeCapability: mounted}
		_, err := d.ControllerPublishVolume(t.Context(), request)
		return err
	}
	wantCode(t, "attached to another node", attach(d, v.GetVolumeId(), "there"), codes.NotFound)
	wantCode(t, "a volume that is not there", attach(d, "three", "here"), codes.NotFound)
	wantCode(t, "attached", attach(d, v.GetVolumeId(), "here"), codes.OK)
	wantCode(t, "attached again", attach(d, v.GetVolumeId(), "here"), codes.OK)
	if d, err = newDriver(d.o, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	wantCode(t, "more than the limit", attach(d, "two", "here"), codes.ResourceExhausted)
	_, err = d.NodeStageVolume(t.Context(), stage)
	wantCode(t, "staged", err, codes.OK)
	_, err = d.NodePublishVolume(t.Context(), &spec.NodePublishVolumeRequest{
		VolumeId: v.GetVolumeId(), StagingTargetPath: t.TempDir(), TargetPath: filepath.Join(t.TempDir(), "at"), VolumeCapability: mounted,
	})
	wantCode(t, "published from where it is not staged", err, codes.FailedPrecondition)
	_, err = d.ControllerUnpublishVolume(t.Context(), &spec.ControllerUnpublishVolumeRequest{VolumeId: v.GetVolumeId()})
	wantCode(t, "detached while it is staged", err, codes.FailedPrecondition)
	_, err = d.DeleteVolume(t.Context(), &spec.DeleteVolumeRequest{VolumeId: v.GetVolumeId()})
	wantCode(t, "deleted while it is staged", err, codes.FailedPrecondition)
	unstage := &spec.NodeUnstageVolumeRequest{VolumeId: v.GetVolumeId(), StagingTargetPath: stage.GetStagingTargetPath()}
	_, err = d.NodeUnstageVolume(t.Context(), unstage)
	wantCode(t, "unstaged", err, codes.OK)
	_, err = d.ControllerUnpublishVolume(t.Context(), &spec.ControllerUnpublishVolumeRequest{VolumeId: v.GetVolumeId()})
	wantCode(t, "detached", err, codes.OK)
	_, err = d.DeleteVolume(t.Context(), &spec.DeleteVolumeRequest{VolumeId: v.GetVolumeId()})
	wantCode(t, "deleted", err, codes.OK)
}

// TestModifiedVolumes: by the parameters that are accepted, and by no others.
func TestModifiedVolumes(t *testing.T) {
	d := testDriver(t, "--enable-controller-modify-volume=true", "--accepted-mutable-parameter-names=speed,color")
	_, err := d.make(t, "one", map[string]string{"size": "x"})
	wantCode(t, "made with another parameter", err, codes.InvalidArgument)
	v, err := d.make(t, "one", map[string]string{"speed": "x"})
	wantCode(t, "made with one of them", err, codes.OK)
	for parameter, want := range map[string]codes.Code{"color": codes.OK, "weight": codes.InvalidArgument} {
		_, err = d.ControllerModifyVolume(t.Context(), &spec.ControllerModifyVolumeRequest{
			VolumeId: v.GetVolumeId(), MutableParameters: map[string]string{parameter: "x"},
		})
		wantCode(t, parameter, err, want)
	}
}

// TestWhatFlagsTakeAway from what the driver says that it can.
func TestWhatFlagsTakeAway(t *testing.T) {
	d := testDriver(t, "--enable-topology=false", "--disable-controller-expansion", "--disable-node-expansion")
	plugin, err := d.GetPluginCapabilities(t.Context(), nil)
	if err != nil || slices.ContainsFunc(plugin.GetCapabilities(), func(c *spec.PluginCapability) bool {
		return c.GetService().GetType() == spec.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS
	}) {
		t.Errorf("--enable-topology=false leaves %v (%v)", plugin, err)
	}
	controller, err := d.ControllerGetCapabilities(t.Context(), nil)
	if err != nil || slices.ContainsFunc(controller.GetCapabilities(), func(c *spec.ControllerServiceCapability) bool {
		return c.GetRpc().GetType() == spec.ControllerServiceCapability_RPC_EXPAND_VOLUME
	}) {
		t.Errorf("--disable-controller-expansion leaves %v (%v)", controller, err)
	}
	node, err := d.NodeGetCapabilities(t.Context(), nil)
	if err != nil || slices.ContainsFunc(node.GetCapabilities(), func(c *spec.NodeServiceCapability) bool {
		return c.GetRpc().GetType() == spec.NodeServiceCapability_RPC_EXPAND_VOLUME
	}) {
		t.Errorf("--disable-node-expansion leaves %v (%v)", node, err)
	}
}

// TestLeave: a driver without volumes leaves nothing, one with volumes all of them.
func TestLeave(t *testing.T) {
	d := testDriver(t)
	if _, err := d.make(t, "one", nil); err != nil {
		t.Fatal(err)
	}
	if err := d.leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	if has, err := d.Has("one"); err != nil || !has {
		t.Fatalf("the volume has gone (%v)", err)
	}
	if _, err := d.DeleteVolume(t.Context(), &spec.DeleteVolumeRequest{VolumeId: "one"}); err != nil {
		t.Fatal(err)
	}
	if err := d.leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(d.o.state, d.o.name)); !os.IsNotExist(err) {
		t.Errorf("the directory is left: %v", err)
	}
}

// TestCallsAreLogged as the suite reads them: what was asked, not what became of it.
func TestCallsAreLogged(t *testing.T) {
	var log bytes.Buffer
	logged := calls{&log, slog.New(slog.DiscardHandler)}
	_, err := logged.intercept(t.Context(), &spec.NodePublishVolumeRequest{VolumeContext: map[string]string{"foo": "bar"}},
		&grpc.UnaryServerInfo{FullMethod: "/csi.v1.Node/NodePublishVolume"}, func(_ context.Context, r any) (any, error) {
			r.(*spec.NodePublishVolumeRequest).VolumeContext = nil
			return nil, status.Error(codes.NotFound, "gone")
		})
	wantCode(t, "the call", err, codes.NotFound)
	text, found := strings.CutPrefix(log.String(), "gRPCCall:")
	var line struct {
		Method  string
		Request struct {
			VolumeContext map[string]string `json:"volume_context"`
		}
		FullError struct {
			Code    codes.Code `json:"code"`
			Message string     `json:"message"`
		}
	}
	if err := json.Unmarshal([]byte(text), &line); err != nil || !found {
		t.Fatalf("%q: %v", log.String(), err)
	}
	if line.Method != "/csi.v1.Node/NodePublishVolume" || line.Request.VolumeContext["foo"] != "bar" ||
		line.FullError.Code != codes.NotFound ||
		line.FullError.Message != "gone" {
		t.Errorf("logged %+v", line)
	}
}

// TestFlags: what is not known is refused, and what is missing named.
func TestFlags(t *testing.T) {
	for _, args := range [][]string{
		{"--nodeid=here", "--capacity=slow=1Gi"}, {"--nodeid=here", "--drivername=../x"}, {"--nodeid=here", "x"}, {}, {"--nodeid=here", "--attach-limit=-1"},
	} {
		if o, err := parse(args, io.Discard); err == nil {
			t.Errorf("%q was taken for %+v", args, o)
		}
	}
	if _, err := parse([]string{"--endpoint=/x", "--proxy-endpoint=tcp://:9000"}, io.Discard); err != nil {
		t.Error(err)
	}
}

// TestOwnVolumes of pods come with a publication and go with its end, whatever the
// length of their IDs. It mounts, and so needs root.
func TestOwnVolumes(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can mount")
	}
	d := testDriver(t)
	running, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- d.Run(running) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	id, target := "csi-"+strings.Repeat("0a", 32), filepath.Join(t.TempDir(), "at")
	t.Cleanup(func() { _ = syscall.Unmount(target, syscall.MNT_DETACH) }) // where the test failed
	once := &spec.VolumeCapability{
		AccessType: &spec.VolumeCapability_Mount{Mount: &spec.VolumeCapability_MountVolume{}},
		AccessMode: &spec.VolumeCapability_AccessMode{Mode: spec.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
	}
	for range 2 { // again is no other volume
		_, err := d.NodePublishVolume(t.Context(), &spec.NodePublishVolumeRequest{
			VolumeId: id, TargetPath: target, VolumeCapability: once, VolumeContext: map[string]string{ephemeralKey: "true"},
		})
		wantCode(t, "published", err, codes.OK)
	}
	if err := os.WriteFile(filepath.Join(target, "x"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	stats, err := d.NodeGetVolumeStats(t.Context(), &spec.NodeGetVolumeStatsRequest{VolumeId: id, VolumePath: target})
	if err != nil || len(stats.GetUsage()) == 0 {
		t.Errorf("its statistics are %v (%v)", stats, err)
	}
	_, err = d.NodeUnpublishVolume(t.Context(), &spec.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: target})
	wantCode(t, "unpublished", err, codes.OK)
	all, err := d.ListVolumes(t.Context(), &spec.ListVolumesRequest{})
	if err != nil || len(all.GetEntries()) > 0 || len(d.ledger.uses) > 0 {
		t.Errorf("left are %v (%v) and %v", all, err, d.ledger.uses)
	}
}
