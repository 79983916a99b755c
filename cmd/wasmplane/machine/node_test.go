// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"testing"

	"github.com/wasmplane/wasmplane/core/config"
)

func TestTheDNSHasTheTenthAddressOfServices(t *testing.T) {
	c := config.Default()
	if err := c.Complete(); err != nil {
		t.Fatal(err)
	}
	if got := DNSAddress(c).String(); got != "10.96.0.10" {
		t.Errorf("the DNS is at %s", got)
	}
}
