// SPDX-License-Identifier: Apache-2.0

package realnode

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// After a runtime's end a thousand pods fail in the same way: a screen of them says no more than a few do.
func TestFewPodsSayWhyTheyCouldNotBeStopped(t *testing.T) {
	names := make([]string, 1000)
	for i := range names {
		names[i] = fmt.Sprintf("p%03d", i)
	}
	err := each(names, func(name string) error {
		if name < "p010" {
			return nil
		}
		return errors.New(name)
	})
	if want := "stop the pods: p010\np011\np012\np013\np014\nand 985 more"; err == nil || err.Error() != want {
		t.Errorf("got %v, expected %q", err, want)
	}
	if err := each(names[:3], func(string) error { return nil }); err != nil {
		t.Error(err)
	}
	err = each(names[:5], errors.New)
	if lines := strings.Split(err.Error(), "\n"); len(lines) != 5 || slices.Contains(lines, "and 0 more") {
		t.Errorf("five of five: %v", err)
	}
}
