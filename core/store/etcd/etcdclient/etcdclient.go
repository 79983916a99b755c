// SPDX-License-Identifier: Apache-2.0

// Package etcdclient is the store as a client of etcd has it: of an external cluster (Dial), of servers that keep it
// (Connect), or of one in this process (New). It knows nothing of how an etcd is run; that is package etcd's.
//
// A write is one transaction, and what a conflict found comes out of the same
// transaction. Keys and values are written as given, so that an upstream
// Kubernetes opens what is stored here. Keys that expire share leases in coarse
// time buckets. A watch keeps etcd's guarantees: ordered, nothing twice,
// no revision split, and it outlives lost connections; when it cannot go on it ends
// and says why, it never skips.
package etcdclient

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wasmplane/wasmplane/core/store"
	"github.com/wasmplane/wasmplane/core/store/etcd/failover"
)

// Store implements store.Store. It is safe for concurrent use.
type Store struct {
	client *clientv3.Client
	// where names the other end in errors: the endpoints, or the data directory.
	where   string
	timeout time.Duration
	leases  leases
	watches watchSerial
	// elections of a store of several members in this process; nil = there are none.
	elections *elections
	// endpoints of an external etcd; nil = it is in this process.
	endpoints *failover.Endpoints
	ends      func() // ends what goes on beside; nil = nothing does
}

var _ store.Store = (*Store)(nil)

// New makes a store of a client, which it closes with itself. where names the other end in errors; timeout bounds each call that
// has no deadline of its own.
func New(client *clientv3.Client, where string, timeout time.Duration) *Store {
	s := &Store{client: client, where: where, timeout: timeout}
	s.leases.store = s
	return s
}

// Client is for what the contract of a store does not have. It is the store's, which closes it.
func (s *Store) Client() *clientv3.Client { return s.client }

// Endpoints are those of a store that is not in this process, nil of the other; which there are may change.
func (s *Store) Endpoints() *failover.Endpoints { return s.endpoints }

// Close ends every watch and the connection. A store that belongs to a Server is closed by it.
func (s *Store) Close() error {
	if s.ends != nil {
		s.ends()
	}
	return s.client.Close()
}

// Bound gives a call that has no deadline of its own one, so that nobody waits
// for ever on an etcd that does not answer.
func (s *Store) Bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, s.timeout)
}

// Get implements store.Store.
func (s *Store) Get(ctx context.Context, key string) (store.KV, error) {
	call, cancel := s.Bound(ctx)
	defer cancel()
	resp, err := s.read(call, key)
	if err != nil {
		return store.KV{}, s.failure(ctx, err, "get", key)
	}
	if len(resp.Kvs) == 0 {
		return store.KV{}, fmt.Errorf("get %s: %w", key, store.ErrNotFound)
	}
	return fromKV(resp.Kvs[0]), nil
}

// read is a read that a change of leaders doesn't end.
func (s *Store) read(ctx context.Context, key string, opts ...clientv3.OpOption) (resp *clientv3.GetResponse, err error) {
	err = s.Outlive(ctx, func(ctx context.Context) (err error) {
		resp, err = s.client.KV.Get(ctx, key, opts...)
		return err
	})
	return resp, err
}

// Put implements store.Store.
func (s *Store) Put(ctx context.Context, key string, value []byte, expect int64, ttl time.Duration) (int64, error) {
	return s.PutFenced(ctx, key, value, expect, ttl, store.Fences{})
}

// PutFenced implements store.Fenced.
func (s *Store) PutFenced(ctx context.Context, key string, value []byte, expect int64, ttl time.Duration, f store.Fences) (int64, error) {
	call, cancel := s.Bound(ctx)
	defer cancel()
	rev, err := s.put(call, key, value, expect, ttl, f)
	if ttl > 0 && errors.Is(err, rpctypes.ErrLeaseNotFound) {
		// The shared lease was revoked behind our back, as after a restore.
		s.leases.forget(ttl)
		rev, err = s.put(call, key, value, expect, ttl, f)
	}
	return rev, s.failure(ctx, err, "put", key)
}

func (s *Store) put(ctx context.Context, key string, value []byte, expect int64, ttl time.Duration, f store.Fences) (int64, error) {
	var opts []clientv3.OpOption
	if ttl > 0 {
		id, err := s.leases.get(ctx, ttl)
		if err != nil {
			return 0, err
		}
		opts = append(opts, clientv3.WithLease(id))
	}
	op := clientv3.OpPut(key, "", opts...)
	op.WithValueBytes(value) // as they are: nobody changes what is being stored
	return s.swap(ctx, key, expect, op, f)
}

// Delete implements store.Store.
func (s *Store) Delete(ctx context.Context, key string, expect int64) (int64, error) {
	return s.DeleteFenced(ctx, key, expect, store.Fences{})
}

// DeleteFenced implements store.Fenced.
func (s *Store) DeleteFenced(ctx context.Context, key string, expect int64, f store.Fences) (int64, error) {
	call, cancel := s.Bound(ctx)
	defer cancel()
	rev, err := s.swap(call, key, expect, clientv3.OpDelete(key), f)
	return rev, s.failure(ctx, err, "delete", key)
}

// swap does op if key is at revision expect, and reads the key if not, in one transaction.
// One that a change of leaders, or a broken connection, has left unknown is done again: had it
// been done, the key would hold what op wrote.
func (s *Store) swap(ctx context.Context, key string, expect int64, op clientv3.Op, f store.Fences) (rev int64, err error) {
	var conflict *store.ConflictError
	unsure, last := false, error(nil)
	err = s.Outlive(ctx, func(ctx context.Context) error {
		unsure = unsure || last != nil && !errors.Is(last, rpctypes.ErrNoLeader) // which is said before anything is done
		rev, conflict, last = s.swapOnce(ctx, key, expect, op, f)
		return last
	})
	switch {
	case err != nil:
		return 0, err
	case conflict == nil:
		return rev, nil
	case conflict.Current.ModRevision == expect:
		return 0, &store.FenceError{Key: key} // the key is as expected, so a fence is not
	case unsure && op.IsPut() && bytes.Equal(conflict.Current.Value, op.ValueBytes()):
		return conflict.Current.ModRevision, nil
	case unsure && op.IsDelete() && conflict.Current.ModRevision == 0:
		return 0, rpctypes.ErrTimeoutDueToLeaderFail // by whom it was deleted nobody knows
	}
	return 0, conflict
}

func (s *Store) swapOnce(
	ctx context.Context, key string, expect int64, op clientv3.Op, f store.Fences,
) (int64, *store.ConflictError, error) {
	conditions, ops := []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(key), "=", expect)}, []clientv3.Op{op}
	for fence, seen := range f.Seen {
		conditions = append(conditions, clientv3.Compare(clientv3.ModRevision(fence), "=", seen))
	}
	for _, fence := range f.Moves {
		ops = append(ops, clientv3.OpPut(fence, ""))
	}
	resp, err := s.client.KV.Txn(ctx).
		If(conditions...).
		Then(ops...).
		Else(clientv3.OpGet(key)).
		Commit()
	if err != nil {
		return 0, nil, err
	}
	if resp.Succeeded {
		return resp.Header.Revision, nil, nil
	}
	conflict := &store.ConflictError{Key: key, Expect: expect, Current: store.KV{Key: key}}
	if kvs := resp.Responses[0].GetResponseRange().GetKvs(); len(kvs) > 0 {
		conflict.Current = fromKV(kvs[0])
	}
	return 0, conflict, nil
}

// A list is read in pages of about this many bytes, so that neither etcd nor
// we hold a large one twice, and writes get their turn in between.
const (
	pageBytes     = 8 << 20
	firstPageKeys = 500
	maxPageKeys   = 10000
)

// List implements store.Store.
func (s *Store) List(ctx context.Context, prefix string, o store.ListOptions) (store.Page, error) {
	end := clientv3.GetPrefixRangeEnd(prefix)
	page := store.Page{Revision: o.Revision}
	from := max(prefix, o.From)
	if end != "\x00" && from >= end {
		return s.emptyPage(ctx, page)
	}
	limit := int64(math.MaxInt64)
	if o.Limit > 0 {
		limit = o.Limit
	}
	chunk := int64(firstPageKeys)
	if o.Limit > 0 && o.Limit <= maxPageKeys {
		chunk = o.Limit // one answer, as asked for
	}
	for {
		resp, err := s.rangeOnce(ctx, from, end, page.Revision, min(chunk, limit))
		if err != nil {
			return store.Page{}, s.failure(ctx, err, "list", prefix)
		}
		if page.Revision == 0 {
			page.Revision = resp.Header.Revision
		}
		if page.Items == nil {
			page.Items = make([]store.KV, 0, min(limit, resp.Count))
		}
		size := 0
		for _, kv := range resp.Kvs {
			page.Items = append(page.Items, fromKV(kv))
			size += len(kv.Key) + len(kv.Value)
		}
		n := int64(len(resp.Kvs))
		limit -= n
		if !resp.More || n == 0 {
			return page, nil
		}
		if limit == 0 {
			page.More, page.Remaining = true, resp.Count-n
			return page, nil
		}
		from = string(resp.Kvs[n-1].Key) + "\x00"
		chunk = min(max(pageBytes/(int64(size)/n+1), 1), maxPageKeys)
	}
}

func (s *Store) rangeOnce(ctx context.Context, from, end string, rev, limit int64) (*clientv3.GetResponse, error) {
	call, cancel := s.Bound(ctx)
	defer cancel()
	return s.read(call, from, clientv3.WithRange(end), clientv3.WithRev(rev), clientv3.WithLimit(limit))
}

// emptyPage answers a list that begins behind its prefix: nothing, but at a revision.
func (s *Store) emptyPage(ctx context.Context, page store.Page) (store.Page, error) {
	if page.Revision > 0 {
		return page, nil
	}
	rev, err := s.Revision(ctx)
	page.Revision = rev
	return page, err
}

// Revision implements store.Store: a linearizable read of a key that is never written.
func (s *Store) Revision(ctx context.Context) (int64, error) {
	call, cancel := s.Bound(ctx)
	defer cancel()
	resp, err := s.read(call, "\x00", clientv3.WithCountOnly())
	if err != nil {
		return 0, s.failure(ctx, err, "read", "the newest revision")
	}
	return resp.Header.Revision, nil
}

// Size of the database as it lies on the disk of the first member that is asked, in bytes.
func (s *Store) Size(ctx context.Context) (int64, error) {
	ctx, cancel := s.Bound(ctx)
	defer cancel()
	endpoint := ""
	if all := s.client.Endpoints(); len(all) > 0 {
		endpoint = all[0]
	}
	status, err := s.client.Maintenance.Status(ctx, endpoint)
	if err != nil {
		return 0, s.failure(ctx, err, "measure", "the database")
	}
	return status.DbSize, nil
}

// Compact implements store.Store. What is compacted already is no error.
func (s *Store) Compact(ctx context.Context, revision int64) error {
	call, cancel := s.Bound(ctx)
	defer cancel()
	_, err := s.client.KV.Compact(call, revision)
	if errors.Is(err, rpctypes.ErrCompacted) {
		return nil
	}
	return s.failure(ctx, err, "compact to revision", fmt.Sprint(revision))
}

// Backup writes a snapshot of the whole store, as `etcdutl snapshot restore` reads it.
func (s *Store) Backup(ctx context.Context, w io.Writer) (int64, error) {
	r, err := s.client.Maintenance.Snapshot(ctx)
	if err != nil {
		return 0, s.failure(ctx, err, "take", "a snapshot")
	}
	defer func() { _ = r.Close() }() // the stream was read to its end or failed already
	n, err := io.Copy(w, r)
	if err != nil {
		return n, s.failure(ctx, err, "take", "a snapshot")
	}
	return n, nil
}

func fromKV(kv *mvccpb.KeyValue) store.KV {
	return store.KV{Key: string(kv.Key), Value: kv.Value, ModRevision: kv.ModRevision, CreateRev: kv.CreateRevision, LeaseID: kv.Lease}
}

// failure turns an error of etcd's client into one of the contract. What the
// caller's own context ended stays recognisable as that.
func (s *Store) failure(ctx context.Context, err error, verb, what string) error {
	if err == nil {
		return nil
	}
	var conflict *store.ConflictError
	if errors.As(err, &conflict) {
		return err
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%s %s: %w", verb, what, context.Cause(ctx))
	}
	hint, class := classify(err)
	if class == nil {
		return fmt.Errorf("%s %s in %s: %w", verb, what, s.where, err)
	}
	return fmt.Errorf("%s %s in %s: %w: %s%s", verb, what, s.where, class, Plain(err), hint)
}

func classify(err error) (hint string, class error) {
	switch {
	case errors.Is(err, rpctypes.ErrCompacted):
		return "", store.ErrCompacted
	case errors.Is(err, rpctypes.ErrFutureRev):
		return "", store.ErrFuture
	case errors.Is(err, rpctypes.ErrNoSpace):
		return "; delete objects or raise the quota (an external etcd: then defragment it and disarm the alarm)", store.ErrFull
	case errors.Is(err, rpctypes.ErrRequestTooLarge):
		return "", store.ErrTooLarge
	case errors.Is(err, rpctypes.ErrTooManyRequests):
		return "; etcd falls behind with applying writes", store.ErrUnavailable
	case strings.HasSuffix(Plain(err), "raft: stopped"): // the embedded server, after Close
		return "", store.ErrUnavailable
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, clientv3.ErrNoAvailableEndpoints), errors.Is(err, context.Canceled):
		return "", store.ErrUnavailable
	}
	switch Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.DataLoss:
		return "", store.ErrUnavailable
	case codes.ResourceExhausted:
		return "", store.ErrTooLarge // gRPC's own bound on a message
	default:
		return "", nil
	}
}

// Code is the kind of an error of etcd or of gRPC.
func Code(err error) codes.Code {
	var e rpctypes.EtcdError
	if errors.As(err, &e) {
		return e.Code()
	}
	return status.Code(err)
}

// Plain is the error's text without gRPC's and etcd's prefixes.
func Plain(err error) string {
	text := err.Error()
	if s, ok := status.FromError(err); ok {
		text = s.Message()
	}
	return strings.TrimPrefix(strings.TrimPrefix(text, "etcdserver: "), "mvcc: ")
}
