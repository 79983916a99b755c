// SPDX-License-Identifier: Apache-2.0

package pluginwatch

import (
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"
)

// A plugin that sends without end is heard at a bounded rate; one that says little is heard at once.
func TestAPluginThatSendsWithoutEndIsHeardNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, taken := time.Now(), 0
		receive := func() (int, error) {
			if taken == 1000 {
				return 0, io.EOF
			}
			return taken, nil
		}
		err := Each(t.Context(), receive, func(int) error {
			if taken++; taken == burst && time.Since(began) > 0 {
				t.Errorf("the first took %s", time.Since(began))
			}
			return nil
		})
		if !errors.Is(err, io.EOF) || time.Since(began) < 90*time.Second {
			t.Errorf("%d messages were taken within %s: %v", taken, time.Since(began), err)
		}
	})
}
