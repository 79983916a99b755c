// SPDX-License-Identifier: Apache-2.0

package resourcemetrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

// world is a cluster whose kubelets say what their pages say.
type world struct {
	mu      sync.Mutex
	objects []runtime.Object
	pages   map[string]func() (string, error)
	asked   map[string]int
}

func (w *world) List(_ context.Context, kind schema.GroupVersionKind, namespace string,
	selector labels.Selector,
) ([]runtime.Object, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []runtime.Object
	for _, o := range w.objects {
		m, err := meta.Accessor(o)
		if err == nil && o.GetObjectKind().GroupVersionKind() == kind && (namespace == "" || namespace == m.GetNamespace()) &&
			selector.Matches(labels.Set(m.GetLabels())) {
			out = append(out, o)
		}
	}
	return out, nil
}

func (w *world) Get(ctx context.Context, kind schema.GroupVersionKind, namespace, name string) (runtime.Object, error) {
	all, err := w.List(ctx, kind, namespace, labels.Everything())
	for _, o := range all {
		if m, _ := meta.Accessor(o); m.GetName() == name {
			return o, nil
		}
	}
	return nil, errors.Join(err, apierrors.NewNotFound(schema.GroupResource{}, name))
}

func (w *world) Page(_ context.Context, node *corev1.Node) (io.ReadCloser, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked[node.Name]++
	page, ok := w.pages[node.Name]
	if !ok {
		return nil, errors.New("connection refused")
	}
	text, err := page()
	return io.NopCloser(strings.NewReader(text)), err
}

func (w *world) count(node string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.asked[node]
}

func aNode(name string, status corev1.ConditionStatus) *corev1.Node {
	n := &corev1.Node{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"of": name}},
	}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}
	return n
}

func aPod(name, node string) *corev1.Pod {
	p := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: map[string]string{"app": name}},
	}
	p.Spec.NodeName, p.Status.Phase = node, corev1.PodRunning
	return p
}

// usesCore is a node whose one container uses half a processor, and who speaks for
// a pod of another node too.
func usesCore(pods ...string) func() (string, error) {
	begin := time.Now()
	return func() (string, error) {
		at, used := time.Now().UnixMilli(), time.Since(begin).Seconds()/2
		var b strings.Builder
		fmt.Fprintf(&b, "node_cpu_usage_seconds_total %g %d\nnode_memory_working_set_bytes 1024 %d\n", used*4, at, at)
		for _, p := range pods {
			fmt.Fprintf(&b, "container_cpu_usage_seconds_total{container=\"c\",namespace=\"ns\",pod=%q} %g %d\n", p, used, at)
			fmt.Fprintf(&b, "container_memory_working_set_bytes{container=\"c\",namespace=\"ns\",pod=%q} 2048 %d\n", p, at)
		}
		return b.String(), nil
	}
}

func start(t *testing.T, w *world) *Source {
	t.Helper()
	w.asked = map[string]int{}
	s, err := New(Config{Cluster: w, Kubelets: w})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	synctest.Wait()
	return s
}

func TestWhatPodsAndNodesUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{
			objects: []runtime.Object{
				aNode("a", "True"), aNode("liar", "True"), aNode("gone", "Unknown"), aPod("one", "a"), aPod("two", "a"),
				aPod("starts", "a"),
			},
			pages: map[string]func() (string, error){"a": usesCore("one", "two"), "liar": usesCore("one", "starts", "invented")},
		}
		s := start(t, w)
		if got, err := s.Nodes(t.Context(), "", "", labels.Everything()); err != nil || len(got) != 0 {
			t.Errorf("one answer made a rate: %v, %v", got, err)
		}
		time.Sleep(second)
		synctest.Wait()
		nodes, err := s.Nodes(t.Context(), "", "", labels.SelectorFromSet(labels.Set{"of": "a"}))
		if err != nil || len(nodes) != 1 {
			t.Fatalf("nodes: %v, %v", nodes, err)
		}
		node := nodes[0].(*metricsv1beta1.NodeMetrics)
		if node.Usage.Cpu().String() != "2" || node.Usage.Memory().String() != "1Ki" || node.Window.Duration != second ||
			node.Labels["of"] != "a" {
			t.Errorf("node: %+v", node)
		}
		pods, err := s.Pods(t.Context(), "ns", "", labels.Everything())
		if err != nil || len(pods) != 2 {
			t.Fatalf("pods: %v, %v", pods, err)
		}
		pod := pods[0].(*metricsv1beta1.PodMetrics)
		if pod.Name != "one" || len(pod.Containers) != 1 || pod.Containers[0].Usage.Cpu().String() != "500m" ||
			pod.Containers[0].Usage.Memory().String() != "2Ki" {
			t.Errorf("pod: %+v", pod)
		}
		for name, want := range map[string]int{"two": 1, "starts": 0, "invented": 0} {
			if one, err := s.Pods(t.Context(), "ns", name, labels.Everything()); err != nil || len(one) != want {
				t.Errorf("%s: %v, %v", name, one, err)
			}
		}
		if n := w.count("gone"); n != 0 {
			t.Errorf("a node that is not ready was asked %d times", n)
		}
	})
}

// A node that says no more is forgotten, and others go on.
func TestStaleAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{
			objects: []runtime.Object{aNode("a", "True"), aNode("b", "True")},
			pages:   map[string]func() (string, error){"a": usesCore(), "b": usesCore()},
		}
		s := start(t, w)
		time.Sleep(second)
		synctest.Wait()
		w.mu.Lock()
		delete(w.pages, "b")
		w.mu.Unlock()
		for name, want := range map[string]int{"a": 1, "b": 1} {
			if got, err := s.Nodes(t.Context(), "", name, labels.Everything()); err != nil || len(got) != want {
				t.Errorf("%s: %v, %v", name, got, err)
			}
		}
		time.Sleep(stale + rest)
		synctest.Wait()
		for name, want := range map[string]int{"a": 1, "b": 0} {
			if got, err := s.Nodes(t.Context(), "", name, labels.Everything()); err != nil || len(got) != want {
				t.Errorf("%s, later: %v, %v", name, got, err)
			}
		}
	})
}

// Nodes are asked seldom, and more often while somebody looks.
func TestHowOftenNodesAreAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{objects: []runtime.Object{aNode("a", "True")}, pages: map[string]func() (string, error){"a": usesCore()}}
		s := start(t, w)
		during := func(d time.Duration) int {
			before := w.count("a")
			time.Sleep(d)
			synctest.Wait()
			return w.count("a") - before
		}
		during(10 * rest)
		if n := during(10 * rest); n != 10 {
			t.Errorf("at rest the node was asked %d times in 10 minutes", n)
		}
		time.Sleep(rest / 2) // between two rounds
		synctest.Wait()
		look := func() {
			if _, err := s.Pods(t.Context(), "", "", labels.Everything()); err != nil {
				t.Error(err)
			}
		}
		before := w.count("a")
		look()
		synctest.Wait()
		if n := w.count("a") - before; n != 1 {
			t.Errorf("the first look had the node asked %d times at once", n)
		}
		for range 8 {
			look()
		}
		if n := during(rest); n != 4 {
			t.Errorf("in the minute after a look the node was asked %d times", n)
		}
		during(interest)
		if n := during(10 * rest); n != 10 {
			t.Errorf("after a while the node was asked %d times in 10 minutes", n)
		}
	})
}

// While nodes come, one after the other, each is asked twice soon and then as often as all are: were all asked
// for each that comes, a thousand nodes would be asked half a million times.
func TestNodesThatComeHaveNoOthersAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const nodes = 120
		w := &world{pages: map[string]func() (string, error){}}
		start(t, w)
		for i := range nodes {
			name := fmt.Sprintf("n%d", i)
			w.mu.Lock()
			w.objects = append(w.objects, aNode(name, corev1.ConditionTrue))
			w.pages[name] = usesCore()
			w.mu.Unlock()
			time.Sleep(time.Second)
		}
		time.Sleep(2 * second)
		synctest.Wait()
		for i := range nodes {
			name := fmt.Sprintf("n%d", i)
			if n := w.count(name); n < 2 || n > 5 {
				t.Errorf("%s was asked %d times in the %d s since it came", name, n, nodes-i+10)
			}
		}
	})
}

// A kubelet that does not answer holds up nobody for long.
func TestSilentKubelet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &silent{world: &world{
			objects: []runtime.Object{aNode("silent", "True"), aNode("z", "True")},
			pages:   map[string]func() (string, error){"z": usesCore()}, asked: map[string]int{},
		}}
		s, err := New(Config{Cluster: w, Kubelets: w})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		time.Sleep(patience + second + patience)
		synctest.Wait()
		if got, err := s.Nodes(t.Context(), "", "z", labels.Everything()); err != nil || len(got) != 1 {
			t.Errorf("the other node: %v, %v", got, err)
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

type silent struct{ *world }

func (w *silent) Page(ctx context.Context, node *corev1.Node) (io.ReadCloser, error) {
	if node.Name == "silent" {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return w.world.Page(ctx, node)
}
