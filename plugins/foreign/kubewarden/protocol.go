// SPDX-License-Identifier: Apache-2.0

package kubewarden

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/host"
)

// ValidationRequest is what a policy is asked: an AdmissionRequest and its settings, both JSON.
func ValidationRequest(request, settings []byte) []byte {
	return appendRequest(make([]byte, 0, len(request)+len(settings)+32), request, settings)
}

func appendRequest(out, request, settings []byte) []byte {
	out = append(append(out, `{"request":`...), request...)
	out = append(append(out, `,"settings":`...), settings...)
	return append(out, '}')
}

// SettingsResponse is a policy's judgement of its settings.
type SettingsResponse struct {
	Valid   bool    `json:"valid"`
	Message *string `json:"message"`
}

// CheckSettings reads the answer to validate_settings.
func CheckSettings(answer []byte) error {
	var r SettingsResponse
	if err := json.Unmarshal(answer, &r); err != nil {
		return fmt.Errorf("the policy's answer about its settings cannot be read: %w", plainly(err))
	}
	if r.Valid {
		return nil
	}
	message := "it gave no reason"
	if r.Message != nil && *r.Message != "" {
		message = *r.Message
	}
	return fmt.Errorf("the policy refuses its settings: %s", message)
}

// ValidationResponse is a policy's answer.
type ValidationResponse struct {
	Accepted         *bool             `json:"accepted"`
	Message          *string           `json:"message"`
	Code             *int32            `json:"code"`
	AuditAnnotations map[string]string `json:"audit_annotations"`
	Warnings         []string          `json:"warnings"`
}

// Answer makes of a policy's answer the one that the hook gives.
func Answer(response, request []byte, at abi.Point) (*Admission, error) {
	d, ok := parse(response)
	defer d.release()
	var r ValidationResponse
	mutated, rest := int32(0), response
	if ok && d.first(0) == '{' {
		mutated, rest = d.without(mutatedObject)
	}
	if err := json.Unmarshal(rest, &r); err != nil {
		return nil, fmt.Errorf("the policy's answer cannot be read: %w", plainly(err))
	}
	if r.Accepted == nil {
		return nil, fmt.Errorf("the policy's answer has no field accepted: %s", clip(response))
	}
	a := &Admission{Allowed: *r.Accepted, Warnings: r.Warnings, AuditAnnotations: r.AuditAnnotations}
	if r.Message != nil {
		a.Message = *r.Message
	}
	if r.Code != nil && *r.Code >= 400 && *r.Code <= 599 {
		a.Code = *r.Code
	}
	if a.Allowed && mutated != 0 && !d.null(mutated) {
		if err := a.mutate(d, mutated, request, at); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// mutatedObject is the member of an answer that may be a whole object.
const mutatedObject = "mutated_object"

// without is an object without the value of a member, and where that is; 0 = it has no such member.
func (d *document) without(name string) (value int32, rest []byte) {
	end := 0
	for at := int32(1); at < d.nodes[0].next; at = d.nodes[at+1].next {
		if !bytes.EqualFold(d.plain(at), []byte(name)) { // as encoding/json finds members
			continue
		}
		value = at + 1
		rest = append(append(rest, d.text[end:d.nodes[value].from]...), "null"...)
		end = int(d.nodes[value].to)
	}
	if value == 0 {
		return 0, d.text
	}
	return value, append(rest, d.text[end:]...)
}

// Admission is an answer of an admission hook (abi.AdmissionAnswer, as it is written).
type Admission struct {
	Allowed          bool              `json:"allowed"`
	Message          string            `json:"message,omitempty"`
	Code             int32             `json:"code,omitempty"`
	Patch            []Change          `json:"patch,omitempty"`
	Warnings         []string          `json:"warnings,omitempty"`
	AuditAnnotations map[string]string `json:"auditAnnotations,omitempty"`
}

// mutate takes a changed object as a patch, where a change is allowed.
func (a *Admission) mutate(answer *document, mutated int32, request []byte, at abi.Point) error {
	q, ok := parse(request)
	defer q.release()
	if !ok {
		return fmt.Errorf("the request cannot be read: %s", clip(request))
	}
	c := comparison{from: q, to: answer, differs: true}
	object, had := q.member(0, "object")
	if had {
		c.differs = false
		c.diff(object, mutated)
	}
	operation, _ := q.member(0, "operation")
	switch {
	case !c.differs:
	case operation != 0 && q.first(operation) == '"' && string(q.plain(operation)) == "DELETE":
		a.refuseMutation("a DELETE has no object to mutate")
	case at != abi.AdmissionMutate:
		a.refuseMutation("it is configured not to mutate (points: [admission.mutate])")
	case answer.first(mutated) != '{':
		return fmt.Errorf("mutated_object is no object: %s", clip(answer.raw(mutated)))
	case had:
		a.Patch = c.out
	default:
		a.Patch = []Change{{"replace", "", answer.raw(mutated)}}
	}
	return nil
}

func (a *Admission) refuseMutation(why string) {
	a.Allowed, a.Code, a.Message = false, 500, "the policy attempted to mutate the request, but "+why
}

// unmarshal keeps numbers as they are written: an object's must come back unchanged.
func unmarshal(data []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	return d.Decode(v)
}

func clip(b []byte) string {
	if len(b) > 200 {
		return string(b[:200]) + "..."
	}
	return string(b)
}

// plainly says what is wrong with a document in the words of the document, not in those of the
// program that reads it.
func plainly(err error) error {
	var wrong *json.UnmarshalTypeError
	if !errors.As(err, &wrong) {
		return err
	}
	expected := map[reflect.Kind]string{
		reflect.Bool: "true or false", reflect.String: "a text", reflect.Slice: "a list", reflect.Map: "an object", reflect.Struct: "an object",
	}[wrong.Type.Kind()]
	if expected == "" {
		expected = "a number"
	}
	if wrong.Field == "" {
		return fmt.Errorf("expected %s, found %s", expected, wrong.Value)
	}
	return fmt.Errorf("field %s: expected %s, found %s", wrong.Field, expected, wrong.Value)
}

// Change is one operation of a JSON patch (RFC 6902).
type Change struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// MarshalJSON leaves the value of a removal out, and keeps one that is null.
func (c Change) MarshalJSON() ([]byte, error) {
	if c.Op == "remove" {
		return json.Marshal(map[string]string{"op": c.Op, "path": c.Path})
	}
	return json.Marshal(map[string]any{"op": c.Op, "path": c.Path, "value": c.Value})
}

// Diff is the patch that leads from one JSON value to another, in an order in
// which it can be applied.
func Diff(from, to any) []Change {
	var d differ
	d.diff("", from, to)
	return d.out
}

type differ struct{ out []Change }

func (d *differ) diff(path string, from, to any) {
	if a, ok := from.(map[string]any); ok {
		if b, ok := to.(map[string]any); ok {
			d.object(path, a, b)
			return
		}
	}
	if a, ok := from.([]any); ok {
		if b, ok := to.([]any); ok {
			d.array(path, a, b)
			return
		}
	}
	if !reflect.DeepEqual(from, to) {
		d.out = append(d.out, Change{"replace", path, to})
	}
}

var escape = strings.NewReplacer("~", "~0", "/", "~1")

func (d *differ) object(path string, from, to map[string]any) {
	for _, k := range keys(from) {
		if _, kept := to[k]; !kept && from[k] != nil { // null and absent are the same to the API
			d.out = append(d.out, Change{Op: "remove", Path: path + "/" + escape.Replace(k)})
		}
	}
	for _, k := range keys(to) {
		at := path + "/" + escape.Replace(k)
		if was, had := from[k]; had {
			d.diff(at, was, to[k])
		} else if to[k] != nil {
			d.out = append(d.out, Change{"add", at, to[k]})
		}
	}
}

// array compares item by item, then appends or takes away at the end, last first.
func (d *differ) array(path string, from, to []any) {
	both := min(len(from), len(to))
	for i := range both {
		d.diff(path+"/"+strconv.Itoa(i), from[i], to[i])
	}
	for i := len(from) - 1; i >= both; i-- {
		d.out = append(d.out, Change{Op: "remove", Path: path + "/" + strconv.Itoa(i)})
	}
	for _, v := range to[both:] {
		d.out = append(d.out, Change{"add", path + "/-", v})
	}
}

func keys(m map[string]any) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// Bytes are bytes as a policy writes them: base64 text (Go) or a list of numbers (Rust).
type Bytes []byte

// UnmarshalJSON implements json.Unmarshaler.
func (b *Bytes) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] == '"' {
		var text string
		if err := json.Unmarshal(data, &text); err != nil {
			return err
		}
		raw, err := base64.StdEncoding.DecodeString(text)
		*b = raw
		return err
	}
	var numbers []uint16
	if err := json.Unmarshal(data, &numbers); err != nil {
		return err
	}
	*b = make([]byte, len(numbers))
	for i, n := range numbers {
		if n > 255 {
			return fmt.Errorf("%d is no byte", n)
		}
		(*b)[i] = byte(n)
	}
	return nil
}

// Reply is Answer as a hook gives it: encoded; an answer that cannot be read is
// the policy's failure.
func Reply(plugin string, response, request []byte, at abi.Point) ([]byte, error) {
	a, err := Answer(response, request, at)
	if err != nil {
		return nil, &host.GuestError{Plugin: plugin, Message: err.Error()}
	}
	return json.Marshal(a)
}
