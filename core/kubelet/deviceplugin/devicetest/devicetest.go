// SPDX-License-Identifier: Apache-2.0

// Package devicetest is a device plugin as a program: its devices are /dev/null and a
// file that says which they are.
package devicetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/wasmplane/wasmplane/core/kubelet/pluginwatch"
	"github.com/wasmplane/wasmplane/core/run"
)

// Resource that the plugin has devices of.
const Resource = "example.com/gadget"

// plugin has a device for each line of a file, unhealthy where it ends with an exclamation mark.
type plugin struct {
	api.UnimplementedDevicePluginServer
	file string
	out  io.Writer
}

// Serve is the program: KUBELET FILE, the kubelet's directory and the file of the devices.
// It follows the file, and registers again when the kubelet starts anew.
func Serve(ctx context.Context, args []string, out io.Writer) error {
	if len(args) != 2 {
		return errors.New("gadgets: expected the kubelet's directory and a file")
	}
	dir := filepath.Join(args[0], "device-plugins")
	p := &plugin{file: args[1], out: out}
	return run.Parallel(
		func(ctx context.Context) error {
			return pluginwatch.Serve(ctx, filepath.Join(dir, "gadgets.sock"), func(s *grpc.Server) { api.RegisterDevicePluginServer(s, p) })
		},
		func(ctx context.Context) error { return p.register(ctx, filepath.Join(dir, "kubelet.sock")) },
	)(ctx)
}

// often is how often the plugin looks at files.
const often = 50 * time.Millisecond

// register registers at each socket that the kubelet makes.
func (p *plugin) register(ctx context.Context, socket string) error {
	var last os.FileInfo
	for run.Sleep(ctx, often) {
		now, err := os.Stat(socket)
		if err != nil || last != nil && os.SameFile(last, now) && last.ModTime().Equal(now.ModTime()) {
			continue
		}
		if err := register(ctx, socket); err != nil {
			continue // it has only been made
		}
		last = now
		fmt.Fprintln(p.out, "registered")
	}
	return nil
}

func register(ctx context.Context, socket string) error {
	conn, err := pluginwatch.Connect(socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = api.NewRegistrationClient(conn).Register(ctx, &api.RegisterRequest{
		Version: api.Version, Endpoint: "gadgets.sock", ResourceName: Resource,
	})
	return err
}

// GetDevicePluginOptions implements the plugin's part of the API.
func (*plugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{PreStartRequired: true}, nil
}

// ListAndWatch implements the plugin's part of the API.
func (p *plugin) ListAndWatch(_ *api.Empty, s grpc.ServerStreamingServer[api.ListAndWatchResponse]) error {
	for last := ""; ; {
		data, err := os.ReadFile(p.file)
		if err == nil && string(data) != last {
			last = string(data)
			var list []*api.Device
			for id := range strings.FieldsSeq(last) {
				name, sick := strings.CutSuffix(id, "!")
				d := &api.Device{ID: name, Health: api.Healthy}
				if sick {
					d.Health = api.Unhealthy
				}
				list = append(list, d)
			}
			if err := s.Send(&api.ListAndWatchResponse{Devices: list}); err != nil {
				return err
			}
		}
		if !run.Sleep(s.Context(), often) {
			return nil
		}
	}
}

// Allocate implements the plugin's part of the API.
func (p *plugin) Allocate(_ context.Context, r *api.AllocateRequest) (*api.AllocateResponse, error) {
	out := &api.AllocateResponse{}
	for _, c := range r.GetContainerRequests() {
		out.ContainerResponses = append(out.ContainerResponses, &api.ContainerAllocateResponse{
			Envs:    map[string]string{"GADGETS": strings.Join(c.GetDevicesIds(), ",")},
			Mounts:  []*api.Mount{{ContainerPath: "/gadgets", HostPath: p.file, ReadOnly: true}},
			Devices: []*api.DeviceSpec{{ContainerPath: "/dev/gadget", HostPath: "/dev/null", Permissions: "rw"}},
		})
	}
	return out, nil
}

// PreStartContainer implements the plugin's part of the API.
func (p *plugin) PreStartContainer(_ context.Context, r *api.PreStartContainerRequest) (*api.PreStartContainerResponse, error) {
	fmt.Fprintln(p.out, "starts with", strings.Join(r.GetDevicesIds(), ","))
	return &api.PreStartContainerResponse{}, nil
}
