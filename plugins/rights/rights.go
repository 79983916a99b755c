// SPDX-License-Identifier: Apache-2.0

// Package rights checks what a plugin of the API does against its writer's rights: such a
// plugin reads, calls, sends and changes at most what its writer could by himself, when its
// object is written and whenever it acts.
//
// Who wrote an object is recorded by the server (apiobject) and stands in the entry.
// The cluster's own authorizers are asked, as the writer; an answer is believed for
// some seconds. Whoever may `grant` plugins (a verb on plugins and tenantplugins of
// plugins.wasmplane.dev) may hand out more than he has. Entries of the configuration
// file have no writer: whoever writes the file is the cluster's operator.
package rights

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/wasmplane/wasmplane/core/attempts"
	"github.com/wasmplane/wasmplane/plugins/manifest"
)

// Verb is what may be done with plugins besides writing them: give them more than
// the writer has.
const Verb = "grant"

// Access answers who may do what: the cluster's own authorizers.
type Access interface {
	Review(ctx context.Context, spec authorizationv1.SubjectAccessReviewSpec) (authorizationv1.SubjectAccessReviewStatus, error)
}

// Bounds of what is remembered.
const (
	believed    = 5 * time.Second
	mostAnswers = 4096
)

// Checker asks, and remembers answers for some seconds.
type Checker struct {
	access   Access
	attempts *attempts.Ledger
	now      func() time.Time

	mu      sync.Mutex
	answers map[string]answer
}

type answer struct {
	allowed bool
	until   time.Time
}

// New makes a checker. Without access nothing can be asked, and every question about
// a writer is answered with an error.
func New(a Access) *Checker {
	return &Checker{access: a, now: time.Now, answers: map[string]answer{}}
}

// Reporting has what a writer lacks written down, where a plugin asks for it or is about to do it, and
// returns the checker. Standing, which only shows it, writes nothing down.
func (c *Checker) Reporting(to *attempts.Ledger) *Checker {
	c.attempts = to
	return c
}

// fields that ask for something, by the last part of their path: reasons of attempts.
var fields = []string{
	"read", "accessReview", "reclaim", "events", "http", "dns", "images", "capabilities", "secret", "serviceAccount", "points",
}

// verbs that plugins need rights for when they act: reasons of attempts.
var verbs = []string{"get", "list", "watch", "create", "update", "patch", "delete"}

// report writes down that a plugin's writer lacks a right.
func (c *Checker) report(ctx context.Context, e *manifest.Entry, n Need, err error) {
	var lacking *LackingError
	if c == nil || c.attempts == nil || !errors.As(err, &lacking) {
		return
	}
	a := attempts.Attempt{Kind: attempts.Act, Reason: Verb, Subject: e.Subject(), Detail: lacking.Error()}
	if at, ok := strings.CutPrefix(n.Field, "spec."); ok {
		a.Kind, a.Reason = attempts.Grant, attempts.Other
		last := at[strings.LastIndexByte(at, '.')+1:]
		if last, _, _ = strings.Cut(last, "["); slices.Contains(fields, last) {
			a.Reason = last
		}
		c.attempts.Refused(ctx, a) // the answer to the writer, or the plugin's status, says it
		return
	}
	if n.Attributes != nil {
		a.Reason = attempts.Other
		if slices.Contains(verbs, n.Attributes.Verb) {
			a.Reason = n.Attributes.Verb
		}
	}
	a.Event = fmt.Sprintf("it was about to do what its writer, %q, may not: %s", lacking.Writer, lacking.What)
	c.attempts.Refused(ctx, a)
}

// LackingError is what a writer may not do.
type LackingError struct {
	Plugin string
	Writer string
	What   string // such as `list secrets in namespace red`
	Field  string // of the object, where one asks for it
}

func (e *LackingError) Error() string {
	at := ""
	if e.Field != "" {
		at = e.Field + ": "
	}
	return fmt.Sprintf("%splugin %q may do no more than its writer, and %q may not %s; somebody who may has to write it, or who may %s plugins", at, e.Plugin, e.Writer, e.What, Verb)
}

// UnknownWriterError is a plugin of the API whose writer is not recorded.
type UnknownWriterError struct{ Plugin string }

func (e *UnknownWriterError) Error() string {
	return fmt.Sprintf("who wrote plugin %q is not recorded, so that it may do nothing on anybody's behalf: write its object again", e.Plugin)
}

// Need is a right that something in an entry takes.
type Need struct {
	Field string
	// Attributes of the request that the writer must be allowed; nil: only Verb will do.
	Attributes *authorizationv1.ResourceAttributes
	What       string // where there are no attributes
}

// Act says whether the plugin may do this now, on behalf of its writer. nil is yes.
func (c *Checker) Act(ctx context.Context, e *manifest.Entry, a authorizationv1.ResourceAttributes) error {
	if !e.FromAPI {
		return nil
	}
	return c.told(ctx, e, Need{Attributes: &a})
}

// Grants says whether the plugin's writer may give plugins more than he has, which
// is what field takes. nil is yes.
func (c *Checker) Grants(ctx context.Context, e *manifest.Entry, field, what string) error {
	if !e.FromAPI {
		return nil
	}
	return c.told(ctx, e, Need{Field: field, What: what})
}

// Check holds everything that an entry asks for against its writer's rights, at the
// points given (those of the entry, or of the module where it is known), and what else its object takes.
func (c *Checker) Check(ctx context.Context, e *manifest.Entry, points []string, more ...Need) error {
	if !e.FromAPI {
		return nil
	}
	var errs []error
	for _, n := range append(Needs(e, points), more...) {
		errs = append(errs, c.told(ctx, e, n))
	}
	return errors.Join(errs...)
}

// told is hold, and writes down what is lacking.
func (c *Checker) told(ctx context.Context, e *manifest.Entry, n Need) error {
	err := c.hold(ctx, e, e.Writer, n)
	c.report(ctx, e, n, err)
	return err
}

func (c *Checker) hold(ctx context.Context, e *manifest.Entry, writer *user.DefaultInfo, n Need) error {
	if writer == nil {
		return &UnknownWriterError{e.Name}
	}
	if Asking(ctx, e.Name) {
		return fmt.Errorf("plugin %q is being asked about the rights of its own writer", e.Name)
	}
	if n.Attributes != nil {
		if ok, err := c.may(ctx, e, writer, *n.Attributes); ok || err != nil {
			return err
		}
	}
	if ok, err := c.may(ctx, e, writer, granting(e)); ok || err != nil {
		return err
	}
	what := n.What
	if n.Attributes != nil {
		what = text(n.Attributes)
	}
	return &LackingError{Plugin: e.Name, Writer: writer.GetName(), What: what, Field: n.Field}
}

// granting is the question whether somebody may give the plugin more than he has.
func granting(e *manifest.Entry) authorizationv1.ResourceAttributes {
	a := authorizationv1.ResourceAttributes{Verb: Verb, Group: manifest.APIGroup, Resource: "plugins", Name: e.Name}
	if e.Namespace != "" {
		_, name, _ := strings.Cut(e.Name, ":")
		a.Resource, a.Namespace, a.Name = "tenantplugins", e.Namespace, name
	}
	return a
}

type asking struct{ plugins []string }

type askingKey struct{}

// Asked says that the rights of some plugin's writer are being asked for.
func Asked(ctx context.Context) bool {
	a, _ := ctx.Value(askingKey{}).(asking)
	return len(a.plugins) > 0
}

// Asking says that the rights of this plugin's writer are being asked for: an
// authorizer that would have to ask for them again is left out.
func Asking(ctx context.Context, plugin string) bool {
	a, _ := ctx.Value(askingKey{}).(asking)
	return slices.Contains(a.plugins, plugin)
}

func (c *Checker) may(ctx context.Context, e *manifest.Entry, who *user.DefaultInfo, a authorizationv1.ResourceAttributes) (bool, error) {
	if c == nil || c.access == nil {
		return false, errors.New("this process cannot ask what the writer of a plugin may do; it can where the plugin runs in a cluster")
	}
	key := fmt.Sprintf("%q %q %q %v %q %q %q %q %q %q %q", who.Name, who.UID, who.Groups, who.Extra, a.Verb, a.Group, a.Version, a.Resource,
		a.Subresource, a.Namespace, a.Name)
	c.mu.Lock()
	known, ok := c.answers[key]
	c.mu.Unlock()
	if ok && c.now().Before(known.until) {
		return known.allowed, nil
	}
	before, _ := ctx.Value(askingKey{}).(asking)
	ctx = context.WithValue(ctx, askingKey{}, asking{append(slices.Clone(before.plugins), e.Name)})
	spec := authorizationv1.SubjectAccessReviewSpec{User: who.Name, UID: who.UID, Groups: who.Groups, ResourceAttributes: &a}
	for k, v := range who.Extra {
		if spec.Extra == nil {
			spec.Extra = map[string]authorizationv1.ExtraValue{}
		}
		spec.Extra[k] = v
	}
	status, err := c.access.Review(ctx, spec)
	if err != nil {
		return false, fmt.Errorf("ask what the writer of plugin %q may do: %w", e.Name, err)
	}
	if !status.Allowed && status.EvaluationError != "" {
		return false, fmt.Errorf("ask what the writer of plugin %q may do: %s", e.Name, status.EvaluationError)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.answers) >= mostAnswers {
		c.answers = map[string]answer{}
	}
	c.answers[key] = answer{status.Allowed, c.now().Add(believed)}
	return status.Allowed, nil
}

// text words a question: "list secrets in namespace red".
func text(a *authorizationv1.ResourceAttributes) string {
	what := a.Resource
	if a.Group != "" {
		what += "." + a.Group
	}
	if a.Subresource != "" {
		what += "/" + a.Subresource
	}
	if a.Name != "" {
		what += fmt.Sprintf(" %q", a.Name)
	}
	where := "in all namespaces"
	if a.Namespace != "" {
		where = "in namespace " + a.Namespace
	}
	return a.Verb + " " + what + " " + where
}
