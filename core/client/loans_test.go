// SPDX-License-Identifier: Apache-2.0

package client

import (
	"encoding/binary"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/wasmplane/wasmplane/core/lent"
	"github.com/wasmplane/wasmplane/core/object"
)

// lendable is a ConfigMap as the watch cache keeps it.
func lendable(t *testing.T, name string) *object.Object {
	t.Helper()
	info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	data, err := runtime.Encode(scheme.Codecs.EncoderForVersion(info.Serializer, corev1.SchemeGroupVersion),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}})
	if err != nil {
		t.Fatal(err)
	}
	return object.FromPacked(object.Unstructured{GVK: corev1.SchemeGroupVersion.WithKind("ConfigMap")}, data, object.Protobuf)
}

// frame is an event of a protobuf watch.
func frame(t *testing.T, kind watch.EventType, reference []byte) []byte {
	t.Helper()
	event := &metav1.WatchEvent{Type: string(kind), Object: runtime.RawExtension{Raw: reference}}
	data, err := event.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(data))), data...)
}

// A watch gets what it was lent in order; when it is stopped nothing of it stays, and nothing more is lent to it.
func TestLoansEndWithTheirWatch(t *testing.T) {
	const names = 3
	ended, late := make(chan struct{}), []byte(nil)
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(ended)
		if got := r.Header.Get("Accept"); got != "application/vnd.kubernetes.protobuf,application/json" {
			t.Errorf("the server was asked for %q", got)
		}
		lender := lent.From(r.Context())
		if lender == nil {
			t.Error("the client takes no references")
			return
		}
		w.Header().Set("Content-Type", lent.MediaType+";stream=watch")
		for i := range names + 1 { // one more than is taken
			o := lendable(t, fmt.Sprint(i))
			_, _ = w.Write(frame(t, watch.Added, lender.Lend(o, 10)))
		}
		<-r.Context().Done()
		late = lender.Lend(lendable(t, "late"), 10)
	})
	cfg := InMemory(h, &user.DefaultInfo{Name: "ann"}, "test")
	set, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	w, err := set.Kube.CoreV1().ConfigMaps("default").Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range names {
		e := <-w.ResultChan()
		if c, ok := e.Object.(*corev1.ConfigMap); !ok || e.Type != watch.Added || c.Name != fmt.Sprint(i) {
			t.Fatalf("event %d is %v", i, e)
		}
	}
	w.Stop()
	<-ended
	for range w.ResultChan() { // until it is closed
	}
	if loans := &inMemory(cfg.Transport).loans; len(loans.of) != 0 {
		t.Errorf("%d answers are left that lend", len(loans.of))
	}
	if string(late) != referenceMark {
		t.Errorf("the watch that has ended was lent %q", late)
	}
}

// Who has not taken what he was lent holds the server up as one who has not read as many bytes would.
func TestLoansHoldTheServerUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &response{header: http.Header{}, started: make(chan struct{}), cancel: func() {}, loans: &loans{}}
		r.cond = sync.NewCond(&r.mu)
		written := 0
		go func() {
			for range 3 {
				_, _ = r.Write(r.Lend(lendable(t, "a"), maxBuffered))
				written++
			}
		}()
		synctest.Wait()
		if written != 1 {
			t.Errorf("%d references were written, of which none was taken", written)
		}
		for i := range 2 {
			if _, ok := r.take(); !ok {
				t.Fatal("nothing waits to be taken")
			}
			if _, err := r.Read(make([]byte, referenceSize)); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if written != i+2 {
				t.Errorf("%d references were written, of which %d were taken", written, i+1)
			}
		}
	})
}

// What refers to nothing is an error of the watch, and no object of another's.
func TestAReferenceToNothing(t *testing.T) {
	for _, reference := range [][]byte{
		[]byte(referenceMark), []byte("lent12345678"), []byte("lent\x00\x00\x00\x00\x00\x00\x00\x01"), []byte("lent, and more than that"), {},
	} {
		h := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", lent.MediaType+";stream=watch")
			_, _ = w.Write(frame(t, watch.Added, reference))
		})
		set, err := New(InMemory(h, &user.DefaultInfo{Name: "ann"}, "test"))
		if err != nil {
			t.Fatal(err)
		}
		w, err := set.Kube.CoreV1().ConfigMaps("default").Watch(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if e := <-w.ResultChan(); e.Type != watch.Error {
			t.Errorf("%q gave %v", reference, e)
		}
		w.Stop()
	}
}
