// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// table is sdk/spec/abi.yaml, which explains its fields.
type table struct {
	Version       int        `yaml:"version"`
	Points        []point    `yaml:"points"`
	Events        []named    `yaml:"events"`
	Columns       []named    `yaml:"columns"`
	HostFunctions []function `yaml:"hostFunctions"`
}

type point struct {
	Point    string `yaml:"point"`
	Name     string `yaml:"name"`
	Constant string `yaml:"constant"`
	Op       int    `yaml:"op"`
	Like     string `yaml:"like"`
	Template int    `yaml:"template"`
	Decides  string `yaml:"decides"`
	Document string `yaml:"document"`
	Parts    string `yaml:"parts"`
	Answer   string `yaml:"answer"`
	When     string `yaml:"when"`
}

type named struct {
	Name     string `yaml:"name"`
	Constant string `yaml:"constant"`
	Is       string `yaml:"is"`
}

type function struct {
	Name     string `yaml:"name"`
	Constant string `yaml:"constant"`
	Basic    bool   `yaml:"basic"`
	Opens    string `yaml:"opens"`
	Grant    string `yaml:"grant"`
	Input    string `yaml:"input"`
	Reply    string `yaml:"reply"`
}

// step says whether a point is a step of a pod's cycle that answers for itself: the
// node table, which takes the place of two of them, has a section of its own.
func (p point) step() bool {
	return strings.HasPrefix(p.Point, "scheduling.") && p.When != ""
}

var snake = regexp.MustCompile(`^[a-z]+(_[a-z]+)*$`)

// readTable decodes the table strictly and checks what the languages rely on.
func readTable(path string) (*table, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the table of the ABI: %w", err)
	}
	var t table
	d := yaml.NewDecoder(bytes.NewReader(data))
	d.KnownFields(true)
	if err := d.Decode(&t); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	var errs []error
	ops, seen := map[int]string{0: "settings"}, map[string]bool{}
	for _, p := range t.Points {
		if !snake.MatchString(p.Name) {
			errs = append(errs, fmt.Errorf("point %s: name is %q, expected snake case", p.Point, p.Name))
		}
		if other, taken := ops[p.Op]; taken || p.Op < 0 || p.Op >= 100 {
			errs = append(errs, fmt.Errorf("point %s: op is %d, expected a number from 1 to 99 that no other has (%s)", p.Point, p.Op, other))
		}
		ops[p.Op] = p.Point
		for _, id := range []string{p.Point, p.Name, p.Constant} {
			if id == "" || seen[id] {
				errs = append(errs, fmt.Errorf("point %s: %q is empty or used twice", p.Point, id))
			}
		}
		seen[p.Point], seen[p.Name], seen[p.Constant] = true, true, true
		if p.Like != "" && !slices.ContainsFunc(t.Points, func(o point) bool { return o.Constant == p.Like && o.Like == "" }) {
			errs = append(errs, fmt.Errorf("point %s: like is %q, expected the constant of a point that has a form of its own", p.Point, p.Like))
		}
	}
	return &t, errors.Join(errs...)
}

// byOp are the points in the order of their operations.
func (t *table) byOp() []point {
	out := slices.Clone(t.Points)
	slices.SortFunc(out, func(a, b point) int { return a.Op - b.Op })
	return out
}

// templates are the points that have one, in the order in which they are offered.
func (t *table) templates() []point {
	out := slices.DeleteFunc(slices.Clone(t.Points), func(p point) bool { return p.Template == 0 })
	slices.SortFunc(out, func(a, b point) int { return a.Template - b.Template })
	return out
}

// title makes PreEnqueue of pre_enqueue.
func title(snake string) string {
	var b strings.Builder
	for part := range strings.SplitSeq(snake, "_") {
		b.WriteString(strings.ToUpper(part[:1]) + part[1:])
	}
	return b.String()
}

// lowerFirst makes preEnqueue of PreEnqueue.
func lowerFirst(s string) string { return strings.ToLower(s[:1]) + s[1:] }

// upperFirst makes NodeAdded of nodeAdded, and a sentence's beginning of a phrase.
func upperFirst(s string) string { return strings.ToUpper(s[:1]) + s[1:] }
