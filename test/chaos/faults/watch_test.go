// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/wasmplane/wasmplane/core/run"
)

func revisionOf(o metav1.Object) int64 {
	n, _ := strconv.ParseInt(o.GetResourceVersion(), 10, 64)
	return n
}

// watcher lists the ConfigMaps of a namespace, and follows from there, at one server while it answers. It has a
// view of what there is, which events change, and keeps each event that cannot be.
type watcher struct {
	namespace string

	mu      sync.Mutex
	view    map[string]int64 // names, with their revisions
	from    int64            // of the last list
	at      int64
	seen    map[string]int64 // creations by events, since the last take
	wrong   []string
	relists int
}

func (w *watcher) run(ctx context.Context, s servers) {
	listed := false
	for ctx.Err() == nil {
		c := s.current()
		if !listed {
			if listed = w.list(ctx, c); !listed {
				s.at++
				run.Sleep(ctx, 100*time.Millisecond)
				continue
			}
		}
		expired, err := w.follow(ctx, c)
		if expired {
			listed = false
			continue
		}
		if err != nil {
			s.at++
		}
		run.Sleep(ctx, 50*time.Millisecond)
	}
}

func (w *watcher) list(ctx context.Context, c *kubernetes.Clientset) bool {
	one, cancel := context.WithTimeout(ctx, tryFor)
	defer cancel()
	l, err := c.CoreV1().ConfigMaps(w.namespace).List(one, metav1.ListOptions{})
	if err != nil {
		return false
	}
	at, _ := strconv.ParseInt(l.ResourceVersion, 10, 64)
	w.mu.Lock()
	defer w.mu.Unlock()
	if at < w.at {
		w.wrong = append(w.wrong, fmt.Sprintf("a list of %d after %d", at, w.at))
	}
	w.view = map[string]int64{}
	for i := range l.Items {
		w.view[l.Items[i].Name] = revisionOf(&l.Items[i])
	}
	if w.at > 0 {
		w.relists++
	}
	w.from, w.at = at, at
	return true
}

// follow watches until the stream ends, and says whether the history has.
func (w *watcher) follow(ctx context.Context, c *kubernetes.Clientset) (expired bool, err error) {
	w.mu.Lock()
	at := strconv.FormatInt(w.at, 10)
	w.mu.Unlock()
	// A server that is cut off does not answer, and a watch has no time limit of its own.
	one, cancel := context.WithCancel(ctx)
	defer cancel()
	late := time.AfterFunc(tryFor, cancel)
	defer late.Stop()
	stream, err := c.CoreV1().ConfigMaps(w.namespace).Watch(one, metav1.ListOptions{ResourceVersion: at, AllowWatchBookmarks: true})
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	late.Stop()
	defer stream.Stop()
	// Writes are made all the time. A client that hears nothing of them asks elsewhere.
	quiet := time.NewTimer(tryFor)
	defer quiet.Stop()
	for {
		select {
		case e, ok := <-stream.ResultChan():
			if !ok {
				return false, nil
			}
			quiet.Reset(tryFor)
			if expired := w.take(e); expired {
				return true, nil
			}
		case <-quiet.C:
			return false, context.DeadlineExceeded
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

// take changes the view by an event, and says whether the history has ended.
func (w *watcher) take(e watch.Event) (expired bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	cm, ok := e.Object.(*corev1.ConfigMap)
	if !ok {
		return w.takeError(e)
	}
	at, wrong := revisionOf(cm), func(format string, args ...any) { w.wrong = append(w.wrong, fmt.Sprintf(format, args...)) }
	_, known := w.view[cm.Name]
	switch {
	case e.Type == watch.Bookmark && at < w.at:
		wrong("a bookmark of %d after %d", at, w.at)
	case e.Type == watch.Bookmark:
	case at <= w.at:
		wrong("%s of %s at %d after %d", e.Type, cm.Name, at, w.at)
	case e.Type == watch.Added && known, e.Type != watch.Added && !known:
		wrong("%s of %s at %d, which was there: %t", e.Type, cm.Name, at, known)
	}
	w.at = max(w.at, at)
	switch e.Type {
	case watch.Added:
		w.view[cm.Name], w.seen[cm.Name] = at, at
	case watch.Modified:
		w.view[cm.Name] = at
	case watch.Deleted:
		delete(w.view, cm.Name)
	default: // bookmarks have no object
	}
	return false
}

func (w *watcher) takeError(e watch.Event) (expired bool) {
	s, ok := e.Object.(*metav1.Status)
	if ok && strings.HasPrefix(s.Message, "an error on the server (\"unable to decode an event from the watch stream") {
		return false // it is the client who says so: the connection was cut
	}
	// A server that ends, or has lost its store, may say so.
	if ok && s.Code != 410 && s.Code >= 500 {
		return false
	}
	if !ok || s.Code != 410 {
		w.wrong = append(w.wrong, fmt.Sprintf("%s: %+v", e.Type, e.Object))
	}
	return true
}

func (w *watcher) reached() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.at
}

// judge compares what was seen with what is at the moment, while nobody writes, and with what was acknowledged.
func (w *watcher) judge(is, acknowledged map[string]int64) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !maps.Equal(w.view, is) {
		w.wrong = append(w.wrong, fmt.Sprintf("it sees %d objects at %d, and there are %d: %s", len(w.view), w.at, len(is),
			difference(w.view, is)))
	}
	for name, at := range acknowledged {
		if seen, ok := w.seen[name]; at > w.from && at <= w.at && (!ok || seen != at) {
			w.wrong = append(w.wrong, fmt.Sprintf("the creation of %s was acknowledged at %d, and seen at %d", name, at, seen))
		}
	}
	found := w.wrong
	w.wrong, w.seen = nil, map[string]int64{}
	w.from = w.at // what was before is judged
	return found
}

func difference(a, b map[string]int64) string {
	var out []string
	for name, at := range a {
		if b[name] != at {
			out = append(out, fmt.Sprintf("it has %s of %d, which is of %d", name, at, b[name]))
		}
	}
	for name, at := range b {
		if _, ok := a[name]; !ok {
			out = append(out, fmt.Sprintf("it lacks %s of %d", name, at))
		}
	}
	return strings.Join(out[:min(len(out), 4)], ", ")
}
