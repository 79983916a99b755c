// SPDX-License-Identifier: Apache-2.0

package abi

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// maxReasons bounds the reasons of a node table: a verdict has six bits for one.
const maxReasons = 64

// AdmissionAnswer is what hooks at admission and at custom resources answer; no
// answer lets the request through, and converts by naming the other version.
type AdmissionAnswer struct {
	Allowed *bool  `json:"allowed"` // absent = true
	Message string `json:"message"`
	Reason  string `json:"reason"` // "Forbidden", "Invalid", ...: a metav1.StatusReason
	Code    int32  `json:"code"`   // HTTP status of a refusal; 0 = 403
	Field   string `json:"field"`  // what the message is about: "spec.containers[0].image"
	// Causes are more that is wrong, each with a field of its own.
	Causes []Cause `json:"causes"`

	Patch            []PatchOp         `json:"patch"`
	Object           json.RawMessage   `json:"object"`
	Warnings         []string          `json:"warnings"`
	AuditAnnotations map[string]string `json:"auditAnnotations"`
}

// Cause is one thing that is wrong with an object.
type Cause struct {
	Field   string `json:"field"`
	Message string `json:"message"`
	Reason  string `json:"reason"` // a metav1.CauseType; empty = FieldValueInvalid
}

// Denied says whether the answer refuses the request.
func (a *AdmissionAnswer) Denied() bool { return a.Allowed != nil && !*a.Allowed }

// Bounds of an admission answer.
const (
	maxPatch       = 1000
	maxWarnings    = 32
	maxCauses      = 64
	maxAnnotations = 32
	// Longer texts are cut: they go into headers, statuses and the audit log.
	maxWarning    = 1024
	maxMessage    = 8192
	maxAnnotation = 8192
)

// ParseAdmission reads an answer of a mutating or validating hook.
func ParseAdmission(data []byte, hook *Hook) (*AdmissionAnswer, error) {
	a := &AdmissionAnswer{}
	if len(data) == 0 {
		return a, nil
	}
	if err := json.Unmarshal(data, a); err != nil {
		return nil, fmt.Errorf("the answer is no admission answer: %w", err)
	}
	switch {
	case len(a.Patch) > maxPatch:
		return nil, fmt.Errorf("the answer has %d patch operations: at most %d are allowed", len(a.Patch), maxPatch)
	case len(a.Warnings) > maxWarnings:
		return nil, fmt.Errorf("the answer has %d warnings: at most %d are allowed", len(a.Warnings), maxWarnings)
	case (hook.Point == AdmissionValidate || hook.Point == CustomResourceValidate) && (len(a.Patch) > 0 || len(a.Object) > 0):
		return nil, errors.New("a validating hook answered with a change: only admission.mutate may change an object")
	case len(a.Causes) > maxCauses:
		return nil, fmt.Errorf("the answer has %d causes: at most %d are allowed", len(a.Causes), maxCauses)
	case len(a.Causes) > 0 && !a.Denied():
		return nil, errors.New("the answer has causes for a refusal, and no refusal: allowed has to be false")
	case len(a.Object) > 0 && len(hook.Fields) > 0:
		return nil, errors.New("the hook sees some fields only: it may answer with a patch, not with the whole object")
	case len(a.Object) > 0 && len(a.Patch) > 0:
		return nil, errors.New("the answer has an object and a patch: one of them was expected")
	case len(a.AuditAnnotations) > maxAnnotations:
		return nil, fmt.Errorf("the answer has %d audit annotations: at most %d are allowed", len(a.AuditAnnotations), maxAnnotations)
	case a.Code != 0 && (a.Code < 400 || a.Code > 599):
		return nil, fmt.Errorf("code %d is no HTTP status of a refusal", a.Code)
	}
	a.Message = cut(a.Message, maxMessage)
	for i := range a.Causes {
		a.Causes[i].Message = cut(a.Causes[i].Message, maxWarning)
	}
	for i := range a.Warnings {
		a.Warnings[i] = cut(a.Warnings[i], maxWarning)
	}
	for k, v := range a.AuditAnnotations {
		a.AuditAnnotations[k] = cut(v, maxAnnotation)
	}
	return a, nil
}

// cut shortens a text that is longer than n bytes, at the end of a character.
func cut(text string, n int) string {
	if len(text) <= n {
		return text
	}
	return strings.ToValidUTF8(text[:n], "") + "..."
}

// AuthorizationAnswer is what authorization hooks answer; no answer is no opinion.
type AuthorizationAnswer struct {
	Decision string `json:"decision"` // "allow", "deny" or "noOpinion"
	Reason   string `json:"reason"`
}

// ParseAuthorization reads an authorizer's answer.
func ParseAuthorization(data []byte) (AuthorizationAnswer, error) {
	a := AuthorizationAnswer{Decision: "noOpinion"}
	if len(data) == 0 {
		return a, nil
	}
	if err := json.Unmarshal(data, &a); err != nil {
		return a, fmt.Errorf("the answer is no authorization answer: %w", err)
	}
	switch a.Decision {
	case "allow", "deny", "noOpinion":
		return a, nil
	}
	return a, fmt.Errorf("decision %q is unknown: allow, deny or noOpinion was expected", a.Decision)
}

// FilterAnswer is what the per-node filter answers; no answer means that the pod fits.
type FilterAnswer struct {
	Fits         *bool    `json:"fits"` // absent = true
	Unresolvable bool     `json:"unresolvable"`
	Reasons      []string `json:"reasons"`
}

// Refused says whether the node is left out.
func (a *FilterAnswer) Refused() bool { return a.Fits != nil && !*a.Fits }

// ParseFilter reads a filter's answer.
func ParseFilter(data []byte) (a FilterAnswer, err error) {
	if len(data) == 0 {
		return a, nil
	}
	if err := json.Unmarshal(data, &a); err != nil {
		return a, fmt.Errorf("the answer is no filter answer: %w", err)
	}
	return a, nil
}

// ParseScore reads a score: a JSON number, 0 to 100.
func ParseScore(data []byte) (int64, error) {
	var score int64
	if len(data) == 0 {
		return 0, nil
	}
	if err := json.Unmarshal(data, &score); err != nil {
		return 0, fmt.Errorf("the answer %q is no score: a whole number was expected", clip(data))
	}
	if score < 0 || score > 100 {
		return 0, fmt.Errorf("score %d is out of range: 0 to 100 was expected", score)
	}
	return score, nil
}

// GateAnswer is what hooks answer that let a pod go on or not (preEnqueue, reserve,
// preBind); no answer lets it go on.
type GateAnswer struct {
	Allowed *bool    `json:"allowed"` // absent = true
	Reasons []string `json:"reasons"`
}

// Refused says whether the pod is held back.
func (a *GateAnswer) Refused() bool { return a.Allowed != nil && !*a.Allowed }

// ParseGate reads such an answer.
func ParseGate(data []byte) (a GateAnswer, err error) {
	return a, parse(data, &a, "answer about a pod")
}

// ParseRank reads queueSort's answer: a whole number, the highest goes first.
func ParseRank(data []byte) (rank int64, err error) {
	if len(data) == 0 {
		return 0, nil
	}
	if err := json.Unmarshal(data, &rank); err != nil {
		return 0, fmt.Errorf("the answer %q is no rank: a whole number was expected", clip(data))
	}
	return rank, nil
}

// PreFilterAnswer is what preFilter answers, and, less nodes and the refusal, preScore.
type PreFilterAnswer struct {
	FilterAnswer
	// Nodes narrows the cycle to these; null = all.
	Nodes []string `json:"nodes"`
	// Skip leaves the plugin's filter (or score) out of this cycle.
	Skip bool `json:"skip"`
	// State is handed to the plugin's later hooks of the same cycle.
	State json.RawMessage `json:"state"`
}

// ParsePreFilter reads preFilter's or preScore's answer.
func ParsePreFilter(data []byte) (a PreFilterAnswer, err error) {
	return a, parse(data, &a, "answer of preFilter or preScore")
}

// PostFilterAnswer is what postFilter answers; no answer proposes nothing.
type PostFilterAnswer struct {
	// Nominated is the node on which the pod will fit once Evict have gone.
	Nominated string     `json:"nominated"`
	Evict     []PodNamed `json:"evict"`
	// Reclaim lists groups of the manifest whose pods may make room, instead of a node: the host finds out
	// which of them have to go. The pods of the first ones rather stay.
	Reclaim []Reclaim `json:"reclaim"`
	Reasons []string  `json:"reasons"` // why nothing is proposed
}

// Reclaim is the pods of a group that may make room.
type Reclaim struct {
	Group string `json:"group"`
	// Keep is what its most important pods keep; nil: all of them keep what they have.
	Keep *Amounts `json:"keep"`
	// Below: its pods of a lower priority may go, too.
	Below *int32 `json:"below"`
}

// Amounts of resources; those that are not there are not bounded.
type Amounts struct {
	MilliCPU         *int64           `json:"milliCPU"`
	Memory           *int64           `json:"memory"`
	EphemeralStorage *int64           `json:"ephemeralStorage"`
	Pods             *int64           `json:"pods"`
	Scalar           map[string]int64 `json:"scalar"`
}

// PodNamed names a pod; UID is optional.
type PodNamed struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
}

// maxEvict bounds how many pods a plugin may have removed for one.
const maxEvict = 256

// ParsePostFilter reads postFilter's answer.
func ParsePostFilter(data []byte) (a PostFilterAnswer, err error) {
	if err := parse(data, &a, "answer of postFilter"); err != nil {
		return a, err
	}
	switch {
	case len(a.Evict) > maxEvict:
		return a, fmt.Errorf("the answer evicts %d pods: at most %d are allowed", len(a.Evict), maxEvict)
	case len(a.Evict) > 0 && a.Nominated == "":
		return a, errors.New("the answer evicts pods and nominates no node")
	case len(a.Reclaim) > 0 && a.Nominated != "":
		return a, errors.New("the answer reclaims from groups and nominates a node: it can do one of these")
	case len(a.Reclaim) > maxGroups:
		return a, fmt.Errorf("the answer reclaims from %d groups: at most %d are allowed", len(a.Reclaim), maxGroups)
	}
	seen := map[string]bool{}
	for _, r := range a.Reclaim {
		if seen[r.Group] {
			return a, fmt.Errorf("the answer reclaims from group %q twice", r.Group)
		}
		seen[r.Group] = true
	}
	return a, nil
}

// ParseScores reads normalize's answer: as many scores as were asked about, each 0
// to 100. No answer leaves them as they are.
func ParseScores(data []byte, n int) ([]int64, error) {
	if len(data) == 0 {
		return nil, nil
	}
	var scores []int64
	if err := parse(data, &scores, "list of scores"); err != nil {
		return nil, err
	}
	if len(scores) != n {
		return nil, fmt.Errorf("the answer has %d scores for %d nodes", len(scores), n)
	}
	for i, s := range scores {
		if s < 0 || s > 100 {
			return nil, fmt.Errorf("score %d of node %d is out of range: 0 to 100 was expected", s, i)
		}
	}
	return scores, nil
}

// PermitAnswer is what permit answers; no answer allows.
type PermitAnswer struct {
	Decision    string   `json:"decision"` // "allow", "deny" or "wait"
	WaitSeconds float64  `json:"waitSeconds"`
	Reasons     []string `json:"reasons"`
}

// ParsePermit reads permit's answer.
func ParsePermit(data []byte) (PermitAnswer, error) {
	a := PermitAnswer{}
	if err := parse(data, &a, "answer of permit"); err != nil {
		return a, err
	}
	switch a.Decision {
	case "":
		a.Decision = "allow"
	case "allow", "deny":
	case "wait":
		if a.WaitSeconds <= 0 || a.WaitSeconds > 900 {
			return a, fmt.Errorf("waitSeconds %v is out of range: more than 0 and at most 900 was expected", a.WaitSeconds)
		}
	default:
		return a, fmt.Errorf("decision %q is unknown: allow, deny or wait was expected", a.Decision)
	}
	return a, nil
}

// BindAnswer is what bind answers; no answer leaves the binding to others.
type BindAnswer struct {
	GateAnswer
	// Annotations that the pod gets with the binding.
	Annotations map[string]string `json:"annotations"`
}

// ParseBind reads bind's answer.
func ParseBind(data []byte) (a BindAnswer, err error) { return a, parse(data, &a, "answer of bind") }

// parse reads an answer; an empty one leaves v as it is.
func parse(data []byte, v any, what string) error {
	if len(data) == 0 {
		return nil
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("the answer is no %s: %w", what, err)
	}
	return nil
}

// NodeAdmissionAnswer is what a node's hook answers; no answer admits the pod.
type NodeAdmissionAnswer struct {
	Admitted *bool  `json:"admitted"` // absent = true
	Reason   string `json:"reason"`   // one word in CamelCase, shown in the pod's status
	Message  string `json:"message"`
}

// ParseNodeAdmission reads a node hook's answer.
func ParseNodeAdmission(data []byte) (a NodeAdmissionAnswer, err error) {
	if len(data) == 0 {
		return a, nil
	}
	if err := json.Unmarshal(data, &a); err != nil {
		return a, fmt.Errorf("the answer is no node admission answer: %w", err)
	}
	return a, nil
}

// PlanAnswer is what a reconciler answers; no answer is an empty plan.
type PlanAnswer struct {
	Apply          []map[string]any `json:"apply"`
	Patch          []PatchTarget    `json:"patch"`
	Delete         []Deletion       `json:"delete"`
	Status         map[string]any   `json:"status"`
	Conditions     []PlanCondition  `json:"conditions"`
	Events         []PlanEvent      `json:"events"`
	RequeueSeconds float64          `json:"requeueSeconds"`
}

// PatchTarget is an object with a JSON patch for it, which the API server applies:
// RFC 6902 as it stands.
type PatchTarget struct {
	ObjectTarget
	Subresource string    `json:"subresource"` // "status", "scale"; empty = the object
	Patch       []PatchOp `json:"patch"`
}

// Deletion is an object to delete. With a ResourceVersion it is deleted in that state
// or not at all: the host answers a conflict by another reconcile.
type Deletion struct {
	ObjectTarget
	ResourceVersion   string `json:"resourceVersion"`
	PropagationPolicy string `json:"propagationPolicy"` // Background (the default), Foreground or Orphan
}

// ObjectTarget names an object of a plan.
type ObjectTarget struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace"`
	Name       string `json:"name"`
	UID        string `json:"uid"`
}

// PlanCondition is a condition to set on the primary.
type PlanCondition struct {
	Type    string `json:"type"`
	Status  string `json:"status"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// PlanEvent is an event to record on the primary.
type PlanEvent struct {
	Type    string `json:"type"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

const maxPlan = 1000

// ParsePlan reads a reconciler's answer.
func ParsePlan(data []byte) (p PlanAnswer, err error) {
	if len(data) == 0 {
		return p, nil
	}
	if err := json.Unmarshal(data, &p); err != nil {
		return p, fmt.Errorf("the answer is no plan: %w", err)
	}
	if n := len(p.Apply) + len(p.Patch) + len(p.Delete) + len(p.Events) + len(p.Conditions); n > maxPlan {
		return p, fmt.Errorf("the plan has %d steps: at most %d are allowed", n, maxPlan)
	}
	for i, o := range p.Apply {
		for _, key := range []string{"apiVersion", "kind"} {
			if s, _ := o[key].(string); s == "" {
				return p, fmt.Errorf("apply[%d] has no %s", i, key)
			}
		}
		meta, _ := o["metadata"].(map[string]any)
		if s, _ := meta["name"].(string); s == "" {
			return p, fmt.Errorf("apply[%d] has no metadata.name", i)
		}
	}
	for i, d := range p.Patch {
		if d.APIVersion == "" || d.Kind == "" || d.Name == "" || len(d.Patch) == 0 {
			return p, fmt.Errorf("patch[%d] needs apiVersion, kind, name and patch", i)
		}
		if len(d.Patch) > maxPatch {
			return p, fmt.Errorf("patch[%d] has %d operations: at most %d are allowed", i, len(d.Patch), maxPatch)
		}
	}
	for i, d := range p.Delete {
		if d.APIVersion == "" || d.Kind == "" || d.Name == "" {
			return p, fmt.Errorf("delete[%d] needs apiVersion, kind and name", i)
		}
		if !slices.Contains([]string{"", "Background", "Foreground", "Orphan"}, d.PropagationPolicy) {
			return p, fmt.Errorf("delete[%d].propagationPolicy: expected Background, Foreground or Orphan, found %q", i, d.PropagationPolicy)
		}
	}
	for i, e := range p.Events {
		if e.Type != "Normal" && e.Type != "Warning" {
			return p, fmt.Errorf("events[%d] has type %q: Normal or Warning was expected", i, e.Type)
		}
	}
	for i, c := range p.Conditions {
		if c.Type == "" || c.Status != "True" && c.Status != "False" && c.Status != "Unknown" {
			return p, fmt.Errorf("conditions[%d] needs a type, and True, False or Unknown as its status", i)
		}
	}
	if p.RequeueSeconds < 0 || p.RequeueSeconds > 365*24*3600 {
		return p, fmt.Errorf("requeueSeconds %v is out of range", p.RequeueSeconds)
	}
	return p, nil
}

// Verdicts of a node table: one byte a row.
const (
	VerdictUnfit        = 0   // does not fit, with the first reason
	VerdictScore        = 1   // 1 to 101: fits, with score 0 to 100
	VerdictUnfitFor     = 128 // 128 to 191: does not fit, with reasons[v-128]
	VerdictUnresolvable = 192 // 192 to 255: does not fit whatever pods leave, with reasons[v-192]
)

// Verdict is one byte of a node table's answer, taken apart.
type Verdict struct {
	Fits         bool
	Unresolvable bool
	Score        int64
	Reason       string
}

// ParseVerdict takes a byte apart.
func (h *Hook) ParseVerdict(b byte) (Verdict, error) {
	switch {
	case b >= VerdictScore && b <= VerdictScore+100:
		return Verdict{Fits: true, Score: int64(b - VerdictScore)}, nil
	case b >= VerdictUnresolvable:
		r, err := h.reason(int(b) - VerdictUnresolvable)
		return Verdict{Unresolvable: true, Reason: r}, err
	case b >= VerdictUnfitFor:
		r, err := h.reason(int(b) - VerdictUnfitFor)
		return Verdict{Reason: r}, err
	case b == VerdictUnfit:
		r, _ := h.reason(0)
		return Verdict{Reason: r}, nil
	}
	return Verdict{}, fmt.Errorf("verdict %d has no meaning", b)
}

func (h *Hook) reason(i int) (string, error) {
	if i < len(h.Reasons) {
		return h.Reasons[i], nil
	}
	if i == 0 {
		return "node(s) didn't pass the plugin's filter", nil
	}
	return "", fmt.Errorf("a verdict names reason %d of %d", i, len(h.Reasons))
}

func clip(b []byte) string {
	return strings.ToValidUTF8(string(b[:min(len(b), 64)]), "\uFFFD")
}

// CheckAnswer reads an answer in the form of its hook's point, and says what is
// wrong with it. nodes is how many nodes a scheduling question was about.
func CheckAnswer(h *Hook, answer []byte, nodes int) error {
	var err error
	switch h.Point.Form() {
	case AdmissionMutate, CustomResourceConvert, CustomResourceValidate:
		_, err = ParseAdmission(answer, h)
	case Authorization:
		_, err = ParseAuthorization(answer)
	case Reconcile:
		_, err = ParsePlan(answer)
	case NodeAdmission:
		_, err = ParseNodeAdmission(answer)
	case SchedulingFilter:
		_, err = ParseFilter(answer)
	case SchedulingScore:
		_, err = ParseScore(answer)
	case SchedulingNormalize:
		_, err = ParseScores(answer, nodes)
	case SchedulingQueueSort:
		_, err = ParseRank(answer)
	case SchedulingPreFilter, SchedulingPreScore:
		_, err = ParsePreFilter(answer)
	case SchedulingPostFilter:
		_, err = ParsePostFilter(answer)
	case SchedulingPermit:
		_, err = ParsePermit(answer)
	case SchedulingBind:
		_, err = ParseBind(answer)
	case SchedulingPreEnqueue, SchedulingReserve, SchedulingPreBind:
		_, err = ParseGate(answer)
	case SchedulingUnreserve, SchedulingPostBind, SchedulingTable:
	default:
		err = fmt.Errorf("nothing reads answers of the point %s: add its form to CheckAnswer, or the point that it is like to abi.yaml", h.Point)
	}
	return err
}
