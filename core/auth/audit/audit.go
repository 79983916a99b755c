// SPDX-License-Identifier: Apache-2.0

// Package audit records every request to the apiserver, its user and its outcome: upstream's
// audit policy decides what is written, upstream's events (audit.k8s.io/v1) are written, one
// JSON line each, into a file that is rotated within bounds, or sent to a webhook.
//
// Unless a destination is strict, a request never fails because its event could
// not be written; that is logged and counted instead.
package audit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	upstream "k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/audit/policy"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/apiserver/plugin/pkg/audit/buffered"
	"k8s.io/apiserver/plugin/pkg/audit/truncate"
	"k8s.io/apiserver/plugin/pkg/audit/webhook"

	"github.com/wasmplane/wasmplane/core/auth/authz"
	"github.com/wasmplane/wasmplane/core/dial"
)

// bodyLimit bounds how much of a body an event holds; the apiserver takes no more.
const bodyLimit = 3 << 20

// Mode says when an event is written.
type Mode string

const (
	// Blocking writes before the answer goes on; an event that cannot be written is
	// counted and told. It is the default of a file.
	Blocking Mode = "blocking"
	// BlockingStrict also refuses requests whose first event cannot be written.
	BlockingStrict Mode = "blocking-strict"
	// Batch writes several events at once, in the background; when the buffer is full,
	// events are dropped and counted. It is the default of a webhook.
	Batch Mode = "batch"
)

// Target is how one destination gets its events.
type Target struct {
	Mode Mode
	// BufferEvents, BatchEvents and BatchWait are of Batch; 0 = upstream's 10000,
	// 400 (1 for a file) and 30 s.
	BufferEvents, BatchEvents int
	BatchWait                 time.Duration
	// MaxEventBytes is how large an event may be: of larger ones, bodies are left out.
	// 0 = unbounded for a file, 102400 for a webhook.
	MaxEventBytes int64
}

// Config says what is written, and where.
type Config struct {
	// PolicyFile is an audit policy (audit.k8s.io/v1, kind Policy). Empty: the
	// metadata of every request that is not a read of the server's health.
	PolicyFile string
	// File is the log; it is appended to. Empty: none.
	File       string
	FileTarget Target
	// MaxBytes is when the file is rotated; default 100 MiB. MaxFiles is how many
	// old ones are kept; default 10. MaxAge is how long; 0 = for ever.
	MaxBytes int64
	MaxFiles int
	MaxAge   time.Duration
	// WebhookFile is a kubeconfig that says to whom events are sent, as lists of
	// audit.k8s.io/v1 Events. Empty: to nobody.
	WebhookFile   string
	WebhookTarget Target
	// InitialBackoff is the first pause before an event is sent again; 0 = 10 s.
	InitialBackoff time.Duration
	// Dial says where the webhook may be; nil: an operator's policy.
	Dial *dial.Policy
	// Log tells of events that could not be written.
	Log *slog.Logger
	// Now is the clock; default time.Now.
	Now func() time.Time
}

// Log is an audit log.
type Log struct {
	policyFile string
	policy     atomic.Pointer[upstream.PolicyRuleEvaluator]
	targets    []target
	file       *rotating // nil = none
	stop       chan struct{}
	log        *slog.Logger
	now        func() time.Time

	mu     sync.Mutex
	lost   int64
	warned time.Time
}

// target is a destination; strict ones may refuse requests.
type target struct {
	upstream.Backend
	strict bool
}

// Open reads the policy and opens the destinations.
func Open(cfg Config) (*Log, error) {
	if cfg.File == "" && cfg.WebhookFile == "" {
		return nil, errors.New("audit: neither File nor WebhookFile is given: name the file to write to, or the kubeconfig of a webhook")
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
	l := &Log{policyFile: cfg.PolicyFile, stop: make(chan struct{}), log: cfg.Log, now: cfg.Now}
	if err := l.readPolicy(); err != nil {
		return nil, err
	}
	if err := l.open(cfg); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func (l *Log) open(cfg Config) (err error) {
	if cfg.File != "" {
		if l.file, err = openRotating(cfg.File, cfg.MaxBytes, cfg.MaxFiles, cfg.MaxAge, cfg.Now); err != nil {
			return err
		}
		if err := l.add(fileBackend{l}, cfg.FileTarget, Blocking, 1); err != nil {
			return fmt.Errorf("audit file: %w", err)
		}
	}
	if cfg.WebhookFile == "" {
		return nil
	}
	pause := cfg.InitialBackoff
	if pause <= 0 {
		pause = 10 * time.Second
	}
	again := wait.Backoff{Duration: pause, Factor: 1.5, Jitter: 0.2, Steps: 5}
	hook, err := newHook(cfg.WebhookFile, cfg.Dial.Or(), again)
	if err != nil {
		return fmt.Errorf("audit webhook %s: %w", cfg.WebhookFile, err)
	}
	if cfg.WebhookTarget.MaxEventBytes == 0 {
		cfg.WebhookTarget.MaxEventBytes = 100 << 10
	}
	if err := l.add(webhook.NewDynamicBackend(hook.RestClient, again), cfg.WebhookTarget, Batch, 400); err != nil {
		return fmt.Errorf("audit webhook: %w", err)
	}
	return nil
}

const (
	// hookAnswer bounds what a webhook answers, of which only the status counts.
	hookAnswer = 1 << 20
	// hookTime is how long one list of events is sent: a webhook that never answers
	// holds up no more than the next lists.
	hookTime = 30 * time.Second
)

// newHook sends lists of events to whom the kubeconfig names.
func newHook(file string, to dial.Policy, again wait.Backoff) (*webhookutil.GenericWebhook, error) {
	config, err := webhookutil.LoadKubeconfig(file, to.Context())
	if err != nil {
		return nil, err
	}
	config.Timeout = hookTime
	config.Wrap(dial.Webhook(hookAnswer))
	return webhookutil.NewGenericWebhook(upstream.Scheme, upstream.Codecs, config, []schema.GroupVersion{auditv1.SchemeGroupVersion}, again)
}

// add puts truncation and batching before a destination, and starts it.
func (l *Log) add(b upstream.Backend, t Target, mode Mode, batch int) error {
	if t.MaxEventBytes > 0 {
		b = truncate.NewBackend(b, truncate.Config{MaxEventSize: t.MaxEventBytes, MaxBatchSize: max(10<<20, t.MaxEventBytes)},
			auditv1.SchemeGroupVersion)
	}
	if t.Mode != "" {
		mode = t.Mode
	}
	switch mode {
	case Blocking, BlockingStrict:
	case Batch:
		c := buffered.BatchConfig{
			BufferSize: 10000, MaxBatchSize: batch, MaxBatchWait: 30 * time.Second, ThrottleEnable: batch > 1,
			ThrottleQPS: 10, ThrottleBurst: 15, AsyncDelegate: batch > 1,
		}
		if t.BufferEvents > 0 {
			c.BufferSize = t.BufferEvents
		}
		if t.BatchEvents > 0 {
			c.MaxBatchSize = t.BatchEvents
		}
		if t.BatchWait > 0 {
			c.MaxBatchWait = t.BatchWait
		}
		b = buffered.NewBackend(b, c)
	default:
		return fmt.Errorf("mode: expected %s, %s or %s, found %q", Batch, Blocking, BlockingStrict, mode)
	}
	if err := b.Run(l.stop); err != nil {
		return err
	}
	l.targets = append(l.targets, target{b, mode == BlockingStrict})
	return nil
}

func (l *Log) readPolicy() error {
	p := defaultPolicy()
	if l.policyFile != "" {
		var err error
		if p, err = policy.LoadPolicyFromFile(l.policyFile); err != nil {
			return fmt.Errorf("audit policy: %w", err)
		}
	}
	evaluator := policy.NewPolicyRuleEvaluator(p)
	l.policy.Store(&evaluator)
	return nil
}

// Reload takes the policy on as its file is now.
func (l *Log) Reload(context.Context) error { return l.readPolicy() }

func defaultPolicy() *auditinternal.Policy {
	return &auditinternal.Policy{Rules: []auditinternal.PolicyRule{
		{Level: auditinternal.LevelNone, NonResourceURLs: []string{"/livez*", "/readyz*", "/healthz*", "/metrics"}},
		{Level: auditinternal.LevelMetadata, OmitStages: []auditinternal.Stage{auditinternal.StageRequestReceived}},
	}}
}

// Close hands over what is still buffered and closes the file; events that come
// later are lost.
func (l *Log) Close() error {
	close(l.stop)
	for _, t := range l.targets {
		t.Shutdown()
	}
	if l.file == nil {
		return nil
	}
	return l.file.close()
}

// Lost is how many events could not be written to the file.
func (l *Log) Lost() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lost
}

// fileBackend writes a line for each event.
type fileBackend struct{ log *Log }

// ProcessEvents implements upstream's Backend.
func (f fileBackend) ProcessEvents(events ...*auditinternal.Event) bool {
	all := true
	for _, e := range events {
		var line bytes.Buffer
		err := upstream.Codecs.LegacyCodec(auditv1.SchemeGroupVersion).Encode(e, &line)
		if err == nil {
			err = f.log.file.write(line.Bytes()) // the codec ends it with a newline
		}
		if err != nil {
			f.log.lose(err)
			upstream.HandlePluginError(f.String(), err, e)
			all = false
		}
	}
	return all
}

// Run implements upstream's Backend.
func (f fileBackend) Run(<-chan struct{}) error { return nil }

// Shutdown implements upstream's Backend.
func (f fileBackend) Shutdown() {}

func (f fileBackend) String() string { return "log" }

// Identify gives a request the ID by which its answer, its events and what others
// log of it belong together: the client's own, or a new one.
func Identify(ctx context.Context, req *http.Request, answer http.Header) context.Context {
	id := req.Header.Get(auditinternal.HeaderAuditID)
	if id == "" || len(id) > 64 {
		id = uuid.NewString()
	}
	ctx = upstream.WithAuditContext(ctx)
	upstream.WithAuditID(ctx, types.UID(id))
	answer.Set(auditinternal.HeaderAuditID, id)
	return ctx
}

// ErrNotWritten refuses a request whose event a strict destination did not take.
var ErrNotWritten = errors.New("failed to store audit event")

// Begin starts an entry once the user is known (nil: nobody could be identified).
// end is called with the answer's status code. The error is ErrNotWritten.
func (l *Log) Begin(ctx context.Context, req *http.Request, info *genericrequest.RequestInfo,
	who user.Info,
) (context.Context, func(status int), error) {
	config := (*l.policy.Load()).EvaluatePolicyRule(attributes(info, who))
	upstream.ObservePolicyLevel(ctx, config.Level)
	if config.Level == auditinternal.LevelNone {
		return ctx, func(int) {}, nil
	}
	ctx = upstream.WithAuditContext(ctx)
	id, _ := upstream.AuditIDFrom(ctx)
	if id == "" {
		id = types.UID(uuid.NewString())
	}
	e := &Entry{log: l, config: config, event: l.event(req, info, who, id, config.Level)}
	if !config.Level.Less(auditinternal.LevelRequest) && req.Body != nil && !isRead(info.Verb) {
		e.body = &captured{inner: req.Body, mediaType: req.Header.Get("Content-Type")}
		req.Body = e.body
	}
	ctx = context.WithValue(ctx, entryKey{}, e)
	e.ctx = ctx
	if !e.write(auditinternal.StageRequestReceived) {
		return ctx, func(int) {}, ErrNotWritten
	}
	return ctx, e.complete, nil
}

func isRead(verb string) bool { return verb == "get" || verb == "list" || verb == "watch" }

func attributes(info *genericrequest.RequestInfo, who user.Info) authorizer.Attributes {
	return authorizer.AttributesRecord{
		User: who, Verb: info.Verb, Namespace: info.Namespace, APIGroup: info.APIGroup, APIVersion: info.APIVersion,
		Resource: info.Resource, Subresource: info.Subresource, Name: info.Name, ResourceRequest: info.IsResourceRequest, Path: info.Path,
	}
}

func (l *Log) event(req *http.Request, info *genericrequest.RequestInfo, who user.Info, id types.UID,
	level auditinternal.Level,
) auditinternal.Event {
	ev := auditinternal.Event{
		Level: level, AuditID: id, RequestReceivedTimestamp: metav1.NewMicroTime(l.now()),
		Verb: info.Verb, RequestURI: req.URL.RequestURI(), UserAgent: truncated(req.UserAgent()), User: authz.UserInfo(who),
	}
	for _, ip := range utilnet.SourceIPs(req) {
		ev.SourceIPs = append(ev.SourceIPs, ip.String())
	}
	if info.IsResourceRequest {
		ev.ObjectRef = &auditinternal.ObjectReference{
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
