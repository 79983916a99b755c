// SPDX-License-Identifier: Apache-2.0

package opa

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/wasmplane/wasmplane/plugins/abi"
)

// result is one result of an evaluation.
type result struct {
	Result json.RawMessage `json:"result"`
}

// admission is an answer of an admission hook, as it is written.
type admission struct {
	Allowed          bool              `json:"allowed"`
	Message          string            `json:"message,omitempty"`
	Reason           string            `json:"reason,omitempty"`
	Code             int32             `json:"code,omitempty"`
	Patch            json.RawMessage   `json:"patch,omitempty"`
	Warnings         []string          `json:"warnings,omitempty"`
	AuditAnnotations map[string]string `json:"auditAnnotations,omitempty"`
	Causes           []cause           `json:"causes,omitempty"`
}

// cause is one more thing that is wrong.
type cause struct {
	Message string `json:"message"`
}

// mostViolations bounds those that are shown one by one.
const mostViolations = 64

// answer makes of what the rule says the answer that the hook gives.
func (p *Policy) answer(dumped []byte, at abi.Point) ([]byte, error) {
	var results []result
	if err := json.Unmarshal(dumped, &results); err != nil {
		return nil, fmt.Errorf("the policy's answer cannot be read: %w", err)
	}
	if p.cfg.Gatekeeper {
		return violations(results)
	}
	if at == abi.Authorization {
		return p.authorizationAnswer(results)
	}
	if len(results) == 0 || results[0].Result == nil {
		return nil, errUndefined
	}
	if text := results[0].Result; len(text) > 0 && text[0] == '{' && isReview(text) {
		return reviewAnswer(text, at)
	}
	return p.documentAnswer(results[0].Result)
}

var errUndefined = errors.New("the policy's rule is undefined for this request")

// violations refuses where there is one. A rule of violations is a set, which is
// always defined: one that is not is another rule, or belongs to another ABI.
func violations(results []result) ([]byte, error) {
	if len(results) == 0 || results[0].Result == nil || string(results[0].Result) == "null" {
		return nil, errors.New("the policy's rule is undefined for this request, where a set of violations was expected: is abi: gatekeeper right, and the entrypoint?")
	}
	var found []struct {
		Msg any `json:"msg"`
	}
	if err := json.Unmarshal(results[0].Result, &found); err != nil {
		return nil, fmt.Errorf("the policy's answer is no set of violations (is abi: gatekeeper right?): %w", err)
	}
	if len(found) == 0 {
		return json.Marshal(admission{Allowed: true})
	}
	var texts []string
	for _, v := range found {
		texts = append(texts, message(v.Msg))
	}
	a := admission{}
	a.Message, a.Causes = listed(texts)
	return json.Marshal(a)
}

// reviewAnswer reads an AdmissionReview with a response.
func reviewAnswer(review []byte, at abi.Point) ([]byte, error) {
	var r struct {
		Response *struct {
			Allowed *bool `json:"allowed"`
			Status  struct {
				Message string `json:"message"`
				Reason  string `json:"reason"`
				Code    int32  `json:"code"`
			} `json:"status"`
			Patch            []byte            `json:"patch"`
			PatchType        string            `json:"patchType"`
			Warnings         []string          `json:"warnings"`
			AuditAnnotations map[string]string `json:"auditAnnotations"`
		} `json:"response"`
	}
	if err := json.Unmarshal(review, &r); err != nil {
		return nil, fmt.Errorf("the policy's answer is no AdmissionReview: %w", err)
	}
	if r.Response == nil || r.Response.Allowed == nil {
		return nil, errors.New("the policy's answer has no response.allowed")
	}
	v := r.Response
	a := admission{Allowed: *v.Allowed, Warnings: v.Warnings, AuditAnnotations: v.AuditAnnotations}
	if !a.Allowed {
		a.Message, a.Reason = v.Status.Message, v.Status.Reason
		if v.Status.Code >= 400 && v.Status.Code <= 599 {
			a.Code = v.Status.Code
		}
		return json.Marshal(a)
	}
	if len(v.Patch) > 0 {
		if v.PatchType != "" && v.PatchType != "JSONPatch" {
			return nil, fmt.Errorf("the policy's answer has a patch of type %q: JSONPatch was expected", v.PatchType)
		}
		if at != abi.AdmissionMutate {
			return json.Marshal(admission{Code: 500, Message: "the policy attempted to mutate the request, but it is configured not to mutate (points: [admission.mutate])"})
		}
		if !json.Valid(v.Patch) {
			return nil, errors.New("the policy's patch is no JSON")
		}
		a.Patch = v.Patch
	}
	return json.Marshal(a)
}
