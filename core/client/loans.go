// SPDX-License-Identifier: Apache-2.0

package client

import (
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/lent"
	"github.com/wasmplane/wasmplane/core/object"
)

// loans are the answers of a transport that have lent objects, by number. The zero value is ready to use.
type loans struct {
	mu   sync.Mutex
	last uint64
	of   map[uint64]*response
}

func (l *loans) add(r *response) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of == nil {
		l.of = map[uint64]*response{}
	}
	l.last++
	l.of[l.last] = r
	return l.last
}

func (l *loans) answer(number uint64) *response {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.of[number]
}

func (l *loans) remove(number uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.of, number)
}

// loan is one object that was lent.
type loan struct {
	object *object.Object
	size   int
}

// A reference is referenceMark and the number of the answer. An encoded object begins with other bytes.
const (
	referenceMark = "lent"
	referenceSize = len(referenceMark) + 8
)

// Lend implements lent.Lender.
func (r *response) Lend(o *object.Object, size int) []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.aborted {
		return []byte(referenceMark) // it is for nobody
	}
	if r.number == 0 {
		r.number = r.loans.add(r)
	}
	r.waiting = append(r.waiting, loan{o, size})
	r.lentSize += size
	return binary.BigEndian.AppendUint64([]byte(referenceMark), r.number)
}

// take is the loan that was made first of those that wait.
func (r *response) take() (*object.Object, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.waiting) == 0 {
		return nil, false
	}
	first := r.waiting[0]
	r.waiting[0] = loan{}
	r.lentSize -= first.size
	if r.waiting = r.waiting[1:]; len(r.waiting) == 0 {
		r.waiting = nil
	}
	r.cond.Broadcast()
	return first.object, true
}

// takeBack lets go of what nobody is going to take. The answer is aborted: nothing more is lent.
func (r *response) takeBack() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.number != 0 {
		r.loans.remove(r.number)
	}
	r.waiting, r.lentSize = nil, 0
}

// borrower decodes what is sent by a server in the process: references, and between them the protobuf of bookmarks and errors.
type borrower struct {
	runtime.Serializer // protobuf
	loans              *loans
	bytes              runtime.Decoder // as the clients' own
}

var errNotLent = errors.New("the reference to an object of a watch is nobody's: the watch has ended")

// Decode implements runtime.Decoder.
func (b *borrower) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object,
) (runtime.Object, *schema.GroupVersionKind, error) {
	if len(data) < len(referenceMark) || string(data[:len(referenceMark)]) != referenceMark {
		return b.bytes.Decode(data, defaults, into)
	}
	if len(data) != referenceSize {
		return nil, nil, errNotLent
	}
	r := b.loans.answer(binary.BigEndian.Uint64(data[len(referenceMark):]))
	if r == nil {
		return nil, nil, errNotLent
	}
	o, ok := r.take()
	if !ok {
		return nil, nil, errNotLent
	}
	kind := o.Kind()
	shared, err := o.Lent(func(protobuf []byte) (runtime.Object, error) {
		decoded, _, err := b.bytes.Decode(protobuf, nil, nil)
		return decoded, err
	})
	if err != nil {
		return nil, nil, err
	}
	own, err := shallow(shared)
	return own, &kind, err
}

// shallow copies the struct alone: who takes its managed fields away, as transforms of informers do, does so for itself.
func shallow(o runtime.Object) (runtime.Object, error) {
	from := reflect.ValueOf(o)
	if from.Kind() != reflect.Pointer || from.Elem().Kind() != reflect.Struct {
		return nil, fmt.Errorf("a %T cannot be lent: it is no pointer to a struct", o)
	}
	to := reflect.New(from.Elem().Type())
	to.Elem().Set(from.Elem())
	out, ok := to.Interface().(runtime.Object)
	if !ok {
		return nil, fmt.Errorf("a %T cannot be lent", o)
	}
	return out, nil
}

// borrowing are a client's serializers, and that of borrowed objects.
type borrowing struct {
	runtime.NegotiatedSerializer
	infos []runtime.SerializerInfo
}

func newBorrowing(base runtime.NegotiatedSerializer, l *loans) (*borrowing, error) {
	infos := base.SupportedMediaTypes()
	info, ok := runtime.SerializerInfoForMediaType(infos, runtime.ContentTypeProtobuf)
	if !ok || info.StreamSerializer == nil {
		return nil, errors.New("client-go has no protobuf for watches")
	}
	info.Serializer = &borrower{Serializer: info.Serializer, loans: l, bytes: base.DecoderToVersion(info.Serializer, nil)}
	info.MediaType = lent.MediaType
	return &borrowing{NegotiatedSerializer: base, infos: append(infos[:len(infos):len(infos)], info)}, nil
}

// SupportedMediaTypes implements runtime.NegotiatedSerializer.
func (b *borrowing) SupportedMediaTypes() []runtime.SerializerInfo { return b.infos }

// DecoderToVersion implements runtime.NegotiatedSerializer.
func (b *borrowing) DecoderToVersion(d runtime.Decoder, v runtime.GroupVersioner) runtime.Decoder {
	if borrows, ok := d.(*borrower); ok {
		return borrows
	}
	return b.NegotiatedSerializer.DecoderToVersion(d, v)
}
