// SPDX-License-Identifier: Apache-2.0

package answer

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/munnerz/goautoneg"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/object"
)

// Format is what a client wants its answer in.
type Format struct {
	MediaType string // object.JSON, object.YAML or object.Protobuf
	Pretty    bool
	// Convert is Table, PartialObjectMetadata or PartialObjectMetadataList of
	// meta.k8s.io; empty = the object as it is.
	Convert schema.GroupVersionKind
}

// IsTable says whether the client wants rows.
func (f Format) IsTable() bool { return f.Convert.Kind == "Table" }

// IsPartial says whether the client wants metadata alone.
func (f Format) IsPartial() bool { return strings.HasPrefix(f.Convert.Kind, "PartialObjectMetadata") }

// MediaTypes are those that bodies and answers come in, preferred first.
func MediaTypes() []string { return []string{object.JSON, object.YAML, object.Protobuf} }

// NegotiateText is Negotiate for objects that have no protobuf form.
func NegotiateText(req *http.Request) (Format, error) {
	f := Format{MediaType: object.JSON}
	for _, clause := range goautoneg.ParseAccept(req.Header.Get("Accept")) {
		mediaType, ok := match(clause.Type, clause.SubType)
		convert, known := conversion(clause.Params)
		if !ok || !known || mediaType == object.Protobuf && (convert.Empty() || convert.Kind == "Table") {
			continue
		}
		return Format{MediaType: mediaType, Convert: convert, Pretty: pretty(req, clause.Params)}, nil
	}
	return f, NotAcceptable([]string{object.JSON, object.YAML})
}

// Negotiate picks the first format of the Accept header that can be served.
// conversions says whether Tables and metadata can be.
func Negotiate(req *http.Request, conversions bool) (Format, error) {
	header := req.Header.Get("Accept")
	f := Format{MediaType: object.JSON}
	switch header {
	case "", "*/*", object.JSON:
		f.Pretty = pretty(req, nil)
		return f, nil
	case object.Protobuf, object.Protobuf + ",application/json", object.Protobuf + ", application/json":
		f.MediaType = object.Protobuf
		return f, nil
	}
	for _, clause := range goautoneg.ParseAccept(header) {
		mediaType, ok := match(clause.Type, clause.SubType)
		if !ok {
			continue
		}
		convert, ok := conversion(clause.Params)
		if !ok || !convert.Empty() && !conversions {
			continue
		}
		if convert.Kind == "Table" && mediaType == object.Protobuf {
			continue // Tables have no protobuf form
		}
		return Format{MediaType: mediaType, Convert: convert, Pretty: pretty(req, clause.Params)}, nil
	}
	return f, NotAcceptable(MediaTypes())
}

func match(kind, sub string) (string, bool) {
	if kind == "*" && sub == "*" || kind == "application" && sub == "*" {
		return object.JSON, true
	}
	for _, m := range MediaTypes() {
		if kind+"/"+sub == m {
			return m, true
		}
	}
	if kind == "text" && sub == "yaml" {
		return object.YAML, true
	}
	return "", false
}

// conversion reads ;as=Table;v=v1;g=meta.k8s.io. Parameters that nobody knows refuse the clause.
func conversion(params map[string]string) (schema.GroupVersionKind, bool) {
	as := params["as"]
	if as == "" {
		return schema.GroupVersionKind{}, true
	}
	gvk := schema.GroupVersionKind{Group: params["g"], Version: params["v"], Kind: as}
	if gvk.Group != metav1.GroupName || gvk.Version != "v1" && gvk.Version != "v1beta1" {
		return gvk, false
	}
	switch as {
	case "Table", "PartialObjectMetadata", "PartialObjectMetadataList":
		return gvk, true
	}
	return gvk, false
}

// pretty output is for people: they ask for it, or come with a browser or curl.
func pretty(req *http.Request, params map[string]string) bool {
	if p, ok := params["pretty"]; ok {
		yes, _ := strconv.ParseBool(p)
		return yes
	}
	if raw := req.URL.RawQuery; strings.Contains(raw, "pretty") {
		if values, ok := req.URL.Query()["pretty"]; ok {
			if len(values) == 0 || values[0] == "" {
				return true
			}
			yes, _ := strconv.ParseBool(values[0])
			return yes
		}
	}
	agent := req.UserAgent()
	return strings.HasPrefix(agent, "curl") || strings.HasPrefix(agent, "Wget") || strings.HasPrefix(agent, "Mozilla/5.0")
}
