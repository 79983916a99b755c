// SPDX-License-Identifier: Apache-2.0

// Nameserver is CoreDNS with the plugins that the servers of upstream's end-to-end tests are
// configured with. Upstream's image agnhost has a whole CoreDNS in it; test/conformance puts this
// program there. It lies outside of that folder's module, which would otherwise ask for all that any
// plugin of CoreDNS needs.
package main

import (
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/errors" // plugins register themselves
	_ "github.com/coredns/coredns/plugin/hosts"
	_ "github.com/coredns/coredns/plugin/log"
)

func main() { coremain.Run() }
