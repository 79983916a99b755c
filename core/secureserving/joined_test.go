// SPDX-License-Identifier: Apache-2.0

package secureserving

import (
	"errors"
	"net"
	"testing"

	"go.uber.org/goleak"
)

func TestJoinedListenersActAsOne(t *testing.T) {
	defer goleak.VerifyNone(t)
	var all []net.Listener
	for _, host := range []string{"127.0.0.1", "127.0.0.2"} {
		l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, l)
	}
	both := Join(all...)
	for _, l := range all {
		dialled, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		accepted, err := both.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if accepted.RemoteAddr().String() != dialled.LocalAddr().String() {
			t.Errorf("accepted %s, dialled from %s", accepted.RemoteAddr(), dialled.LocalAddr())
		}
		_, _ = accepted.Close(), dialled.Close()
	}
	if err := both.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := both.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}
