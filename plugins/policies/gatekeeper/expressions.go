// SPDX-License-Identifier: Apache-2.0

package gatekeeper

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"

	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/policies/kyverno/celpolicy"
	"github.com/wasmplane/wasmplane/plugins/policies/tree"
)

// Expressions are a template's policy in CEL.
type Expressions struct {
	MatchConditions []condition `json:"matchCondition"` // which is what the field is called
	Variables       []variable  `json:"variables"`
	Validations     []check     `json:"validations"`
	FailurePolicy   string      `json:"failurePolicy"`
	// GenerateVAP has Gatekeeper have the API server evaluate the policy, which is what happens here always.
	GenerateVAP *bool `json:"generateVAP"`
}

type condition struct {
	Name       string `json:"name"`
	Expression string `json:"expression"`
}

type variable struct {
	Name       string `json:"name"`
	Expression string `json:"expression"`
}

type check struct {
	Expression        string `json:"expression"`
	Message           string `json:"message"`
	MessageExpression string `json:"messageExpression"`
}

// reserved are names of variables that a template cannot give: those that every expression has, and a prefix.
var reserved = []string{"params", "anyObject"}

const reservedPrefix = "gatekeeper_internal_"

// readExpressions reads a policy in CEL, and compiles it. at is where it stands.
func readExpressions(text json.RawMessage, at string) (*Expressions, error) {
	s := &Expressions{}
	if len(text) > 0 {
		if err := tree.Strict(text, s, at); err != nil {
			return nil, err
		}
	}
	if err := s.check(at); err != nil {
		return nil, err
	}
	c, err := celpolicy.Kubernetes()
	if err != nil {
		return nil, err
	}
	var spec celpolicy.Spec
	for _, m := range s.MatchConditions {
		spec.MatchConditions = append(spec.MatchConditions, admissionregistrationv1.MatchCondition(m))
	}
	for _, v := range s.Variables {
		spec.Variables = append(spec.Variables, admissionregistrationv1.Variable(v))
	}
	for _, v := range s.Validations {
		spec.Validations = append(spec.Validations, admissionregistrationv1.Validation{
			Expression: v.Expression, Message: v.Message, MessageExpression: v.MessageExpression,
		})
	}
	_, err = c.PolicyAt(at, spec)
	return s, err
}

func (s *Expressions) check(at string) error {
	if len(s.Validations) == 0 {
		return fmt.Errorf("%s.validations: the policy is missing", at)
	}
	if p := manifest.FailurePolicy(s.FailurePolicy); p != "" && p != manifest.Fail && p != manifest.Ignore {
		return fmt.Errorf("%s.failurePolicy: expected Fail or Ignore, found %q", at, s.FailurePolicy)
	}
	taken := map[string]bool{}
	for _, name := range reserved {
		taken[name] = true
	}
	for i, v := range s.Variables {
		switch {
		case v.Name == "":
			return fmt.Errorf("%s.variables[%d].name: it is missing", at, i)
		case taken[v.Name] || strings.HasPrefix(v.Name, reservedPrefix):
			return fmt.Errorf("%s.variables[%d].name: %q is taken: name it otherwise", at, i, v.Name)
		}
		taken[v.Name] = true
	}
	for i, m := range s.MatchConditions {
		if m.Name == "" || strings.HasPrefix(m.Name, reservedPrefix) {
			return fmt.Errorf("%s.matchCondition[%d].name: expected a name that does not begin with %s, found %q", at, i, reservedPrefix, m.Name)
		}
	}
	return nil
}

// entry writes the policy into an entry's tree.
func (s *Expressions) entry(entry map[string]any) error {
	list := func(of any) ([]any, error) {
		text, err := json.Marshal(of)
		if err != nil {
			return nil, err
		}
		var out []any
		return out, json.Unmarshal(text, &out)
	}
	cel := map[string]any{}
	var errs []error
	add := func(field string, of any, n int) {
		if n == 0 {
			return
		}
		v, err := list(of)
		cel[field], errs = v, append(errs, err)
	}
	add("matchConditions", s.MatchConditions, len(s.MatchConditions))
	add("variables", s.Variables, len(s.Variables))
	add("validations", s.Validations, len(s.Validations))
	entry["cel"] = cel
	if s.FailurePolicy != "" {
		entry["failurePolicy"] = s.FailurePolicy
	}
	return errors.Join(errs...)
}
