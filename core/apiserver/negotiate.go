package apiserver

import (
	"fmt"
	"mime"
	"net/http"
	"strconv"
	"strings"

	"github.com/munnerz/goautoneg"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/object"
)

// format is what a client wants its answer in.
type format struct {
	mediaType string // object.JSON, object.YAML or object.Protobuf
	pretty    bool
	// convert is Table, PartialObjectMetadata or PartialObjectMetadataList of
	// meta.k8s.io; empty = the object as it is.
	convert schema.GroupVersionKind
}

func (f format) table() bool   { return f.convert.Kind == "Table" }
func (f format) partial() bool { return strings.HasPrefix(f.convert.Kind, "PartialObjectMetadata") }

// spoken are the media types that answers come in, preferred first.
func spoken() []string { return []string{object.JSON, object.YAML, object.Protobuf} }

// negotiateText is negotiate for objects that have no protobuf form.
func negotiateText(req *http.Request) (format, error) {
	f := format{mediaType: object.JSON}
	for _, clause := range goautoneg.ParseAccept(req.Header.Get("Accept")) {
		mediaType, ok := match(clause.Type, clause.SubType)
		convert, known := conversion(clause.Params)
		if !ok || !known || mediaType == object.Protobuf && (convert.Empty() || convert.Kind == "Table") {
			continue
		}
		return format{mediaType: mediaType, convert: convert, pretty: pretty(req, clause.Params)}, nil
	}
	return f, notAcceptable([]string{object.JSON, object.YAML})
}

// negotiate picks the first format of the Accept header that can be served.
// conversions says whether Tables and metadata can be.
func negotiate(req *http.Request, conversions bool) (format, error) {
	header := req.Header.Get("Accept")
	f := format{mediaType: object.JSON}
	switch header {
	case "", "*/*", object.JSON:
		f.pretty = pretty(req, nil)
		return f, nil
	case object.Protobuf, object.Protobuf + ",application/json", object.Protobuf + ", application/json":
		f.mediaType = object.Protobuf
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
		return format{mediaType: mediaType, convert: convert, pretty: pretty(req, clause.Params)}, nil
	}
	return f, notAcceptable(spoken())
}

func match(kind, sub string) (string, bool) {
	if kind == "*" && sub == "*" || kind == "application" && sub == "*" {
		return object.JSON, true
	}
	for _, m := range spoken() {
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

// bodyType is the media type that a body is in; a missing header means JSON.
func bodyType(req *http.Request) (string, error) {
	header := req.Header.Get("Content-Type")
	if header == "" {
		return object.JSON, nil
	}
	mediaType, _, err := mime.ParseMediaType(header)
	if err == nil {
		switch mediaType {
		case object.JSON, object.YAML, object.Protobuf:
			return mediaType, nil
		}
	}
	return "", unsupportedMediaType(spoken())
}

// statusError is a refusal that apierrors has no constructor for.
type statusError struct{ status metav1.Status }

func (e *statusError) Error() string         { return e.status.Message }
func (e *statusError) Status() metav1.Status { return e.status }

func refusal(code int32, reason metav1.StatusReason, format string, args ...any) error {
	return &statusError{metav1.Status{Status: metav1.StatusFailure, Code: code, Reason: reason, Message: fmt.Sprintf(format, args...)}}
}

// unrouted is a refusal of a request that led nowhere. Like upstream's it has
// details with nothing in them, which some clients look for.
func unrouted(code int32, reason metav1.StatusReason, message string) error {
	return &statusError{metav1.Status{Status: metav1.StatusFailure, Code: code, Reason: reason, Message: message, Details: &metav1.StatusDetails{}}}
}

func notAcceptable(accepted []string) error {
	return refusal(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable,
		"only the following media types are accepted: %v", strings.Join(accepted, ", "))
}

func unsupportedMediaType(accepted []string) error {
	return refusal(http.StatusUnsupportedMediaType, metav1.StatusReasonUnsupportedMediaType,
		"the body of the request was in an unknown format - accepted media types include: %v", strings.Join(accepted, ", "))
}
