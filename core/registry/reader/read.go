// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/storage"

	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/core/registry/ended"
	"github.com/wasmplane/wasmplane/core/store"
	"github.com/wasmplane/wasmplane/core/watchcache"
)

// newestWait is how long a read waits for a revision that has not arrived yet
// before it tells the client to come back.
const newestWait = 3 * time.Second

// ListOptions are validated metav1.ListOptions with parsed selectors; nil
// selectors select everything.
type ListOptions struct {
	Labels labels.Selector
	Fields fields.Selector
	// Name restricts a watch or list to one object.
	Name                 string
	ResourceVersion      string
	ResourceVersionMatch metav1.ResourceVersionMatch
	Limit                int64
	Continue             string
	// Watches only.
	Bookmarks         bool
	SendInitialEvents *bool
}

// ListResult is a page of items, all as of Revision, in key order.
type ListResult struct {
	Items     []*watchcache.Item
	Revision  int64
	Continue  string
	Remaining *int64
}

// Get reads one object, as fresh as resourceVersion asks: the newest for "",
// whatever is there for "0", not older than it otherwise.
func (r *Reader) Get(ctx context.Context, q Query, resourceVersion string) (*object.Object, error) {
	if r.res.Virtual {
		return r.computed(ctx, q)
	}
	key, err := r.Key(q.Namespace, q.Name)
	if err != nil {
		return nil, err
	}
	item, err := r.read(ctx, key, resourceVersion)
	if err != nil {
		return nil, err
	}
	if item == nil {
		return nil, apierrors.NewNotFound(r.res.GroupResource, q.Name)
	}
	return r.Convert(ctx, item.Object, q.Version)
}

func (r *Reader) read(ctx context.Context, key, resourceVersion string) (*watchcache.Item, error) {
	if resourceVersion == "" {
		// A linearizable read of one key of etcd is cheaper than making sure that
		// the whole cache is up to date.
		return r.Stored(ctx, key)
	}
	revision, err := ParseRevision(resourceVersion)
	if err != nil {
		return nil, err
	}
	if err := r.notOlderThan(ctx, revision); err != nil {
		return nil, err
	}
	for _, err := range r.cached.Unreadable(key) {
		var unreadable *store.CorruptError
		if errors.As(err, &unreadable) && unreadable.Key == key {
			return nil, corrupt(unreadable) // what the cache may still have is not the newest
		}
	}
	item, _, _ := r.cached.Get(key)
	return item, nil
}

// notOlderThan waits until the cache has seen revision; 0 = it is loaded.
func (r *Reader) notOlderThan(ctx context.Context, revision int64) error {
	if err := r.cached.WaitReady(ctx); err != nil {
		return r.StoreError(err, "read", "")
	}
	if revision <= r.cfg.Cache.Revision() {
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, newestWait)
	defer cancel()
	err := r.cfg.Cache.WaitFor(bounded, revision)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return tooLarge(revision, r.cfg.Cache.Revision())
	}
	return r.StoreError(err, "read", "")
}

// fresh waits until the cache has seen everything that was acknowledged before.
func (r *Reader) fresh(ctx context.Context) (int64, error) {
	if err := r.cached.WaitReady(ctx); err != nil {
		return 0, r.StoreError(err, "read", "")
	}
	revision, err := r.cfg.Cache.Fresh(ctx)
	return revision, r.StoreError(err, "read", "")
}

// selection is where a list or watch looks and what it keeps.
type selection struct {
	prefix string
	match  func(*watchcache.Item) bool // nil = everything
	field  string                      // hint for watches
	value  string
}

func (r *Reader) selection(ctx context.Context, q Query, o ListOptions) (selection, error) {
	s := selection{prefix: r.namespacePrefix(q.Namespace)}
	if q.Namespace != "" && r.res.Namespaced {
		if err := pathSegment("Namespace", q.Namespace); err != nil {
			return s, err
		}
	}
	selector, err := r.cfg.Contract.FieldSelector(r.res, q.Version, o.Fields)
	if err != nil {
		return s, err
	}
	if o.Name != "" {
		byName := fields.OneTermEqualSelector(metav1.ObjectNameField, o.Name)
		if selector.Empty() {
			selector = byName
		} else if name, ok := selector.RequiresExactMatch(metav1.ObjectNameField); !ok || name != o.Name {
			return s, apierrors.NewBadRequest("fieldSelector metadata.name doesn't match requested name")
		}
	}
	if name, ok := selector.RequiresExactMatch(metav1.ObjectNameField); ok && (q.Namespace != "" || !r.res.Namespaced) {
		// One object: its key is known. Others whose names begin alike are left to match.
		if err := pathSegment("Name", name); err == nil && name != "" {
			s.prefix += name
		}
	}
	if field := "spec.nodeName"; r.res.Custom == nil {
		if value, ok := selector.RequiresExactMatch(field); ok {
			s.field, s.value = field, value
		}
	}
	all := selector.Empty() && (o.Labels == nil || o.Labels.Empty())
	if !all {
		s.match = func(item *watchcache.Item) bool {
			return (o.Labels == nil || o.Labels.Matches(&item.Labels)) && selector.Matches(&item.Fields)
		}
		if r.res.Custom != nil && !onlyMeta(selector) {
			s.match = r.matchCustom(ctx, q.Version, o.Labels, selector)
		}
	}
	return s, nil
}

// onlyMeta says whether a selector asks for nothing but name and namespace,
// which every item knows.
func onlyMeta(s fields.Selector) bool {
	for _, q := range s.Requirements() {
		if q.Field != metav1.ObjectNameField && q.Field != "metadata.namespace" {
			return false
		}
	}
	return true
}

// matchCustom matches the fields that a definition makes selectable: they are
// those of the requested version. What cannot be converted does not match.
func (r *Reader) matchCustom(ctx context.Context, version string, l labels.Selector, f fields.Selector) func(*watchcache.Item) bool {
	return func(item *watchcache.Item) bool {
		if l != nil && !l.Matches(&item.Labels) {
			return false
		}
		set, err := r.customFields(ctx, item, version)
		if err != nil {
			r.cfg.Logger.WarnContext(ctx, "an object was left out of a list or watch with a field selector", "key", item.Key, "error", err)
			return false
		}
		return f.Matches(set)
	}
}

// customFields are the fields that a version makes selectable. They are kept with the
// object's encoded forms, so that a list does not decode all that it leaves out.
func (r *Reader) customFields(ctx context.Context, item *watchcache.Item, version string) (fields.Set, error) {
	o, err := r.Convert(ctx, item.Object, version)
	if err != nil {
		return nil, err
	}
	v, err := r.res.Custom.Version(version)
	if err != nil {
		return nil, err
	}
	kept, err := o.Kept("fields", func() ([]byte, error) {
		versioned, err := o.Versioned()
		if err != nil {
			return nil, err
		}
		_, set, err := v.Attrs(versioned)
		return packFields(v.Selectable, set), err
	})
	if err != nil {
		return nil, err
	}
	return unpackFields(v.Selectable, kept), nil
}

// packFields writes the values of fields one after the other, each behind its length.
func packFields(names []string, set fields.Set) []byte {
	var out []byte
	for _, name := range names {
		out = append(binary.AppendUvarint(out, uint64(len(set[name]))), set[name]...)
	}
	return out
}

func unpackFields(names []string, packed []byte) fields.Set {
	set := make(fields.Set, len(names))
	for _, name := range names {
		length, n := binary.Uvarint(packed)
		packed = packed[n:]
		set[name], packed = string(packed[:length]), packed[length:]
	}
	return set
}

// List reads a page of objects. Their form is the storage version's: see InVersion.
func (r *Reader) List(ctx context.Context, q Query, o ListOptions) (ListResult, error) {
	if r.res.Virtual {
		items, err := r.compute(ctx, q, o)
		return ListResult{Items: items}, err
	}
	where, err := r.selection(ctx, q, o)
	if err != nil {
		return ListResult{}, err
	}
	if o.Continue != "" {
		return r.listOn(ctx, where, o)
	}
	revision, err := ParseRevision(o.ResourceVersion)
	if err != nil {
		return ListResult{}, err
	}
	match := o.ResourceVersionMatch
	if match == "" && o.Limit > 0 && revision > 0 {
		match = metav1.ResourceVersionMatchExact // as it was before there was a choice
	}
	if match == metav1.ResourceVersionMatchExact && revision > 0 {
		if err := r.notOlderThan(ctx, revision); err != nil {
			return ListResult{}, err
		}
		return r.listAt(ctx, where, o, revision, "")
	}
	limit := o.Limit
	switch {
	case o.ResourceVersion == "":
		_, err = r.fresh(ctx)
	case revision == 0:
		// Informers that start page by page would make the cache remember a
		// state for each of them; upstream answers them whole as well.
		limit = 0
		err = r.notOlderThan(ctx, 0)
	default:
		err = r.notOlderThan(ctx, revision)
	}
	if err != nil {
		return ListResult{}, err
	}
	if err := r.unreadable(where); err != nil {
		return ListResult{}, err
	}
	return where.page(r.cached.List(watchcache.ListOptions{Prefix: where.prefix, Limit: int(limit), Match: where.match}))
}

// unreadable fails an answer that would be without objects that cannot be read.
func (r *Reader) unreadable(where selection) error {
	errs := r.cached.Unreadable(where.prefix)
	if len(errs) == 0 {
		return nil
	}
	return r.unlistable(errs)
}

// page makes a page of what the cache found, with the token that leads on.
func (s selection) page(l watchcache.List) (ListResult, error) {
	result := ListResult{Items: l.Items, Revision: l.Revision}
	if !l.More {
		return result, nil
	}
	token, err := storage.EncodeContinue(l.Next, s.root(), l.Revision)
	if err != nil {
		return result, apierrors.NewInternalError(err)
	}
	result.Continue = token
	if s.match == nil {
		remaining := l.Remaining
		result.Remaining = &remaining
	}
	return result, nil
}

// root is the part of the prefix that tokens leave out: up to its last slash.
func (s selection) root() string { return s.prefix[:lastSlash(s.prefix)+1] }

const inconsistentContinue = "The provided continue parameter is too old " +
	"to display a consistent list result. You can start a new list without " +
	"the continue parameter, or use the continue token in this response to " +
	"retrieve the remainder of the results. Continuing with the provided " +
	"token results in an inconsistent list - objects that were created, " +
	"modified, or deleted between the time the first chunk was returned " +
	"and now may show up in the list."

// listOn is the page behind a continue token.
func (r *Reader) listOn(ctx context.Context, where selection, o ListOptions) (ListResult, error) {
	if o.ResourceVersion != "" && o.ResourceVersion != "0" {
		return ListResult{}, apierrors.NewBadRequest("specifying resource version is not allowed when using continue")
	}
	from, revision, err := storage.DecodeContinue(o.Continue, where.root())
	if err != nil {
		return ListResult{}, apierrors.NewBadRequest(fmt.Sprintf("invalid continue token: %v", err))
	}
	if revision < 0 {
		// The rest of the newest state: what a client asks for after its
		// consistent list has expired.
		if _, err := r.fresh(ctx); err != nil {
			return ListResult{}, err
		}
		if err := r.unreadable(where); err != nil {
			return ListResult{}, err
		}
		return where.page(r.cached.List(watchcache.ListOptions{Prefix: where.prefix, From: from, Limit: int(o.Limit), Match: where.match}))
	}
	result, err := r.continued(ctx, where, o, revision, from)
	if apierrors.IsResourceExpired(err) {
		token, tokenErr := storage.EncodeContinue(from, where.root(), -1)
		if tokenErr != nil {
			return ListResult{}, apierrors.NewInternalError(tokenErr)
		}
		expired := apierrors.NewResourceExpired(inconsistentContinue)
		expired.ErrStatus.ListMeta.Continue = token
		return ListResult{}, expired
	}
	return result, err
}

// continued is the next page of a consistent list. It ends with the store's
// history, also where the cache still knows the state: a client that is turned away
// by one server and not by another would see neither a list nor its end.
func (r *Reader) continued(ctx context.Context, where selection, o ListOptions, revision int64, from string) (ListResult, error) {
	if _, err := r.cfg.Store.List(ctx, store.CompactKey, store.ListOptions{Revision: revision, Limit: 1}); errors.Is(err, store.ErrCompacted) {
		return ListResult{}, r.StoreError(err, "list", "")
	}
	return r.listAt(ctx, where, o, revision, from)
}

// listAt lists the state at exactly revision, from the cache where it still
// has it and else from the store.
func (r *Reader) listAt(ctx context.Context, where selection, o ListOptions, revision int64, from string) (ListResult, error) {
	if err := r.unreadable(where); err != nil {
		return ListResult{}, err
	}
	l, err := r.cached.ListAt(revision, watchcache.ListOptions{Prefix: where.prefix, From: from, Limit: int(o.Limit), Match: where.match})
	if err == nil {
		return where.page(l)
	}
	if !errors.Is(err, watchcache.ErrNoSnapshot) {
		return ListResult{}, r.StoreError(err, "list", "")
	}
	return r.listStore(ctx, where, o, revision, from)
}

// listStore reads pages of the store until enough items match.
func (r *Reader) listStore(ctx context.Context, where selection, o ListOptions, revision int64, from string) (ListResult, error) {
	result := ListResult{Revision: revision}
	for {
		page, err := r.cfg.Store.List(ctx, where.prefix, store.ListOptions{Revision: revision, Limit: o.Limit, From: from})
		switch {
		case errors.Is(err, store.ErrFuture):
			return ListResult{}, tooLarge(revision, r.cfg.Cache.Revision())
		case err != nil:
			return ListResult{}, r.StoreError(err, "list", "")
		}
		for i, kv := range page.Items {
			item, err := r.Item(kv)
			if err != nil {
				return ListResult{}, err
			}
			if where.match == nil || where.match(item) {
				result.Items = append(result.Items, item)
			}
			last := i == len(page.Items)-1
			if o.Limit > 0 && int64(len(result.Items)) == o.Limit && (!last || page.More) {
				next := watchcache.List{
					Items: result.Items, Revision: revision, More: true, Next: kv.Key + "\x00",
					Remaining: page.Remaining + int64(len(page.Items)-1-i),
				}
				return where.page(next)
			}
		}
		if !page.More || len(page.Items) == 0 {
			return result, nil
		}
		from = page.Items[len(page.Items)-1].Key + "\x00"
	}
}

// InVersion is an item's object in a served version. It is shared.
func (r *Reader) InVersion(ctx context.Context, item *watchcache.Item, version string) (*object.Object, error) {
	return r.Convert(ctx, item.Object, version)
}

// AllInVersion is InVersion for a list: custom resources are converted together.
func (r *Reader) AllInVersion(ctx context.Context, items []*watchcache.Item, version string) ([]*object.Object, error) {
	out := make([]*object.Object, len(items))
	for i, item := range items {
		out[i] = item.Object
	}
	if r.res.Custom != nil {
		return r.converted(ctx, out, version)
	}
	for i := range out {
		err := ended.Check(ctx)
		if err != nil {
			return nil, err
		}
		if out[i], err = r.Convert(ctx, out[i], version); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// FormatRevision is a revision as a resourceVersion.
func FormatRevision(revision int64) string {
	if revision == 0 {
		return ""
	}
	return strconv.FormatInt(revision, 10)
}

func lastSlash(s string) int {
	for i := len(s) - 1; i >= 0; i-- {
		if s[i] == '/' {
			return i
		}
	}
	return -1
}
