// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	upstream "k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/wasmplane/wasmplane/core/auth/authz"
)

// Entry is the record of one request. A nil Entry records nothing.
type Entry struct {
	log    *Log
	ctx    context.Context //nolint:containedctx // only to read what others annotate
	config upstream.RequestAuditConfig
	body   *captured

	mu      sync.Mutex
	event   auditinternal.Event
	started bool
}

type entryKey struct{}

// From is the entry of the request that ctx belongs to, or nil.
func From(ctx context.Context) *Entry {
	e, _ := ctx.Value(entryKey{}).(*Entry)
	return e
}

// Impersonated records whom the user acts for, and the right that allowed it where that
// has a constraint.
func (e *Entry) Impersonated(as user.Info, constraint string) {
	if e == nil {
		return
	}
	info := authz.UserInfo(as)
	e.mu.Lock()
	e.event.ImpersonatedUser = &info
	if constraint != "" {
		e.event.AuthenticationMetadata = &auditinternal.AuthenticationMetadata{ImpersonationConstraint: constraint}
	}
	e.mu.Unlock()
}

// Annotate adds an annotation, as "plugin.name/key".
func (e *Entry) Annotate(key, value string) {
	if e != nil {
		upstream.AddAuditAnnotation(e.ctx, key, value)
	}
}

// WantsRequest says whether the policy asks for the request's object.
func (e *Entry) WantsRequest() bool {
	return e != nil && !e.config.Level.Less(auditinternal.LevelRequest)
}

// Request records the request's object in JSON, where it came in another encoding.
func (e *Entry) Request(object []byte) {
	if !e.WantsRequest() {
		return
	}
	e.mu.Lock()
	e.event.RequestObject = e.json(object)
	e.mu.Unlock()
}

// About records which object a request turned out to be about.
func (e *Entry) About(m metav1.Object) {
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	ref := e.event.ObjectRef
	if ref == nil {
		return
	}
	if ref.Namespace == "" {
		ref.Namespace = m.GetNamespace()
	}
	if ref.Name == "" {
		ref.Name = m.GetName()
	}
	if ref.UID == "" {
		ref.UID = m.GetUID()
	}
}

// WantsResponse says whether the policy asks for the answer's object, so that
// it need not be encoded for nothing.
func (e *Entry) WantsResponse() bool {
	return e != nil && !e.config.Level.Less(auditinternal.LevelRequestResponse)
}

// Response records the answer's object in JSON, which the entry keeps.
func (e *Entry) Response(object []byte) {
	if !e.WantsResponse() {
		return
	}
	e.mu.Lock()
	e.event.ResponseObject = e.json(object)
	e.mu.Unlock()
}

// Status records an answer that is a Status: what went wrong, in its bounded fields.
func (e *Entry) Status(s *metav1.Status) {
	if e == nil {
		return
	}
	e.mu.Lock()
	e.event.ResponseStatus = &metav1.Status{Status: s.Status, Message: s.Message, Reason: s.Reason, Details: s.Details, Code: s.Code}
	e.mu.Unlock()
	if e.WantsResponse() {
		if data, err := json.Marshal(s); err == nil {
			e.Response(data)
		}
	}
}

// json is an object of an event, without managed fields where the policy says so.
func (e *Entry) json(object []byte) *runtime.Unknown {
	if e.config.OmitManagedFields {
		object = withoutManagedFields(object)
	}
	if !json.Valid(object) {
		return nil
	}
	return &runtime.Unknown{Raw: bytes.Clone(object), ContentType: runtime.ContentTypeJSON}
}

// withoutManagedFields leaves them out of an object, or of a list's or a table's objects.
func withoutManagedFields(data []byte) []byte {
	if !bytes.Contains(data, []byte(`"managedFields"`)) {
		return data
	}
	var whole map[string]any
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber() // a large number must come out as it went in
	if err := decoder.Decode(&whole); err != nil {
		return data
	}
	strip := func(o any) {
		if object, ok := o.(map[string]any); ok {
			if m, ok := object["metadata"].(map[string]any); ok {
				delete(m, "managedFields")
			}
		}
	}
	strip(whole)
	if items, ok := whole["items"].([]any); ok {
		for _, item := range items {
			strip(item)
		}
	}
	if rows, ok := whole["rows"].([]any); ok {
		for _, row := range rows {
			if r, ok := row.(map[string]any); ok {
				strip(r["object"])
			}
		}
	}
	out, err := json.Marshal(whole)
	if err != nil {
		return data
	}
	return out
}

// Started records that a long answer (a watch, a stream) has begun.
func (e *Entry) Started(status int) {
	if e == nil {
		return
	}
	e.mu.Lock()
	again := e.started
	e.started = true
	e.event.ResponseStatus = &metav1.Status{Code: int32(status)}
	e.mu.Unlock()
	if !again {
		e.write(auditinternal.StageResponseStarted)
	}
}

// Panicked records that handling the request panicked; it is the entry's last event.
func (e *Entry) Panicked(what any) {
	if e == nil {
		return
	}
	e.mu.Lock()
	e.event.ResponseStatus = &metav1.Status{
		Code: http.StatusInternalServerError, Status: metav1.StatusFailure, Reason: metav1.StatusReasonInternalError,
		Message: fmt.Sprintf("APIServer panic'd: %v", what),
	}
	e.mu.Unlock()
	e.write(auditinternal.StagePanic)
}

func (e *Entry) complete(status int) {
	e.mu.Lock()
	if e.event.ResponseStatus == nil || e.event.ResponseStatus.Code != int32(status) {
		e.event.ResponseStatus = &metav1.Status{Code: int32(status)}
	}
	if e.body != nil && e.event.RequestObject == nil {
		e.event.RequestObject = e.body.object(e.json)
	}
	e.mu.Unlock()
	e.write(auditinternal.StageResponseComplete)
}

// write hands the event out as it stands, unless the policy leaves the stage out.
// It is false where a strict destination did not take it.
func (e *Entry) write(stage auditinternal.Stage) bool {
	for _, s := range e.config.OmitStages {
		if s == stage {
			return true
		}
	}
	e.mu.Lock()
	ev := e.event.DeepCopy() // batches outlive the request, which goes on
	e.mu.Unlock()
	ev.Stage, ev.StageTimestamp = stage, metav1.NewMicroTime(e.log.now())
	if stage == auditinternal.StageRequestReceived {
		ev.StageTimestamp = ev.RequestReceivedTimestamp
	}
	if ac := upstream.AuditContextFrom(e.ctx); ac != nil {
		ev.Annotations = ac.GetEventAnnotations()
	}
	upstream.ObserveEvent(e.ctx)
	taken := true
	for _, t := range e.log.targets {
		if !t.ProcessEvents(ev) && t.strict {
			taken = false
		}
	}
	return taken
}

// captured keeps what is read of a body.
type captured struct {
	inner     io.ReadCloser
	mediaType string
	kept      bytes.Buffer
}

func (c *captured) Read(p []byte) (int, error) {
	n, err := c.inner.Read(p)
	if room := bodyLimit - c.kept.Len(); room > 0 {
		c.kept.Write(p[:min(n, room)])
	}
	return n, err
}

func (c *captured) Close() error { return c.inner.Close() }

// object is the body if it is JSON; of others the size is told.
func (c *captured) object(asJSON func([]byte) *runtime.Unknown) *runtime.Unknown {
	if c.kept.Len() == 0 {
		return nil
	}
	if o := asJSON(c.kept.Bytes()); o != nil {
		return o
	}
	mediaType, _, _ := mime.ParseMediaType(c.mediaType)
	note, err := json.Marshal(map[string]any{"contentType": mediaType, "bytes": c.kept.Len()})
	if err != nil {
		return nil
	}
	return &runtime.Unknown{Raw: note, ContentType: runtime.ContentTypeJSON}
}
