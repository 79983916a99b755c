// SPDX-License-Identifier: Apache-2.0

package differential

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

// answer is what a side said, with placeholders for what differs by nature.
type answer struct {
	status int
	header []string
	// body is decoded JSON (a watch's: a list of its events), or a text.
	body any
	raw  []byte
}

// compared are the headers that clients can rely on. Of those with a value that
// differs by nature only their presence counts.
var compared = map[string]bool{
	"Content-Type": true, "Cache-Control": true, "Warning": true, "Retry-After": true, "Allow": true, "Location": true,
	"Accept-Patch": true, "Www-Authenticate": true, "X-Content-Type-Options": true, "Vary": true,
	"Audit-Id": false, "X-Kubernetes-Pf-Flowschema-Uid": false, "X-Kubernetes-Pf-Prioritylevel-Uid": false,
	"X-Varied-Accept": true, "Etag": false, "Last-Modified": false, "Strict-Transport-Security": true,
}

func normalise(resp *http.Response, body []byte) (*answer, error) {
	a := &answer{status: resp.StatusCode, raw: body}
	for name, values := range resp.Header {
		exact, ok := compared[name]
		switch {
		case !ok:
		case exact:
			for _, v := range values {
				a.header = append(a.header, name+": "+placeholders(v))
			}
		default:
			a.header = append(a.header, name)
		}
	}
	slices.Sort(a.header)
	decoded, err := decode(resp.Header.Get("Content-Type"), body)
	if err != nil {
		return nil, err
	}
	a.body = inOrder(walk("", decoded))
	return a, nil
}

// decode makes a document of a body.
func decode(contentType string, body []byte) (any, error) {
	mediaType, params, _ := mime.ParseMediaType(contentType)
	switch {
	case len(body) == 0:
		return nil, nil
	case mediaType == yamlType:
		asJSON, err := yaml.YAMLToJSON(body)
		if err != nil {
			return nil, fmt.Errorf("the answer is no YAML: %w", err)
		}
		return decode(jsonType, asJSON)
	case mediaType == "application/vnd.kubernetes.protobuf" && params["stream"] == "":
		return fromProtobuf(body)
	case mediaType == jsonType:
		var all []any
		d := json.NewDecoder(bytes.NewReader(body))
		d.UseNumber()
		for {
			var one any
			switch err := d.Decode(&one); {
			case errors.Is(err, io.EOF):
				if len(all) == 1 && params["stream"] == "" {
					return all[0], nil
				}
				return all, nil
			case err != nil:
				return nil, fmt.Errorf("the answer is no JSON: %w: %.200s", err, body)
			}
			all = append(all, one)
		}
	}
	return string(body), nil
}

// fromProtobuf decodes what the client's types know, and keeps the rest as bytes.
func fromProtobuf(body []byte) (any, error) {
	object, _, err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Decode(body, nil, nil)
	if runtime.IsNotRegisteredError(err) {
		return fmt.Sprintf("%q", body), nil
	}
	if err != nil { // some messages of meta.k8s.io name no version
		return placeholders(fmt.Sprintf("%q", body)), nil //nolint:nilerr // compared as bytes
	}
	asJSON, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	return decode(jsonType, asJSON)
}

var natural = []struct {
	pattern *regexp.Regexp
	with    string
}{
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), "<uid>"},
	{regexp.MustCompile(`20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)`), "<time>"},
	{regexp.MustCompile(`20\d\d-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)? \+0000 UTC( m=\+[0-9.]+)?`), "<time>"},
	{regexp.MustCompile(`\b\d+\.\d+\.\d+\.\d+:\d{4,5}\b`), "<host>"},
	{regexp.MustCompile(`\b10\.96\.\d+\.\d+\b`), "<service address>"},
	{regexp.MustCompile(`\b(made-by-name-)[a-z0-9]{5}\b`), "$1<random>"},
	{regexp.MustCompile(`\bkube-api-access-[a-z0-9]{5}\b`), "kube-api-access-<random>"},
	{regexp.MustCompile(`eyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+`), "<token>"},
	{regexp.MustCompile(`(the object has been modified.*|resource version:? |resourceVersion: |revision |ResourceVersion in precondition: \d+, ResourceVersion in object meta: )\d+`), "$1<revision>"},
	{regexp.MustCompile(`\d+ bytes?`), "<n> bytes"},
	{regexp.MustCompile(`^\d+[sm](\d+s)?$`), "<age>"},
	{regexp.MustCompile(`\b(Bad_|a{58})[a-z0-9]{5}\b`), "$1<random>"},
	{regexp.MustCompile(`\\"resourceVersion\\":\\"\d+`), "<revision>"},
	{regexp.MustCompile(`resourceVersion:\d+`), "<revision>"},
	{regexp.MustCompile(`(in the precondition|in record|ResourceVersion:) \(?\d+\)?`), "$1 <revision>"},
}

func placeholders(text string) string {
	for _, n := range natural {
		text = n.pattern.ReplaceAllString(text, n.with)
	}
	return text
}

var byName = map[string]string{
	"resourceVersion": "<revision>", "uid": "<uid>", "continue": "<continue>",
	"storageVersionHash": "<hash>", "nodePort": "<port>", "healthCheckNodePort": "<port>",
}

// longAgo is the fixed time that the stories write into objects. Tables print it as
// an age, which is another one each day.
var longAgo = time.Date(2024, 1, 2, 3, 4, 5, 0, time.UTC)

// isAge reports whether a cell is the age that a table prints for this time now. The
// answer may have been printed a little earlier, before the age changed.
func isAge(cell string, since time.Time) bool {
	age := time.Since(since)
	return cell == duration.HumanDuration(age) || cell == duration.HumanDuration(age-patience)
}

// walk puts placeholders into a document.
func walk(name string, v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			v[key] = walk(key, value)
		}
		if details, ok := v["details"].(map[string]any); ok {
			if message, ok := v["message"].(string); ok && details["causes"] != nil {
				v["message"] = sorted(message)
			}
		}
		return v
	case []any:
		for i, value := range v {
			v[i] = walk(name, value)
		}
		if name == "causes" || name == "finalizers" {
			slices.SortFunc(v, func(a, b any) int { return strings.Compare(text(a), text(b)) })
		}
		return v
	case string:
		if with, ok := byName[name]; ok && v != "" && v != "0" {
			return with
		}
		if name == "cells" && isAge(v, longAgo) {
			return "<age of " + longAgo.Format(time.DateOnly) + ">"
		}
		return placeholders(v)
	case json.Number:
		if with, ok := byName[name]; ok && v != "0" && v != "-1" {
			return with
		}
	}
	return v
}

// sorted is a message about several causes with these in order: some validations
// go over maps.
func sorted(message string) string {
	before, list, ok := strings.Cut(message, ": [")
	if !ok {
		return message
	}
	causes := strings.Split(strings.TrimSuffix(list, "]"), ", ")
	slices.Sort(causes)
	return before + ": [" + strings.Join(causes, ", ") + "]"
}

// inOrder is a body whose managers stand in an order of their own: those of one
// second stand in that of their operations, and which second it was is chance.
func inOrder(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, member := range v {
			if list, ok := member.([]any); ok && k == "managedFields" {
				member = slices.SortedFunc(slices.Values(list), func(a, b any) int { return strings.Compare(text(a), text(b)) })
			}
			out[k] = inOrder(member)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, member := range v {
			out[i] = inOrder(member)
		}
		return out
	}
	return v
}

// text is a document in one line.
func text(v any) string {
	if s, ok := v.(string); ok {
		return s
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return err.Error()
	}
	return strings.TrimSpace(b.String())
}

// value takes a value out of the body as it came: the path is of names and, for
// lists, numbers, between dots.
func (a *answer) value(path string) string {
	var at any
	if err := json.Unmarshal(a.raw, &at); err != nil {
		return ""
	}
	for step := range strings.SplitSeq(path, ".") {
		switch v := at.(type) {
		case map[string]any:
			at = v[step]
		case []any:
			var i int
			if _, err := fmt.Sscan(step, &i); err != nil || i >= len(v) {
				return ""
			}
			at = v[i]
		default:
			return ""
		}
	}
	return text(at)
}
