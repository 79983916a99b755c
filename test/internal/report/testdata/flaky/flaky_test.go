// SPDX-License-Identifier: Apache-2.0

// Package flaky has tests that fail at the first try, or each time.
package flaky

import (
	"os"
	"testing"
)

// TestOnce fails where the file does not exist, and makes it.
func TestOnce(t *testing.T) {
	name := os.Getenv("FLAKY_ONCE")
	if _, err := os.Stat(name); err == nil {
		return
	}
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Error("the first try")
}

// TestAlways fails where it is asked to.
func TestAlways(t *testing.T) {
	if os.Getenv("FLAKY_ALWAYS") != "" {
		t.Error("each try")
	}
}

// TestEnds ends the command that runs the tests, where it is asked to.
func TestEnds(t *testing.T) {
	if os.Getenv("FLAKY_ENDS") == "" {
		return
	}
	tester, err := os.FindProcess(os.Getppid())
	if err == nil {
		err = tester.Kill()
	}
	if err != nil {
		t.Fatal(err)
	}
}
