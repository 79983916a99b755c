// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"errors"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/codes"
	oteltrace "go.opentelemetry.io/otel/trace"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/core/registry/judging"
	"github.com/wasmplane/wasmplane/core/registry/reader"
	"github.com/wasmplane/wasmplane/core/store"
	"github.com/wasmplane/wasmplane/core/trace"
)

// encode makes the bytes for the store, which know no resourceVersion, and the
// versioned object of the answer, which is the caller's to change.
func (r *Registry) encode(ctx context.Context, obj *object.Object) (value []byte, answer runtime.Object, err error) {
	internal, err := obj.Internal()
	if err != nil {
		return nil, nil, apierrors.NewInternalError(err)
	}
	if answer, err = obj.Versioned(); err != nil {
		return nil, nil, apierrors.NewInternalError(err)
	}
	for _, form := range []runtime.Object{internal, answer} {
		m, err := meta.Accessor(form)
		if err != nil {
			return nil, nil, apierrors.NewInternalError(err)
		}
		m.SetResourceVersion("")
		m.SetSelfLink("")
	}
	if r.res.Custom != nil {
		value, err = r.res.Custom.EncodeStorage(ctx, answer)
		return value, answer, badConversion(err)
	}
	stored := internal
	if obj.Kind() == r.res.StorageCodec().Kind() {
		stored = answer // spares a conversion
	}
	if value, err = r.cfg.Contract.EncodeStorage(r.res, stored); err != nil {
		return nil, nil, apierrors.NewInternalError(err)
	}
	return value, answer, nil
}

// badConversion is an error of converting to or from the storage version, which
// may be an API status of whoever converts.
func badConversion(err error) error {
	var status apierrors.APIStatus
	if err == nil || errors.As(err, &status) {
		return err
	}
	return apierrors.NewInternalError(err)
}

// asStored is the answer to a write of a custom resource: what a reader will
// find, which is less than what was written where fields were pruned, or where
// the storage version has no room for them.
func (r *Registry) asStored(ctx context.Context, w *write, value []byte, revision int64) (*object.Object, error) {
	stored, err := r.cfg.Contract.DecodeStorage(r.res, value)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	if revision != 0 {
		m, err := stored.Meta()
		if err != nil {
			return nil, apierrors.NewInternalError(err)
		}
		m.SetResourceVersion(strconv.FormatInt(revision, 10))
	}
	return r.reads.Convert(ctx, stored, w.Codec.Kind().Version)
}

// withRevision stamps the answer of a write.
func (r *Registry) withRevision(answer runtime.Object, codec object.Codec, revision int64) (*object.Object, error) {
	m, err := meta.Accessor(answer)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	if revision != 0 {
		m.SetResourceVersion(strconv.FormatInt(revision, 10))
	}
	return object.FromVersioned(codec, answer), nil
}

func (r *Registry) put(ctx context.Context, key string, value []byte, expect int64, ttl time.Duration) (int64, error) {
	var span oteltrace.Span
	if oteltrace.SpanFromContext(ctx).IsRecording() {
		ctx, span = r.cfg.Tracer.Start(ctx, trace.StoreWrite, oteltrace.WithAttributes(trace.ComponentKey.String("apiserver")))
		defer span.End()
	}
	revision, err := store.PutFenced(ctx, r.cfg.Store, key, value, expect, ttl, judging.Fences(ctx, r.res.Group))
	if span != nil {
		if err != nil {
			span.SetStatus(codes.Error, err.Error())
		} else {
			span.SetAttributes(trace.RevisionKey.String(FormatRevision(revision)))
		}
	}
	if err != nil {
		return 0, r.reads.StoreError(err, "write", reader.LastSegment(key))
	}
	return revision, nil
}

func (r *Registry) ttl(internal runtime.Object) time.Duration {
	if r.res.TTL == nil {
		return 0
	}
	return r.res.TTL(internal)
}

// dryCreate is what is left of a create that writes nothing: the name has to be free.
func (r *Registry) dryCreate(ctx context.Context, key string) error {
	kv, err := r.cfg.Store.Get(ctx, key)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return r.reads.StoreError(err, "get", reader.LastSegment(key))
	}
	return &store.ConflictError{Key: key, Current: kv}
}

func newUID() types.UID { return uuid.NewUUID() }

func invalid(kind schema.GroupKind, name string, errs ...*field.Error) error {
	return apierrors.NewInvalid(kind, name, errs)
}

// GroupKind is the kind that errors name.
func (r *Registry) groupKind() schema.GroupKind {
	return schema.GroupKind{Group: r.res.Group, Kind: r.res.Kind}
}
