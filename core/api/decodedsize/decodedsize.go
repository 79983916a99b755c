// SPDX-License-Identifier: Apache-2.0

// Package decodedsize says what an object of the API will take once it is decoded, before it is.
//
// An entry of a list takes two bytes of a body and becomes a struct of hundreds: three MiB of "{}," in a pod's containers are
// half a gigabyte, and four times that on the way there, as the list grows. So whoever decodes counts first: the structs, list
// entries and map entries that the text has for the fields of its type. What the type does not have is skipped, as decoders do.
//
// Bodies that are too short to become large are not looked at, which are all but a few. A count looks at each byte once and
// allocates next to nothing. Of what is no JSON or protobuf it may count nonsense; decoders refuse that.
package decodedsize

import (
	"fmt"
	"reflect"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/wasmplane/wasmplane/core/object"
)

// Max is how many bytes an object may take once it is decoded, without its texts. A CustomResourceDefinition
// of a MiB with descriptions takes 5 MiB, and one of 25,000 fields and nothing else 15 MiB.
const Max = 24 << 20

// maxRead is how many bytes may be read again: types that decode themselves read all that is in them, at each level once more.
const maxRead = 64 << 20

// short is the length up to which no object can be too large.
const short = 64 << 10

// perEntry is what a map's entry takes beside its key and value.
const perEntry = 16

// Shape is a Go type as a decoder fills it.
type Shape struct {
	kind    reflect.Kind
	size    int64
	own     bool // decodes itself
	members map[string]*Shape
	fields  map[uint64]*Shape // by their number in protobuf
	elem    *Shape            // of a pointer, list or map
	object  *Shape            // what an object is to a type that decodes itself
	array   *Shape            // what a list is to it
	largest int64             // of the list and map entries, and of what pointers lead to, wherever they are in it
	rereads bool              // something in it decodes itself, and what is in that as well
}

// Check refuses data of a type that would take more than Max once it is decoded. Protobuf is in its envelope.
func Check(t reflect.Type, data []byte, mediaType string) error {
	if len(data) <= short {
		return nil
	}
	s := Of(t)
	switch mediaType {
	case object.JSON:
		return s.JSON(data)
	case object.YAML:
		return s.YAML(data)
	case object.Protobuf:
		return s.Protobuf(data)
	}
	return nil
}

var known sync.Map // reflect.Type to *Shape

// Of is the shape of a type.
func Of(t reflect.Type) *Shape {
	if s, ok := known.Load(t); ok {
		return s.(*Shape)
	}
	begun := map[reflect.Type]*Shape{}
	s := learn(t, begun)
	for _, in := range begun {
		s.largest = max(s.largest, in.entry())
		s.rereads = s.rereads || in.object != nil || in.array != nil
	}
	known.Store(t, s)
	return s
}

// entry is what one more of the shape's entries takes; 0 = it has none.
func (s *Shape) entry() int64 {
	switch {
	case s.kind == reflect.Map:
		return s.elem.size + stringSize + perEntry
	case s.elem != nil:
		return s.elem.size
	}
	return 0
}

const stringSize = 16

// selfDecoding are types that read JSON by themselves.
type selfDecoding interface{ UnmarshalJSON(data []byte) error }

func learn(t reflect.Type, begun map[reflect.Type]*Shape) *Shape {
	if s := begun[t]; s != nil {
		return s
	}
	s := &Shape{kind: t.Kind(), size: int64(t.Size()), own: reflect.PointerTo(t).Implements(reflect.TypeFor[selfDecoding]())}
	begun[t] = s
	switch s.kind {
	case reflect.Struct:
		s.members, s.fields = map[string]*Shape{}, map[uint64]*Shape{}
		s.learnMembers(t, begun)
	case reflect.Pointer, reflect.Slice, reflect.Map:
		s.elem = learn(t.Elem(), begun)
	default: // has nothing in it that would be larger than its text
	}
	return s
}

func (s *Shape) learnMembers(t reflect.Type, begun map[reflect.Type]*Shape) {
	for i := range t.NumField() {
		f := t.Field(i)
		if !f.IsExported() {
			continue
		}
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		inline := name == "" && (f.Anonymous || strings.Contains(options, "inline")) && f.Type.Kind() == reflect.Struct
		within := learn(f.Type, begun)
		var number uint64
		if tag := f.Tag.Get("protobuf"); tag != "" {
			_, _ = fmt.Sscanf(tag[strings.IndexByte(tag, ',')+1:], "%d", &number)
			s.fields[number] = within
		}
		switch {
		case s.own && isList(f.Type) && s.array == nil:
			s.array = within
		case s.own && isStruct(f.Type) && s.object == nil:
			s.object = within
		case s.own || name == "-":
		case inline:
			for key, m := range within.members {
				s.members[key] = m
			}
		default:
			s.members[orName(name, f.Name)] = within
		}
	}
}

func orName(tag, name string) string {
	if tag == "" {
		return name
	}
	return tag
}

func isList(t reflect.Type) bool {
	return t.Kind() == reflect.Slice && t.Elem().Kind() != reflect.Uint8
}

func isStruct(t reflect.Type) bool {
	return t.Kind() == reflect.Struct || t.Kind() == reflect.Pointer && t.Elem().Kind() == reflect.Struct
}

// fits says whether so many entries cannot be too large, whichever they are.
func (s *Shape) fits(entries int) bool { return int64(entries)*s.largest <= Max }

// count is what one object comes to.
type count struct {
	size int64
	read int // again, by types that decode themselves
}

func (c *count) over() bool { return c.size > Max || c.read > maxRead }

// refusal is the error of an object that is too large; nil = it is not.
func (c *count) refusal() error {
	switch {
	case c.size > Max:
		return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf(
			"the object has so many entries in its lists and maps that it would take more than %d bytes once it is decoded", Max))
	case c.read > maxRead:
		return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf(
			"the object's schemas nest so deep that more than %d bytes would be read to decode it: at each level, all that is in it is read again", maxRead))
	}
	return nil
}
