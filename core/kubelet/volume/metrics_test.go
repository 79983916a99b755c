// SPDX-License-Identifier: Apache-2.0

package volume_test

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/wasmplane/wasmplane/core/kubelet/volume"
)

// expect what a manager counts.
func expect(t *testing.T, m *volume.Manager, want string) {
	t.Helper()
	header := `# HELP volume_manager_total_volumes Volumes that pods of the node want (desired) and that are set up (actual).
# TYPE volume_manager_total_volumes gauge
`
	if want == "" {
		header = ""
	}
	if err := testutil.GatherAndCompare(m.Metrics(), strings.NewReader(header+want), "volume_manager_total_volumes"); err != nil {
		t.Error(err)
	}
}

// stuck is a kind of volume that does not always go.
type stuck struct{ stays bool }

func (*stuck) Name() string                   { return "example.org/stuck" }
func (*stuck) Supports(v *corev1.Volume) bool { return v.Name == "stuck" }

func (*stuck) Mount(_ context.Context, r volume.Request) (volume.Mounted, error) {
	return volume.Mounted{Path: r.Dir}, os.MkdirAll(r.Dir, 0o700)
}

func (s *stuck) Unmount(_ context.Context, _ types.UID, _, dir string) error {
	if s.stays {
		return errors.New("it is busy")
	}
	return os.Remove(dir)
}

// A volume is counted as wanted from when it is known until its pod is to go, and as there from when it is set up until it
// is gone.
func TestVolumesAreCounted(t *testing.T) {
	s, o := &stuck{stays: true}, &objects{maps: map[string]map[string]string{}}
	m, err := volume.New(volume.Config{RootDir: t.TempDir(), Client: fake.NewClientset(), Objects: o, Plugins: []volume.Plugin{s}})
	if err != nil {
		t.Fatal(err)
	}
	expect(t, m, "")
	p := aPod(confVolume(), corev1.VolumeMount{Name: "v", MountPath: "/v"}, corev1.VolumeMount{Name: "stuck", MountPath: "/s"})
	p.Spec.Volumes = append([]corev1.Volume{{Name: "stuck"}}, append(p.Spec.Volumes, corev1.Volume{Name: "unused"})...)
	if err := m.Mount(t.Context(), p); err == nil {
		t.Fatal("it has a ConfigMap that is not there")
	}
	expect(t, m, `volume_manager_total_volumes{plugin_name="example.org/stuck",state="actual_state_of_world"} 1
volume_manager_total_volumes{plugin_name="example.org/stuck",state="desired_state_of_world"} 1
volume_manager_total_volumes{plugin_name="kubernetes.io/configmap",state="desired_state_of_world"} 1
`)
	o.set("conf", map[string]string{"a": "1"})
	other := aPod(confVolume())
	other.UID = "other"
	for range 2 { // once more changes nothing
		for _, each := range []*corev1.Pod{p, other} {
			if err := m.Mount(t.Context(), each); err != nil {
				t.Fatal(err)
			}
		}
	}
	expect(t, m, `volume_manager_total_volumes{plugin_name="example.org/stuck",state="actual_state_of_world"} 1
volume_manager_total_volumes{plugin_name="example.org/stuck",state="desired_state_of_world"} 1
volume_manager_total_volumes{plugin_name="kubernetes.io/configmap",state="actual_state_of_world"} 2
volume_manager_total_volumes{plugin_name="kubernetes.io/configmap",state="desired_state_of_world"} 2
`)
	if err := m.Unmount(t.Context(), other.UID); err != nil {
		t.Fatal(err)
	}
	if err := m.Unmount(t.Context(), p.UID); err == nil {
		t.Fatal("a volume of it does not go")
	}
	expect(t, m, `volume_manager_total_volumes{plugin_name="example.org/stuck",state="actual_state_of_world"} 1
volume_manager_total_volumes{plugin_name="kubernetes.io/configmap",state="actual_state_of_world"} 1
`)
	s.stays = false
	if err := m.Unmount(t.Context(), p.UID); err != nil {
		t.Fatal(err)
	}
	expect(t, m, "")
	// What was done is counted, what was there already is not.
	got, err := m.Metrics().Gather()
	if err != nil {
		t.Fatal(err)
	}
	ended := map[string]uint64{}
	for _, f := range got {
		for _, one := range f.GetMetric() {
			if f.GetName() != "storage_operation_duration_seconds" {
				continue
			}
			labels := map[string]string{}
			for _, l := range one.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			of := strings.Join([]string{labels["volume_plugin"], labels["operation_name"], labels["status"], labels["migrated"]}, " ")
			ended[of] = one.GetHistogram().GetSampleCount()
		}
	}
	if want := map[string]uint64{
		"example.org/stuck volume_mount success false": 1, "example.org/stuck volume_unmount fail-unknown false": 1,
		"example.org/stuck volume_unmount success false": 1, "kubernetes.io/configmap volume_mount fail-unknown false": 1,
		"kubernetes.io/configmap volume_mount success false": 2, "kubernetes.io/configmap volume_unmount success false": 2,
	}; !maps.Equal(ended, want) {
		t.Errorf("operations %v, want %v", ended, want)
	}
}

// What an earlier run left is counted as found, and as failed where no plugin is for it.
func TestVolumesOfAnEarlierRunAreCounted(t *testing.T) {
	root := filepath.Join(t.TempDir(), "with [ in it")
	for _, dir := range []string{"kubernetes.io~configmap/a", "kubernetes.io~configmap/b", "gone.example.org~disk/c"} {
		if err := os.MkdirAll(filepath.Join(root, "pods/uid/volumes", dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	m, err := volume.New(volume.Config{RootDir: root, Client: fake.NewClientset(), Objects: &objects{}})
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Join([]string{
		"# HELP reconstruct_volume_operations_errors_total Volumes that the kubelet found when it started and could not take over.",
		"# TYPE reconstruct_volume_operations_errors_total counter",
		"reconstruct_volume_operations_errors_total 1",
		"# HELP reconstruct_volume_operations_total Volumes that the kubelet found when it started, taken over or not.",
		"# TYPE reconstruct_volume_operations_total counter",
		"reconstruct_volume_operations_total 3",
		"",
	}, "\n")
	if err := testutil.GatherAndCompare(m.Metrics(), strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}
