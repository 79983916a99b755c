// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/informers"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/profiles"
	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/core/scheduler"
	"github.com/wasmplane/wasmplane/core/scheduler/extender"
	"github.com/wasmplane/wasmplane/core/scheduler/native"
	"github.com/wasmplane/wasmplane/core/scheduler/queue"
	"github.com/wasmplane/wasmplane/core/simulate"
	"github.com/wasmplane/wasmplane/core/simulate/input"
	"github.com/wasmplane/wasmplane/plugins/loader"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/plugintest"
)

const gang = `
apiVersion: scheduling.k8s.io/v1beta1
kind: PodGroup
metadata: {name: training}
spec:
  schedulingPolicy:
    gang: {minCount: 4}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: training}
spec:
  replicas: 4
  selector: {matchLabels: {app: training}}
  template:
    metadata: {labels: {app: training}}
    spec:
      schedulingGroup: {podGroupName: training}
      containers: [{name: worker, image: "worker:1", resources: {requests: {cpu: "1"}}}]
`

// withAnswer simulates the gang on two nodes, beside a Wasm plugin that always answers the same at one point.
func withAnswer(t *testing.T, point, answer string) *simulate.Result {
	t.Helper()
	dir := t.TempDir()
	write := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("canned.wasm", plugintest.Canned(t))
	file := write("config.yaml", []byte("apiVersion: wasmplane.dev/v1alpha1\nkind: Configuration\nplugins:\n  - name: canned\n"+
		"    source: file:canned.wasm\n    points: ["+point+"]\n    settings: "+answer+"\n"))
	cfg, err := load(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := cfg.Complete(); err != nil {
		t.Fatal(err)
	}
	p := &policy{loader: loaded(t, cfg, dir)}
	in, err := input.Read(t.Context(), input.Request{Nodes: 2, Files: []string{write("gang.yaml", []byte(gang))}, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	r, err := simulate.Run(t.Context(), simulate.Config{
		Cluster: in.Cluster, Arrivals: in.Arrivals, Length: time.Hour, Try: time.Millisecond, Seed: 1,
		Policy: simulate.Policy{Name: point, Profiles: func(inf informers.SharedInformerFactory) ([]scheduler.Profile, queue.Config, error) {
			policy, err := profiles.Of(cfg, p.wasm(), native.Config{Informers: inf}, extender.Reach{})
			return policy.Profiles, queue.Config{Backoff: policy.Queue}, err
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func loaded(t *testing.T, cfg *config.Configuration, dir string) *loader.Loader {
	t.Helper()
	entries, err := manifest.OfFile(cfg)
	if err != nil {
		t.Fatal(err)
	}
	l, err := loader.New(t.Context(), loader.Config{
		InProcess: true, Dir: dir, Entries: entries, CacheDir: filepath.Join(plugintest.Root(t), "build", "plugin-cache"),
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
	if err := l.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	return l
}

// What a Wasm plugin says about one pod of a gang counts for all of it, at every point that can hold pods back.
func TestAWasmPluginDecidesAboutAGang(t *testing.T) {
	for _, c := range []struct {
		point, answer string
		placed        int
		why           string
	}{
		{"scheduling.filter", `{fits: true}`, 4, ""},
		{"scheduling.filter", `{fits: false, reasons: [no seat]}`, 0, "no seat"},
		{"scheduling.score", `7`, 4, ""},
		{"scheduling.permit", `{decision: allow}`, 4, ""},
		{"scheduling.permit", `{decision: deny, reasons: [no licence]}`, 0, "no licence"},
		{"scheduling.permit", `{decision: wait, waitSeconds: 5}`, 0, ""},
		{"scheduling.preBind", `{allowed: false, reasons: [no volume]}`, 0, "no volume"},
		{"scheduling.reserve", `{allowed: false, reasons: [no quota]}`, 0, "no quota"},
	} {
		t.Run(c.point+" "+c.answer, func(t *testing.T) {
			r := withAnswer(t, c.point, c.answer)
			if r.Pods.Placed != c.placed {
				t.Errorf("%d pods have nodes, want %d", r.Pods.Placed, c.placed)
			}
			var reasons []string
			for _, p := range r.Pending {
				reasons = append(reasons, p.Reason)
			}
			if got := strings.Join(reasons, "; "); !strings.Contains(got, c.why) {
				t.Errorf("they wait because of %q, want %q", got, c.why)
			}
		})
	}
}
