// SPDX-License-Identifier: Apache-2.0

package evict_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"pgregory.net/rapid"

	"github.com/wasmplane/wasmplane/core/kubelet/evict"
	"github.com/wasmplane/wasmplane/core/kubelet/node"
	"github.com/wasmplane/wasmplane/core/kubelet/threshold"
)

func rules(t interface{ Fatal(...any) }, s threshold.Settings) *threshold.Rules {
	hard := map[string]string{}
	for signal := range threshold.Defaults() {
		hard[signal] = "0"
	}
	for signal, limit := range s.Hard {
		hard[signal] = limit
	}
	s.Hard = hard
	r, err := s.Read()
	if err != nil {
		t.Fatal(err)
	}
	return &r
}

func memory(available int64) evict.Level {
	return evict.Level{
		Signal: threshold.MemoryAvailable, Resource: corev1.ResourceMemory, Condition: corev1.NodeMemoryPressure, Capacity: 1000,
		Available: available, Format: resource.BinarySI,
	}
}

func disk(available int64) evict.Level {
	return evict.Level{
		Signal: threshold.DiskAvailable, Resource: corev1.ResourceEphemeralStorage, Condition: corev1.NodeDiskPressure, Capacity: 1000,
		Available: available,
	}
}

func inodes(available int64) evict.Level {
	return evict.Level{
		Signal: threshold.InodesFree, Resource: node.Inodes, Condition: corev1.NodeDiskPressure, Capacity: 1000, Available: available,
	}
}

// inALine is an Outlook in a line.
func inALine(o evict.Outlook) string {
	var out []string
	for _, s := range o.Short {
		out = append(out, fmt.Sprintf("%v %d<%d %v", s.Resource, s.Available.Value(), s.Threshold.Value(), s.Grace))
	}
	for _, c := range o.Pressure {
		out = append(out, string(c))
	}
	return strings.Join(out, ", ")
}

// What a node makes of what it has, one look after another.
func TestWhatIsShortOverTime(t *testing.T) {
	type look struct {
		after  time.Duration // from the beginning
		levels []evict.Level
		want   string
	}
	memoryOf := func(after time.Duration, available int64, want string) look {
		return look{after, []evict.Level{memory(available), disk(1000)}, want}
	}
	soft := threshold.Settings{
		Soft:            map[string]string{threshold.MemoryAvailable: "50%"},
		SoftGracePeriod: map[string]time.Duration{threshold.MemoryAvailable: time.Minute}, MaxPodGracePeriod: 30 * time.Second,
	}
	both := soft
	both.Hard = map[string]string{threshold.MemoryAvailable: "100"}
	for name, c := range map[string]struct {
		s     threshold.Settings
		looks []look
	}{
		"hard limits evict at once, and end at once": {
			threshold.Settings{Hard: map[string]string{threshold.MemoryAvailable: "100"}},
			[]look{
				memoryOf(0, 100, ""), memoryOf(1, 99, "memory 99<100 0s, MemoryPressure"), memoryOf(2, 100, ""),
			},
		},
		"soft limits evict when their time is over": {soft, []look{
			memoryOf(0, 499, "MemoryPressure"), memoryOf(59*time.Second, 400, "MemoryPressure"),
			memoryOf(time.Minute, 450, "memory 450<500 30s, MemoryPressure"), memoryOf(2*time.Minute, 500, ""),
		}},
		"their time begins anew": {soft, []look{
			memoryOf(0, 499, "MemoryPressure"), memoryOf(50*time.Second, 500, ""), memoryOf(70*time.Second, 499, "MemoryPressure"),
			memoryOf(130*time.Second, 499, "memory 499<500 30s, MemoryPressure"),
		}},
		"a hard limit does not wait for the soft one": {both, []look{
			memoryOf(0, 300, "MemoryPressure"), memoryOf(1, 99, "memory 99<100 0s, MemoryPressure"),
			memoryOf(2*time.Minute, 99, "memory 99<100 0s, MemoryPressure"),
			memoryOf(3*time.Minute, 101, "memory 101<500 30s, MemoryPressure"),
		}},
		"it ends when the minimum was reclaimed, too": {
			threshold.Settings{
				Hard:           map[string]string{threshold.MemoryAvailable: "100"},
				MinimumReclaim: map[string]string{threshold.MemoryAvailable: "5%"},
			},
			[]look{
				memoryOf(0, 120, ""), memoryOf(1, 99, "memory 99<100 0s, MemoryPressure"), memoryOf(2, 149, "memory 149<100 0s, MemoryPressure"),
				memoryOf(3, 150, ""), memoryOf(4, 149, ""),
			},
		},
		"a soft limit in its time has nothing to reclaim": {
			threshold.Settings{
				Soft: soft.Soft, SoftGracePeriod: soft.SoftGracePeriod, MinimumReclaim: map[string]string{threshold.MemoryAvailable: "100"},
			},
			[]look{memoryOf(0, 499, "MemoryPressure"), memoryOf(1, 501, "")},
		},
		"conditions end a while after their last reason": {
			threshold.Settings{Hard: map[string]string{threshold.MemoryAvailable: "100"}, PressureTransitionPeriod: 5 * time.Minute},
			[]look{
				memoryOf(0, 99, "memory 99<100 0s, MemoryPressure"), memoryOf(4*time.Minute, 99, "memory 99<100 0s, MemoryPressure"),
				memoryOf(8*time.Minute, 500, "MemoryPressure"), memoryOf(9*time.Minute-1, 500, "MemoryPressure"), memoryOf(9*time.Minute, 500, ""),
			},
		},
		"hard limits are first, and a condition may have two reasons": {
			threshold.Settings{
				Hard:            map[string]string{threshold.InodesFree: "10%"},
				Soft:            map[string]string{threshold.MemoryAvailable: "50%", threshold.DiskAvailable: "20%"},
				SoftGracePeriod: map[string]time.Duration{threshold.MemoryAvailable: 0, threshold.DiskAvailable: time.Hour},
			},
			[]look{{
				0, []evict.Level{memory(1), disk(1), inodes(1)}, "inodes 1<100 0s, memory 1<500 0s, DiskPressure, MemoryPressure",
			}},
		},
		"what cannot be seen is not short": {soft, []look{memoryOf(0, 1, "MemoryPressure"), {2 * time.Minute, nil, ""}}},
	} {
		t.Run(name, func(t *testing.T) {
			r, began := rules(t, c.s), time.Now()
			var s evict.State
			for _, l := range c.looks {
				var out evict.Outlook
				if s, out = evict.Next(r, s, began.Add(l.after), l.levels); inALine(out) != l.want {
					t.Errorf("after %v: %q, want %q", l.after, inALine(out), l.want)
				}
			}
		})
	}
}

// Whatever comes: pods go only where the condition holds, and the past is not written anew.
func TestPodsGoUnderPressureOnly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.SampledFrom([]string{"0", "10%", "300", "50%,400", "2000"})
		duration := rapid.SampledFrom([]time.Duration{0, time.Second, time.Minute})
		s := threshold.Settings{
			Hard: map[string]string{
				threshold.MemoryAvailable: text.Draw(t, "hard"), threshold.DiskAvailable: text.Draw(t, "hard"),
			},
			Soft:                     map[string]string{threshold.MemoryAvailable: text.Draw(t, "soft")},
			SoftGracePeriod:          map[string]time.Duration{threshold.MemoryAvailable: duration.Draw(t, "grace")},
			MinimumReclaim:           map[string]string{threshold.MemoryAvailable: text.Draw(t, "reclaim")},
			PressureTransitionPeriod: duration.Draw(t, "transition"),
		}
		r := rules(t, s)
		var state evict.State
		now := time.Now()
		for range rapid.IntRange(1, 30).Draw(t, "looks") {
			now = now.Add(duration.Draw(t, "later"))
			levels := []evict.Level{memory(rapid.Int64Range(0, 1000).Draw(t, "memory")), disk(rapid.Int64Range(0, 1000).Draw(t, "disk"))}
			next, out := evict.Next(r, state, now, levels)
			if _, again := evict.Next(r, state, now, levels); inALine(again) != inALine(out) {
				t.Fatalf("%q, and then %q", inALine(out), inALine(again))
			}
			for _, short := range out.Short {
				want := corev1.NodeMemoryPressure
				if short.Resource == corev1.ResourceEphemeralStorage {
					want = corev1.NodeDiskPressure
				}
				if !slices.Contains(out.Pressure, want) {
					t.Fatalf("pods go for %v without its condition: %q", short.Resource, inALine(out))
				}
			}
			state = next
		}
	})
}
