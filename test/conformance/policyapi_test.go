// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
)

const policyAPIOutput = `=== RUN   TestConformanceProfiles
=== RUN   TestConformanceProfiles/A
=== RUN   TestConformanceProfiles/A/tcp
=== RUN   TestConformanceProfiles/A/mixed
    helper.go:87: FAILED Command was [/agnhost connect --timeout=3s --protocol=sctp 10.0.0.1:9003]
=== RUN   TestConformanceProfiles/A/bad
    helper.go:87: FAILED Command was [/agnhost connect --timeout=3s --protocol=tcp 10.0.0.1:80]
=== RUN   TestConformanceProfiles/B
--- FAIL: TestConformanceProfiles (1.00s)
    --- FAIL: TestConformanceProfiles/A (1.00s)
        --- PASS: TestConformanceProfiles/A/tcp (0.10s)
        --- FAIL: TestConformanceProfiles/A/mixed (0.10s)
        --- FAIL: TestConformanceProfiles/A/bad (0.10s)
    --- SKIP: TestConformanceProfiles/B (0.00s)
`

func TestTallyOfThePolicyAPI(t *testing.T) {
	for _, sctp := range []bool{false, true} {
		got, err := readTally(strings.NewReader(policyAPIOutput), sctp)
		if err != nil {
			t.Fatal(err)
		}
		needs, failed := []string{"TestConformanceProfiles/A/mixed"}, []string{"TestConformanceProfiles/A/bad"}
		if sctp {
			needs, failed = nil, append(needs, failed...)
		}
		passed := []string{"TestConformanceProfiles/A/tcp"}
		if !slices.Equal(got.passed, passed) || !slices.Equal(got.needSCTP, needs) || !slices.Equal(got.failed, failed) {
			t.Errorf("with SCTP %t: %+v", sctp, got)
		}
		if err := got.report(&bytes.Buffer{}, nil, "log"); err == nil {
			t.Error("a failed test is no error")
		}
	}
	err := (tally{}).report(&bytes.Buffer{}, errors.New("exit status 1"), "log")
	if err == nil || !strings.Contains(err.Error(), "exit status 1") {
		t.Errorf("nothing ran: %v", err)
	}
	if err := (tally{passed: []string{"a"}, needSCTP: []string{"b"}}).report(&bytes.Buffer{}, errors.New("exit status 1"), "log"); err != nil {
		t.Errorf("only what needs SCTP failed: %v", err)
	}
}

func TestImagesOfThePolicyAPI(t *testing.T) {
	names, err := policyAPIImages(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(names) != 1 || !strings.HasPrefix(names[0], "registry.k8s.io/e2e-test-images/agnhost:") {
		t.Errorf("images: %v; those of other names are not made here", names)
	}
}
