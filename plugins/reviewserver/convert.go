// SPDX-License-Identifier: Apache-2.0

package reviewserver

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/wasmplane/wasmplane/plugins/point/customresource"
)

// convert answers a ConversionReview with one plugin. All objects are converted, or none: an
// object that cannot be is the failure of the whole review, as the API server wants it. There is
// no failure policy for that: it has nothing to show instead.
func (s *server) convert(w http.ResponseWriter, r *http.Request) {
	var review apiextensionsv1.ConversionReview
	if !s.read(w, r, conversionLimit, &review) {
		return
	}
	if review.Request == nil {
		http.Error(w, "the review has no request", http.StatusBadRequest)
		return
	}
	plugin := s.converter(r.PathValue("plugin"))
	if plugin == nil {
		http.Error(w, fmt.Sprintf("there is no plugin %q here that takes part at custom resources", r.PathValue("plugin")), http.StatusNotFound)
		return
	}
	response := &apiextensionsv1.ConversionResponse{UID: review.Request.UID, Result: metav1.Status{Status: metav1.StatusSuccess}}
	converted, err := convertAll(r.Context(), plugin, review.Request)
	if err != nil {
		response.Result = metav1.Status{Status: metav1.StatusFailure, Message: err.Error()}
	} else {
		response.ConvertedObjects = converted
	}
	review.Request, review.Response = nil, response
	review.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("ConversionReview"))
	s.write(w, &review)
}

func (s *server) converter(name string) *customresource.Plugin {
	if s.cfg.Converters == nil {
		return nil
	}
	for _, p := range s.cfg.Converters() {
		if p.Name() == name {
			return p
		}
	}
	return nil
}

func convertAll(ctx context.Context, p *customresource.Plugin, q *apiextensionsv1.ConversionRequest) ([]runtime.RawExtension, error) {
	to, err := schema.ParseGroupVersion(q.DesiredAPIVersion)
	if err != nil || to.Version == "" {
		return nil, fmt.Errorf("desiredAPIVersion: a group and a version were expected, found %q", q.DesiredAPIVersion)
	}
	objects := make([]*unstructured.Unstructured, len(q.Objects))
	for i := range q.Objects {
		o := &unstructured.Unstructured{}
		if err := utiljson.Unmarshal(q.Objects[i].Raw, &o.Object); err != nil || o.Object == nil {
			return nil, fmt.Errorf("objects[%d] is no object", i)
		}
		if gv, err := schema.ParseGroupVersion(o.GetAPIVersion()); err != nil || gv.Group != to.Group || o.GetKind() == "" {
			return nil, fmt.Errorf("objects[%d] is of apiVersion %q and kind %q: a kind of group %s was expected", i, o.GetAPIVersion(),
				o.GetKind(), to.Group)
		}
		objects[i] = o
	}
	converted, err := p.Convert(ctx, objects, to)
	if err != nil {
		return nil, err
	}
	out := make([]runtime.RawExtension, len(converted))
	for i, o := range converted {
		if out[i].Raw, err = json.Marshal(o.Object); err != nil {
			return nil, fmt.Errorf("encode what became of objects[%d]: %w", i, err)
		}
	}
	return out, nil
}
