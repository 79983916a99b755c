// SPDX-License-Identifier: Apache-2.0

package upkeep

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/engine"
)

type pods struct {
	Pods
	running []*corev1.Pod
	logs    map[string]string
	evicted map[types.UID]string
}

func (p *pods) Running() []*corev1.Pod          { return p.running }
func (p *pods) Logs() map[string]string         { return p.logs }
func (p *pods) Evict(uid types.UID, msg string) { p.evicted[uid] = msg }

type runtime struct {
	engine.Engine
	stats []*cri.PodSandboxStats
	err   error
	asked int
}

func (r *runtime) Stats(context.Context) ([]*cri.PodSandboxStats, error) {
	r.asked++
	return r.stats, r.err
}

type volumes map[types.UID]int64

func (v volumes) OnDisk(_ context.Context, p *corev1.Pod, _ int64) int64 { return v[p.UID] }

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
		},
		logs:    map[string]string{"id-logs": filepath.Join(logs, "0.log")},
		evicted: map[types.UID]string{},
	}
	r := &runtime{stats: []*cri.PodSandboxStats{
		stats("within", 8*mi), stats("files", 8*mi+1), stats("logs", 0), stats("volumes", mi), stats("free", 1<<40),
	}}
	k := New(Config{Pods: p, Engine: r, Volumes: volumes{"volumes": 8 * mi, "free": 1 << 40}, Logger: slog.New(slog.DiscardHandler)})
	k.bound(t.Context())
	want := map[types.UID]string{
		"files":   "Pod ephemeral local storage usage exceeds the total limit of containers 8Mi. ",
		"logs":    "Pod ephemeral local storage usage exceeds the total limit of containers 3Mi. ",
		"volumes": "Pod ephemeral local storage usage exceeds the total limit of containers 8Mi. ",
	}
	if !maps.Equal(p.evicted, want) {
		t.Errorf("evicted %v, want %v", p.evicted, want)
	}

	clear(p.evicted)
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
