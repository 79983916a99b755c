// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/wasmplane/wasmplane/core/kubelet/hostcheck"
	"github.com/wasmplane/wasmplane/core/kubelet/linuxhost"
	"github.com/wasmplane/wasmplane/plugins/plugintest/wat"
)

// wasmPodsVariable says how many pods of class wasm-only run at the same time in BenchmarkWasm; of the others at most mostHeavy.
const wasmPodsVariable = "WASMPLANE_BENCH_PODS"

// wasmClassVariable names the only row that is measured: runc, wasm or wasm-only.
const wasmClassVariable = "WASMPLANE_BENCH_CLASS"

// mostHeavy is how many pods run at the same time that have processes of their own beside the container's.
const mostHeavy = 100

// idleModule sleeps, an hour at a time, as a server without requests does.
const idleModule = `(module
  (import "wasi_snapshot_preview1" "poll_oneoff" (func $poll (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (func (export "_start")
    (i32.store (i32.const 16) (i32.const 1))
    (i64.store (i32.const 24) (i64.const 3600000000000))
    (loop $forever
      (drop (call $poll (i32.const 0) (i32.const 128) (i32.const 1) (i32.const 512)))
      (br $forever))))`

// BenchmarkWasm is many pods at once, of a WebAssembly module under both of its classes and of an ordinary container.
func BenchmarkWasm(b *testing.B) {
	pods := 100
	if s := os.Getenv(wasmPodsVariable); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			b.Fatalf("%s=%q: give a number of pods", wasmPodsVariable, s)
		}
		pods = n
	}
	for b.Loop() {
		measureWasm(b, 10, pods).publish(b)
	}
}

// measureWasm runs one pod after the other, and then many at once, of each kind in turn.
func measureWasm(tb testing.TB, one, many int) *report {
	module, err := wat.Assemble(idleModule)
	if err != nil {
		tb.Fatal(err)
	}
	registry := serveImages(tb, map[string]v1.Image{"idle:1": moduleImage(tb, module)})
	c := newCluster(tb, "--nodes", "real")
	c.writeConfig(
		fmt.Sprintf(
			"apiVersion: wasmplane.dev/v1alpha1\nkind: Configuration\ncluster: {nodeCIDRMaskSize: 20}\n"+
				"node:\n  maxPods: %d\n  registries: [{host: %q, plainHTTP: true}]\n",
			many+20,
			registry,
		),
	)
	c.start()
	c.importHello()
	pods := newPodTimer(tb, c.kube(), "default")
	makeWasmOnlyClass(tb, c.kube())
	r := newReport(
		fmt.Sprintf("Pods of WebAssembly modules, beside ordinary ones: one by one (%d), and many at once", one),
		"",
		"create to Running p50",
		"p99",
		"at once",
		"p50",
		"p99",
		"all, pods a second",
		"CPU a pod",
		"of it the runtime's",
		"the pods'",
		"until it is gone",
		"of it the runtime's",
		"PSS a pod",
		"with the kernel's",
		"aim",
	)
	heavy := min(many, mostHeavy)
	kinds := []struct {
		what, unit, class, image, aim string
		many                          int
	}{
		{"ordinary container", "runc", "", helloImage, "-", heavy},
		{"module, class wasm", "wasm", "wasm", registry + "/idle:1", "-", heavy},
		{"module, class wasm-only", "wasm-only", "wasm-only", registry + "/idle:1", "20 ms, 4 times the first's pods a second, 2 MB", many},
	}
	for _, k := range kinds {
		if only := os.Getenv(wasmClassVariable); only != "" && only != k.unit {
			continue
		}
		many := k.many
		pods.pod = func(name string) *corev1.Pod {
			p := hello(name)
			p.Spec.Containers[0].Image, p.Spec.Containers[0].Ports = k.image, nil
			// With a grace period a pod is gone from the API only when the node is done with it, and does not count as its pod any more.
			grace := int64(1)
			p.Spec.TerminationGracePeriodSeconds = &grace
			if k.class != "" {
				p.Spec.RuntimeClassName = &k.class
			}
			return p
		}
		c.awaitNoPods(tb) // of the kind before
		pods.run(1)       // the image, the code
		var single times
		for range one {
			took, _ := pods.run(1)
			single = append(single, took...)
		}
		c.awaitNoPods(tb)
		before := c.podsUse(tb)
		var after use
		pods.running = func() { after = c.podsUse(tb) }
		together, wall := pods.run(many)
		pods.running = nil
		c.awaitNoPods(tb)
		gone := c.podsUse(tb)
		rate := float64(many) / wall.Seconds()
		pss, cgroup := (after.pss-before.pss)/int64(many), (after.cgroup-before.cgroup)/int64(many)
		r.row(
			k.what,
			short(single.median()),
			short(single.quantile(0.99)),
			strconv.Itoa(many),
			short(together.median()),
			short(together.quantile(0.99)),
			fmt.Sprintf("%.1f", rate),
			perPod(
				before.all,
				after.all,
				many,
			),
			perPod(before.runtime, after.runtime, many),
			perPod(before.pods, after.pods, many),
			perPod(before.all, gone.all, many),
			perPod(before.runtime, gone.runtime, many),
			mib(pss),
			mib(cgroup),
			k.aim,
		)
		r.duration(k.unit+"/running-p50", single.median())
		r.metric(k.unit+"/pods-per-second", rate)
		r.metric(k.unit+"/PSS-MiB-per-pod", float64(pss)/(1<<20))
	}
	r.note(
		"CPU while they start, and until their processes are gone, of wasmplane with its API, of containerd with shims and network, and of the pods. PSS: of the processes of pods, containerd and its shims, what they share by parts.",
	)
	r.note("With the kernel's: what their cgroups use, without pages of files, when all run.")
	return r
}

// awaitNoPods waits for the node: it may still end what it began for the kind before.
func (c *cluster) awaitNoPods(tb testing.TB) {
	tb.Helper()
	for end := time.Now().Add(patience); ; pause(tb.Context(), 100*time.Millisecond) {
		left, err := linuxhost.CgroupProcesses(linuxhost.NamesOf(c.Name).PodsCgroup())
		if err != nil {
			tb.Fatal(err)
		}
		if len(left) == 0 {
			return
		}
		if time.Now().After(end) {
			tb.Fatalf("%d processes of pods that are deleted still run", len(left))
		}
	}
}

// use is the processor time so far, and the memory of all pods, their shims and containerd.
type use struct {
	all, runtime, pods time.Duration
	pss, cgroup        int64
}

func perPod(before, after time.Duration, pods int) string {
	return short((after - before) / time.Duration(pods))
}

func (c *cluster) podsUse(tb testing.TB) use {
	tb.Helper()
	own, err := cpuOf(c.pid())
	if err != nil {
		tb.Fatal(err)
	}
	n := linuxhost.NamesOf(c.Name)
	runtime, pods := cgroupCPU(tb, n.RuntimeCgroup()), cgroupCPU(tb, n.PodsCgroup())
	return use{own + runtime + pods, runtime, pods, proportional(tb, n.Cgroup()), int64(cgroupMemory(tb, n.Cgroup()))}
}

// cgroupCPU is the processor time that a cgroup and those below it have used.
func cgroupCPU(tb testing.TB, cgroup string) time.Duration {
	tb.Helper()
	if hostcheck.CgroupV2() {
		text, err := os.ReadFile(filepath.Join("/sys/fs/cgroup", cgroup, "cpu.stat"))
		if err != nil {
			tb.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if us, ok := strings.CutPrefix(line, "usage_usec "); ok {
				return time.Duration(number(tb, us)) * time.Microsecond
			}
		}
		tb.Fatal("cpu.stat has no usage_usec")
	}
	text, err := os.ReadFile(filepath.Join("/sys/fs/cgroup/cpuacct", cgroup, "cpuacct.usage"))
	if err != nil {
		tb.Fatal(err)
	}
	return time.Duration(number(tb, string(text)))
}

func number(tb testing.TB, text string) int64 {
	tb.Helper()
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil {
		tb.Fatal(err)
	}
	return n
}

// proportional is the memory of a cgroup's processes, of which what several share counts to each in part.
func proportional(tb testing.TB, cgroup string) (bytes int64) {
	tb.Helper()
	pids, err := linuxhost.CgroupProcesses(cgroup)
	if err != nil {
		tb.Fatal(err)
	}
	for _, pid := range pids {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if err != nil {
			continue // it has ended
		}
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); len(f) == 3 && f[0] == "Pss:" {
				bytes += number(tb, f[1]) << 10
			}
		}
	}
	return bytes
}

// makeWasmOnlyClass makes the class that no cluster has by itself.
func makeWasmOnlyClass(tb testing.TB, kube kubernetes.Interface) {
	tb.Helper()
	class := &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "wasm-only"}, Handler: "wasm-only"}
	if _, err := kube.NodeV1().RuntimeClasses().Create(tb.Context(), class, metav1.CreateOptions{}); err != nil {
		tb.Fatal(err)
	}
}

// cgroupMemory is what a cgroup and those below it use: their processes, and the kernel for them.
func cgroupMemory(tb testing.TB, cgroup string) uint64 {
	tb.Helper()
	if hostcheck.CgroupV2() {
		stat := memoryStat(tb, filepath.Join("/sys/fs/cgroup", cgroup))
		return stat["anon"] + stat["kernel"]
	}
	dir := filepath.Join("/sys/fs/cgroup/memory", cgroup)
	text, err := os.ReadFile(filepath.Join(dir, "memory.kmem.usage_in_bytes"))
	if err != nil {
		tb.Fatal(err)
	}
	kernel, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		tb.Fatal(err)
	}
	return memoryStat(tb, dir)["total_rss"] + kernel
}

func memoryStat(tb testing.TB, dir string) map[string]uint64 {
	tb.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "memory.stat"))
	if err != nil {
		tb.Fatal(err)
	}
	stat := map[string]uint64{}
	for line := range strings.Lines(string(text)) {
		var what string
		var n uint64
		if _, err := fmt.Sscan(line, &what, &n); err != nil {
			tb.Fatal(err)
		}
		stat[what] = n
	}
	return stat
}

// serveImages is a registry on loopback with images, and answers its address.
func serveImages(tb testing.TB, images map[string]v1.Image) string {
	tb.Helper()
	s := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	tb.Cleanup(s.Close)
	host := strings.TrimPrefix(s.URL, "http://")
	for what, image := range images {
		ref, err := name.ParseReference(host+"/"+what, name.Insecure)
		if err == nil {
			err = remote.Write(ref, image, remote.WithContext(tb.Context()))
		}
		if err != nil {
			tb.Fatal(err)
		}
	}
	return host
}

// moduleImage is a module as an artifact.
func moduleImage(tb testing.TB, module []byte) v1.Image {
	tb.Helper()
	image, err := newWasmArtifact(module)
	if err != nil {
		tb.Fatal(err)
	}
	return image
}

// wasmArtifact is the artifact that the cloud native community agreed on.
type wasmArtifact struct {
	config, manifest []byte
	layer            v1.Layer
}

func newWasmArtifact(module []byte) (v1.Image, error) {
	a := &wasmArtifact{layer: static.NewLayer(module, "application/wasm")}
	layer, err := descriptor(module, "application/wasm")
	if err != nil {
		return nil, err
	}
	if a.config, err = json.Marshal(
		map[string]any{"architecture": "wasm", "os": "wasip1", "layerDigests": []string{layer.Digest.String()}},
	); err != nil {
		return nil, err
	}
	config, err := descriptor(a.config, "application/vnd.wasm.config.v0+json")
	if err != nil {
		return nil, err
	}
	manifest := v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Config: config, Layers: []v1.Descriptor{layer}}
	if a.manifest, err = json.Marshal(manifest); err != nil {
		return nil, err
	}
	return partial.CompressedToImage(a)
}

func descriptor(b []byte, mediaType types.MediaType) (v1.Descriptor, error) {
	digest, size, err := v1.SHA256(bytes.NewReader(b))
	return v1.Descriptor{MediaType: mediaType, Digest: digest, Size: size}, err
}

func (a *wasmArtifact) RawConfigFile() ([]byte, error)      { return a.config, nil }
func (a *wasmArtifact) MediaType() (types.MediaType, error) { return types.OCIManifestSchema1, nil }
func (a *wasmArtifact) RawManifest() ([]byte, error)        { return a.manifest, nil }
func (a *wasmArtifact) LayerByDigest(d v1.Hash) (partial.CompressedLayer, error) {
	if config, _, err := v1.SHA256(bytes.NewReader(a.config)); err != nil || d == config {
		return partial.ConfigLayer(a)
	}
	return a.layer, nil
}
