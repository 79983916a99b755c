// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/wasmplane/wasmplane/plugins/abi"
)

// CEL is a policy in expressions, as Gatekeeper's templates have them for their engine K8sNativeValidation. The
// expressions see object, oldObject, request, variables.params (the entry's settings) and variables.anyObject
// (the object, or what is deleted).
type CEL struct {
	// MatchConditions: the policy has nothing against a request for which one of them is false.
	MatchConditions []Condition `yaml:"matchConditions"`
	// Variables that the expressions use, as variables.NAME.
	Variables []CELVariable `yaml:"variables"`
	// Validations: the request is refused where one of them is false.
	Validations []CELValidation `yaml:"validations"`
}

// CELVariable is an expression with a name.
type CELVariable struct {
	Name       string `yaml:"name"`
	Expression string `yaml:"expression"`
}

// CELValidation is an expression that has to be true.
type CELValidation struct {
	Expression string `yaml:"expression"`
	// Message tells the user what is wrong.
	Message string `yaml:"message"`
	// MessageExpression makes the message, instead of Message.
	MessageExpression string `yaml:"messageExpression"`
}

// checkCEL checks the form of a policy in expressions, which are looked at when they are compiled. What is about
// modules is refused: it would have no effect.
func (e *Entry) checkCEL(n *yaml.Node, path string) error {
	limits := e.Limits
	limits.Deadline = 0
	noModule := "the policy is in expressions (cel), and has no module: take one of the two out"
	for _, c := range []struct {
		field, problem string
		ok             bool
	}{
		{"source", noModule, e.Source == ""},
		{"digest", noModule, e.Digest == ""},
		{"bundle", noModule, e.Bundle == nil},
		{"signatures", noModule, len(e.Signatures) == 0},
		{"entrypoint", noModule, e.Entrypoint == ""},
		{"grants", "expressions (cel) call no host functions", reflect.ValueOf(e.Grants).IsZero()},
		{"limits", "of expressions (cel) only limits.deadline is bounded; what they may cost is fixed, as for Kubernetes' own policies", limits == Limits{}},
		{"isolation", "expressions (cel) keep nothing between calls: leave isolation out", e.Isolation != PerCall},
		{
			"abi", fmt.Sprintf("a policy in expressions says for whom it was written: expected %s, found %q", Gatekeeper, e.ABI),
			e.ABI == Gatekeeper,
		},
		{
			"points", "expressions (cel) take part in admission.validate only",
			len(e.Points) == 0 || slices.Equal(e.Points, []string{string(abi.AdmissionValidate)}),
		},
		{"cel.validations", "there are none: a policy has at least one", len(e.CEL.Validations) > 0},
	} {
		if !c.ok {
			return fault(n, path, c.field, c.problem)
		}
	}
	names := map[string]bool{"params": true, "anyObject": true}
	for i, v := range e.CEL.Variables {
		if strings.TrimSpace(v.Name) == "" || names[v.Name] {
			return fault(n, path, fmt.Sprintf("cel.variables[%d].name", i), fmt.Sprintf("expected a name that is not taken, found %q", v.Name))
		}
		names[v.Name] = true
	}
	for i, v := range e.CEL.Validations {
		if strings.TrimSpace(v.Expression) == "" {
			return fault(n, path, fmt.Sprintf("cel.validations[%d].expression", i), "the expression is missing")
		}
	}
	return nil
}
