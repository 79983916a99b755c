// SPDX-License-Identifier: Apache-2.0

package answer

import (
	"bytes"
	"context"
	"encoding/json"
	"net/url"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/wasmplane/wasmplane/core/api/requestoptions"
	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/core/registry"
	"github.com/wasmplane/wasmplane/core/watchcache"
)

// Events encodes the events of one watch.
type Events struct {
	writer   *Writer
	registry *registry.Registry
	version  string
	format   Format
	table    *metav1.TableOptions
}

// Events makes the encoder of a watch on a resource in a version. query has the
// options of Tables.
func (a *Writer) Events(f Format, r *registry.Registry, version string, query url.Values) (*Events, error) {
	if f.Convert.Kind == "PartialObjectMetadataList" {
		f.Convert.Kind = "PartialObjectMetadata"
	}
	e := &Events{writer: a, registry: r, version: version, format: f}
	var err error
	if f.IsTable() {
		e.table, err = requestoptions.Table(query)
	}
	return e, err
}

// Event is an event as a stream sends it.
type Event struct {
	Type watch.EventType
	Data []byte // the object, encoded
	// Whole is the carrier that Data are all of; nil where they are something else: a row, a bookmark, an error.
	Whole *object.Object
}

// Encode makes an event of one of the watch cache.
func (e *Events) Encode(ctx context.Context, event watchcache.Event) (Event, error) {
	if event.Type == watchcache.Bookmark {
		data, err := e.bookmark(ctx, event)
		return Event{Type: watch.Bookmark, Data: data}, err
	}
	o, err := e.registry.InVersion(ctx, event.Item, e.version)
	if err != nil {
		return Event{}, err
	}
	data, err := e.object(ctx, o)
	out := Event{Type: kindOf(event.Type), Data: data}
	if e.format.Convert.Empty() {
		out.Whole = o
	}
	return out, err
}

func kindOf(t watchcache.EventType) watch.EventType {
	switch t {
	case watchcache.Added:
		return watch.Added
	case watchcache.Deleted:
		return watch.Deleted
	case watchcache.Modified, watchcache.Bookmark:
	}
	return watch.Modified
}

func (e *Events) object(ctx context.Context, o *object.Object) ([]byte, error) {
	switch {
	case e.format.IsTable():
		return e.row(ctx, o)
	case e.format.IsPartial():
		return partialBytes(o, e.format.Convert, e.mediaType())
	}
	return o.Encoded(e.mediaType())
}

// mediaType of objects: a stream is JSON or protobuf.
func (e *Events) mediaType() string {
	if e.format.MediaType == object.Protobuf {
		return object.Protobuf
	}
	return object.JSON
}

func (e *Events) row(ctx context.Context, o *object.Object) ([]byte, error) {
	pieces, err := e.writer.tableOf(ctx, tableCall{
		resource: e.registry.Resource(), version: e.version, options: e.table,
		kind: e.format.Convert,
	}, metav1.ListMeta{}, []*object.Object{o})
	if err != nil {
		return nil, err
	}
	e.table.NoHeaders = true // clients want the columns once
	return bytes.Join(pieces, nil), nil
}

// bookmark is an object of the watched kind that has nothing but a
// resourceVersion, and says so where it ends the initial events.
func (e *Events) bookmark(ctx context.Context, event watchcache.Event) ([]byte, error) {
	codec := e.registry.Resource().Codec(e.version)
	apiVersion, kind := codec.Kind().ToAPIVersionAndKind()
	o, err := codec.FromTree(map[string]any{"apiVersion": apiVersion, "kind": kind})
	if err != nil {
		return nil, err
	}
	m, err := meta.Accessor(o)
	if err != nil {
		return nil, err
	}
	m.SetResourceVersion(registry.FormatRevision(event.Revision))
	if event.InitialEnd {
		m.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	}
	if e.format.IsTable() && e.table.IncludeObject == metav1.IncludeNone {
		// A bookmark is nothing but its metadata.
		e.table.IncludeObject = metav1.IncludeMetadata
		defer func() { e.table.IncludeObject = metav1.IncludeNone }()
	}
	return e.object(ctx, object.FromVersioned(codec, o))
}

// Status makes the event that ends a watch with an error.
func (e *Events) Status(err error) Event {
	status := StatusOf(err)
	if e.mediaType() == object.Protobuf {
		if data, err := wrap(status); err == nil {
			return Event{Type: watch.Error, Data: data}
		}
	}
	data, marshalErr := json.Marshal(status)
	if marshalErr != nil {
		data = []byte("{}")
	}
	return Event{Type: watch.Error, Data: data}
}
