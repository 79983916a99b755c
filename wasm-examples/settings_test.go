// SPDX-License-Identifier: Apache-2.0

package examples_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/wasmplane/wasmplane/plugins/author"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/plugintest"
)

// Settings that make no sense are refused when the plugin is loaded, with what is wrong and where.
func TestWrongSettingsAreRefused(t *testing.T) {
	for name, wrong := range map[string]map[string]string{
		"fair-shares": {
			`{}`:                                                            `queues: found 0, expected 1 to 200`,
			`{queues: []}`:                                                  `queues: found 0, expected 1 to 200`,
			`{queues: [{weight: 2}]}`:                                       `queues[0]: name: a queue needs one`,
			`{queues: [{name: a}, {name: a}]}`:                              `queues[1]: name: two queues are named "a"`,
			`{queues: [{name: a, weight: 0}]}`:                              `queues[0]: weight: expected a number above 0`,
			`{queues: [{name: a, weight: -1}]}`:                             `queues[0]: weight: expected`,
			`{queues: [{name: a, weight: heavy}]}`:                          `queues[0]: weight: expected`,
			`{queues: [{name: a, weight: 1, quota: {cpu: 1}}]}`:             `queues[0]: it has a quota and a weight`,
			`{queues: [{name: a, quota: {cpu: 1}}, {name: b}]}`:             `queues[1]: all queues have a quota, or all have a weight`,
			`{queues: [{name: a, quota: {cpu: lots}}]}`:                     `queues[0]: quota: cpu: found "lots", expected a quantity`,
			`{queues: [{name: a, quota: {cpu: -1}}]}`:                       `queues[0]: quota: cpu: found "-1", expected`,
			`{queues: [{name: a, quota: {cpu: 4}, limit: {cpu: 2}}]}`:       `queues[0]: limit: 2 of cpu is less than the quota, 4`,
			`{resources: [cpu], queues: [{name: a, limit: {memory: 1Gi}}]}`: `queues[0]: limit: memory is not among the shared resources`,
			`{queues: [{name: a, members: [x]}, {name: b, members: [x]}]}`:  `queues[1]: members: "x" belongs to queue a`,
			`{default: c, queues: [{name: a}, {name: b}]}`:                  `default: no queue is named "c"; there are a, b`,
		},
		"gpu-fragmentation": {
			`{resource: ""}`:                                  `resource: expected the name`,
			`{workloads: []}`:                                 `workloads: found 0, expected 1 to 32`,
			`{workloads: many}`:                               `workloads: found 0, expected 1 to 32`,
			`{workloads: [{cpu: 1}]}`:                         `workloads[0].gpus: expected a whole number from 1 to 1024`,
			`{workloads: [{gpus: 1}, {gpus: -2}]}`:            `workloads[1].gpus: expected`,
			`{workloads: [{gpus: 1.5}]}`:                      `workloads[0].gpus: expected`,
			`{workloads: [{gpus: two}]}`:                      `workloads[0].gpus: expected`,
			`{workloads: [{gpus: 1, share: 0}]}`:              `workloads[0].share: expected a number above 0`,
			`{workloads: [{gpus: 1, share: half}]}`:           `workloads[0].share: expected`,
			`{workloads: [{gpus: 1, cpu: lots}]}`:             `workloads[0].cpu: found "lots", expected a quantity`,
			`{workloads: [{gpus: 1, cpu: -1}]}`:               `workloads[0].cpu: found "-1", expected`,
			`{workloads: [{gpus: 1, memory: 5GB}]}`:           `workloads[0].memory: found "5GB", expected`,
			`{workloads: [{gpus: 1, memory: 5KiMi}]}`:         `workloads[0].memory: found "5KiMi", expected`,
			`{workloads: [{gpus: 1, memory: NaN}]}`:           `workloads[0].memory: found "NaN", expected`,
			`{workloads: [{gpus: 1, memory: 99999999999Ti}]}`: `workloads[0].memory: found "99999999999Ti", expected`,
		},
		"zone-latency": {
			`{latencies: 5}`:                     `latencies: expected zones`,
			`{latencies: {a: 5}}`:                `latencies.a: expected up to 64 zones with milliseconds`,
			`{latencies: {a: {b: near}}}`:        `latencies.a.b: found "near", expected milliseconds from 0 to 60000`,
			`{latencies: {a: {b: -1}}}`:          `latencies.a.b: found -1, expected`,
			`{latencies: {a: {b: 1e9}}}`:         `latencies.a.b: found`,
			`{latencies: {a: {b: 1}}, worst: 0}`: `worst: found 0, expected milliseconds above 0`,
			`{worst: [1]}`:                       `worst: found [1], expected`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			plugintest.Example(t, name)
			b, err := os.ReadFile(filepath.Join(name, "plugin.yaml"))
			if err != nil {
				t.Fatal(err)
			}
			e, err := manifest.ParseBytes(b)
			if err != nil {
				t.Fatal(err)
			}
			for settings, want := range wrong {
				var n yaml.Node
				if err := yaml.Unmarshal([]byte(settings), &n); err != nil {
					t.Fatal(err)
				}
				p, err := author.Open(t.Context(), author.Config{
					InProcess: true, Entry: author.WithSettings(e, *n.Content[0]),
					Dir: plugintest.Root(t),
				})
				if err == nil {
					err = p.Close(t.Context())
					t.Errorf("%s: the settings were taken (%v)", settings, err)
				} else if !strings.Contains(err.Error(), want) {
					t.Errorf("%s: %v, expected %q", settings, err, want)
				}
			}
		})
	}
}
