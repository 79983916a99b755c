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

// snapshot is the state that a write is going to replace: first what the cache has,
// which is nearly always right, and whatever the store has once that turned out to
// be old.
type snapshot struct {
	item *watchcache.Item // nil = the object does not exist
	// certain: item comes from the store and not from the cache, so that what was
	// decided on it stands.
	certain bool
}

func (at snapshot) revision() int64 {
	if at.item == nil {
		return 0
	}
	return at.item.Revision
}

// is says whether two snapshots are of the same revision of an object that exists.
func (at snapshot) is(other snapshot) bool {
	return at.item != nil && other.item != nil && at.item.Revision == other.item.Revision
}

// attempt is one try of a write on a snapshot.
type attempt func(ctx context.Context, at snapshot) (Result, error)

// errUnsure is returned by an attempt that would answer without writing: the
// answer stands only if the snapshot was the newest state.
var errUnsure = errors.New("the state may be old")

// onNewest runs try on the newest state of key until it succeeds, or fails on a
// state that is certain. Where the store found another state than expected, the
// next try gets that one.
func (r *Registry) onNewest(ctx context.Context, key string, try attempt) (Result, error) {
	at, err := r.first(ctx, key)
	if err != nil {
		return Result{}, err
	}
	turn := r.set.turns.of(key)
	defer turn.end()
	for {
		if err := ctx.Err(); err != nil {
			return Result{}, apierrors.NewTimeoutError("request did not complete within the allotted timeout", 0)
		}
		result, err := try(ctx, at)
		if err == nil {
			return result, nil
		}
		var conflict *store.ConflictError
		if errors.As(err, &conflict) {
			if at, err = r.afterConflict(ctx, conflict, turn); err != nil {
				return Result{}, err
			}
			continue
		}
		newest := at
		if !at.certain {
			var readErr error
			if newest, readErr = r.newest(ctx, key); readErr != nil {
				return Result{}, readErr
			}
		}
		if !at.certain && !newest.is(at) {
			at = newest
			continue
		}
		if errors.Is(err, errUnsure) {
			return result, nil
		}
		return result, err
	}
}

// first is what a write begins with.
func (r *Registry) first(ctx context.Context, key string) (snapshot, error) {
	if cached, _, ok := r.cached.Get(key); ok {
		return snapshot{item: cached}, nil
	}
	// Absence is not worth a guess: a client that has just created the object is right.
	return r.newest(ctx, key)
}

// newest is the state of key as the store has it.
func (r *Registry) newest(ctx context.Context, key string) (snapshot, error) {
	item, err := r.stored(ctx, key)
	return snapshot{item: item, certain: true}, err
}

// afterConflict is the state for the next try: the one that the conflict found, or
// the store's where time has passed since, because the write has waited for its turn.
func (r *Registry) afterConflict(ctx context.Context, c *store.ConflictError, t *turn) (snapshot, error) {
	if waited := t.take(ctx); waited {
		return r.newest(ctx, t.key)
	}
	if c.Current.ModRevision == 0 {
		return snapshot{certain: true}, nil
	}
	item, err := r.item(c.Current)
	return snapshot{item: item, certain: true}, err
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

// existing is a copy of the current object's internal form that strategies may
// change; old is the current object in the requested version.
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
