// SPDX-License-Identifier: Apache-2.0

package kyverno

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/plugins/policies/tree"
)

// ExceptionKind takes objects out of policies.
const ExceptionKind = "PolicyException"

// Exception is a PolicyException that has been read. Its conditions look at the object itself, not at
// the template of a controller's pods.
type Exception struct {
	// Policies that it is about: those of namespaces in its own only.
	Policies  []PolicyRef
	Namespace string
	// Expires is when it ends; zero = never.
	Expires time.Time

	conditions []admissionregistrationv1.MatchCondition
	name       string // of the condition that it becomes
	expression string // "" = whatever the policy is about
}

// PolicyRef names a policy.
type PolicyRef struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
}

// exceptionObject is a PolicyException as it is written.
type exceptionObject struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Metadata   tree.Metadata   `json:"metadata"`
	Status     json.RawMessage `json:"status"`
	Spec       struct {
		PolicyRefs      []PolicyRef                              `json:"policyRefs"`
		MatchConditions []admissionregistrationv1.MatchCondition `json:"matchConditions"`
		ExpiresAt       *metav1.Time                             `json:"expiresAt"`
		Images          []string                                 `json:"images"`
		AllowedValues   []string                                 `json:"allowedValues"`
		EvaluationMode  string                                   `json:"evaluationMode"`
		Properties      map[string]string                        `json:"properties"`   // notes of whoever approved it
		ReportResult    string                                   `json:"reportResult"` // what is excepted has no result here
	} `json:"spec"`
}

// ReadException reads a PolicyException.
func ReadException(policy map[string]any) (*Exception, error) {
	var o exceptionObject
	if err := tree.Decode(policy, &o, "exception"); err != nil {
		return nil, err
	}
	s := &o.Spec
	var errs []error
	if len(s.Images) > 0 || len(s.AllowedValues) > 0 {
		errs = append(errs, errors.New("spec.images, spec.allowedValues: expressions are not told them here; say by matchConditions what is excepted"))
	}
	if s.EvaluationMode != "" {
		errs = append(errs, fmt.Errorf("spec.evaluationMode: %q is not known here", s.EvaluationMode))
	}
	if len(s.PolicyRefs) == 0 {
		errs = append(errs, errors.New("spec.policyRefs: there are none"))
	}
	for i, r := range s.PolicyRefs {
		if known := append(Kinds(), ImageKinds()...); !slices.Contains(known, r.Kind) {
			errs = append(errs, fmt.Errorf("spec.policyRefs[%d].kind: expected one of %q, found %q", i, known, r.Kind))
		}
		if r.Name == "" {
			errs = append(errs, fmt.Errorf("spec.policyRefs[%d].name: it is missing", i))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	sum := sha256.Sum256([]byte(o.Metadata.Namespace + "/" + o.Metadata.Name))
	e := &Exception{Policies: s.PolicyRefs, Namespace: o.Metadata.Namespace, name: "exception-" + hex.EncodeToString(sum[:8])}
	if s.ExpiresAt != nil {
		e.Expires = s.ExpiresAt.Time
	}
	var all []string
	for _, c := range s.MatchConditions {
		all = append(all, "("+c.Expression+"\n)") // a comment ends with its line
	}
	e.expression, e.conditions = strings.Join(all, " && "), s.MatchConditions
	return e, nil
}

// Conditions are what the exception itself says.
func (e *Exception) Conditions() []admissionregistrationv1.MatchCondition { return e.conditions }

// Condition is what an object has to be for a policy to judge it beside the exception.
func (e *Exception) Condition() admissionregistrationv1.MatchCondition {
	c := admissionregistrationv1.MatchCondition{Name: e.name, Expression: "false"}
	if e.expression != "" {
		c.Expression = "!(" + e.expression + ")"
	}
	return c
}

// About says whether the exception is about a policy, and has not expired.
func (e *Exception) About(kind, namespace, name string, now time.Time) bool {
	return slices.Contains(e.Policies, PolicyRef{Kind: kind, Name: name}) && (namespace == "" || namespace == e.Namespace) &&
		(e.Expires.IsZero() || now.Before(e.Expires))
}

// Counts says whether the exception has not expired, and when it does if it has not; zero = never.
func (e *Exception) Counts(now time.Time) (counts bool, until time.Time) {
	if !e.Expires.IsZero() && !now.Before(e.Expires) {
		return false, time.Time{}
	}
	return true, e.Expires
}

// Except narrows what the objects of a policy are about by a condition more.
func (o *Objects) Except(c admissionregistrationv1.MatchCondition) {
	for _, p := range o.Validating {
		p.Spec.MatchConditions = append(p.Spec.MatchConditions, c)
	}
	for _, p := range o.Mutating {
		p.Spec.MatchConditions = append(p.Spec.MatchConditions, c)
	}
}
