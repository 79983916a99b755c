// SPDX-License-Identifier: Apache-2.0

package upkeep

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/node"
	"github.com/wasmplane/wasmplane/core/run"
)

// machine is short of something, until a pod was evicted.
type machine struct{ short []node.Short }

func (m *machine) Facts(context.Context) (*node.Facts, error) {
	return &node.Facts{Short: m.short}, nil
}
func (m *machine) Disk(context.Context) (used, total uint64, err error) { return 0, 100, nil }

// crowd is pods of which those that are evicted have something of the node until they are said to have ended.
type crowd struct {
	pods
	ending bool
}

func (c *crowd) Evicting() bool { return c.ending }

func (c *crowd) Evict(uid types.UID, msg string, grace int64) bool {
	c.pods.Evict(uid, msg, grace)
	c.ending = true
	c.running = slices.DeleteFunc(c.running, func(p *corev1.Pod) bool { return p.UID == uid })
	return true
}

// shelf has images, of which those in use are never asked to go.
type shelf struct {
	*runtime
	images []*cri.Image
}

func (s *shelf) ListImages(context.Context) ([]*cri.Image, error) { return slices.Clone(s.images), nil }

func (s *shelf) ListContainers(context.Context) ([]*cri.Container, error) {
	return []*cri.Container{{ImageId: "used"}}, nil
}

func (s *shelf) RemoveImage(_ context.Context, spec *cri.ImageSpec) error {
	s.images = slices.DeleteFunc(s.images, func(i *cri.Image) bool { return i.Id == spec.Image })
	return nil
}

func processes(uid string, n uint64) *cri.PodSandboxStats {
	s := stats(uid, 0)
	s.Linux.Process = &cri.ProcessUsage{ProcessCount: &cri.UInt64Value{Value: n}}
	return s
}

func remembers(uid string, bytes uint64) *cri.PodSandboxStats {
	s := stats(uid, 0)
	s.Linux.Containers[0].Memory = &cri.MemoryUsage{WorkingSetBytes: &cri.UInt64Value{Value: bytes}}
	return s
}

// Who goes is who uses most of what is short, not of something else.
func TestWhoGoesDependsOnWhatIsShort(t *testing.T) {
	const mi = 1 << 20
	for _, c := range []struct {
		short corev1.ResourceName
		want  []types.UID // in their order; the others stay
		says  string
	}{
		{corev1.ResourceMemory, []types.UID{"memory", "files", "inodes", "processes", "volume"}, "Container c was using 900Mi"},
		{corev1.ResourceEphemeralStorage, []types.UID{"volume", "files"}, "Its emptyDir volumes were using 8"},
		{node.Inodes, []types.UID{"inodes"}, "Its emptyDir volumes were using 202"},
		{node.PIDs, []types.UID{"processes", "memory", "files", "inodes", "volume"}, "It had 500 processes. "},
	} {
		t.Run(string(c.short), func(t *testing.T) {
			p := &crowd{pods: pods{evicted: map[types.UID]string{}}}
			for _, uid := range []string{"files", "inodes", "memory", "processes", "volume"} {
				p.running = append(p.running, limited(uid, ""))
			}
			r := &runtime{stats: []*cri.PodSandboxStats{
				stats("files", 4*mi), stats("inodes", 0), remembers("memory", 900*mi), processes("processes", 500), stats("volume", 0),
			}}
			m := &machine{short: []node.Short{{Resource: c.short, Threshold: resource.MustParse("10Ki"), Available: resource.MustParse("5Ki")}}}
			k := New(Config{Pods: p, Engine: &shelf{runtime: r}, Host: m, Logger: slog.New(slog.DiscardHandler), Volumes: volumes{
				"volume": {{Name: "a", Dir: holds(t, 8*mi, 0)}},
				"inodes": {{Name: "a", Dir: holds(t, 0, 200)}},
			}})
			var went []types.UID
			now := time.Now()
			for range 7 {
				before := maps.Clone(p.evicted)
				k.relieve(t.Context(), now)
				k.relieve(t.Context(), now) // what one gives back is to be seen before another goes
				if len(p.evicted) > len(before)+1 {
					t.Fatalf("%d went at once", len(p.evicted)-len(before))
				}
				for uid, msg := range p.evicted {
					if before[uid] == "" {
						went = append(went, uid)
						says := strings.HasPrefix(msg, "The node was low on resource: "+string(c.short)+". ") && strings.Contains(msg, c.says)
						if len(went) == 1 && !says {
							t.Errorf("it says %q", msg)
						}
					}
				}
				p.ending = false
			}
			if len(went) == 0 || went[0] != c.want[0] {
				t.Fatalf("%v went, want %v", went, c.want)
			}
			slices.Sort(went)
			slices.Sort(c.want)
			if !slices.Equal(went, c.want) {
				t.Errorf("%v went, want %v", went, c.want)
			}
		})
	}
}

// One that does not end keeps the others for two minutes, not for ever.
func TestWhoDoesNotEndIsNotWaitedForForEver(t *testing.T) {
	p := &crowd{pods: pods{running: []*corev1.Pod{limited("a", ""), limited("b", "")}, evicted: map[types.UID]string{}}}
	r := &runtime{stats: []*cri.PodSandboxStats{remembers("a", 2), remembers("b", 1)}}
	m := &machine{short: []node.Short{{Resource: corev1.ResourceMemory}}}
	k := New(Config{Pods: p, Engine: r, Host: struct{ node.Host }{m}, Logger: slog.New(slog.DiscardHandler)})
	began := time.Now()
	for _, c := range []struct {
		after time.Duration
		want  int
	}{{0, 1}, {time.Minute, 1}, {patience - 1, 1}, {patience, 2}} {
		k.relieve(t.Context(), began.Add(c.after))
		if len(p.evicted) != c.want {
			t.Errorf("after %v %d were evicted, want %d", c.after, len(p.evicted), c.want)
		}
	}
}

// slowly is pods that are given time to end, and take longer.
type slowly struct {
	pods
	went  []types.UID
	grace []int64
}

func (s *slowly) Evicting() bool { return len(s.went) > 0 }

func (s *slowly) Evict(uid types.UID, _ string, grace int64) bool {
	if slices.Contains(s.went, uid) {
		return false
	}
	s.went, s.grace = append(s.went, uid), append(s.grace, grace)
	return true
}

// A pod that goes for a soft limit has its own time, up to a longest one. Others wait for it that long, but not for a hard limit.
func TestSoftLimitsGiveTime(t *testing.T) {
	s := &slowly{}
	r := &runtime{}
	for i, uid := range []string{"a", "b", "c", "d"} {
		p := limited(uid, "")
		own := []int64{3600, 3600, 5, 0}[i]
		p.Spec.TerminationGracePeriodSeconds = &own
		s.running = append(s.running, p)
		r.stats = append(r.stats, remembers(uid, uint64(100-i)))
	}
	m := &machine{}
	k := New(Config{Pods: s, Engine: r, Host: struct{ node.Host }{m}, Logger: slog.New(slog.DiscardHandler)})
	began := time.Now()
	for _, c := range []struct {
		after, grace time.Duration // grace of the shortage
		want         []int64       // that those were given who went
	}{
		{0, 10 * time.Minute, []int64{600}},
		{11 * time.Minute, 10 * time.Minute, []int64{600}},
		{12 * time.Minute, 10 * time.Minute, []int64{600, 600}}, // the first goes already
		{12*time.Minute + time.Second, 0, []int64{600, 600, 1}},
		{13 * time.Minute, 0, []int64{600, 600, 1}}, // nobody gave that one time
		{20 * time.Minute, 10 * time.Minute, []int64{600, 600, 1, 1}},
		{50 * time.Minute, 10 * time.Minute, []int64{600, 600, 1, 1}}, // all go
	} {
		m.short = []node.Short{{Resource: corev1.ResourceMemory, Grace: c.grace}}
		k.relieve(t.Context(), began.Add(c.after))
		if !slices.Equal(s.grace, c.want) {
			t.Errorf("after %v they were given %v, want %v", c.after, s.grace, c.want)
		}
	}
	if want := []types.UID{"a", "b", "c", "d"}; !slices.Equal(s.went, want) {
		t.Errorf("%v went, want %v", s.went, want)
	}
}

// Images that nothing uses go before any pod, once they are two minutes old.
func TestImagesGoBeforePods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &crowd{pods: pods{running: []*corev1.Pod{limited("a", "")}, evicted: map[types.UID]string{}}}
		s := &shelf{runtime: &runtime{stats: []*cri.PodSandboxStats{stats("a", 1<<30)}}, images: []*cri.Image{{Id: "used"}, {Id: "unused"}}}
		m := &machine{}
		k := New(Config{Pods: p, Engine: s, Host: m, Logger: slog.New(slog.DiscardHandler)})
		k.collect(t.Context(), time.Now()) // sees them for the first time
		time.Sleep(3 * time.Minute)
		m.short = []node.Short{{Resource: corev1.ResourceEphemeralStorage}}
		k.relieve(t.Context(), time.Now())
		if len(s.images) != 1 || s.images[0].Id != "used" || len(p.evicted) != 0 {
			t.Fatalf("images %v, evicted %v", s.images, p.evicted)
		}
		k.relieve(t.Context(), time.Now())
		if len(s.images) != 1 || len(p.evicted) != 1 {
			t.Fatalf("images %v, evicted %v", s.images, p.evicted)
		}
	})
}

// What takes long to measure takes a small part of the time, and what is short is measured anew whatever it costs.
func TestMeasuringIsPaced(t *testing.T) {
	var m meter
	dir := holds(t, 1<<20, 0)
	first := m.of(t.Context(), dir)
	slow := m.known[dir]
	slow.until = time.Now().Add(time.Hour) // as if it had taken minutes
	slow.usage.Bytes = 1
	m.known[dir] = slow
	if got := m.of(t.Context(), dir); got.Bytes != 1 {
		t.Errorf("it was measured again: %+v", got)
	}
	m.renew()
	if got := m.of(t.Context(), dir); got != first {
		t.Errorf("%+v, want %+v", got, first)
	}
	m.sweep()
	m.sweep()
	if len(m.known) > 0 {
		t.Errorf("%v is remembered, and nobody asks for it", m.known)
	}
}

// Directories of all pods are measured when somebody has asked, and once in a minute at most.
func TestDirectoriesAreMeasuredWhenSomebodyAsks(t *testing.T) {
	dir, logs := holds(t, 1<<20, 2), holds(t, 1<<10, 0)
	synctest.Test(t, func(t *testing.T) {
		p := &crowd{pods: pods{running: []*corev1.Pod{limited("a", "")}, logs: map[string]string{"id-a": logs + "/0.log"}}}
		k := New(Config{
			Pods: p, Engine: &runtime{}, Host: struct{ node.Host }{&machine{}}, Logger: slog.New(slog.DiscardHandler),
			Volumes: volumes{"a": {{Name: "scratch", Dir: dir}}},
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := run.Go("surveys", func() error { k.surveys(ctx); return nil })
		time.Sleep(time.Hour)
		if k.surveyed.Load() != nil {
			t.Error("nobody has asked, and it was measured")
		}
		if got := k.Disk(); got != nil {
			t.Errorf("the first who asks learns %+v", got)
		}
		synctest.Wait()
		first := k.Disk()
		if first == nil {
			t.Fatal("it was not measured")
		}
		if v := first.Volumes["a"]["scratch"]; v.Bytes < 1<<20 || v.Inodes != 4 || first.Logs["id-a"].Inodes != 2 {
			t.Fatalf("%+v", first)
		}
		time.Sleep(surveyEvery - time.Second)
		if k.Disk() != first {
			t.Error("it was measured twice in a minute")
		}
		time.Sleep(2 * time.Second)
		if again := k.Disk(); again == first || again.At.Sub(first.At) < surveyEvery {
			t.Error("it was not measured again after a minute")
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
