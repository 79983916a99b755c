package registry

import (
	"context"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/core/store"
	"github.com/wasmplane/wasmplane/core/watchcache"
)

// root of the key space, as Kubernetes has it.
const root = "/registry/"

// prefix of the resource's keys, with its slash.
func (r *Registry) prefix() string { return root + r.res.StoragePrefix + "/" }

// namespacePrefix is the prefix of one namespace's keys; all of them for "".
func (r *Registry) namespacePrefix(namespace string) string {
	if !r.res.Namespaced || namespace == "" {
		return r.prefix()
	}
	return r.prefix() + namespace + "/"
}

// key of one object. Namespace and name come from a URL or a decoded object:
// what could climb out of its prefix is refused in upstream's words.
func (r *Registry) key(namespace, name string) (string, error) {
	if r.res.Namespaced {
		if namespace == "" {
			return "", apierrors.NewBadRequest("Namespace parameter required.")
		}
		if err := pathSegment("Namespace", namespace); err != nil {
			return "", err
		}
	}
	if name == "" {
		return "", apierrors.NewBadRequest("Name parameter required.")
	}
	if err := pathSegment("Name", name); err != nil {
		return "", err
	}
	return r.namespacePrefix(namespace) + name, nil
}

func pathSegment(what, s string) error {
	if s == "." || s == ".." || strings.ContainsAny(s, "/%") {
		return apierrors.NewBadRequest(fmt.Sprintf("%s parameter invalid: %q: may not be '.' or '..' and may not contain '/' or '%%'", what, s))
	}
	return nil
}

// item decodes a stored key.
func (r *Registry) item(kv store.KV) (*watchcache.Item, error) {
	if kv.Unreadable != nil {
		return nil, r.storeError(kv.Unreadable, "read", lastSegment(kv.Key))
	}
	obj, lbl, fld, err := r.decode(kv.Key, kv.Value, kv.ModRevision)
	if err != nil {
		return nil, corrupt(&store.CorruptError{Key: kv.Key, Revision: kv.ModRevision, Undecodable: true, Err: err})
	}
	return &watchcache.Item{Key: kv.Key, Revision: kv.ModRevision, Object: obj, Labels: lbl, Fields: fld}, nil
}

// stored reads one key from the store. An item that the cache holds at the same
// revision is used instead of decoding the value again. nil = there is none.
func (r *Registry) stored(ctx context.Context, key string) (*watchcache.Item, error) {
	kv, err := r.cfg.Store.Get(ctx, key)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, r.storeError(err, "get", lastSegment(key))
	}
	if cached, _, ok := r.cached.Get(key); ok && cached.Revision == kv.ModRevision {
		return cached, nil
	}
	return r.item(kv)
}

// live is the state that a write is going to replace: first what the cache has,
// which is nearly always right, and whatever the store has once that turned out
// to be old.
type live struct {
	item *watchcache.Item // nil = the object does not exist
	// current: item comes from the store and not from the cache, so that what
	// was decided on it stands.
	current bool
}

func (l live) revision() int64 {
	if l.item == nil {
		return 0
	}
	return l.item.Revision
}

// attempt is one try of a write on a live state. done = false asks for another
// try if the state was not current.
type attempt func(ctx context.Context, l live) (Result, error)

// errUnsure is returned by an attempt that would answer without writing: the
// answer stands only if the state was current.
var errUnsure = errors.New("the state may be old")

// onLive runs try on the live state of key until it succeeds or fails on a
// state that is certain. Where the store found another state than expected, the
// next try gets that one.
func (r *Registry) onLive(ctx context.Context, key string, try attempt) (Result, error) {
	l := live{}
	if cached, _, ok := r.cached.Get(key); ok {
		l.item = cached
	} else {
		// Absence is not worth a guess: a client that has just created the object is right.
		item, err := r.stored(ctx, key)
		if err != nil {
			return Result{}, err
		}
		l = live{item: item, current: true}
	}
	release, waited, inTurn := func() {}, false, false
	defer func() { release() }()
	for {
		if err := ctx.Err(); err != nil {
			return Result{}, apierrors.NewTimeoutError("request did not complete within the allotted timeout", 0)
		}
		result, err := try(ctx, l)
		var conflict *store.ConflictError
		switch {
		case err == nil:
			return result, nil
		case errors.As(err, &conflict) && !inTurn:
			inTurn = true
			if release, waited = r.set.turns.take(ctx, key); !waited {
				l, err = r.found(conflict)
			} else {
				l.current = true
				l.item, err = r.stored(ctx, key)
			}
			if err != nil {
				return Result{}, err
			}
		case errors.As(err, &conflict):
			if l, err = r.found(conflict); err != nil {
				return Result{}, err
			}
		case l.current:
			if errors.Is(err, errUnsure) {
				return result, nil
			}
			return result, err
		default:
			fresh, freshErr := r.stored(ctx, key)
			if freshErr != nil {
				return Result{}, freshErr
			}
			same := fresh != nil && l.item != nil && fresh.Revision == l.item.Revision
			if same && errors.Is(err, errUnsure) {
				return result, nil
			}
			if same {
				return result, err
			}
			l = live{item: fresh, current: true}
		}
	}
}

// found is the state that a conflict brought with it.
func (r *Registry) found(c *store.ConflictError) (live, error) {
	if c.Current.ModRevision == 0 {
		return live{current: true}, nil
	}
	item, err := r.item(c.Current)
	return live{item: item, current: true}, err
}

// view is item in the requested version. It is shared.
func (r *Registry) view(ctx context.Context, item *watchcache.Item, version string) (*object.Object, error) {
	return r.inVersion(ctx, item.Object, version)
}

func (r *Registry) inVersion(ctx context.Context, o *object.Object, version string) (*object.Object, error) {
	if r.res.Custom != nil {
		all, err := r.converted(ctx, []*object.Object{o}, version)
		if err != nil {
			return nil, err
		}
		return all[0], nil
	}
	codec := r.res.Codec(version)
	if codec == nil {
		return nil, apierrors.NewNotFound(r.res.GroupResource, "")
	}
	if o.Kind() == codec.Kind() {
		return o, nil
	}
	internal, err := Internal(o)
	if err != nil {
		return nil, err
	}
	versioned, err := codec.Versioned(internal)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return object.FromVersioned(codec, versioned), nil
}

// converted are custom resources in a version, converted together.
func (r *Registry) converted(ctx context.Context, objects []*object.Object, version string) ([]*object.Object, error) {
	out, err := r.res.Custom.Convert(ctx, objects, version)
	var status apierrors.APIStatus
	if err != nil && !errors.As(err, &status) {
		return nil, apierrors.NewInternalError(err)
	}
	return out, err
}

// existing is a copy of the live object's internal form that strategies may
// change; old is the live object in the requested version.
func (r *Registry) existing(item *watchcache.Item, old *object.Object) (runtime.Object, metav1.Object, error) {
	if r.res.Custom == nil {
		return internalCopy(item)
	}
	return copied(old)
}

// Internal is the internal form of an object of the watch cache, which shares
// its memory. It is made anew each time: kept, it would double what the cache holds.
func Internal(o *object.Object) (runtime.Object, error) {
	versioned, err := o.Versioned()
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	internal, err := o.Codec().Internal(versioned)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return internal, nil
}

// internalCopy is a copy of the item's internal form that strategies may change.
func internalCopy(item *watchcache.Item) (runtime.Object, metav1.Object, error) {
	return copied(item.Object)
}

func copied(o *object.Object) (runtime.Object, metav1.Object, error) {
	internal, err := Internal(o)
	if err != nil {
		return nil, nil, err
	}
	internal = internal.DeepCopyObject()
	m, err := meta.Accessor(internal)
	if err != nil {
		return nil, nil, apierrors.NewInternalError(err)
	}
	return internal, m, nil
}

func lastSegment(key string) string { return key[strings.LastIndexByte(key, '/')+1:] }
