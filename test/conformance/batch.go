// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/wasmplane/wasmplane/test/conformance/internal/suite"
)

// matching are the tests whose names match focus, and don't match except, if there is one.
func matching(all []suite.Test, focus, except string) ([]suite.Test, error) {
	pattern, err := regexp.Compile(focus)
	if err != nil {
		return nil, fmt.Errorf("--focus: %w", err)
	}
	without, err := regexp.Compile(except)
	if err != nil {
		return nil, fmt.Errorf("--except: %w", err)
	}
	var some []suite.Test
	for _, t := range all {
		if pattern.MatchString(t.Name) && (except == "" || !without.MatchString(t.Name)) {
			some = append(some, t)
		}
	}
	if len(some) == 0 {
		return nil, fmt.Errorf("--focus: no name of a test in this suite matches %q; --list lists them", focus)
	}
	return some, nil
}

// batches cuts tests into parts of n, SIG by SIG. A chain is not cut: its part may be larger.
func batches(tests []suite.Test, n int) [][]suite.Test {
	tests = slices.Clone(tests)
	slices.SortStableFunc(tests, func(a, b suite.Test) int { return strings.Compare(a.SIG, b.SIG) })
	var parts [][]suite.Test
	var part []suite.Test
	for i, t := range tests {
		if linked := i > 0 && t.Chain != "" && t.Chain == tests[i-1].Chain; len(part) >= n && !linked {
			parts, part = append(parts, part), nil
		}
		part = append(part, t)
	}
	if len(part) > 0 {
		parts = append(parts, part)
	}
	return parts
}
