// SPDX-License-Identifier: Apache-2.0

package abi_test

import (
	"strings"
	"testing"

	"github.com/wasmplane/wasmplane/plugins/abi"
)

// refusedAs compares an error with the part of it that a vector names; "" = there is none.
func refusedAs(t *testing.T, what string, err error, want string) {
	t.Helper()
	if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
		t.Errorf("%s: error %v, want %q", what, err, want)
	}
}

func TestManifestVectors(t *testing.T) {
	var vectors []struct{ Manifest, Error string }
	read(t, "manifests.json", &vectors)
	for _, v := range vectors {
		_, err := abi.ParseManifest([]byte(v.Manifest))
		refusedAs(t, v.Manifest, err, v.Error)
	}
}

func TestAnswerVectors(t *testing.T) {
	var vectors []struct {
		Point         abi.Point
		Answer, Error string
	}
	read(t, "answers.json", &vectors)
	covered := map[abi.Point]bool{}
	for _, v := range vectors {
		covered[v.Point] = true
		refusedAs(t, string(v.Point)+" "+v.Answer, abi.CheckAnswer(&abi.Hook{Point: v.Point}, []byte(v.Answer), 2), v.Error)
	}
	if len(covered) < 13 {
		t.Errorf("only %d points have answers", len(covered))
	}
}

func TestCellVectors(t *testing.T) {
	var vectors struct {
		Document map[string]any
		Cells    []struct {
			abi.Column
			Value int64
		}
	}
	read(t, "cells.json", &vectors)
	strings := abi.Interner{}
	for _, v := range vectors.Cells {
		p, err := abi.ParsePath(v.Path)
		if err != nil {
			t.Fatal(err)
		}
		if got := v.Column.Cell(abi.Integers(vectors.Document), p, &strings); got != v.Value {
			t.Errorf("%s as %s: %d, want %d", v.Path, v.Type, got, v.Value)
		}
	}
}

func TestVerdictVectors(t *testing.T) {
	var vectors struct {
		Reasons  []string
		Verdicts []struct {
			Byte               byte
			Fits, Unresolvable bool
			Score              int64
			Reason, Error      string
		}
	}
	read(t, "verdicts.json", &vectors)
	h := &abi.Hook{Point: abi.SchedulingTable, Reasons: vectors.Reasons}
	for _, v := range vectors.Verdicts {
		got, err := h.ParseVerdict(v.Byte)
		refusedAs(t, "byte", err, v.Error)
		if want := (abi.Verdict{Fits: v.Fits, Unresolvable: v.Unresolvable, Score: v.Score, Reason: v.Reason}); err == nil && got != want {
			t.Errorf("byte %d: %+v, want %+v", v.Byte, got, want)
		}
	}
}
