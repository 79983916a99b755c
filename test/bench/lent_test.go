// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/wasmplane/wasmplane/core/apiserver/apiservertest"
	"github.com/wasmplane/wasmplane/core/client"
)

// BenchmarkLent is what informers of pods cost that follow a server over the network, in its process with bytes,
// and in its process with objects that are decoded once for all of them.
func BenchmarkLent(b *testing.B) {
	for b.Loop() {
		measureLent(b, 4, 300, 3).publish(b)
	}
}

// follower is a way in which informers follow the server.
type follower struct {
	name, unit string
	kube       func(s *apiservertest.Server) (kubernetes.Interface, error)
}

func inProcess(s *apiservertest.Server) *restclient.Config {
	return client.InMemory(s.LocalHandler(), &user.DefaultInfo{Name: "follower", Groups: []string{user.SystemPrivilegedGroup}}, "follower")
}

func typed(cfg *restclient.Config) (kubernetes.Interface, error) {
	set, err := client.New(cfg)
	if err != nil {
		return nil, err
	}
	return set.Kube, nil
}

var followers = []follower{
	{"nobody follows", "nobody", nil},
	{"over the network", "network", func(s *apiservertest.Server) (kubernetes.Interface, error) {
		return typed(s.Config("follower", user.SystemPrivilegedGroup))
	}},
	{"in the process, each decodes", "bytes", func(s *apiservertest.Server) (kubernetes.Interface, error) {
		cfg := inProcess(s)
		cfg.ContentType, cfg.AcceptContentTypes = "application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf,application/json"
		return kubernetes.NewForConfig(cfg)
	}},
	{"in the process, lent", "lent", func(s *apiservertest.Server) (kubernetes.Interface, error) { return typed(inProcess(s)) }},
}

// measureLent has pods made, bound, run and deleted through the API, and informers of them follow it, the ways turn by turn.
func measureLent(tb testing.TB, watchers, pods, rounds int) *report {
	r := newReport(fmt.Sprintf("%d informers of pods beside the server, %d times %d pods created, bound, run and deleted, each pod",
		watchers, rounds, pods), "", "allocations", "KiB allocated", "CPU", "garbage collections of 1,000 pods")
	s := apiservertest.Start(tb, apiservertest.Options{})
	kube, err := typed(inProcess(s))
	if err != nil {
		tb.Fatal(err)
	}
	if _, err := kube.CoreV1().Namespaces().Create(tb.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}},
		metav1.CreateOptions{}); err != nil {
		tb.Fatal(err)
	}
	sums := make([]spent, len(followers))
	for range rounds {
		for i, way := range followers {
			sums[i].add(followed(tb, s, kube, way, watchers, pods))
		}
	}
	n := float64(rounds * pods)
	for i, way := range followers {
		cpu := sums[i].cpu / time.Duration(rounds*pods)
		r.row(way.name, fmt.Sprintf("%.0f", float64(sums[i].allocations)/n), fmt.Sprintf("%.0f", float64(sums[i].bytes)/n/1024), short(cpu),
			fmt.Sprintf("%.1f", float64(sums[i].collections)/n*1000))
		r.metric("allocs/"+way.unit, float64(sums[i].allocations)/n)
		r.duration("cpu-"+way.unit, cpu)
	}
	r.note("the server, its etcd and whoever writes are in the same process, and in each row.")
	return r
}

// spent is what the process used.
type spent struct {
	allocations, bytes, collections uint64
	cpu                             time.Duration
}

func (s *spent) add(o spent) {
	s.allocations, s.bytes, s.collections, s.cpu = s.allocations+o.allocations, s.bytes+o.bytes, s.collections+o.collections, s.cpu+o.cpu
}

// spending is what the process has used until now.
func spending(tb testing.TB) spent {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return spent{m.Mallocs, m.TotalAlloc, uint64(m.NumGC), time.Duration(u.Utime.Nano() + u.Stime.Nano())}
}

// followed is what pods cost while informers follow, each with a client of its own as components have.
func followed(tb testing.TB, s *apiservertest.Server, kube kubernetes.Interface, way follower, watchers, pods int) spent {
	ctx, cancel := context.WithTimeout(tb.Context(), patience)
	defer cancel()
	var gone sync.WaitGroup
	var factories []informers.SharedInformerFactory
	for range watchers {
		if way.kube == nil {
			break
		}
		own, err := way.kube(s)
		if err != nil {
			tb.Fatal(err)
		}
		f := informers.NewSharedInformerFactory(own, 0)
		inf := f.Core().V1().Pods().Informer()
		var deleted atomic.Int64
		gone.Add(1)
		if _, err := inf.AddEventHandler(cache.ResourceEventHandlerFuncs{DeleteFunc: func(any) {
			if deleted.Add(1) == int64(pods) {
				gone.Done()
			}
		}}); err != nil {
			tb.Fatal(err)
		}
		f.StartWithContext(ctx)
		if !cache.WaitForCacheSync(ctx.Done(), inf.HasSynced) {
			tb.Fatal("an informer did not sync")
		}
		factories = append(factories, f)
	}
	before := spending(tb)
	for i := range pods {
		if err := lifeOf(ctx, kube, fmt.Sprintf("pod-%d", i)); err != nil {
			tb.Fatal(err)
		}
	}
	gone.Wait()
	after := spending(tb)
	cancel()
	for _, f := range factories {
		f.Shutdown()
	}
	return spent{
		after.allocations - before.allocations, after.bytes - before.bytes, after.collections - before.collections, after.cpu - before.cpu,
	}
}

// lifeOf makes a pod, binds it, has it run and deletes it.
func lifeOf(ctx context.Context, kube kubernetes.Interface, name string) error {
	all := kube.CoreV1().Pods("default")
	pod := hello("")
	pod.Name, pod.Labels = name, map[string]string{"app": "many", "bench": "many"}
	pod, err := all.Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	if err := all.Bind(ctx, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Target: corev1.ObjectReference{Kind: "Node", Name: "node-1"},
	}, metav1.CreateOptions{}); err != nil {
		return err
	}
	if _, err := all.Patch(ctx, name, types.StrategicMergePatchType, []byte(`{"status":{"phase":"Running","podIP":"10.0.0.1",`+
		`"conditions":[{"type":"Ready","status":"True"},{"type":"ContainersReady","status":"True"}],"containerStatuses":[{"name":"main",`+
		`"ready":true,"image":"x","imageID":"y","containerID":"z","state":{"running":{}}}]}}`), metav1.PatchOptions{}, "status"); err != nil {
		return err
	}
	return all.Delete(ctx, name, metav1.DeleteOptions{
		GracePeriodSeconds: new(int64), Preconditions: metav1.NewUIDPreconditions(string(pod.UID)),
	})
}
