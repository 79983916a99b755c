// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"slices"
	"testing"

	"github.com/wasmplane/wasmplane/core/config"
)

func TestTheDNSHasTheTenthAddressOfServices(t *testing.T) {
	c := config.Default()
	if err := c.Complete(); err != nil {
		t.Fatal(err)
	}
	if got := texts(DNSAddresses(c)); !slices.Equal(got, []string{"10.96.0.10"}) {
		t.Errorf("the DNS is at %s", got)
	}
}
