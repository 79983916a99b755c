// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// FuzzDecode: whatever the file says, what it gives can be given.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"Given":[{"Key":{"Pod":"u","Container":"c","Resource":"a/b"},"Grant":{"IDs":["x"],"Mounts":[{"host_path":"/x"}]}}],"Resources":{"a/b":["x"]}}`))
	f.Add([]byte(`{"Given":[{"Grant":null},{"Grant":{"Mounts":[null],"Devices":[null]}}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := decode(data)
		if err != nil {
			return
		}
		cfg := &cri.ContainerConfig{}
		for _, e := range r.Given {
			e.Grant.equip(cfg)
			r.Given.taken(e.Key.Resource)
		}
		for _, m := range cfg.GetMounts() {
			if m == nil {
				t.Error("a mount of nothing")
			}
		}
		for _, d := range cfg.GetDevices() {
			if d == nil {
				t.Error("a device that is none")
			}
		}
	})
}

// FuzzAnswer: whatever a plugin answers, the paths that a container gets are absolute.
func FuzzAnswer(f *testing.F) {
	seed, err := proto.Marshal(&api.ContainerAllocateResponse{
		Envs: map[string]string{"A": "b"}, Mounts: []*api.Mount{{HostPath: "/a", ContainerPath: "/b"}, {}},
		Devices: []*api.DeviceSpec{{HostPath: "/dev/null", ContainerPath: "/dev/x"}}, CdiDevices: []*api.CDIDevice{{Name: "v/c=0"}},
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Fuzz(func(t *testing.T, data []byte) {
		var r api.ContainerAllocateResponse
		if proto.Unmarshal(data, &r) != nil {
			return
		}
		g, err := grantOf([]string{"x"}, &r)
		if err != nil {
			return
		}
		cfg := &cri.ContainerConfig{}
		g.equip(cfg)
		for _, m := range cfg.GetMounts() {
			if !filepath.IsAbs(m.GetHostPath()) || !filepath.IsAbs(m.GetContainerPath()) {
				t.Errorf("a mount from %q to %q", m.GetHostPath(), m.GetContainerPath())
			}
		}
		for _, d := range cfg.GetDevices() {
			if !filepath.IsAbs(d.GetHostPath()) || !filepath.IsAbs(d.GetContainerPath()) {
				t.Errorf("a device from %q to %q", d.GetHostPath(), d.GetContainerPath())
			}
		}
	})
}
