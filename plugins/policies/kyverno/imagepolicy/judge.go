// SPDX-License-Identifier: Apache-2.0

package imagepolicy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/go-containerregistry/pkg/name"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission/plugin/cel"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/matching"
	"github.com/wasmplane/wasmplane/plugins/policies/kyverno/celpolicy"
	"github.com/wasmplane/wasmplane/plugins/sign/evidence"
)

// Bounds of one evaluation.
const (
	mostImages  = 128 // of one object
	mostReasons = 8   // that a refusal tells
)

// Registries say how registries are reached on behalf of a policy.
type Registries interface {
	// Registry that has an image. named says that the policy itself names it, and not only the object.
	Registry(ctx context.Context, p *Policy, repository name.Repository, named bool) (evidence.Registry, error)
}

// World is what policies look at beside a request.
type World struct {
	Registries Registries
	Store      *evidence.Store
	Roots      Roots
	Namespaces matching.Namespaces
	Resources  admission.Resources
}

// Verified are the images of one request that were verified, by whichever policy: what is required of an image may be
// another policy's work.
type Verified struct {
	mu     sync.Mutex
	images map[string]bool
}

// record remembers what came of a verification. What was verified once stays so.
func (v *Verified) record(image string, ok bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.images == nil {
		v.images = map[string]bool{}
	}
	v.images[image] = v.images[image] || ok
}

func (v *Verified) has(image string) (verified, tried bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	verified, tried = v.images[image]
	return verified, tried
}

// Outcome is what a policy says of a request.
type Outcome struct {
	// Asked: the policy is about the request.
	Asked bool
	// Against says what the policy has against it; "" = nothing, so far: see Required.
	Against string
	// Err is why it could not be evaluated.
	Err error
	// Annotations are for the audit log.
	Annotations map[string]string

	policy *Policy
	images []string
	why    []string
}

// session is the evaluation of a policy for one request.
type session struct {
	ctx      context.Context
	w        *World
	p        *Policy
	v        *variant
	eval     *celpolicy.Evaluation
	verified *Verified
	why      []string               // why signatures do not count
	payloads map[string][]any       // of attestations that were verified
	digests  map[string]name.Digest // of images
	failed   error                  // why something could not be looked up
}

// find is the variant that is about a request, and the request as that names it.
func (p *Policy) find(ctx context.Context, w *World, r *admission.Request) (*variant, *matching.View, error) {
	if p.Namespaced() && r.Namespace != p.Namespace {
		return nil, nil, nil
	}
	for _, v := range p.variants {
		target, ok, err := v.criteria.Match(ctx, r, w.Namespaces, w.Resources)
		if err != nil {
			return nil, nil, err
		}
		if ok {
			view, err := target.In(ctx, r)
			return v, view, err
		}
	}
	return nil, nil, nil
}

// Criteria are those of the policy's variants, of which one has to match.
func (p *Policy) Criteria() (out []*matching.Criteria) {
	for _, v := range p.variants {
		out = append(out, &v.criteria)
	}
	return out
}

// begin begins to evaluate a policy. It is nil where the policy is not about the request.
func (p *Policy) begin(ctx context.Context, w *World, r *admission.Request, verified *Verified) (*session, *matching.View, error) {
	v, view, err := p.find(ctx, w, r)
	if v == nil || err != nil {
		return nil, nil, err
	}
	if p.broken != nil {
		return nil, nil, p.broken
	}
	data, err := requestData(ctx, w, r, view)
	if err != nil {
		return nil, nil, err
	}
	s := &session{ctx: ctx, w: w, p: p, v: v, verified: verified, payloads: map[string][]any{}, digests: map[string]name.Digest{}}
	data[sessionVariable] = s
	data[attestationsVariable] = named(p.spec.Attestations, func(a attestation) string { return a.Name })
	data[attestorsVariable] = named(p.spec.Attestors, func(a attestor) string { return a.Name })
	data[imagesVariable] = map[string][]string{}
	s.eval = v.policy.Evaluate(ctx, data)
	ok, err := s.eval.Matches(ctx)
	if err != nil || !ok {
		return nil, nil, err
	}
	for _, conditions := range v.exception {
		excepted, err := s.eval.All(ctx, conditions)
		if err != nil {
			return nil, nil, fmt.Errorf("an exception: %w", err)
		}
		if excepted {
			return nil, nil, nil
		}
	}
	return s, view, nil
}

func named[T any](list []T, name func(T) string) map[string]string {
	out := map[string]string{}
	for _, one := range list {
		out[name(one)] = name(one)
	}
	return out
}

// requestData are the variables of a request.
func requestData(ctx context.Context, w *World, r *admission.Request, view *matching.View) (map[string]any, error) {
	attributes, err := view.CEL(r)
	if err != nil {
		return nil, err
	}
	review := cel.CreateAdmissionRequest(attributes.Attributes, metav1.GroupVersionResource(r.Resource), metav1.GroupVersionKind(view.Kind))
	request, err := runtime.DefaultUnstructuredConverter.ToUnstructured(review)
	if err != nil {
		return nil, err
	}
	data := map[string]any{celpolicy.Request: request, celpolicy.Object: nil, celpolicy.OldObject: nil, celpolicy.Namespace: nil}
	if view.Object != nil {
		if data[celpolicy.Object], err = view.Object.Tree(); err != nil {
			return nil, err
		}
	}
	if view.Old != nil {
		if data[celpolicy.OldObject], err = view.Old.Tree(); err != nil {
			return nil, err
		}
	}
	if r.Namespace != "" && !(r.Kind.Group == "" && r.Kind.Kind == "Namespace") {
		ns, err := w.Namespaces.Get(ctx, r.Namespace)
		if err != nil {
			return nil, err
		}
		if data[celpolicy.Namespace], err = namespaceTree(ns); err != nil {
			return nil, err
		}
	}
	return data, nil
}

func namespaceTree(ns *corev1.Namespace) (map[string]any, error) {
	return runtime.DefaultUnstructuredConverter.ToUnstructured(cel.CreateNamespaceObject(ns))
}

// Judge says what the policy has against a request. What it requires of all images besides Required says, when all policies
// were asked.
func (p *Policy) Judge(ctx context.Context, w *World, r *admission.Request, verified *Verified) *Outcome {
	ctx, cancel := p.bounded(ctx)
	defer cancel()
	s, view, err := p.begin(ctx, w, r, verified)
	out := &Outcome{Asked: s != nil || err != nil, policy: p, Err: err}
	if s == nil {
		return out
	}
	out.Against, out.Err = s.judge(r, view, out)
	if out.Err == nil && out.Against == "" {
		out.Annotations, out.Err = s.eval.Annotations(ctx)
	}
	if s.failed != nil && (out.Against != "" || out.Err != nil) { // the reason is not the image's
		out.Against, out.Err = "", s.failed
	}
	out.why = s.why
	return out
}

// bounded ends what takes too long.
func (p *Policy) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, p.timeout, fmt.Errorf("it took longer than %s (spec.webhookConfiguration.timeoutSeconds): %w",
		p.timeout, context.DeadlineExceeded))
}

func (s *session) judge(r *admission.Request, view *matching.View, out *Outcome) (against string, err error) {
	images, all, err := s.images(r, view)
	if err != nil {
		return "", err
	}
	out.images = all
	if on(s.p.spec.ValidationConfigurations.VerifyDigest) {
		for _, image := range all {
			ref, err := evidence.Parse(image, s.p.PlainHTTP)
			if err != nil {
				return "", err
			}
			if _, pinned := ref.(name.Digest); !pinned {
				return fmt.Sprintf("image %s has no digest (spec.validationConfigurations.verifyDigest)", image), nil
			}
		}
	}
	s.eval.Set(imagesVariable, images)
	failed, err := s.eval.Validate(s.ctx)
	if err != nil || failed == "" {
		return "", err
	}
	return failed + s.reasons(), nil
}

// reasons says which images' signatures do not count, and why.
func (s *session) reasons() string {
	if len(s.why) == 0 {
		return ""
	}
	text := ": " + strings.Join(s.why[:min(len(s.why), mostReasons)], "; ")
	if more := len(s.why) - mostReasons; more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return text
}

// Required says which of the images that the policy is about nobody verified, though one has to. It is asked when
// all policies have judged the request.
func (o *Outcome) Required(verified *Verified) string {
	if !o.Asked || o.Err != nil || o.Against != "" || !on(o.policy.spec.ValidationConfigurations.Required) {
		return ""
	}
	for _, image := range o.images {
		ok, tried := verified.has(image)
		switch {
		case ok:
		case tried:
			return "image " + image + " failed the verification of its signatures and attestations" + (&session{why: o.why}).reasons()
		default:
			return "image " + image + " was not verified by any policy (spec.validationConfigurations.required)"
		}
	}
	return ""
}

// about says whether the policy is about an image, however that is written.
func (s *session) about(image string) (bool, error) {
	if len(s.p.patterns) == 0 {
		return true, nil
	}
	for _, one := range spellings(image) {
		if about, err := s.matches(one); about || err != nil {
			return about, err
		}
	}
	return false, nil
}

// spellings are an image as it is written, and by the name of its registry in small letters, without the port that is
// meant anyway, and with Docker Hub's name where none is written: nodes pull the same.
func spellings(image string) []string {
	ref, err := name.ParseReference(image)
	if err != nil {
		return []string{image}
	}
	host := strings.TrimSuffix(strings.ToLower(ref.Context().RegistryStr()), ":443")
	switch host {
	case "docker.io": // with a port it is a registry of its own
		return []string{image}
	case name.DefaultRegistry:
		host = "docker.io"
	}
	rest := image[strings.LastIndexByte(image, '/')+1:]
	if at := strings.IndexAny(rest, ":@"); at >= 0 {
		rest = rest[at:] // the tag and the digest
	} else {
		rest = ""
	}
	if full := host + "/" + ref.Context().RepositoryStr() + rest; full != image {
		return []string{image, full}
	}
	return []string{image}
}

func (s *session) matches(image string) (bool, error) {
	for _, one := range s.p.patterns {
		if one.glob != nil {
			if one.glob.MatchString(image) {
				return true, nil
			}
			continue
		}
		s.eval.Set(refVariable, image)
		ok, err := s.eval.All(s.ctx, []*celpolicy.Program{one.program})
		if err != nil {
			return false, fmt.Errorf("spec.matchImageReferences: %w", err)
		}
		if ok {
			return true, nil
		}
	}
	return false, nil
}

// images are those of the object that the policy is about, by the list in which they stand, and all of them once.
func (s *session) images(r *admission.Request, view *matching.View) (by map[string][]string, all []string, err error) {
	by = map[string][]string{}
	add := func(list, image string) error {
		about, err := s.about(image)
		if err == nil && about {
			by[list] = append(by[list], image)
			if !slices.Contains(all, image) {
				all = append(all, image)
			}
		}
		if len(all) > mostImages {
			err = fmt.Errorf("the object names more than %d images", mostImages)
		}
		return err
	}
	o := view.Object
	if o == nil {
		o = view.Old
	}
	if o != nil {
		tree, err := o.Tree()
		if err != nil {
			return nil, nil, err
		}
		if fields, known := containersOf(r, tree); known {
			for _, list := range containerLists {
				by[list] = []string{}
				for _, c := range containers(fields, list) {
					image, _ := c["image"].(string)
					if err := add(list, image); err != nil {
						return nil, nil, err
					}
				}
			}
		}
	}
	for list, program := range s.v.extract {
		by[list] = []string{}
		out, err := s.eval.Run(s.ctx, program)
		if err != nil {
			return nil, nil, fmt.Errorf("spec.images %s: %w", list, err)
		}
		found, err := celpolicy.Strings(out)
		if err != nil {
			return nil, nil, fmt.Errorf("spec.images %s: %w", list, err)
		}
		for _, image := range found {
			if err := add(list, image); err != nil {
				return nil, nil, err
			}
		}
	}
	return by, all, nil
}

// registry is how an image's registry is reached.
func (s *session) registry(repository name.Repository) (evidence.Registry, error) {
	named := slices.ContainsFunc(s.p.patterns, func(one pattern) bool {
		return one.registry != "" && one.registry == repository.RegistryStr()
	})
	return s.w.Registries.Registry(s.ctx, s.p, repository, named)
}

// open is the digest of an image, and how its registry is reached.
func (s *session) open(image string) (name.Digest, evidence.Registry, error) {
	reference, err := evidence.Parse(image, s.p.PlainHTTP)
	if err != nil {
		return name.Digest{}, evidence.Registry{}, err
	}
	r, err := s.registry(reference.Context())
	if err != nil {
		return name.Digest{}, r, err
	}
	if d, ok := s.digests[image]; ok { // once for each request, wherever the tag goes
		return d, r, nil
	}
	d, err := s.w.Store.Resolve(s.ctx, image, r)
	if err == nil {
		s.digests[image] = d
	}
	return d, r, err
}

// broken remembers that something could not be looked up, which is no fault of the image.
func (s *session) broken(err error) ref.Val {
	if s.failed == nil {
		s.failed = err
	}
	return types.WrapErr(err)
}

// named arguments.
func texts(values []ref.Val, n int) ([]string, error) {
	var out []string
	for _, v := range values[:n] {
		text, ok := v.Value().(string)
		if !ok {
			return nil, fmt.Errorf("expected a string, found a %s", v.Type().TypeName())
		}
		out = append(out, text)
	}
	return out, nil
}

// evidenceOf is what there is about an image for a signer.
func (s *session) evidenceOf(image string, by *signer) (name.Digest, *evidence.Found, error) {
	d, r, err := s.open(image)
	if err != nil {
		return d, nil, err
	}
	place := name.Repository{}
	if by.spec.Source != nil && by.spec.Source.Repository != "" {
		var how []name.Option
		if s.p.PlainHTTP {
			how = append(how, name.Insecure)
		}
		if place, err = name.NewRepository(by.spec.Source.Repository, how...); err != nil {
			return d, nil, err
		}
		if r, err = s.w.Registries.Registry(s.ctx, s.p, place, true); err != nil { // the policy names it
			return d, nil, err
		}
	}
	found, err := s.w.Store.Of(s.ctx, d, place, r)
	return d, found, err
}

// verifySignatures counts the attestors that signed an image.
func (s *session) verifySignatures(args []ref.Val) ref.Val {
	in, err := texts(args, 1)
	if err != nil {
		return types.WrapErr(err)
	}
	return s.count(in[0], args[1], func(by *signer) error {
		d, found, err := s.evidenceOf(in[0], by)
		if err != nil {
			return &lookupError{err}
		}
		signer, err := by.signer(s)
		if err != nil {
			return err
		}
		return signer.Image(d.DigestStr(), found)
	})
}

// lookupError is of what could not be looked up.
type lookupError struct{ err error }

func (e *lookupError) Error() string { return e.err.Error() }

func (e *lookupError) Unwrap() error { return e.err }

// count counts the attestors who verified an image.
func (s *session) count(image string, list ref.Val, verify func(*signer) error) ref.Val {
	about, err := s.about(image)
	if err != nil {
		return types.WrapErr(err)
	}
	if !about {
		return types.Int(0)
	}
	names, err := celpolicy.Strings(list)
	if err != nil {
		return types.NewErr("attestors: %v", err)
	}
	n := 0
	for _, one := range names {
		by := s.p.attestors[one]
		if by == nil {
			return types.NewErr("the policy has no attestor %q", one)
		}
		err := verify(by)
		var look *lookupError
		if errors.As(err, &look) {
			return s.broken(fmt.Errorf("image %s: %w", image, err))
		}
		if err == nil {
			n++
			continue
		}
		if s.ctx.Err() != nil {
			return s.broken(fmt.Errorf("image %s: %w", image, context.Cause(s.ctx)))
		}
		if text := fmt.Sprintf("image %s, attestor %s: %v", image, one, err); !slices.Contains(s.why, text) {
			s.why = append(s.why, text)
		}
	}
	if len(names) > 0 {
		s.verified.record(image, n > 0)
	}
	return types.Int(n)
}

// verifyAttestations counts the attestors that attested something of an image, and keeps what they said.
func (s *session) verifyAttestations(args []ref.Val) ref.Val {
	in, err := texts(args, 2)
	if err != nil {
		return types.WrapErr(err)
	}
	a := s.attestation(in[1])
	if a == nil {
		return types.NewErr("the policy has no attestation %q", in[1])
	}
	return s.count(in[0], args[2], func(by *signer) error {
		d, found, err := s.evidenceOf(in[0], by)
		if err != nil {
			return &lookupError{err}
		}
		signer, err := by.signer(s)
		if err != nil {
			return err
		}
		statements, err := signer.Attested(d.DigestStr(), a.InToto.Type, found)
		if err != nil {
			return fmt.Errorf("attestation %s: %w", a.Name, err)
		}
		return s.keep(in[0]+" "+a.Name, statements)
	})
}

func (s *session) attestation(name string) *attestation {
	for i := range s.p.spec.Attestations {
		if s.p.spec.Attestations[i].Name == name {
			return &s.p.spec.Attestations[i]
		}
	}
	return nil
}

// payload is what was attested of an image: the predicate of the statement that was verified.
func (s *session) payload(args []ref.Val) ref.Val {
	in, err := texts(args, 2)
	if err != nil {
		return types.WrapErr(err)
	}
	list := s.payloads[in[0]+" "+in[1]]
	if len(list) == 0 {
		return types.NewErr("attestation %q of image %s is not verified: call verifyAttestationSignatures first", in[1], in[0])
	}
	return types.DefaultTypeAdapter.NativeToValue(list[0])
}

// imageData is what a registry says of an image.
func (s *session) imageData(args []ref.Val) ref.Val {
	in, err := texts(args, 1)
	if err != nil {
		return types.WrapErr(err)
	}
	d, r, err := s.open(in[0])
	if err != nil {
		return s.broken(fmt.Errorf("image %s: %w", in[0], err))
	}
	out, err := dataOf(s.ctx, s.w.Store, in[0], d, r, s.p.PlainHTTP)
	if err != nil {
		return s.broken(fmt.Errorf("image %s: %w", in[0], err))
	}
	return types.DefaultTypeAdapter.NativeToValue(out)
}

// Data is what a registry says of an image.
func Data(ctx context.Context, store *evidence.Store, image string, r evidence.Registry) (map[string]any, error) {
	d, err := store.Resolve(ctx, image, r)
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", image, err)
	}
	out, err := dataOf(ctx, store, image, d, r, r.PlainHTTP)
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", image, err)
	}
	return out, nil
}

func dataOf(ctx context.Context, store *evidence.Store, image string, d name.Digest, r evidence.Registry, plainHTTP bool,
) (map[string]any, error) {
	out, err := store.Data(ctx, d, r)
	if err != nil {
		return nil, err
	}
	reference, err := evidence.Parse(image, plainHTTP)
	if err != nil {
		return nil, err
	}
	out["image"], out["registry"], out["repository"] = image, reference.Context().RegistryStr(), reference.Context().RepositoryStr()
	out["identifier"], out["digest"], out["resolvedImage"] = reference.Identifier(), d.DigestStr(), d.Name()
	if t, tagged := reference.(name.Tag); tagged {
		out["tag"], out["resolvedImage"] = t.TagStr(), t.Name()+"@"+d.DigestStr()
	}
	return out, nil
}
