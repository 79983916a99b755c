// SPDX-License-Identifier: Apache-2.0

package opa

import (
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
)

// verdict is what a policy's documents say: those of a package with rules allow and deny (or
// violation), or one of these rules.
type verdict struct {
	allow   *bool
	denied  bool
	denials []string // why, where it is said
	warns   []string
}

// against are the rules that refuse.
var against = []string{"deny", "violation"}

// documents reads the result of a rule that is no review. rule is its name.
func documents(rule string, result json.RawMessage) (*verdict, error) {
	all := map[string]json.RawMessage{rule: result}
	if len(result) > 0 && result[0] == '{' {
		clear(all)
		if err := json.Unmarshal(result, &all); err != nil {
			return nil, err
		}
	}
	v := &verdict{}
	found := false
	if text, ok := all["allow"]; ok {
		if err := json.Unmarshal(text, &v.allow); err != nil || v.allow == nil {
			return nil, errors.New("the policy's allow is neither true nor false")
		}
		found = true
	}
	for _, name := range against {
		text, ok := all[name]
		if !ok {
			continue
		}
		found = true
		texts, yes, err := messages(text)
		if err != nil {
			return nil, fmt.Errorf("the policy's %s: %w", name, err)
		}
		v.denied = v.denied || yes || len(texts) > 0
		v.denials = append(v.denials, texts...)
	}
	if text, ok := all["warn"]; ok {
		texts, _, err := messages(text)
		if err != nil {
			return nil, fmt.Errorf("the policy's warn: %w", err)
		}
		v.warns = texts
	}
	if !found {
		return nil, fmt.Errorf("the policy's answer is neither a review (response, status) nor has it a rule allow or %s: which rule is asked is said by entrypoint", strings.Join(against, " or "))
	}
	return v, nil
}

// messages reads a set of messages, or a boolean.
func messages(text json.RawMessage) (texts []string, yes bool, err error) {
	var set []any
	switch {
	case string(text) == "null":
		return nil, false, errors.New("expected a set of messages, true or false, found null")
	case json.Unmarshal(text, &yes) == nil:
		return nil, yes, nil
	case json.Unmarshal(text, &set) != nil:
		return nil, false, errors.New("expected a set of messages, true or false")
	}
	for _, one := range set {
		texts = append(texts, message(one))
	}
	return texts, false, nil
}

// message is the text of a member of a set.
func message(of any) string {
	switch m := of.(type) {
	case string:
		return m
	case nil:
		return "a violation without a message"
	case map[string]any:
		for _, key := range []string{"msg", "message", "reason"} {
			if s, ok := m[key].(string); ok {
				return s
			}
		}
	}
	text, err := json.Marshal(of)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// documentAnswer is the answer of an admission policy that writes no review.
func (p *Policy) documentAnswer(result json.RawMessage) ([]byte, error) {
	v, err := documents(p.rule, result)
	if err != nil {
		return nil, err
	}
	a := admission{Allowed: !v.denied && (v.allow == nil || *v.allow), Warnings: v.warns}
	if !a.Allowed {
		a.Message, a.Causes = listed(v.denials)
	}
	return json.Marshal(a)
}

// listed are messages as a refusal has them: one, and the others as causes.
func listed(texts []string) (string, []cause) {
	if len(texts) == 0 {
		return "", nil
	}
	var causes []cause
	for _, text := range texts[1:min(len(texts), mostViolations)] {
		causes = append(causes, cause{text})
	}
	if more := len(texts) - mostViolations; more > 0 {
		causes = append(causes, cause{fmt.Sprintf("and %d more", more)})
	}
	return texts[0], causes
}

// authorization is an answer of an authorization hook, as it is written.
type authorization struct {
	Decision string `json:"decision"`
	Reason   string `json:"reason,omitempty"`
}

// authorizationAnswer reads a SubjectAccessReview with a status, or documents.
func (p *Policy) authorizationAnswer(results []result) ([]byte, error) {
	if len(results) == 0 || results[0].Result == nil {
		if p.rule == "allow" { // without a default, it is undefined for what it does not allow
			return json.Marshal(authorization{Decision: "noOpinion"})
		}
		return nil, errUndefined
	}
	var review struct {
		Status *struct {
			Allowed *bool  `json:"allowed"`
			Denied  bool   `json:"denied"`
			Reason  string `json:"reason"`
			Error   string `json:"evaluationError"`
		} `json:"status"`
	}
	if json.Unmarshal(results[0].Result, &review) == nil && review.Status != nil {
		s := review.Status
		switch {
		case s.Error != "":
			return nil, fmt.Errorf("the policy's evaluation failed: %s", s.Error)
		case s.Allowed == nil:
			return nil, errors.New("the policy's answer has no status.allowed")
		case *s.Allowed && s.Denied:
			return nil, errors.New("the policy's answer is allowed and denied at once")
		}
		return decision(*s.Allowed, s.Denied, s.Reason)
	}
	v, err := documents(p.rule, results[0].Result)
	if err != nil {
		return nil, err
	}
	return decision(v.allow != nil && *v.allow && !v.denied, v.denied, strings.Join(v.denials[:min(len(v.denials), mostViolations)], "; "))
}

func decision(allowed, denied bool, reason string) ([]byte, error) {
	a := authorization{"noOpinion", reason}
	switch {
	case denied:
		a.Decision = "deny"
	case allowed:
		a.Decision = "allow"
	}
	return json.Marshal(a)
}

// ruleOf is the name of an entrypoint's rule or package.
func ruleOf(entrypoint string) string {
	return path.Base(strings.ReplaceAll(strings.TrimPrefix(entrypoint, "data."), ".", "/"))
}

// isReview says that a result is an AdmissionReview, not documents.
func isReview(result json.RawMessage) bool {
	var keys map[string]json.RawMessage
	if json.Unmarshal(result, &keys) != nil {
		return false
	}
	if _, ok := keys["response"]; ok {
		return true
	}
	known := append([]string{"allow"}, against...)
	return !slices.ContainsFunc(known, func(name string) bool { return keys[name] != nil })
}
