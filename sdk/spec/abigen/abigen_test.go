// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Every table in the tree is the one of sdk/spec/abi.yaml.
func TestTablesAreGenerated(t *testing.T) {
	files, err := generate("../../..")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 10 {
		t.Fatalf("only %d files are generated", len(files))
	}
	for path, want := range files {
		got, err := os.ReadFile(path)
		if err != nil {
			t.Error(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is not what sdk/spec/abi.yaml makes of it: run make gen", path)
		}
	}
}

func TestWrongTablesAreErrors(t *testing.T) {
	for content, want := range map[string]string{
		"version: 1\npoint: []\n": "field point not found",
		"points: [{point: a, name: a, constant: A, op: 1}, {point: b, name: b, constant: B, op: 1}]":     "op is 1, expected a number from 1 to 99 that no other has (a)",
		"points: [{point: a, name: aB, constant: A, op: 1}]":                                             "expected snake case",
		"points: [{point: a, name: one, constant: A, op: 1}, {point: b, name: two, constant: A, op: 2}]": `"A" is empty or used twice`,
		"points: [{point: a, name: a, constant: A, op: 1, like: B}]":                                     `like is "B", expected the constant of a point that has a form of its own`,
	} {
		path := filepath.Join(t.TempDir(), "abi.yaml")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readTable(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\nerror: %v\nwant:  %s", content, err, want)
		}
	}
}
