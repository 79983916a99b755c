// SPDX-License-Identifier: Apache-2.0

package kubelet_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet"
	"github.com/wasmplane/wasmplane/core/kubelet/simulated"
	"github.com/wasmplane/wasmplane/core/kubelet/static"
)

// files are static pods that a test sets.
type files struct {
	sets   chan []*corev1.Pod
	faults chan error
}

func newFiles() *files {
	return &files{sets: make(chan []*corev1.Pod, 10), faults: make(chan error, 10)}
}

func (f *files) Run(ctx context.Context, changed func([]*corev1.Pod), failed func(error)) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case pods := <-f.sets:
			changed(pods)
		case err := <-f.faults:
			failed(err)
		}
	}
}

func (f *files) use(c *kubelet.Config) { c.Static = f }

// folder is where files are.
type folder struct{ *files }

func (folder) Dir() string { return "/etc/pods" }

func TestTheConfigurationSaysWhereStaticPodsAre(t *testing.T) {
	w := newWorld(t)
	w.start()
	for want, use := range map[string]func(*kubelet.Config){
		"/etc/pods": func(c *kubelet.Config) { c.Static = folder{newFiles()} }, "": func(*kubelet.Config) {},
	} {
		k, stop := w.begin("n1", w.engine(), use)
		config, ok := k.Config().(map[string]any)
		if got, _ := config["staticPodPath"].(string); !ok || got != want {
			t.Errorf("the configuration is %v, expected %q in it", config, want)
		}
		stop()
	}
}

func ofFile(name string, uid types.UID, image string) *corev1.Pod {
	grace := int64(1)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: uid, Annotations: map[string]string{
			static.SourceAnnotation: static.FileSource, static.HashAnnotation: string(uid),
		}},
		Spec: corev1.PodSpec{
			NodeName: "n1", RestartPolicy: corev1.RestartPolicyAlways, TerminationGracePeriodSeconds: &grace,
			Containers: []corev1.Container{{Name: "web", Image: image, ImagePullPolicy: corev1.PullIfNotPresent}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
}

func mirrors(uid types.UID) func(*corev1.Pod) bool {
	return func(p *corev1.Pod) bool {
		return running(p) && p.Annotations[corev1.MirrorPodAnnotationKey] == string(uid)
	}
}

// held are the containers that run, by the image.
func (w *world) held(e *simulated.Engine) (images []string, ids []string) {
	list, err := e.ListContainers(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	for _, c := range list {
		if c.State == cri.ContainerState_CONTAINER_RUNNING {
			images, ids = append(images, c.GetImage().GetImage()), append(ids, c.Id)
		}
	}
	return images, ids
}

func (w *world) removeMirror(name string, uid types.UID) {
	w.t.Helper()
	w.remove(name)
	w.until(name, "another mirror", func(p *corev1.Pod) bool { return p.UID != uid && p.DeletionTimestamp == nil && running(p) })
}

// numbered gives what is created a UID of its own, as the API does.
func numbered(client *fake.Clientset) {
	var n atomic.Int32
	client.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if c, ok := a.(clienttesting.CreateActionImpl); ok {
			if p, ok := c.GetObject().(*corev1.Pod); ok && p.UID == "" {
				p.UID, p.Generation = types.UID(strings.Repeat("m", int(n.Add(1)))), 1
			}
		}
		return false, nil, nil
	})
}

// TestStaticPodsHaveMirrors: the mirror has the status, comes back when it is deleted, and
// follows the file; the pod is another only when its file is.
func TestStaticPodsHaveMirrors(t *testing.T) {
	w := newWorld(t)
	client, ok := w.client.(*fake.Clientset)
	if !ok {
		t.Fatal("not the fake API")
	}
	numbered(client)
	w.start()
	e, f := w.engine(), newFiles()
	stop := w.node("n1", e, f.use)
	f.sets <- []*corev1.Pod{ofFile("web-n1", "hash-1", "example.org/web:1")}
	m := w.until("web-n1", "running", mirrors("hash-1"))
	if o := m.OwnerReferences; len(o) != 1 || o[0].Kind != "Node" || o[0].Name != "n1" || m.UID == "hash-1" || m.Status.PodIP == "" {
		t.Errorf("the mirror is %+v", m)
	}
	if m.Generation != 1 || m.Status.ObservedGeneration != 0 {
		t.Errorf("of generation %d the mirror's status has observed %d, expected none", m.Generation, m.Status.ObservedGeneration)
	}
	_, before := w.held(e)
	w.removeMirror("web-n1", m.UID)
	if _, after := w.held(e); !slices.Equal(before, after) {
		t.Errorf("the containers were %v and are %v: the deletion of the mirror has touched them", before, after)
	}
	// A kubelet that starts again takes it over.
	stop()
	f = newFiles()
	f.sets <- []*corev1.Pod{ofFile("web-n1", "hash-1", "example.org/web:1")}
	w.node("n1", e, f.use)
	w.until("web-n1", "running", mirrors("hash-1"))
	if _, after := w.held(e); !slices.Equal(before, after) {
		t.Errorf("the containers were %v and are %v after a restart", before, after)
	}
	f.faults <- errors.New("web.yaml:3: kind: expected Pod")
	if msg := w.event("n1", "InvalidStaticPod"); msg != "web.yaml:3: kind: expected Pod" {
		t.Errorf("the event says %q", msg)
	}
	f.sets <- []*corev1.Pod{ofFile("web-n1", "hash-2", "example.org/web:2")}
	w.until("web-n1", "the other", mirrors("hash-2"))
	w.eventually("the former one is gone", func() bool {
		images, _ := w.held(e)
		return slices.Equal(images, []string{"example.org/web:2"})
	})
	f.sets <- nil
	w.gone("web-n1")
	w.eventually("nothing runs", func() bool {
		images, _ := w.held(e)
		return len(images) == 0
	})
}

func (w *world) gone(name string) {
	w.t.Helper()
	w.eventually("pod "+name+" is gone", func() bool {
		list, err := w.client.CoreV1().Pods("default").List(w.t.Context(), metav1.ListOptions{})
		return err == nil && !slices.ContainsFunc(list.Items, func(p corev1.Pod) bool { return p.Name == name })
	})
}

// TestStaticPodsNeedNoAPI: they start while the API is away, and what has become of a file
// that was changed or removed meanwhile ends.
func TestStaticPodsNeedNoAPI(t *testing.T) {
	w := newWorld(t)
	client, ok := w.client.(*fake.Clientset)
	if !ok {
		t.Fatal("not the fake API")
	}
	numbered(client)
	var away atomic.Bool
	away.Store(true)
	client.PrependReactor("*", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		return away.Load(), nil, errors.New("connection refused")
	})
	e := w.engine()
	first := newFiles()
	first.sets <- []*corev1.Pod{
		ofFile("a-n1", "a-1", "example.org/a:1"), ofFile("b-n1", "b-1", "example.org/b:1"), ofFile("c-n1", "c-1", "example.org/c:1"),
	}
	_, stop := w.begin("n1", e, first.use)
	runs := func(want ...string) {
		t.Helper()
		w.eventually(strings.Join(want, ", ")+" run", func() bool {
			images, _ := w.held(e)
			slices.Sort(images)
			return slices.Equal(images, want)
		})
	}
	runs("example.org/a:1", "example.org/b:1", "example.org/c:1")
	stop()
	second := newFiles()
	second.sets <- []*corev1.Pod{ofFile("a-n1", "a-1", "example.org/a:1"), ofFile("b-n1", "b-2", "example.org/b:2")}
	w.begin("n1", e, second.use)
	runs("example.org/a:1", "example.org/b:2")
	away.Store(false)
	w.start()
	w.until("a-n1", "running", mirrors("a-1"))
	w.until("b-n1", "running", mirrors("b-2"))
	runs("example.org/a:1", "example.org/b:2")
}

// TestMirrorsOfNothingGo, also where there are no static pods at all; and nobody makes a
// pod that counts as one by an annotation.
func TestMirrorsOfNothingGo(t *testing.T) {
	w := newWorld(t)
	w.start()
	e := w.engine()
	w.create("n1", "left", func(p *corev1.Pod) { p.Annotations[corev1.MirrorPodAnnotationKey] = "gone" })
	w.create("n1", "feigned", func(p *corev1.Pod) { p.Annotations[static.SourceAnnotation] = static.FileSource })
	w.node("n1", e)
	w.until("feigned", "running", running)
	w.gone("left")
	w.remove("feigned")
	w.gone("feigned")
}
