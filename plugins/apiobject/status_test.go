// SPDX-License-Identifier: Apache-2.0

package apiobject

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/wasmplane/wasmplane/plugins/loader"
	"github.com/wasmplane/wasmplane/plugins/manifest"
)

func condition(t *testing.T, s Status, kind string) metav1.Condition {
	t.Helper()
	c := meta.FindStatusCondition(s.Conditions, kind)
	if c == nil {
		t.Fatalf("no condition %s in %+v", kind, s)
	}
	return *c
}

func TestTheStatusSumsUpWhatProcessesReport(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	good := loader.Status{
		Ready: true, Digest: "sha256:a", Version: "1", Mode: manifest.Enforce, Calls: 10, Denials: 2, MeanTime: 10 * time.Microsecond,
		MeanFuel:  100,
		Candidate: &loader.CandidateStatus{Ready: true, Calls: 5, Differing: 1},
	}
	a := instance("a", 1, good, now)
	one := merge(Status{}, "a", &a, 1)
	if c := condition(t, one, Ready); c.Status != metav1.ConditionTrue || one.Calls != 10 || one.MeanTime != "10µs" {
		t.Errorf("%+v", one)
	}
	good.Calls, good.MeanTime = 30, 2*time.Microsecond
	b := instance("b", 1, good, now)
	two := merge(one, "b", &b, 1)
	if two.Calls != 40 || two.Denials != 4 || two.MeanTime != "4µs" || two.Candidate.Calls != 10 || two.Candidate.Differing != 2 ||
		len(two.Instances) != 2 {
		t.Errorf("%+v", two)
	}
	if again := merge(two, "b", &b, 1); again.state() != two.state() || again.Calls != 40 {
		t.Errorf("a second report of the same changes something: %+v", again)
	}

	// A new version fails to load in one process, where the old one goes on.
	good.Error = "load plugin: no such file"
	b = instance("b", 2, good, now)
	failed := merge(two, "b", &b, 2)
	if r, u := condition(t, failed, Ready), condition(t, failed, Updated); r.Status != metav1.ConditionTrue ||
		u.Status != metav1.ConditionFalse || u.Reason != "LoadFailed" ||
		u.Message != "b: load plugin: no such file (the version before stays in force)" {
		t.Errorf("%+v", failed.Conditions)
	}
	// Only one of two has seen the new spec.
	good.Error = ""
	b = instance("b", 2, good, now)
	if u := condition(t, merge(two, "b", &b, 2), Updated); u.Status != metav1.ConditionUnknown || u.Message != "not yet seen by a" {
		t.Errorf("%+v", u)
	}
	// None answers in b.
	b = instance("b", 1, loader.Status{Error: "bad module"}, now)
	if r := condition(t, merge(two, "b", &b, 1), Ready); r.Status != metav1.ConditionFalse ||
		r.Message != "no version answers in b; the failure policy decides there" {
		t.Errorf("%+v", r)
	}
	// A process that has gone is forgotten; nobody at all is said too.
	later := now.Add(2 * staleAfter)
	a.Updated = metav1.NewTime(later)
	var old beats
	if left := merge(old.current(two, later), "a", &a, 1); len(left.Instances) != 1 || left.Calls != 10 {
		t.Errorf("%+v", left)
	}
	if r := condition(t, merge(old.current(two, later), "a", nil, 1), Ready); r.Reason != "NotAsked" {
		t.Errorf("%+v", r)
	}
	if r := condition(t, refused(two, 3, errors.New("spec.mode: expected Enforce")), Ready); r.Reason != "Refused" ||
		r.Message != "spec.mode: expected Enforce" {
		t.Errorf("%+v", r)
	}
}

func FuzzTheStatusOfAnObjectIsRead(f *testing.F) {
	f.Add(`{"calls":1}`)
	f.Add(`{"conditions":[{"type":1}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		var status any
		if json.Unmarshal([]byte(text), &status) != nil {
			return
		}
		s := readStatus(&unstructured.Unstructured{Object: map[string]any{"status": status}})
		if got := merge(s, "x", nil, 1); got.ObservedGeneration != 1 {
			t.Error("no generation")
		}
	})
}
