// SPDX-License-Identifier: Apache-2.0

// Package imagegate has Kyverno's ImageValidatingPolicies take part in admission, and in the scan of what is stored. It reads
// them from the API as they are when a request comes, so that what was written a moment ago counts.
//
// A policy does nothing that its writer could not: the digests that it writes, and the Secrets that it reads, are held
// against its writer's rights each time. Registries are reached by a policy of addresses. Only a registry that the
// cluster's own policy names may be at a private address: others are chosen by whoever makes a pod.
// Who is refused learns which image, which attestor and why, and of what could not be reached no more
// than he needs; the log has the rest.
package imagegate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/matching"
	"github.com/wasmplane/wasmplane/core/dial"
	"github.com/wasmplane/wasmplane/plugins/apiobject"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	pointadmission "github.com/wasmplane/wasmplane/plugins/point/admission"
	"github.com/wasmplane/wasmplane/plugins/policies/kyverno"
	"github.com/wasmplane/wasmplane/plugins/policies/kyverno/imagepolicy"
	"github.com/wasmplane/wasmplane/plugins/policies/latest"
	"github.com/wasmplane/wasmplane/plugins/rights"
	"github.com/wasmplane/wasmplane/plugins/sign/evidence"
)

// Name of the admission plugin.
const Name = "KyvernoImages"

// SecretsNamespace has the Secrets that policies of the cluster name, as at Kyverno. Those of a namespace name its own.
const SecretsNamespace = "kyverno"

// Config is what a gate needs.
type Config struct {
	Objects    latest.Objects
	Namespaces matching.Namespaces
	Resources  admission.Resources
	// Rights holds policies against the rights of their writers.
	Rights *rights.Checker
	// Secrets reads the data of a Secret.
	Secrets func(ctx context.Context, namespace, name string) (map[string][]byte, error)
	// Operators connects where the cluster's policies name a registry, Tenants everywhere else.
	Operators, Tenants http.RoundTripper
	// Roots is the operator's root of trust; nil = there is none.
	Roots  imagepolicy.Roots
	Logger *slog.Logger
}

// Gate is what these policies do in admission.
type Gate struct {
	cfg     Config
	world   imagepolicy.World
	current *latest.Latest[*state]
	lanes   lanes
}

// New makes a gate.
func New(cfg Config) *Gate {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	g := &Gate{cfg: cfg, current: latest.New(cfg.Objects, kinds(), all)}
	g.current.Counts = counts
	g.world = imagepolicy.World{
		Registries: g, Store: evidence.New(), Roots: cfg.Roots, Namespaces: cfg.Namespaces, Resources: cfg.Resources,
	}
	return g
}

// state is all that the gate goes by, as it was read.
type state struct {
	policies *matching.Index[*standing]
}

// standing is a policy with whoever wrote it.
type standing struct {
	*imagepolicy.Policy
	writer *manifest.Entry
}

func kinds() (out []schema.GroupVersionKind) {
	for _, kind := range append(kyverno.ImageKinds(), kyverno.ExceptionKind) {
		out = append(out, schema.GroupVersionKind{Group: kyverno.Group, Version: kyverno.Versions()[0], Kind: kind})
	}
	return out
}

// counts says which objects there are for the gate: an exception ends with its time, and one that cannot be read has no effect.
func counts(u *unstructured.Unstructured) (counts bool, until time.Time) {
	if u.GetKind() != kyverno.ExceptionKind {
		return true, time.Time{}
	}
	e := exception(u)
	if e == nil {
		return false, time.Time{}
	}
	return e.Counts(time.Now())
}

// all reads the policies with their exceptions.
func all(objects []*unstructured.Unstructured, _ string) *state {
	var policies, exceptions []*unstructured.Unstructured
	for _, u := range objects {
		if u.GetKind() == kyverno.ExceptionKind {
			exceptions = append(exceptions, u)
		} else {
			policies = append(policies, u)
		}
	}
	list := make([]*standing, len(policies))
	for i, u := range policies {
		list[i] = read(u, exceptions)
	}
	return &state{matching.NewIndex(list, (*standing).Criteria)}
}

// exception reads an exception that somebody wrote; nil for others, which have no effect.
func exception(u *unstructured.Unstructured) *kyverno.Exception {
	e, err := kyverno.ReadException(u.Object)
	if err != nil || u.GetAnnotations()[apiobject.WriterAnnotation] == "" {
		return nil
	}
	return e
}

var errNobody = errors.New("nobody knows who wrote the policy: write it again")

// read reads a policy. One that cannot be used stands in the way of what it is about.
func read(u *unstructured.Unstructured, exceptions []*unstructured.Unstructured) *standing {
	var about []*kyverno.Exception
	for _, o := range exceptions {
		if e := exception(o); e != nil && e.About(u.GetKind(), u.GetNamespace(), u.GetName(), time.Now()) {
			about = append(about, e)
		}
	}
	p, err := imagepolicy.Read(u.Object, about...)
	if err == nil && u.GetAnnotations()[apiobject.WriterAnnotation] == "" {
		err = errNobody
	}
	if err != nil {
		p = imagepolicy.Broken(u.Object, err)
	}
	p.UID, p.Generation = string(u.GetUID()), u.GetGeneration()
	return &standing{p, apiobject.Bare(u)}
}

// Name implements admission.Plugin.
func (*Gate) Name() string { return Name }

// Handles implements admission.Plugin.
func (*Gate) Handles(r *admission.Request) bool { return Judged(r) }

// Judged says whether Kyverno's policies are asked about such a request at all.
func Judged(r *admission.Request) bool {
	return r.Resource.Group != kyverno.Group && r.Resource.Group != manifest.APIGroup && !matching.IsConfiguration(r) &&
		!matching.IsReview(r) &&
		!pointadmission.OutOfReach(r)
}

// reaches says whether a policy may be asked about such a request at all.
func (s *standing) reaches(r *admission.Request) bool {
	if !s.Admission {
		return false
	}
	return !s.Namespaced() || Within(s.Namespace, r)
}

// Within says whether the policies of a namespace are asked about such a request.
func Within(namespace string, r *admission.Request) bool {
	return r.Namespace == namespace && !pointadmission.OfTheSystem(r) &&
		pointadmission.TenantReach(r.Resource.Group, r.Resource.Resource, r.Subresource)
}

// askingKey is under which a context has for whom something is looked up.
type askingKey struct{}

// asking is a policy, for its rights, and the namespace of the request that it judges.
type asking struct {
	policy    *standing
	namespace string
}

func withAsking(ctx context.Context, p *standing, r *admission.Request) context.Context {
	return context.WithValue(ctx, askingKey{}, asking{p, r.Namespace})
}

// Mutate implements admission.Mutator: tags become digests.
func (g *Gate) Mutate(ctx context.Context, r *admission.Request) error {
	s, err := g.current.Get(ctx)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	for _, p := range s.policies.For(r, g.cfg.Resources) {
		if !p.reaches(r) {
			continue
		}
		if err := g.pin(withAsking(ctx, p, r), p, r); err != nil {
			return err
		}
	}
	return nil
}

func (g *Gate) pin(ctx context.Context, p *standing, r *admission.Request) error {
	changed, err := p.Pin(ctx, &g.world, r)
	if err != nil {
		return g.failed(ctx, p, r, err)
	}
	if changed == nil {
		return nil
	}
	if err := pointadmission.MayChange(ctx, g.cfg.Rights, p.writer, r); err != nil {
		return admission.Forbidden(r, fmt.Errorf("%s %q: %w", p.Kind, p.Key(), err))
	}
	after, err := r.Object.Codec().FromTree(changed)
	if err != nil {
		return admission.Forbidden(r, fmt.Errorf("%s %q: with digests it is no %s: %w", p.Kind, p.Key(), r.Kind.Kind, err))
	}
	r.Object.SetVersioned(after)
	r.ChangedFor(p.writer.Writer)
	return nil
}

// Validate implements admission.Validator.
func (g *Gate) Validate(ctx context.Context, r *admission.Request) error {
	s, err := g.current.Get(ctx)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	verified := &imagepolicy.Verified{}
	outcomes := map[*standing]*imagepolicy.Outcome{}
	policies := s.policies.For(r, g.cfg.Resources)
	for _, p := range policies {
		if p.reaches(r) {
			outcomes[p] = g.judge(ctx, p, r, verified)
		}
	}
	for _, p := range policies {
		o := outcomes[p]
		if o == nil || !o.Asked {
			continue
		}
		if o.Err != nil {
			if err := g.failed(ctx, p, r, o.Err); err != nil {
				return err
			}
			continue
		}
		for key, value := range o.Annotations {
			r.Annotate(p.Key()+"/"+key, value)
		}
		if against := against(o, verified); against != "" {
			if err := p.act(r, against); err != nil {
				return err
			}
		}
	}
	return nil
}

func against(o *imagepolicy.Outcome, verified *imagepolicy.Verified) string {
	if o.Against != "" {
		return o.Against
	}
	return o.Required(verified)
}

func (g *Gate) judge(ctx context.Context, p *standing, r *admission.Request, verified *imagepolicy.Verified) *imagepolicy.Outcome {
	return p.Judge(withAsking(ctx, p, r), &g.world, r, verified)
}

// act does what a policy's actions say. The error refuses the request.
func (s *standing) act(r *admission.Request, text string) error {
	text = fmt.Sprintf("%s '%s' denied request: %s", s.Kind, s.Key(), text)
	if slices.Contains(s.Actions, admissionregistrationv1.Warn) {
		r.Warn(text)
	}
	if slices.Contains(s.Actions, admissionregistrationv1.Audit) {
		r.Annotate(Name+"/"+s.Key(), text)
	}
	if slices.Contains(s.Actions, admissionregistrationv1.Deny) {
		return admission.Forbidden(r, errors.New(text))
	}
	return nil
}

// failed does what the failure policy says of a policy that could not be evaluated.
func (g *Gate) failed(ctx context.Context, p *standing, r *admission.Request, err error) error {
	g.cfg.Logger.WarnContext(ctx, "a policy about images could not be evaluated", "kind", p.Kind, "policy", p.Key(), "resource",
		r.Resource.Resource,
		"namespace", r.Namespace, "name", r.Name, "error", err)
	if p.Ignore {
		return nil
	}
	return p.act(r, "it could not be evaluated, and its failurePolicy is Fail: "+told(err).Error())
}

// told leaves of an error what is about the image or the policy: not what answers where, with which words.
func told(err error) error {
	var refused *dial.RefusedError
	var large *dial.TooLargeError
	var answer *transport.Error
	var plain *evidence.PlainHTTPError
	var network interface{ Timeout() bool }
	image := about(err)
	switch {
	case errors.As(err, &refused):
		return errors.New(image + "its registry may not be connected to: it is at a private address, and the policy does not name it (by a glob of matchImageReferences, or in an expression; or egress forbids it)")
	case errors.As(err, &large):
		return fmt.Errorf("%sits registry answered with more than %d bytes", image, large.Limit)
	case errors.As(err, &plain):
		return errors.New(image + "its registry does not speak TLS: spec.credentials.allowInsecureRegistry lets it")
	case errors.As(err, &answer) && (answer.StatusCode == http.StatusUnauthorized || answer.StatusCode == http.StatusForbidden):
		return errors.New(image + "its registry wants other credentials (spec.credentials.secrets), or has no such image")
	case errors.As(err, &answer) && answer.StatusCode == http.StatusNotFound:
		return errors.New(image + "its registry has no such image")
	case errors.As(err, &answer):
		return fmt.Errorf("%sits registry answered with %s", image, http.StatusText(answer.StatusCode))
	case errors.Is(err, context.DeadlineExceeded):
		return errors.New(image + "its registry did not answer in time")
	case errors.As(err, &network):
		return errors.New(image + "its registry cannot be reached")
	}
	return err
}

// about is what an error says of which image it is about.
func about(err error) string {
	text := err.Error()
	for _, end := range []string{": ", " cannot be looked up: "} {
		if at := strings.Index(text, "image "); at >= 0 {
			if length := strings.Index(text[at:], end); length > 0 && length < 600 && !strings.Contains(text[at+len("image "):at+length], " ") {
				return text[at:at+length] + ": "
			}
		}
	}
	return ""
}

// reach is how the registry of an image of a namespace's pods is reached. named: a policy of the cluster names it.
func (g *Gate) reach(namespace string, named bool) evidence.Registry {
	if named {
		return evidence.Registry{
			Transport: g.cfg.Operators, Key: "named",
			Turn: func(ctx context.Context) (func(), error) { // of one lane for all, of which no namespace has everything
				return g.lanes.both(ctx, "named for "+namespace, namedOfNamespace, "named", namedLookups)
			},
		}
	}
	return evidence.Registry{
		Transport: g.cfg.Tenants, Key: "public",
		Turn: func(ctx context.Context) (func(), error) {
			return g.lanes.take(ctx, "namespace "+namespace, namespaceLookups)
		},
	}
}

// Data is what a registry says of an image of a namespace's pods, without credentials. named: a policy of the cluster names the registry.
func (g *Gate) Data(ctx context.Context, namespace string, named bool, image string) (map[string]any, error) {
	out, err := imagepolicy.Data(ctx, g.world.Store, image, g.reach(namespace, named))
	if err != nil {
		return nil, told(err)
	}
	return out, nil
}

// Registry implements imagepolicy.Registries.
func (g *Gate) Registry(ctx context.Context, p *imagepolicy.Policy, repository name.Repository, named bool) (evidence.Registry, error) {
	a, _ := ctx.Value(askingKey{}).(asking)
	s := a.policy
	r := g.reach(a.namespace, named && !p.Namespaced())
	r.PlainHTTP = p.PlainHTTP
	if p.PlainHTTP {
		r.Key += " plain"
	}
	if s == nil || len(p.Secrets) == 0 {
		return r, nil
	}
	namespace := SecretsNamespace
	if p.Namespaced() {
		namespace = p.Namespace
	}
	for _, secret := range p.Secrets {
		if err := g.cfg.Rights.Act(ctx, s.writer, authorizationv1.ResourceAttributes{
			Verb: "get", Resource: "secrets", Namespace: namespace, Name: secret,
		}); err != nil {
			return r, fmt.Errorf("spec.credentials.secrets: %w", err)
		}
		data, err := g.cfg.Secrets(ctx, namespace, secret)
		if err != nil {
			return r, fmt.Errorf("spec.credentials.secrets: %s/%s: %w", namespace, secret, err)
		}
		auth, key, ok, err := evidence.Credentials(data, repository.RegistryStr(), named)
		if err != nil {
			return r, fmt.Errorf("spec.credentials.secrets: %s/%s: %w", namespace, secret, err)
		}
		if ok {
			r.Auth, r.Key = auth, r.Key+" "+key
			return r, nil
		}
	}
	return r, nil
}
