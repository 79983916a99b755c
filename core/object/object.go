// SPDX-License-Identifier: Apache-2.0

// Package object has the carrier, which holds one API object during a request in every form
// that is needed: the bytes that came in, the versioned Go struct, the internal struct that
// strategies read, the plain JSON tree, encoded bytes.
//
// Each form is made at most once, when first asked for, and a mutation drops
// the forms that it outdates. Nothing else in the project converts objects.
//
// The package knows no API: a Codec, implemented by core/api for the built-in
// kinds, does the conversions. It is therefore cheap to import.
package object

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Media types that a Codec encodes to and decodes from.
const (
	JSON     = "application/json"
	YAML     = "application/yaml"
	Protobuf = "application/vnd.kubernetes.protobuf"
	CBOR     = "application/cbor"
)

// Codec converts the objects of one served version of one resource.
// Implementations are safe for concurrent use and never keep what they are given.
type Codec interface {
	// Kind is the versioned kind that this codec speaks.
	Kind() schema.GroupVersionKind
	// Decode reads data in mediaType into a versioned object, without defaulting.
	Decode(data []byte, mediaType string) (runtime.Object, error)
	// Default fills defaults into a versioned object, in place.
	Default(versioned runtime.Object)
	// Internal converts to the internal form that strategies and validation read.
	// Resources without an internal form (custom resources) answer the object itself.
	Internal(versioned runtime.Object) (runtime.Object, error)
	// Versioned converts an internal object (or another version's object) to Kind's version.
	Versioned(internal runtime.Object) (runtime.Object, error)
	// Encode writes a versioned object in mediaType. The object's kind and
	// apiVersion are set in what is written, also where the struct leaves them empty.
	Encode(versioned runtime.Object, mediaType string) ([]byte, error)
	// FromTree makes a versioned object of a JSON tree; ToTree is its inverse.
	// The tree may share memory with the object where the object is unstructured.
	FromTree(tree map[string]any) (runtime.Object, error)
	ToTree(versioned runtime.Object) (map[string]any, error)
}

// Unpacker is a Codec that reads what it packed itself otherwise than what clients
// send: nothing is checked, pruned or filled in again.
type Unpacker interface {
	// Unpack makes the object again that Encode has written in mediaType.
	Unpack(data []byte, mediaType string) (runtime.Object, error)
}

// Object is one object in flight. What its methods return is shared: callers
// must not change it, but hand a changed copy to one of the Set methods.
// Reads are safe for concurrent use; Set methods are for the one owner.
type Object struct {
	codec Codec

	mu        sync.Mutex
	versioned runtime.Object
	internal  runtime.Object
	lent      runtime.Object // see Lent
	tree      map[string]any
	encoded   []form
	holder    Holder // nil = nobody
	source    []byte // what the object is packed into, encoded in sourceTyp
	sourceTyp string
	owed      int // bytes of decoded forms that the holder has not been told of
	changes   int
	views     []view
	used      bool // encoded bytes were asked for again
	packed    bool // source stays; the other forms can be made of it again
	outdated  bool
}

// form is the object in one media type.
type form struct {
	mediaType string
	data      []byte
}

// view is what somebody else made of an object and wants to find again with it.
type view struct {
	owner, key any
	of         *Object
}

// maxViews bounds how many views an object keeps; the oldest goes first. A
// custom resource has one for each version that somebody reads.
const maxViews = 8

// ErrEmpty is returned by forms of an object that was made of nothing.
var ErrEmpty = errors.New("object has no content")

// FromVersioned makes a carrier of a versioned object, which it then owns.
func FromVersioned(c Codec, o runtime.Object) *Object { return &Object{codec: c, versioned: o} }

// FromInternal makes a carrier of an internal object, which it then owns.
func FromInternal(c Codec, o runtime.Object) *Object { return &Object{codec: c, internal: o} }

// FromTree makes a carrier of a JSON tree, which it then owns.
func FromTree(c Codec, tree map[string]any) *Object { return &Object{codec: c, tree: tree} }

// FromStored makes a carrier of a versioned object that came from, or is bound
// for, a store that keeps it in mediaType: what Pack packs it into.
func FromStored(c Codec, o runtime.Object, mediaType string) *Object {
	return &Object{codec: c, versioned: o, sourceTyp: mediaType}
}

// FromPacked makes a carrier of bytes as Pack would have made them: a versioned object, defaulted and with its
// resourceVersion, in mediaType. It then owns them.
func FromPacked(c Codec, packed []byte, mediaType string) *Object {
	return &Object{codec: c, source: packed, sourceTyp: mediaType, packed: true}
}

// MarkOutdated records that the store has the object in another encoding than it is written in now.
// Only who made the object may call it.
func (o *Object) MarkOutdated() { o.outdated = true }

// Outdated tells whether MarkOutdated was called.
func (o *Object) Outdated() bool { return o.outdated }

// Codec returns the codec that the object was made with.
func (o *Object) Codec() Codec { return o.codec }

// Kind is the versioned kind of the object.
func (o *Object) Kind() schema.GroupVersionKind { return o.codec.Kind() }

// Versioned returns the object as the struct of its served version.
func (o *Object) Versioned() (runtime.Object, error) {
	o.mu.Lock()
	defer o.unlock()
	return o.versionedLocked()
}

// unlock tells the holder, not under the lock, what was decoded under it.
func (o *Object) unlock() {
	owed := o.owed
	o.owed = 0
	o.mu.Unlock()
	if owed > 0 && o.holder != nil {
		o.holder.Decoded(o, owed)
	}
}

func (o *Object) versionedLocked() (runtime.Object, error) {
	if o.versioned != nil {
		return o.versioned, nil
	}
	var err error
	switch {
	case o.internal != nil:
		o.versioned, err = o.codec.Versioned(o.internal)
	case o.tree != nil:
		o.versioned, err = o.codec.FromTree(o.tree)
	case o.packed:
		if o.versioned, err = o.unpack(); err == nil {
			o.owed += decodedSize(o.source, o.sourceTyp)
		}
	default:
		err = ErrEmpty
	}
	if err != nil {
		o.versioned = nil
		return nil, fmt.Errorf("convert %s: %w", o.codec.Kind().Kind, err)
	}
	return o.versioned, nil
}

// unpack decodes a packed object. What it was when it was packed had its
// defaults; those that are empty lists or maps are not in its bytes.
func (o *Object) unpack() (runtime.Object, error) {
	if u, ok := o.codec.(Unpacker); ok {
		v, err := u.Unpack(o.source, o.sourceTyp)
		if err != nil {
			return nil, fmt.Errorf("unpack a %s: %w", o.codec.Kind().Kind, err)
		}
		return v, nil
	}
	v, err := o.codec.Decode(o.source, o.sourceTyp)
	if err != nil {
		return nil, fmt.Errorf("decode a packed %s: %w", o.codec.Kind().Kind, err)
	}
	o.codec.Default(v)
	return v, nil
}

// decodedSize is what a decoded object is taken to cost in memory. Trees of maps, which
// custom resources are, take many times what their text does.
func decodedSize(packed []byte, mediaType string) int {
	if mediaType == Protobuf {
		return 2*len(packed) + 4<<10
	}
	return 8*len(packed) + 4<<10
}

// Internal returns the object as the internal struct.
func (o *Object) Internal() (runtime.Object, error) {
	o.mu.Lock()
	defer o.unlock()
	if o.internal != nil {
		return o.internal, nil
	}
	v, err := o.versionedLocked()
	if err != nil {
		return nil, err
	}
	internal, err := o.codec.Internal(v)
	if err != nil {
		return nil, fmt.Errorf("convert %s to internal: %w", o.codec.Kind().Kind, err)
	}
	o.internal = internal
	return internal, nil
}

// Tree returns the object as a JSON tree of maps, slices, strings, bools,
// int64 and float64.
func (o *Object) Tree() (map[string]any, error) {
	tree, made, err := o.makeTree()
	if made && o.holder != nil {
		o.holder.Made(o, treeBytes)
	}
	return tree, err
}

// treeBytes is what a tree is taken to cost in memory: measuring it would cost
// as much as making it. A pod's is about that large.
const treeBytes = 16 << 10

// makeTree says in made whether the holder has to be told of the tree as of encoded bytes.
func (o *Object) makeTree() (tree map[string]any, made bool, err error) {
	o.mu.Lock()
	defer o.unlock()
	if o.tree != nil {
		return o.tree, false, nil
	}
	v, err := o.versionedLocked()
	if err != nil {
		return nil, false, err
	}
	if tree, err = o.codec.ToTree(v); err != nil {
		return nil, false, fmt.Errorf("convert %s to a tree: %w", o.codec.Kind().Kind, err)
	}
	o.tree = tree
	if o.packed {
		o.owed += treeBytes
	}
	return tree, !o.packed, nil
}

// Encoded returns the object in mediaType. Callers must not change the bytes.
func (o *Object) Encoded(mediaType string) ([]byte, error) {
	b, made, err := o.encode(mediaType)
	if made && o.holder != nil {
		o.holder.Made(o, len(b)) // not under the lock: the holder may drop other objects' forms
	}
	return b, err
}

func (o *Object) encode(mediaType string) (b []byte, made bool, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.packed && o.sourceTyp == mediaType {
		return o.source, false, nil
	}
	for _, f := range o.encoded {
		if f.mediaType == mediaType {
			o.used = true
			return f.data, false, nil
		}
	}
	v := o.versioned
	if v == nil && o.packed {
		// Encoding is all that most readers want: what is decoded for it is not kept.
		v, err = o.unpack()
	} else {
		v, err = o.versionedLocked()
	}
	if err != nil {
		return nil, false, err
	}
	if b, err = o.codec.Encode(v, mediaType); err != nil {
		return nil, false, fmt.Errorf("encode %s: %w", o.codec.Kind().Kind, err)
	}
	o.encoded = append(o.encoded, form{mediaType, b})
	return b, true, nil
}

// Kept returns what make makes of the object, and keeps it under name with the
// object's encoded bytes, so that make is asked once, and again after these were
// dropped. name is nobody's media type. Callers must not change the bytes.
func (o *Object) Kept(name string, compute func() ([]byte, error)) ([]byte, error) {
	if b := o.kept(name); b != nil {
		return b, nil
	}
	b, err := compute() // not under the lock: it reads the object
	if err != nil {
		return nil, err
	}
	o.mu.Lock()
	o.encoded = append(o.encoded, form{name, b})
	o.mu.Unlock()
	if o.holder != nil {
		o.holder.Made(o, len(b))
	}
	return b, nil
}

func (o *Object) kept(name string) []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, f := range o.encoded {
		if f.mediaType == name {
			o.used = true
			return f.data
		}
	}
	return nil
}

// Lent returns what decode makes of the object's protobuf, once for all who ask while it is kept: the
// form that clients in the process share. It is none of the other forms, so that whoever spoiled it would spoil nothing of the server's.
// All callers hand in decoders that do the same. Callers must not change what is returned.
func (o *Object) Lent(decode func(protobuf []byte) (runtime.Object, error)) (runtime.Object, error) {
	data, err := o.Encoded(Protobuf)
	if err != nil {
		return nil, err
	}
	o.mu.Lock()
	defer o.unlock()
	if o.lent != nil {
		return o.lent, nil
	}
	if o.lent, err = decode(data); err != nil {
		o.lent = nil
		return nil, fmt.Errorf("decode %s for clients of the process: %w", o.codec.Kind().Kind, err)
	}
	if o.packed {
		o.owed += decodedSize(data, Protobuf)
	}
	return o.lent, nil
}

// Pack encodes a FromStored object as its store keeps it. From then on these
// bytes are the object: they answer Encoded without being made, and every other
// form is made of them when somebody asks, and dropped again when the holder says so. It is
// called before the object is shared, and by nobody who is going to change it.
func (o *Object) Pack() error {
	o.mu.Lock()
	defer o.unlock()
	if o.packed || o.sourceTyp == "" {
		return nil
	}
	v, err := o.versionedLocked()
	if err != nil {
		return err
	}
	b, err := o.codec.Encode(v, o.sourceTyp)
	if err != nil {
		return fmt.Errorf("pack %s: %w", o.codec.Kind().Kind, err)
	}
	o.source, o.packed = b, true
	o.owed += decodedSize(b, o.sourceTyp)
	return nil
}

// Packed returns the bytes that the object is packed into, where they are in
// mediaType; else nil. Callers must not change them.
func (o *Object) Packed(mediaType string) []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.packed || o.sourceTyp != mediaType {
		return nil
	}
	return o.source
}

// PackedSize is how many bytes the object is packed into; 0 = it is not packed.
func (o *Object) PackedSize() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.packed {
		return 0
	}
	return len(o.source)
}

// Holder is told when an object that it holds makes a form that takes memory.
// It is called without the object's lock, maybe by several goroutines at once.
type Holder interface {
	// Made: bytes were encoded; DropEncoded forgets them.
	Made(o *Object, bytes int)
	// Decoded: a packed object was decoded; DropDecoded forgets that.
	Decoded(o *Object, bytes int)
}

// SetHolder names the holder. It is called before the object is shared.
func (o *Object) SetHolder(h Holder) { o.holder = h }

// TakeUsed tells whether encoded bytes were asked for again since the last call.
func (o *Object) TakeUsed() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	used := o.used
	o.used = false
	return used
}

// DropEncoded forgets encoded bytes and the other forms that can be made again
// from the versioned one, so that a holder of many objects can bound their memory.
func (o *Object) DropEncoded() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.encoded = nil
	if o.versioned != nil && !o.packed {
		o.internal, o.lent, o.tree = nil, nil, nil
	}
}

// DropDecoded forgets the decoded forms of a packed object. What has been handed
// out stays valid.
func (o *Object) DropDecoded() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.packed {
		o.versioned, o.internal, o.lent, o.tree = nil, nil, nil, nil
	}
}

// Meta gives access to the metadata of the versioned form.
func (o *Object) Meta() (metav1.Object, error) {
	v, err := o.Versioned()
	if err != nil {
		return nil, err
	}
	return meta.Accessor(v)
}

// SetVersioned replaces the object; every other form is dropped.
func (o *Object) SetVersioned(v runtime.Object) { o.reset(func() { o.versioned = v }) }

// SetInternal replaces the object; every other form is dropped.
func (o *Object) SetInternal(v runtime.Object) { o.reset(func() { o.internal = v }) }

// Changes counts the calls of Set methods, so that an observer can tell whether
// somebody replaced the object.
func (o *Object) Changes() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.changes
}

func (o *Object) reset(set func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.changes++
	o.versioned, o.internal, o.lent, o.tree = nil, nil, nil, nil
	o.encoded, o.source, o.packed, o.views = nil, nil, false, nil
	set()
}

// View returns the carrier that KeepView put beside this one under key, or nil.
func (o *Object) View(key any) *Object {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, v := range o.views {
		if v.key == key {
			return v.of
		}
	}
	return nil
}

// KeepView keeps another form of the same object beside it, for as long as it
// lives itself: an object of the watch cache in another version, which a webhook
// may have made. key is compared by ==. Views of another owner, who made them by
// rules that hold no more, are forgotten. What the view makes of itself is charged
// to o's holder, and a view of a packed object is packed as well where it can be:
// only the caller has seen it so far.
func (o *Object) KeepView(owner, key any, v *Object) error {
	if v != o {
		v.SetHolder(o.holder)
		if o.packed {
			if err := v.Pack(); err != nil {
				return err
			}
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	kept := make([]view, 0, len(o.views)+1)
	for _, old := range o.views {
		if old.owner == owner && old.key != key {
			kept = append(kept, old)
		}
	}
	if len(kept) == maxViews {
		kept = kept[1:]
	}
	o.views = append(kept, view{owner, key, v})
	return nil
}

// As is a carrier of the same object for another codec, which reads and writes it alike. Both
// share the bytes that it is packed into, or the versioned object where it is not packed.
func (o *Object) As(c Codec) (*Object, error) {
	o.mu.Lock()
	defer o.unlock()
	if o.packed {
		return &Object{codec: c, source: o.source, sourceTyp: o.sourceTyp, packed: true}, nil
	}
	v, err := o.versionedLocked()
	if err != nil {
		return nil, err
	}
	return FromVersioned(c, v), nil
}

// Copy returns a carrier of a deep copy, for an owner who is going to change it.
func (o *Object) Copy() (*Object, error) {
	o.mu.Lock()
	defer o.unlock()
	if o.packed && o.versioned == nil {
		v, err := o.unpack() // for the copy alone
		if err != nil {
			return nil, err
		}
		return FromStored(o.codec, v, o.sourceTyp), nil
	}
	v, err := o.versionedLocked()
	if err != nil {
		return nil, err
	}
	c := FromVersioned(o.codec, v.DeepCopyObject())
	if o.packed {
		c.sourceTyp = o.sourceTyp
	}
	return c, nil
}

// Unstructured is the Codec of objects that nobody has a Go type for.
type Unstructured struct{ GVK schema.GroupVersionKind }

// Kind implements Codec.
func (u Unstructured) Kind() schema.GroupVersionKind { return u.GVK }

// Decode implements Codec; it reads JSON only.
func (u Unstructured) Decode(data []byte, mediaType string) (runtime.Object, error) {
	if mediaType != JSON {
		return nil, fmt.Errorf("media type %q: a %s is decoded from %s only", mediaType, u.GVK.Kind, JSON)
	}
	o := &unstructured.Unstructured{}
	return o, o.UnmarshalJSON(data)
}

// Default implements Codec; there is nothing to fill in.
func (u Unstructured) Default(runtime.Object) {}

// Internal implements Codec.
func (u Unstructured) Internal(o runtime.Object) (runtime.Object, error) { return o, nil }

// Versioned implements Codec.
func (u Unstructured) Versioned(o runtime.Object) (runtime.Object, error) { return o, nil }

// Encode implements Codec; it writes JSON only.
func (u Unstructured) Encode(o runtime.Object, mediaType string) ([]byte, error) {
	if mediaType != JSON {
		return nil, fmt.Errorf("media type %q: a %s is encoded to %s only", mediaType, u.GVK.Kind, JSON)
	}
	return json.Marshal(o)
}

// FromTree implements Codec.
func (u Unstructured) FromTree(t map[string]any) (runtime.Object, error) {
	return &unstructured.Unstructured{Object: t}, nil
}

// ToTree implements Codec.
func (u Unstructured) ToTree(o runtime.Object) (map[string]any, error) {
	if x, ok := o.(*unstructured.Unstructured); ok {
		return x.Object, nil
	}
	return runtime.DefaultUnstructuredConverter.ToUnstructured(o)
}
