// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"fmt"
	goruntime "runtime"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/object"
)

// counting is a codec that says how often it encoded and decoded.
type counting struct {
	object.Unstructured
	encoded, decoded *int
}

func (c counting) Encode(o runtime.Object, _ string) ([]byte, error) {
	*c.encoded++
	return c.Unstructured.Encode(o, object.JSON)
}

func (c counting) Decode(data []byte, _ string) (runtime.Object, error) {
	*c.decoded++
	return c.Unstructured.Decode(data, object.JSON)
}

// shelf is a number of packed objects of about a kilobyte with one holder.
type shelf struct {
	*forms
	objects          []*object.Object
	encoded, decoded int
	at               time.Time
	t                *testing.T
}

func newShelf(t *testing.T, objects int, limit int64) *shelf {
	s := &shelf{t: t, at: time.Unix(0, 0)}
	s.forms = &forms{limit: limit, decodedLimit: limit, stored: func() int64 { return 0 }, now: func() time.Time { return s.at }}
	codec := counting{object.Unstructured{GVK: schema.GroupVersionKind{Version: "v1", Kind: "Thing"}}, &s.encoded, &s.decoded}
	for i := range objects {
		u := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "Thing", "name": fmt.Sprintf("%04d", i),
			"pad": strings.Repeat("x", 960),
		}}
		o := object.FromStored(codec, u, "packed")
		o.SetHolder(s.forms)
		if err := o.Pack(); err != nil {
			t.Fatal(err)
		}
		s.objects = append(s.objects, o)
	}
	s.encoded = 0
	return s
}

// list encodes some objects and tells how many were not encoded before.
func (s *shelf) list(from, to int) int {
	before := s.encoded
	for _, o := range s.objects[from:to] {
		if b, err := o.Encoded(object.JSON); err != nil || len(b) < 1000 || len(b) > 1100 {
			s.t.Fatalf("%d bytes, %v", len(b), err)
		}
	}
	return s.encoded - before
}

func TestAListLargerThanTheBoundFindsWhatFitted(t *testing.T) {
	s := newShelf(t, 100, 50_000)
	if made := s.list(0, 100); made != 100 {
		t.Errorf("%d were encoded at first", made)
	}
	for range 5 {
		if made := s.list(0, 100); made > 60 {
			t.Errorf("a list encoded %d of 100 again, half of them fit", made)
		}
	}
	if bytes := s.encodedBytes(); bytes > 50_000+1100 || bytes < 40_000 {
		t.Errorf("%d bytes are kept", bytes)
	}
}

func TestWhatNobodyAsksForMakesRoom(t *testing.T) {
	s := newShelf(t, 100, 50_000)
	s.list(0, 40)
	s.at = s.at.Add(wanted)
	s.list(0, 10) // these are wanted still
	s.list(50, 80)
	if made := s.list(0, 10); made != 0 {
		t.Errorf("%d that are wanted were dropped", made)
	}
	if made := s.list(50, 80); made > 5 {
		t.Errorf("%d found no room, although nobody wants what takes it", made)
	}
}

func TestWhatFewWatchersShareIsEncodedOnceAlthoughNothingMakesRoom(t *testing.T) {
	s := newShelf(t, 100, 50_000)
	s.list(0, 50)
	for i := 60; i < 100; i++ {
		if made := s.list(i, i+1) + s.list(i, i+1) + s.list(i, i+1); made != 1 {
			t.Errorf("an event was encoded %d times", made)
		}
	}
}

func TestTheBoundFollowsWhatIsStored(t *testing.T) {
	s := newShelf(t, 100, 10_000)
	s.stored = func() int64 { return 100_000 }
	s.list(0, 100)
	if made := s.list(0, 100); made != 0 {
		t.Errorf("%d of 100 were encoded again", made)
	}
}

func TestObjectsThatAreGoneMakeRoomAtOnce(t *testing.T) {
	s := newShelf(t, 100, 50_000)
	s.list(0, 40)
	clear(s.objects[:40])
	goruntime.GC()
	s.list(50, 80)
	if made := s.list(50, 80); made > 5 {
		t.Errorf("%d found no room, although objects that are no more take it", made)
	}
}

func TestDecodedFormsAreBounded(t *testing.T) {
	s := newShelf(t, 100, 60_000) // about ten
	s.decoded = 0
	for range 2 {
		for _, o := range s.objects {
			if _, err := o.Versioned(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if s.decoded < 180 || s.decodedBytes() > 70_000 {
		t.Errorf("decoded %d times, %d bytes kept", s.decoded, s.decodedBytes())
	}
	before := s.decoded
	for range 3 {
		if _, err := s.objects[99].Tree(); err != nil {
			t.Fatal(err)
		}
	}
	if s.decoded != before {
		t.Error("what was decoded last was decoded again")
	}
}

func TestWhatWasDecodedIsDroppedInTime(t *testing.T) {
	s := newShelf(t, 10, 1<<20)
	s.decoded = 0
	look := func(o *object.Object) {
		t.Helper()
		if _, err := o.Versioned(); err != nil {
			t.Fatal(err)
		}
	}
	s.at = s.at.Add(wanted / 2)
	s.dropOldDecoded()
	if look(s.objects[0]); s.decoded != 0 {
		t.Error("what was decoded half a minute ago was dropped")
	}
	s.at = s.at.Add(wanted / 2)
	s.dropOldDecoded()
	if bytes := s.decodedBytes(); bytes != 0 {
		t.Errorf("%d bytes of what was decoded a minute ago are kept", bytes)
	}
	look(s.objects[0])
	look(s.objects[0])
	if s.decoded != 1 || s.decodedBytes() == 0 {
		t.Errorf("what is wanted again was decoded %d times, %d bytes kept", s.decoded, s.decodedBytes())
	}
}
