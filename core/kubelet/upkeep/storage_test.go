// SPDX-License-Identifier: Apache-2.0

package upkeep

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/engine"
	"github.com/wasmplane/wasmplane/core/kubelet/volume"
)

type pods struct {
	Pods
	running []*corev1.Pod
	ended   []*corev1.Pod
	logs    map[string]string
	evicted map[types.UID]string
}

func (p *pods) Running() []*corev1.Pod  { return p.running }
func (p *pods) Ended() []*corev1.Pod    { return p.ended }
func (p *pods) Logs() map[string]string { return p.logs }

func (p *pods) Evict(uid types.UID, msg string, _ int64) bool {
	p.evicted[uid] = msg
	return true
}

type runtime struct {
	engine.Engine
	stats []*cri.PodSandboxStats
	err   error
	asked int
}

func (r *runtime) ListContainers(context.Context) ([]*cri.Container, error) { return nil, nil }

func (r *runtime) Stats(context.Context) ([]*cri.PodSandboxStats, error) {
	r.asked++
	return r.stats, r.err
}

type volumes map[types.UID][]volume.Local

func (v volumes) OnDisk(p *corev1.Pod) []volume.Local { return v[p.UID] }

// holds makes a directory that holds a file of so many bytes, and so many more that are empty.
func holds(t *testing.T, size, empty int) string {
	t.Helper()
	dir := t.TempDir()
	for i := range empty + 1 {
		text := ""
		if i == 0 {
			text = strings.Repeat("x", size)
		}
		if err := os.WriteFile(filepath.Join(dir, strconv.Itoa(i)), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func limited(uid, limit string) *corev1.Pod {
	p := &corev1.Pod{}
	p.UID = types.UID(uid)
	p.Spec.Containers = []corev1.Container{{Name: "c"}}
	if limit != "" {
		p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceEphemeralStorage: resource.MustParse(limit)}
	}
	return p
}

func stats(uid string, layer uint64) *cri.PodSandboxStats {
	return &cri.PodSandboxStats{
		Attributes: &cri.PodSandboxAttributes{Metadata: &cri.PodSandboxMetadata{Uid: uid}},
		Linux: &cri.LinuxPodSandboxStats{Containers: []*cri.ContainerStats{{
			Attributes:    &cri.ContainerAttributes{Id: "id-" + uid, Metadata: &cri.ContainerMetadata{Name: "c"}},
			WritableLayer: &cri.FilesystemUsage{UsedBytes: &cri.UInt64Value{Value: layer}},
		}}},
	}
}

// Files of a container, its logs, those that were rotated among them, and the pod's volumes count together; who has no
// limit is not looked at.
func TestPodsBeyondTheirStorage(t *testing.T) {
	const mi = 1 << 20
	logs := filepath.Join(t.TempDir(), "c")
	if err := os.Mkdir(logs, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"0.log", "0.log.20261123-000000"} {
		if err := os.WriteFile(filepath.Join(logs, name), []byte(strings.Repeat("x", 2*mi)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p := &pods{
		running: []*corev1.Pod{
			limited("within", "8Mi"), limited("files", "8Mi"), limited("logs", "3Mi"), limited("volumes", "8Mi"), limited("free", ""),
			limited("full", ""), limited("half-full", ""),
		},
		logs:    map[string]string{"id-logs": filepath.Join(logs, "0.log")},
		evicted: map[types.UID]string{},
	}
	r := &runtime{stats: []*cri.PodSandboxStats{
		stats("within", 8*mi), stats("files", 8*mi+1), stats("logs", 0), stats("volumes", mi), stats("free", 1<<40),
	}}
	big, limit := holds(t, 8*mi, 0), resource.MustParse("2Mi")
	k := New(Config{Pods: p, Engine: r, Logger: slog.New(slog.DiscardHandler), Volumes: volumes{
		"volumes":   {{Name: "a", Dir: big}, {Name: "b", Dir: filepath.Join(big, "none")}},
		"free":      {{Name: "a", Dir: big}},
		"full":      {{Name: "a", Dir: holds(t, mi, 0), Limit: &limit}, {Name: "b", Dir: big, Limit: &limit}},
		"half-full": {{Name: "a", Dir: holds(t, mi, 0), Limit: &limit}},
	}})
	k.bound(t.Context())
	want := map[types.UID]string{
		"files":   "Pod ephemeral local storage usage exceeds the total limit of containers 8Mi. ",
		"logs":    "Pod ephemeral local storage usage exceeds the total limit of containers 3Mi. ",
		"volumes": "Pod ephemeral local storage usage exceeds the total limit of containers 8Mi. ",
		"full":    `Usage of EmptyDir volume "b" exceeds the limit "2Mi". `,
	}
	if !maps.Equal(p.evicted, want) {
		t.Errorf("evicted %v, want %v", p.evicted, want)
	}

	clear(p.evicted)
	delete(k.cfg.Volumes.(volumes), "full")
	r.err = errors.New("it is busy")
	k.bound(t.Context())
	if len(p.evicted) > 0 {
		t.Errorf("nothing is known, and evicted are %v", p.evicted)
	}
	p.running, r.asked = []*corev1.Pod{limited("free", "")}, 0
	k.bound(t.Context())
	if r.asked > 0 {
		t.Error("nobody has a limit, and the runtime is asked")
	}
}
