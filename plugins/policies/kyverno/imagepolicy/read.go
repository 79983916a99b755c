// SPDX-License-Identifier: Apache-2.0

// Package imagepolicy reads and evaluates Kyverno's ImageValidatingPolicy: which images an object may name, by who signed them
// and what was attested of them.
//
// A policy looks at the images that an object's pods run, and at those that its own expressions find. First their
// tags are turned into digests; then what stands in the object, a digest, is what is verified, so that a tag
// that moves meanwhile changes nothing. Registries are reached through the caller's Registries, and what is
// found there about a digest is shared by all policies.
//
// A field that is not known, or that cannot be kept, is an error that names it.
package imagepolicy

import (
	"crypto"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/go-containerregistry/pkg/name"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/admission/matching"
	"github.com/wasmplane/wasmplane/plugins/policies/kyverno"
	"github.com/wasmplane/wasmplane/plugins/policies/kyverno/celpolicy"
	"github.com/wasmplane/wasmplane/plugins/policies/tree"
	"github.com/wasmplane/wasmplane/plugins/sign"
	"github.com/wasmplane/wasmplane/plugins/sign/trust"
)

// object is a policy as it is written.
type object struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Metadata   tree.Metadata   `json:"metadata"`
	Spec       spec            `json:"spec"`
	Status     json.RawMessage `json:"status"`
}

type enabled struct {
	Enabled *bool `json:"enabled"`
}

func (e *enabled) on() bool { return e == nil || e.Enabled == nil || *e.Enabled }

type spec struct {
	MatchConstraints     *admissionregistrationv1.MatchResources    `json:"matchConstraints"`
	MatchConditions      []admissionregistrationv1.MatchCondition   `json:"matchConditions"`
	Variables            []admissionregistrationv1.Variable         `json:"variables"`
	FailurePolicy        *admissionregistrationv1.FailurePolicyType `json:"failurePolicy"`
	Validations          []admissionregistrationv1.Validation       `json:"validations"`
	ValidationActions    []admissionregistrationv1.ValidationAction `json:"validationActions"`
	AuditAnnotations     []admissionregistrationv1.AuditAnnotation  `json:"auditAnnotations"`
	WebhookConfiguration *struct {
		TimeoutSeconds *int32 `json:"timeoutSeconds"`
	} `json:"webhookConfiguration"`
	Autogen struct {
		PodControllers *struct {
			Controllers []string `json:"controllers"`
		} `json:"podControllers"`
	} `json:"autogen"`
	Evaluation struct {
		Mode       string   `json:"mode"`
		Admission  *enabled `json:"admission"`
		Background *enabled `json:"background"`
	} `json:"evaluation"`
	MatchImageReferences     []reference   `json:"matchImageReferences"`
	Images                   []extractor   `json:"images"`
	Attestors                []attestor    `json:"attestors"`
	Attestations             []attestation `json:"attestations"`
	ValidationConfigurations struct {
		MutateDigest *bool `json:"mutateDigest"`
		VerifyDigest *bool `json:"verifyDigest"`
		Required     *bool `json:"required"`
	} `json:"validationConfigurations"`
	Credentials *struct {
		AllowInsecureRegistry bool     `json:"allowInsecureRegistry"`
		Providers             []string `json:"providers"`
		Secrets               []string `json:"secrets"`
	} `json:"credentials"`
}

type reference struct {
	Glob       string `json:"glob"`
	Expression string `json:"expression"`
}

type extractor struct {
	Name       string `json:"name"`
	Expression string `json:"expression"`
}

type attestation struct {
	Name   string `json:"name"`
	InToto *struct {
		Type string `json:"type"`
	} `json:"intoto"`
	Referrer json.RawMessage `json:"referrer"`
}

// text is one that is written, or that an expression finds.
type text struct {
	Value      string `json:"value"`
	Expression string `json:"expression"`
}

type attestor struct {
	Name   string          `json:"name"`
	Cosign *cosign         `json:"cosign"`
	Notary json.RawMessage `json:"notary"`
}

type cosign struct {
	Key *struct {
		Data          string `json:"data"`
		Expression    string `json:"expression"`
		KMS           string `json:"kms"`
		HashAlgorithm string `json:"hashAlgorithm"`
	} `json:"key"`
	Keyless *struct {
		Identities []struct {
			Issuer            string `json:"issuer"`
			Subject           string `json:"subject"`
			IssuerRegExp      string `json:"issuerRegExp"`
			SubjectRegExp     string `json:"subjectRegExp"`
			SubjectExpression string `json:"subjectExpression"`
		} `json:"identities"`
		Roots                string            `json:"roots"`
		AdditionalExtensions map[string]string `json:"additionalExtensions"`
	} `json:"keyless"`
	Certificate *struct {
		Cert      *text `json:"cert"`
		CertChain *text `json:"certChain"`
	} `json:"certificate"`
	CTLog *struct {
		URL                string `json:"url"`
		RekorPubKey        string `json:"rekorPubKey"`
		CTLogPubKey        string `json:"ctLogPubKey"`
		TSACertChain       string `json:"tsaCertChain"`
		InsecureIgnoreTlog bool   `json:"insecureIgnoreTlog"`
		InsecureIgnoreSCT  bool   `json:"insecureIgnoreSCT"`
	} `json:"ctlog"`
	Source *struct {
		Repository  string          `json:"repository"`
		TagPrefix   string          `json:"tagPrefix"`
		PullSecrets json.RawMessage `json:"PullSecrets"`
	} `json:"source"`
	TUF         json.RawMessage   `json:"tuf"`
	TrustedRoot *text             `json:"trustedRoot"`
	Annotations map[string]string `json:"annotations"`
}

// Policy is a policy that has been read and compiled. It may be asked by many at once.
type Policy struct {
	Kind, Namespace, Name string
	// UID and Generation of its object.
	UID        string
	Generation int64
	// Admission: requests are judged. Background: stored objects are.
	Admission, Background bool
	// Actions are what a violation does, and Ignore says that what cannot be evaluated does nothing.
	Actions []admissionregistrationv1.ValidationAction
	Ignore  bool
	// Pins: tags are turned into digests.
	Pins bool
	// Secrets are those with the registries' credentials.
	Secrets []string
	// PlainHTTP: registries may be asked without TLS.
	PlainHTTP bool

	spec      *spec
	broken    error
	timeout   time.Duration
	variants  []*variant
	patterns  []pattern
	attestors map[string]*signer
}

// variant is the policy for some resources, compiled.
type variant struct {
	criteria  matching.Criteria
	match     *admissionregistrationv1.MatchResources
	policy    *celpolicy.Policy
	extract   map[string]*celpolicy.Program
	compiled  map[string]*celpolicy.Program // other expressions, by their text
	exception map[string][]*celpolicy.Program
}

// Bounds of a policy.
const (
	defaultTimeout = 10 * time.Second
	longestTimeout = 30 * time.Second
	mostAttestors  = 16
)

// hashes are those of signatures by keys.
var hashes = map[string]crypto.Hash{
	"": crypto.SHA256, "sha224": crypto.SHA224, "sha256": crypto.SHA256, "sha384": crypto.SHA384, "sha512": crypto.SHA512,
}

// Namespaced says whether the policy belongs to a namespace.
func (p *Policy) Namespaced() bool { return p.Kind == kyverno.NamespacedImage }

// Key names the policy among all.
func (p *Policy) Key() string {
	if p.Namespaced() {
		return p.Namespace + "/" + p.Name
	}
	return p.Name
}

// Matches are what it is about: what it names first, then the controllers of pods.
func (p *Policy) Matches() (out []*admissionregistrationv1.MatchResources) {
	for _, v := range p.variants {
		out = append(out, v.match)
	}
	return out
}

// Read reads and compiles a policy, as exceptions leave it.
func Read(policy map[string]any, exceptions ...*kyverno.Exception) (*Policy, error) {
	text, err := json.Marshal(policy)
	if err != nil {
		return nil, err
	}
	var o object
	if err := tree.Strict(text, &o, "policy"); err != nil {
		return nil, err
	}
	s := &o.Spec
	if err := o.check(); err != nil {
		return nil, err
	}
	p := &Policy{
		Kind: o.Kind, Namespace: o.Metadata.Namespace, Name: o.Metadata.Name, spec: s, Actions: s.ValidationActions,
		Admission: s.Evaluation.Admission.on(), Background: s.Evaluation.Background.on(),
		Ignore: s.FailurePolicy != nil && *s.FailurePolicy == admissionregistrationv1.Ignore,
		Pins:   on(s.ValidationConfigurations.MutateDigest), timeout: defaultTimeout, attestors: map[string]*signer{},
	}
	if len(p.Actions) == 0 {
		p.Actions = []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny}
	}
	if w := s.WebhookConfiguration; w != nil && w.TimeoutSeconds != nil && *w.TimeoutSeconds > 0 {
		p.timeout = min(time.Duration(*w.TimeoutSeconds)*time.Second, longestTimeout)
	}
	if c := s.Credentials; c != nil {
		p.Secrets, p.PlainHTTP = c.Secrets, c.AllowInsecureRegistry
	}
	return p, p.compile(exceptions)
}

// Broken stands for a policy that cannot be used: what it is about, as far as that can be read, cannot be evaluated.
func Broken(policy map[string]any, why error) *Policy {
	var o struct {
		Kind     string        `json:"kind"`
		Metadata tree.Metadata `json:"metadata"`
		Spec     struct {
			MatchConstraints *admissionregistrationv1.MatchResources    `json:"matchConstraints"`
			FailurePolicy    *admissionregistrationv1.FailurePolicyType `json:"failurePolicy"`
		} `json:"spec"`
	}
	text, err := json.Marshal(policy)
	if err == nil {
		err = json.Unmarshal(text, &o)
	}
	m := o.Spec.MatchConstraints
	if err != nil || m == nil { // it may be about anything that runs
		m = &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{
			RuleWithOperations: admissionregistrationv1.RuleWithOperations{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create, admissionregistrationv1.Update},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
			},
		}}}
	}
	p := &Policy{
		Kind: o.Kind, Namespace: o.Metadata.Namespace, Name: o.Metadata.Name, spec: &spec{MatchConstraints: m}, broken: why, Admission: true,
		Actions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny}, timeout: defaultTimeout,
		Ignore: o.Spec.FailurePolicy != nil && *o.Spec.FailurePolicy == admissionregistrationv1.Ignore,
	}
	for _, v := range kyverno.Variants(p.inNamespace(), nil) {
		p.variants = append(p.variants, &variant{match: v.Match(), criteria: matching.ForPolicy(withSelectors(v.Match()))})
	}
	return p
}

func on(b *bool) bool { return b == nil || *b }

// check refuses what cannot be kept.
func (o *object) check() error {
	s := &o.Spec
	var errs []error
	refuse := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	refuse(!slices.Contains(kyverno.ImageKinds(), o.Kind), "kind: expected one of %q, found %q", kyverno.ImageKinds(), o.Kind)
	refuse(o.Metadata.Name == "", "metadata.name: it is missing")
	refuse(o.Metadata.Namespace == "" && o.Kind == kyverno.NamespacedImage, "metadata.namespace: a %s belongs to a namespace", o.Kind)
	refuse(s.MatchConstraints == nil, "spec.matchConstraints: it is missing")
	refuse(s.Evaluation.Mode != "" && s.Evaluation.Mode != "Kubernetes",
		"spec.evaluation.mode: %s: only requests of Kubernetes are judged here", s.Evaluation.Mode)
	refuse(len(s.Validations) == 0, "spec.validations: there are none")
	refuse(len(s.Attestors) > mostAttestors, "spec.attestors: there are %d, at most %d are known", len(s.Attestors), mostAttestors)
	seen := map[string]bool{}
	for i := range s.Attestors {
		a := &s.Attestors[i]
		at := fmt.Sprintf("spec.attestors[%d]", i)
		refuse(a.Name == "" || seen["attestor "+a.Name], "%s.name: it is missing, or another attestor has it", at)
		seen["attestor "+a.Name] = true
		refuse(given(a.Notary), "%s.notary: signatures of Notary are not known here, those of cosign are", at)
		refuse(!given(a.Notary) && a.Cosign == nil, "%s.cosign: it is missing", at)
		if a.Cosign != nil {
			errs = append(errs, a.Cosign.check(at+".cosign"))
		}
	}
	for i, a := range s.Attestations {
		at := fmt.Sprintf("spec.attestations[%d]", i)
		refuse(a.Name == "" || seen["attestation "+a.Name], "%s.name: it is missing, or another attestation has it", at)
		seen["attestation "+a.Name] = true
		refuse(given(a.Referrer), "%s.referrer: only Notary signs these, which is not known here: use intoto", at)
		refuse(!given(a.Referrer) && (a.InToto == nil || a.InToto.Type == ""), "%s.intoto.type: it is missing", at)
	}
	for i, r := range s.MatchImageReferences {
		refuse((r.Glob == "") == (r.Expression == ""), "spec.matchImageReferences[%d]: expected either glob or expression", i)
	}
	for i, e := range s.Images {
		refuse(e.Name == "" || e.Expression == "", "spec.images[%d]: name and expression are needed", i)
	}
	if c := s.Credentials; c != nil {
		for _, p := range c.Providers {
			refuse(p != "default", "spec.credentials.providers: %s: credentials of clouds are not known here: name secrets", p)
		}
	}
	return errors.Join(errs...)
}

func given(raw json.RawMessage) bool { return len(raw) > 0 && string(raw) != "null" }

func (c *cosign) check(at string) error {
	var errs []error
	refuse := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf(at+format, args...))
		}
	}
	n := 0
	if k := c.Key; k != nil {
		n++
		refuse(k.KMS != "", ".key.kms: keys of clouds are not known here: write the public key into data")
		refuse(k.KMS == "" && (k.Data == "") == (k.Expression == ""), ".key: expected either data or expression")
		_, known := hashes[k.HashAlgorithm]
		refuse(!known, ".key.hashAlgorithm: expected sha224, sha256, sha384 or sha512, found %q", k.HashAlgorithm)
		if k.Data != "" {
			_, err := sign.ParsePublicKeys([]byte(k.Data))
			refuse(err != nil, ".key.data: %v", err)
		}
	}
	if k := c.Keyless; k != nil {
		n++
		refuse(len(k.AdditionalExtensions) > 0, ".keyless.additionalExtensions: extensions of certificates are not looked at here")
		refuse(len(k.Identities) == 0, ".keyless.identities: there are none, so that everybody's signature would count")
		for i, id := range k.Identities {
			refuse(id.SubjectExpression != "", ".keyless.identities[%d].subjectExpression: it is not known here: use subject or subjectRegExp", i)
			err := trust.Identity{Issuer: id.Issuer, IssuerRegExp: id.IssuerRegExp, Subject: id.Subject, SubjectRegExp: id.SubjectRegExp}.Check()
			refuse(err != nil && id.SubjectExpression == "", ".keyless.identities[%d]: %v", i, err)
		}
	}
	if k := c.Certificate; k != nil {
		n++
		refuse(k.Cert == nil || k.Cert.Value == "" && k.Cert.Expression == "", ".certificate.cert: it is missing")
	}
	refuse(n != 1, ": expected one of key, keyless and certificate, found %d of them", n)
	refuse(given(c.TUF), ".tuf: no root of trust is fetched here: write it into trustedRoot.value, or name its file in the configuration (sigstore.trustedRoot)")
	if s := c.Source; s != nil {
		refuse(given(s.PullSecrets) && string(s.PullSecrets) != "[]", ".source.PullSecrets: name the Secrets in spec.credentials.secrets")
		refuse(s.TagPrefix != "", ".source.tagPrefix: it is not known here")
		if s.Repository != "" {
			_, err := name.NewRepository(s.Repository)
			refuse(err != nil, ".source.repository: %v", err)
		}
	}
	if c.TrustedRoot != nil && c.TrustedRoot.Value != "" {
		_, err := trust.ParseRoot([]byte(c.TrustedRoot.Value))
		refuse(err != nil, ".trustedRoot.value: %v", err)
	}
	if len(errs) == 0 {
		_, err := c.own(nil)
		refuse(err != nil, ": %v", err)
	}
	return errors.Join(errs...)
}

// pattern says which images the policy is about.
type pattern struct {
	glob    *regexp.Regexp
	program *celpolicy.Program
	// registry is the one that the glob names, without any wildcard; "" = it names none.
	registry string
}

// globbed reads a glob: * is any text, ? one character, and {a,b} one of several.
func globbed(glob string) (*regexp.Regexp, error) {
	var b strings.Builder
	depth := 0
	for i := 0; i < len(glob); i++ {
		switch c := glob[i]; c {
		case '[', ']', '\\':
			return nil, fmt.Errorf("glob: %q: only *, ? and {a,b} are known here", glob)
		case '*':
			b.WriteString(".*")
		case '?':
			b.WriteByte('.')
		case '{':
			depth++
			b.WriteString("(?:")
		case '}':
			if depth--; depth < 0 {
				return nil, errors.New("a brace closes that was not opened")
			}
			b.WriteByte(')')
		case ',':
			if depth > 0 {
				b.WriteByte('|')
			} else {
				b.WriteByte(',')
			}
		default:
			b.WriteString(regexp.QuoteMeta(string(c)))
		}
	}
	if depth != 0 {
		return nil, errors.New("a brace is not closed")
	}
	return regexp.Compile("^(?s:" + b.String() + ")$")
}

// registryOf is the registry that a glob names, if it does.
func registryOf(glob string) string {
	host, _, path := strings.Cut(glob, "/")
	if !path || strings.ContainsAny(host, "*?{") || !strings.ContainsAny(host, ".:") && host != "localhost" {
		return ""
	}
	return host
}

// compile compiles the policy's expressions, for each of its variants.
func (p *Policy) compile(exceptions []*kyverno.Exception) error {
	c, err := compiler()
	if err != nil {
		return err
	}
	var errs []error
	refer, err := references()
	if err != nil {
		return err
	}
	for i, r := range p.spec.MatchImageReferences {
		one := pattern{}
		if r.Glob != "" {
			one.glob, err = globbed(r.Glob)
			one.registry = registryOf(r.Glob)
		} else {
			one.program, err = refer.Compile(r.Expression, cel.BoolType)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("spec.matchImageReferences[%d]: %w", i, err))
		}
		p.patterns = append(p.patterns, one)
	}
	var controllers []string
	if a := p.spec.Autogen.PodControllers; a != nil {
		controllers = a.Controllers
	}
	for _, v := range kyverno.Variants(p.inNamespace(), controllers) {
		one, err := p.variant(c, v, exceptions)
		if err != nil {
			errs = append(errs, err)
			break // those for controllers are made of those for pods
		}
		p.variants = append(p.variants, one)
	}
	for i := range p.spec.Attestors {
		a := &p.spec.Attestors[i]
		if a.Cosign != nil {
			p.attestors[a.Name] = &signer{name: a.Name, spec: a.Cosign}
		}
	}
	return errors.Join(errs...)
}

// inNamespace narrows the match to the policy's own namespace.
func (p *Policy) inNamespace() *admissionregistrationv1.MatchResources {
	m := p.spec.MatchConstraints.DeepCopy()
	if m.MatchPolicy == nil {
		equivalent := admissionregistrationv1.Equivalent
		m.MatchPolicy = &equivalent
	}
	if !p.Namespaced() {
		return m
	}
	for i := range m.ResourceRules {
		scope := admissionregistrationv1.NamespacedScope
		m.ResourceRules[i].Scope = &scope
	}
	return m
}

func (p *Policy) variant(c *celpolicy.Compiler, v kyverno.Variant, exceptions []*kyverno.Exception) (*variant, error) {
	out := &variant{
		match: v.Match(), extract: map[string]*celpolicy.Program{}, compiled: map[string]*celpolicy.Program{},
		exception: map[string][]*celpolicy.Program{},
	}
	out.criteria = matching.ForPolicy(withSelectors(v.Match()))
	s := celpolicy.Spec{}
	for _, m := range p.spec.MatchConditions {
		m.Expression = v.In(m.Expression)
		s.MatchConditions = append(s.MatchConditions, m)
	}
	for _, x := range p.spec.Variables {
		x.Expression = v.In(x.Expression)
		s.Variables = append(s.Variables, x)
	}
	for _, x := range p.spec.Validations {
		x.Expression, x.MessageExpression = v.In(x.Expression), v.In(x.MessageExpression)
		s.Validations = append(s.Validations, x)
	}
	for _, a := range p.spec.AuditAnnotations {
		a.ValueExpression = v.In(a.ValueExpression)
		s.AuditAnnotations = append(s.AuditAnnotations, a)
	}
	policy, err := c.Policy(s)
	errs := []error{err}
	out.policy = policy
	for i, e := range p.spec.Images {
		if out.extract[e.Name], err = c.Compile(v.In(e.Expression), cel.ListType(cel.DynType)); err != nil {
			errs = append(errs, fmt.Errorf("spec.images[%d].expression: %w", i, err))
		}
	}
	for i := range p.spec.Attestors {
		for at, expression := range p.spec.Attestors[i].expressions() {
			if out.compiled[expression], err = c.Compile(v.In(expression), cel.StringType); err != nil {
				errs = append(errs, fmt.Errorf("spec.attestors[%d].cosign.%s.expression: %w", i, at, err))
			}
		}
	}
	for i, e := range exceptions { // they look at the object itself
		programs := []*celpolicy.Program{}
		for _, m := range e.Conditions() {
			one, err := c.Compile(m.Expression, cel.BoolType)
			if err != nil {
				return nil, fmt.Errorf("an exception: %w", err)
			}
			programs = append(programs, one)
		}
		out.exception[fmt.Sprint(i)] = programs
	}
	return out, errors.Join(errs...)
}

// withSelectors is a match with selectors that select everything where there are none.
func withSelectors(m *admissionregistrationv1.MatchResources) *admissionregistrationv1.MatchResources {
	m = m.DeepCopy()
	if m.NamespaceSelector == nil {
		m.NamespaceSelector = &metav1.LabelSelector{}
	}
	if m.ObjectSelector == nil {
		m.ObjectSelector = &metav1.LabelSelector{}
	}
	return m
}

// expressions are those of an attestor, by their fields.
func (a *attestor) expressions() map[string]string {
	out := map[string]string{}
	add := func(at string, t *text) {
		if t != nil && t.Expression != "" {
			out[at] = t.Expression
		}
	}
	if c := a.Cosign; c != nil {
		if c.Key != nil {
			add("key", &text{Expression: c.Key.Expression})
		}
		if c.Certificate != nil {
			add("certificate.cert", c.Certificate.Cert)
			add("certificate.certChain", c.Certificate.CertChain)
		}
		add("trustedRoot", c.TrustedRoot)
	}
	return out
}
