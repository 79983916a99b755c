// Package audit writes down who asked the apiserver for what, and what came of
// it: upstream's audit policy decides what is written, upstream's events
// (audit.k8s.io/v1) are written, one JSON line each, into a file that is rotated
// within bounds.
//
// A request never fails because its event could not be written; that is logged
// and counted instead.
package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"sync"
	"time"

	"github.com/google/uuid"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	upstream "k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/audit/policy"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"
)

// bodyLimit bounds how much of a body an event holds; the apiserver takes no more.
const bodyLimit = 3 << 20

// Config says what is written, and where.
type Config struct {
	// PolicyFile is an audit policy (audit.k8s.io/v1, kind Policy). Empty: the
	// metadata of every request that is not a read of the server's health.
	PolicyFile string
	// File is the log; it is appended to.
	File string
	// MaxBytes is when the file is rotated; default 100 MiB. MaxFiles is how many
	// old ones are kept; default 10.
	MaxBytes int64
	MaxFiles int
	// Log tells of events that could not be written.
	Log *slog.Logger
	// Now is the clock; default time.Now.
	Now func() time.Time
}

// Log is an audit log.
type Log struct {
	policy upstream.PolicyRuleEvaluator
	file   *rotating
	log    *slog.Logger
	now    func() time.Time

	mu     sync.Mutex
	lost   int64
	warned time.Time
}

// Open reads the policy and opens the file.
func Open(cfg Config) (*Log, error) {
	if cfg.File == "" {
		return nil, errors.New("audit: File is empty: name the file to write to")
	}
	if cfg.MaxBytes <= 0 {
		cfg.MaxBytes = 100 << 20
	}
	if cfg.MaxFiles <= 0 {
		cfg.MaxFiles = 10
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	p := defaultPolicy()
	if cfg.PolicyFile != "" {
		var err error
		if p, err = policy.LoadPolicyFromFile(cfg.PolicyFile); err != nil {
			return nil, fmt.Errorf("audit policy: %w", err)
		}
	}
	f, err := openRotating(cfg.File, cfg.MaxBytes, cfg.MaxFiles, cfg.Now)
	if err != nil {
		return nil, err
	}
	return &Log{policy: policy.NewPolicyRuleEvaluator(p), file: f, log: cfg.Log, now: cfg.Now}, nil
}

func defaultPolicy() *auditinternal.Policy {
	return &auditinternal.Policy{Rules: []auditinternal.PolicyRule{
		{Level: auditinternal.LevelNone, NonResourceURLs: []string{"/livez*", "/readyz*", "/healthz*", "/metrics"}},
		{Level: auditinternal.LevelMetadata, OmitStages: []auditinternal.Stage{auditinternal.StageRequestReceived}},
	}}
}

// Close closes the file; events that come later are lost.
func (l *Log) Close() error { return l.file.close() }

// Lost is how many events could not be written.
func (l *Log) Lost() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lost
}

// Entry is the record of one request. A nil Entry records nothing.
type Entry struct {
	log     *Log
	ctx     context.Context //nolint:containedctx // only to read what others annotate
	config  upstream.RequestAuditConfig
	body    *captured
	mu      sync.Mutex
	event   auditv1.Event
	started bool
}

type entryKey struct{}

// From is the entry of the request that ctx belongs to, or nil.
func From(ctx context.Context) *Entry {
	e, _ := ctx.Value(entryKey{}).(*Entry)
	return e
}

// Begin starts an entry once the user is known. end is called with the answer's
// status code.
func (l *Log) Begin(ctx context.Context, req *http.Request, info *genericrequest.RequestInfo, who user.Info) (context.Context, func(status int)) {
	id := types.UID(req.Header.Get(auditinternal.HeaderAuditID))
	if id == "" || len(id) > 64 {
		id = types.UID(uuid.NewString())
	}
	config := l.policy.EvaluatePolicyRule(attributes(info, who))
	ctx = upstream.WithAuditContext(ctx)
	upstream.WithAuditID(ctx, id)
	if config.Level == auditinternal.LevelNone {
		return ctx, func(int) {}
	}
	e := &Entry{log: l, config: config, event: l.event(req, info, who, id, config.Level)}
	if !config.Level.Less(auditinternal.LevelRequest) && req.Body != nil && !isRead(info.Verb) {
		e.body = &captured{inner: req.Body, mediaType: req.Header.Get("Content-Type")}
		req.Body = e.body
	}
	ctx = context.WithValue(ctx, entryKey{}, e)
	e.ctx = ctx
	e.write(auditinternal.StageRequestReceived)
	return ctx, e.complete
}

func isRead(verb string) bool { return verb == "get" || verb == "list" || verb == "watch" }

func attributes(info *genericrequest.RequestInfo, who user.Info) authorizer.Attributes {
	return authorizer.AttributesRecord{
		User: who, Verb: info.Verb, Namespace: info.Namespace, APIGroup: info.APIGroup, APIVersion: info.APIVersion,
		Resource: info.Resource, Subresource: info.Subresource, Name: info.Name, ResourceRequest: info.IsResourceRequest, Path: info.Path,
	}
}

func (l *Log) event(req *http.Request, info *genericrequest.RequestInfo, who user.Info, id types.UID, level auditinternal.Level) auditv1.Event {
	ev := auditv1.Event{
		TypeMeta: metav1.TypeMeta{APIVersion: auditv1.SchemeGroupVersion.String(), Kind: "Event"},
		Level:    auditv1.Level(level), AuditID: id, RequestReceivedTimestamp: metav1.NewMicroTime(l.now()),
		Verb: info.Verb, RequestURI: req.URL.RequestURI(), UserAgent: truncated(req.UserAgent()), User: userInfo(who),
	}
	for _, ip := range utilnet.SourceIPs(req) {
		ev.SourceIPs = append(ev.SourceIPs, ip.String())
	}
	if info.IsResourceRequest {
		ev.ObjectRef = &auditv1.ObjectReference{
			Resource: info.Resource, Subresource: info.Subresource, Namespace: info.Namespace, Name: info.Name,
			APIGroup: info.APIGroup, APIVersion: info.APIVersion,
		}
	}
	return ev
}

func truncated(s string) string {
	const limit = 1024
	if len(s) <= limit {
		return s
	}
	return s[:limit] + "...TRUNCATED"
}

func userInfo(who user.Info) authenticationv1.UserInfo {
	if who == nil {
		return authenticationv1.UserInfo{}
	}
	info := authenticationv1.UserInfo{Username: who.GetName(), UID: who.GetUID(), Groups: who.GetGroups()}
	for k, v := range who.GetExtra() {
		if info.Extra == nil {
			info.Extra = map[string]authenticationv1.ExtraValue{}
		}
		info.Extra[k] = v
	}
	return info
}

// Impersonated records whom the user acts for.
func (e *Entry) Impersonated(as user.Info) {
	if e == nil {
		return
	}
	info := userInfo(as)
	e.mu.Lock()
	e.event.ImpersonatedUser = &info
	e.mu.Unlock()
}

// Annotate adds an annotation, as "plugin.name/key".
func (e *Entry) Annotate(key, value string) {
	if e != nil {
		upstream.AddAuditAnnotation(e.ctx, key, value)
	}
}

// WantsResponse says whether the policy asks for the answer's object, so that
// it need not be encoded for nothing.
func (e *Entry) WantsResponse() bool {
	return e != nil && !e.config.Level.Less(auditinternal.LevelRequestResponse)
}

// Response records the answer's object in JSON, which the entry keeps.
func (e *Entry) Response(object []byte) {
	if !e.WantsResponse() || !json.Valid(object) {
		return
	}
	e.mu.Lock()
	e.event.ResponseObject = &runtime.Unknown{Raw: object, ContentType: runtime.ContentTypeJSON}
	e.mu.Unlock()
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

func (e *Entry) complete(status int) {
	e.mu.Lock()
	e.event.ResponseStatus = &metav1.Status{Code: int32(status)}
	if e.body != nil {
		e.event.RequestObject = e.body.object()
	}
	e.mu.Unlock()
	e.write(auditinternal.StageResponseComplete)
}

// write writes the event as it stands, unless the policy leaves the stage out.
func (e *Entry) write(stage auditinternal.Stage) {
	for _, s := range e.config.OmitStages {
		if s == stage {
			return
		}
	}
	e.mu.Lock()
	ev := e.event
	e.mu.Unlock()
	ev.Stage, ev.StageTimestamp = auditv1.Stage(stage), metav1.NewMicroTime(e.log.now())
	if ac := upstream.AuditContextFrom(e.ctx); ac != nil {
		ev.Annotations = ac.GetEventAnnotations()
	}
	line, err := json.Marshal(ev)
	if err == nil {
		err = e.log.file.write(append(line, '\n'))
	}
	if err != nil {
		e.log.lose(err)
	}
}

// lose counts, and tells at most once a minute: a full disk must not fill the log too.
func (l *Log) lose(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lost++
	if now := l.now(); now.Sub(l.warned) >= time.Minute {
		l.warned = now
		l.log.Error("audit events cannot be written", "error", err, "lost", l.lost)
	}
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
func (c *captured) object() *runtime.Unknown {
	if c.kept.Len() == 0 {
		return nil
	}
	if json.Valid(c.kept.Bytes()) {
		return &runtime.Unknown{Raw: bytes.Clone(c.kept.Bytes()), ContentType: runtime.ContentTypeJSON}
	}
	mediaType, _, _ := mime.ParseMediaType(c.mediaType)
	note, err := json.Marshal(map[string]any{"contentType": mediaType, "bytes": c.kept.Len()})
	if err != nil {
		return nil
	}
	return &runtime.Unknown{Raw: note, ContentType: runtime.ContentTypeJSON}
}
