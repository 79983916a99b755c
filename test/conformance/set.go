// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// set is a part of the upstream tests, chosen by their names.
type set struct {
	// title is what the report says of it.
	title string
	takes func(test string) bool
}

// conformance is the set that counts for conformance.
const conformance = "conformance"

var (
	// specialPattern is what upstream itself leaves out where it tests any cluster.
	specialPattern = regexp.MustCompile(`\[Feature:|\[Flaky\]|\[Slow\]|\[Disruptive\]`)
	// elsewherePattern is what only clouds, Windows and special hardware have.
	elsewherePattern = regexp.MustCompile(`\[sig-windows\]|\[Feature:Windows|\[Feature:GPUDevicePlugin\]|\[Feature:DownwardAPIHugePages\]` +
		`|\[Driver: (?:pd\.csi|azure|vsphere|cinder)|\[LocalVolumeType: gce-localssd`)
	// providerPattern is the list of providers that a test is written for.
	providerPattern = regexp.MustCompile(`\[Provider:([a-z,]+)\]`)
)

// sets are the parts that --suite names.
func sets() map[string]set {
	return map[string]set{
		conformance: {
			title: "the conformance tests",
			takes: func(test string) bool { return strings.Contains(test, "[Conformance]") },
		},
		"kind": {
			title: "all tests without [Feature:...], [Flaky], [Slow] and [Disruptive], which upstream runs against any cluster",
			takes: func(test string) bool { return !specialPattern.MatchString(test) },
		},
		nodeSuite: {
			title: "those of nodes (test/e2e_node)",
			takes: func(string) bool { return true },
		},
		"all": {
			title: "all tests that need no cloud, no Windows and no special hardware",
			takes: func(test string) bool { return !elsewherePattern.MatchString(test) && forLocalProvider(test) },
		},
	}
}

// forLocalProvider says whether a test may run here: it names no providers, or
// ours among them.
func forLocalProvider(test string) bool {
	for _, m := range providerPattern.FindAllStringSubmatch(test, -1) {
		if !slices.Contains(strings.Split(m[1], ","), "local") {
			return false
		}
	}
	return true
}

func setOf(name string) (set, error) {
	if s, ok := sets()[name]; ok {
		return s, nil
	}
	known := append(slices.Sorted(maps.Keys(sets())), policyAPI)
	return set{}, fmt.Errorf("--suite: expected one of %s, found %q", strings.Join(known, ", "), name)
}
