// SPDX-License-Identifier: Apache-2.0

// Package recording makes recordings of what a plugin decided about the requests of an
// audit log, and replays them against a candidate: what would be decided differently.
// Recordings hold no Secrets' values and are bounded.
package recording

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/author"
	"github.com/wasmplane/wasmplane/plugins/author/textdiff"
)

// A recording is a file of JSON lines: a Header, then Records. It holds what
// was asked, without the contents of Secrets, and what the plugin of the time decided.

// Header is the first line.
type Header struct {
	Version int       `json:"recording"`
	Plugin  string    `json:"plugin"`
	Digest  string    `json:"digest"`
	Made    time.Time `json:"made"`
}

// Record is one question with its decision.
type Record struct {
	Time     time.Time       `json:"time"`
	Point    abi.Point       `json:"point"`
	About    string          `json:"about"` // for people: "CREATE pods shop/web by jane"
	Document map[string]any  `json:"document"`
	Decision author.Decision `json:"decision"`
}

const recordingVersion = 1

// Limits of a recording.
type Limits struct {
	Records int   // default 10000
	Bytes   int64 // default 64 MiB
}

// Recorded says what became of an audit log.
type Recorded struct {
	Events   int `json:"events"`   // lines that were read
	Records  int `json:"records"`  // questions that were recorded
	Unusable int `json:"unusable"` // events without the object: their audit level was too low
	// Full: the limit was reached before the end of the log.
	Full bool `json:"full,omitempty"`
}

// line is the longest line of an audit log.
const longestLine = 16 << 20

// Make reads an audit log (audit.k8s.io/v1, JSON lines; level Request for
// creates and updates, RequestResponse for patches) and records what the plugin is asked, and
// decides, about each request in it. Header from the log, and not inside the server, costs the
// server nothing, needs nothing to be switched on there but the log, and works with any cluster's.
func Make(ctx context.Context, cfg author.Config, log io.Reader, out io.Writer, limits Limits) (done Recorded, err error) {
	if limits.Records == 0 {
		limits.Records = 10_000
	}
	if limits.Bytes == 0 {
		limits.Bytes = 64 << 20
	}
	p, err := author.Open(ctx, cfg)
	if err != nil {
		return done, err
	}
	defer func() { err = errors.Join(err, p.Close(ctx)) }()
	w := &lineWriter{out: out, left: limits.Bytes}
	if err := w.write(Header{Version: recordingVersion, Plugin: p.Name(), Digest: p.Digest(), Made: time.Now().UTC()}); err != nil {
		return done, err
	}
	s := bufio.NewScanner(log)
	s.Buffer(make([]byte, 1<<20), longestLine)
	for s.Scan() && ctx.Err() == nil {
		var e auditv1.Event
		if len(strings.TrimSpace(s.Text())) == 0 {
			continue
		}
		if err := json.Unmarshal(s.Bytes(), &e); err != nil {
			return done, fmt.Errorf("line %d of the audit log is no audit event: %w", done.Events+1, err)
		}
		done.Events++
		records, usable, err := recordsOf(ctx, p, &e)
		if err != nil {
			return done, err
		}
		if !usable {
			done.Unusable++
		}
		for _, r := range records {
			if err := w.write(r); errors.Is(err, errFull) || done.Records == limits.Records {
				done.Full = true
				return done, nil
			} else if err != nil {
				return done, err
			}
			done.Records++
		}
	}
	if err := s.Err(); err != nil {
		return done, fmt.Errorf("read the audit log: %w", err)
	}
	return done, ctx.Err()
}

var errFull = errors.New("the recording is full")

type lineWriter struct {
	out  io.Writer
	left int64
}

func (w *lineWriter) write(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if w.left -= int64(len(b)) + 1; w.left < 0 {
		return errFull
	}
	if _, err := w.out.Write(append(b, '\n')); err != nil {
		return fmt.Errorf("write the recording: %w", err)
	}
	return nil
}

// recordsOf are the questions that an event led to. usable is false where the
// event lacks the object that they are about.
func recordsOf(ctx context.Context, p *author.Plugin, e *auditv1.Event) (out []Record, usable bool, err error) {
	if e.Stage != auditv1.StageResponseComplete {
		return nil, true, nil
	}
	ask := func(pt abi.Point, doc map[string]any, about string) error {
		d, err := p.Ask(ctx, pt, doc)
		if err == nil && d.Decision != author.NotAsked {
			d.Object, d.Answer = nil, nil // they follow from the rest
			out = append(out, Record{Time: e.StageTimestamp.Time, Point: pt, About: about, Document: doc, Decision: *d})
		}
		return err
	}
	if p.TakesPartAt(abi.Authorization) {
		if err := ask(abi.Authorization, authorizationOf(e), aboutOf(e)); err != nil {
			return nil, true, err
		}
	}
	if !p.TakesPartAt(abi.AdmissionMutate) && !p.TakesPartAt(abi.AdmissionValidate) {
		return out, true, nil
	}
	operation, writes := map[string]string{"create": "CREATE", "update": "UPDATE", "patch": "UPDATE"}[e.Verb]
	if !writes || e.ObjectRef == nil || e.ObjectRef.Subresource == "token" {
		return out, true, nil
	}
	raw := e.RequestObject
	if e.Verb == "patch" { // the request holds the patch only
		raw = e.ResponseObject
	}
	tree := treeOf(raw)
	if tree["kind"] == nil {
		return out, false, nil
	}
	for _, pt := range []abi.Point{abi.AdmissionMutate, abi.AdmissionValidate} {
		if !p.TakesPartAt(pt) {
			continue
		}
		if err := ask(pt, admissionOf(e, operation, redacted(tree)), aboutOf(e)); err != nil {
			return nil, true, err
		}
	}
	return out, true, nil
}

// treeOf is nil where an event holds no object, or one that was cut off.
func treeOf(raw *runtime.Unknown) (tree map[string]any) {
	if raw == nil || json.Unmarshal(raw.Raw, &tree) != nil {
		return nil
	}
	return tree
}

func aboutOf(e *auditv1.Event) string {
	what := e.RequestURI
	if r := e.ObjectRef; r != nil {
		if what = r.Resource; r.Subresource != "" {
			what += "/" + r.Subresource
		}
		what += " " + strings.TrimPrefix(r.Namespace+"/"+r.Name, "/")
	}
	return fmt.Sprintf("%s %s by %s", e.Verb, what, e.User.Username)
}

func groupsOf(list []string) []any {
	out := make([]any, len(list))
	for i := range list {
		out[i] = list[i]
	}
	return out
}

func authorizationOf(e *auditv1.Event) map[string]any {
	doc := map[string]any{"user": e.User.Username, "groups": groupsOf(e.User.Groups)}
	if r := e.ObjectRef; r != nil {
		doc["resourceAttributes"] = map[string]any{
			"namespace": r.Namespace, "verb": e.Verb, "group": r.APIGroup, "version": r.APIVersion,
			"resource": r.Resource, "subresource": r.Subresource, "name": r.Name,
		}
	} else {
		path, _, _ := strings.Cut(e.RequestURI, "?")
		doc["nonResourceAttributes"] = map[string]any{"path": path, "verb": e.Verb}
	}
	return doc
}

func admissionOf(e *auditv1.Event, operation string, tree map[string]any) map[string]any {
	r := e.ObjectRef
	return map[string]any{
		"uid": string(e.AuditID), "operation": operation, "object": tree,
		"resource":    map[string]any{"group": r.APIGroup, "version": r.APIVersion, "resource": r.Resource},
		"subResource": r.Subresource, "namespace": r.Namespace, "name": r.Name,
		"userInfo": map[string]any{"username": e.User.Username, "groups": groupsOf(e.User.Groups)},
	}
}

// redacted takes out what must not lie about: the contents of Secrets, and what
// repeats them.
func redacted(tree map[string]any) map[string]any {
	tree = runtime.DeepCopyJSON(tree)
	if meta, ok := tree["metadata"].(map[string]any); ok {
		delete(meta, "managedFields")
		if tree["kind"] == "Secret" {
			if notes, ok := meta["annotations"].(map[string]any); ok {
				delete(notes, "kubectl.kubernetes.io/last-applied-configuration")
			}
		}
	}
	if tree["kind"] != "Secret" {
		return tree
	}
	for _, field := range []string{"data", "stringData"} {
		if values, ok := tree[field].(map[string]any); ok {
			for k := range values {
				values[k] = "UkVEQUNURUQ=" // REDACTED
			}
		}
	}
	return tree
}

// Change is a question to which a candidate decides otherwise.
type Change struct {
	Record Record          `json:"record"`
	Now    author.Decision `json:"now"`
	Diff   string          `json:"diff"`
}

// Replayed says what a candidate would have changed.
type Replayed struct {
	Plugin    string         `json:"plugin"`
	Recorded  string         `json:"recordedDigest"`
	Candidate string         `json:"candidateDigest"`
	Records   int            `json:"records"`
	Same      int            `json:"same"`
	Kinds     map[string]int `json:"changes,omitempty"` // "allow -> deny": how many
	Changes   []Change       `json:"differing,omitempty"`
}

// mostChanges bounds how many changes are kept in full; all are counted.
const mostChanges = 1000

// Replay asks a candidate what was recorded, and shows where it decides otherwise.
func Replay(ctx context.Context, cfg author.Config, recording io.Reader) (out *Replayed, err error) {
	s := bufio.NewScanner(recording)
	s.Buffer(make([]byte, 1<<20), longestLine)
	var head Header
	if !s.Scan() || json.Unmarshal(s.Bytes(), &head) != nil || head.Version != recordingVersion {
		return nil, errors.Join(fmt.Errorf("this is no recording of version %d: wasmplane plugin record makes them", recordingVersion), s.Err())
	}
	p, err := author.Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.Close(ctx)) }()
	out = &Replayed{Plugin: head.Plugin, Recorded: head.Digest, Candidate: p.Digest(), Kinds: map[string]int{}}
	for s.Scan() && ctx.Err() == nil {
		var r Record
		if err := json.Unmarshal(s.Bytes(), &r); err != nil {
			return nil, fmt.Errorf("record %d of the recording: %w", out.Records+1, err)
		}
		out.Records++
		doc, _ := abi.Integers(r.Document).(map[string]any)
		now := &author.Decision{Point: r.Point, Decision: author.NotAsked}
		if p.TakesPartAt(r.Point) {
			if now, err = p.Ask(ctx, r.Point, doc); err != nil {
				return nil, err
			}
		}
		now.Object, now.Answer, now.Printed = nil, nil, ""
		before, after := r.Decision, *now
		before.Usage, after.Usage = author.Usage{}, author.Usage{}
		text := textdiff.Diff(before, after)
		if text == "" {
			out.Same++
			continue
		}
		out.Kinds[before.Decision+" -> "+after.Decision]++
		if len(out.Changes) < mostChanges {
			out.Changes = append(out.Changes, Change{Record: r, Now: *now, Diff: text})
		}
	}
	if err := s.Err(); err != nil {
		return nil, fmt.Errorf("read the recording: %w", err)
	}
	return out, ctx.Err()
}

// Create makes the file of a recording, which nobody else may read.
func Create(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("make the recording: %w", err)
	}
	return f, nil
}
