// SPDX-License-Identifier: Apache-2.0

package dial_test

import (
	"fmt"
	"net/netip"

	"github.com/wasmplane/wasmplane/core/dial"
)

// What people without rights over the machine name may be on the internet only; what an
// operator names may be anywhere but where machines tell about themselves.
func ExamplePolicy_Check() {
	public, operator := dial.Public(nil, nil), dial.Operator(nil)
	for _, a := range []string{"1.1.1.1", "10.0.0.1", "127.0.0.1", "169.254.169.254"} {
		at := netip.MustParseAddr(a)
		fmt.Println(a, "public:", public.Check(at) == nil, "operator:", operator.Check(at) == nil)
	}
	fmt.Println(public.Check(netip.MustParseAddr("10.0.0.1")))
	// Output:
	// 1.1.1.1 public: true operator: true
	// 10.0.0.1 public: false operator: true
	// 127.0.0.1 public: false operator: true
	// 169.254.169.254 public: false operator: false
	// 10.0.0.1 is a private address
}
