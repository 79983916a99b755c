// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"os"
	"os/exec"
	"os/signal"
	"testing"
)

// TestProcessesHeedInterrupts also where a shell has the tests in its background, and has them ignore interrupts.
func TestProcessesHeedInterrupts(t *testing.T) {
	signal.Ignore(os.Interrupt)
	defer signal.Reset(os.Interrupt)
	p, err := Start(exec.Command("sleep", "3600"))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.End(os.Interrupt); err != nil {
		t.Error(err)
	}
}
