// SPDX-License-Identifier: Apache-2.0

package answer

import (
	"bytes"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/wasmplane/wasmplane/core/api/envelope"
	"github.com/wasmplane/wasmplane/core/api/requestoptions"
	"github.com/wasmplane/wasmplane/core/auth/audit"
	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/core/registry"
)

// Object answers with one object of a resource.
func (a *Writer) Object(w http.ResponseWriter, req *http.Request, f Format, code int, r *registry.Registry, o *object.Object) {
	if entry := audit.From(req.Context()); entry.WantsResponse() {
		if data, err := o.Encoded(object.JSON); err == nil {
			entry.Response(data)
		}
	}
	if f.Convert.Empty() {
		data, err := o.Encoded(f.MediaType)
		switch {
		case err != nil:
			a.Fail(w, req, apierrors.NewInternalError(err))
		case f.MediaType == object.JSON && f.Pretty:
			a.Text(w, req, f, code, data)
		default:
			a.Bytes(w, req, f.MediaType, code, data)
		}
		return
	}
	if f.IsTable() {
		a.table(w, req, f, code, r, metav1.ListMeta{}, []*object.Object{o})
		return
	}
	if f.Convert.Kind != "PartialObjectMetadata" {
		a.Fail(w, req, NotAcceptable([]string{"PartialObjectMetadata"}))
		return
	}
	data, err := partialBytes(o, f.Convert, f.MediaType)
	switch {
	case err != nil:
		a.Fail(w, req, apierrors.NewInternalError(err))
	case f.MediaType == object.Protobuf:
		a.Bytes(w, req, object.Protobuf, code, data)
	default:
		a.Text(w, req, f, code, append(data, '\n'))
	}
}

func (a *Writer) table(w http.ResponseWriter, req *http.Request, f Format, code int, r *registry.Registry, list metav1.ListMeta,
	objects []*object.Object,
) {
	options, err := requestoptions.Table(req.URL.Query())
	if err != nil {
		a.Fail(w, req, err)
		return
	}
	pieces, err := a.tableOf(req.Context(), tableCall{resource: r.Resource(), version: versionOf(req), options: options, kind: f.Convert},
		list, objects)
	switch {
	case err != nil:
		a.Fail(w, req, err)
	case f.MediaType == object.YAML || f.Pretty:
		a.Text(w, req, f, code, bytes.Join(pieces, nil))
	default:
		a.Bytes(w, req, object.JSON, code, pieces...)
	}
}

// versionOf is the API version that a request names.
func versionOf(req *http.Request) string {
	if info, ok := genericrequest.RequestInfoFrom(req.Context()); ok {
		return info.APIVersion
	}
	return ""
}

// Value answers with an object that is encoded for this answer alone: a review, a
// Scale, a document of discovery. It is protobuf where it has such a form.
func (a *Writer) Value(w http.ResponseWriter, req *http.Request, f Format, code int, o runtime.Object) {
	m, ok := o.(protoMessage)
	if f.MediaType != object.Protobuf || !ok {
		a.JSON(w, req, f, code, o)
		return
	}
	data, err := wrap(m)
	if err != nil {
		a.Fail(w, req, apierrors.NewInternalError(err))
		return
	}
	a.Bytes(w, req, object.Protobuf, code, data)
}

// protoMessage is an object that has a protobuf form.
type protoMessage interface {
	runtime.Object
	Marshal() ([]byte, error)
}

// wrap encodes a message in its envelope.
func wrap(o protoMessage) ([]byte, error) {
	raw, err := o.Marshal()
	if err != nil {
		return nil, err
	}
	return envelope.Wrap(o.GetObjectKind().GroupVersionKind(), raw)
}

// List answers with a list: what each item's bytes are is known, or made
// once for all clients.
func (a *Writer) List(w http.ResponseWriter, req *http.Request, f Format, r *registry.Registry, version string, l registry.ListResult) {
	list := metav1.ListMeta{ResourceVersion: registry.FormatRevision(l.Revision), Continue: l.Continue, RemainingItemCount: l.Remaining}
	items, err := r.AllInVersion(req.Context(), l.Items, version)
	if err != nil {
		a.Fail(w, req, err)
		return
	}
	var pieces [][]byte
	if entry := audit.From(req.Context()); entry.WantsResponse() {
		if whole, err := jsonList(r.Resource(), version, list, items); err == nil {
			entry.Response(bytes.Join(whole, nil))
		}
	}
	switch {
	case f.IsTable():
		a.table(w, req, f, http.StatusOK, r, list, items)
		return
	case f.IsPartial() && f.Convert.Kind != "PartialObjectMetadataList":
		a.Fail(w, req, NotAcceptable([]string{"PartialObjectMetadataList"}))
		return
	case f.IsPartial():
		pieces, err = partialList(f.Convert, f.MediaType, list, items)
	case f.MediaType == object.Protobuf:
		pieces, err = protoList(r.Resource(), version, list, items)
	default:
		pieces, err = jsonList(r.Resource(), version, list, items)
	}
	switch {
	case err != nil:
		a.Fail(w, req, apierrors.NewInternalError(err))
	case f.MediaType == object.YAML || f.Pretty && f.MediaType == object.JSON:
		a.Text(w, req, f, http.StatusOK, bytes.Join(pieces, nil))
	default:
		a.Bytes(w, req, f.MediaType, http.StatusOK, pieces...)
	}
}
