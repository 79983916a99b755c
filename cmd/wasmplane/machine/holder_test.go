// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/wasmplane/wasmplane/core/config"
)

// A kubelet whose port is taken is told by whom, and what to do.
func TestAPortOfTheKubeletThatIsTaken(t *testing.T) {
	for _, at := range []string{"127.0.0.1:0", "[::1]:0"} {
		l, err := net.Listen("tcp", at)
		if err != nil {
			continue // without IPv6
		}
		defer func() { _ = l.Close() }()
		c := config.Default()
		c.Node.KubeletListen = l.Addr().String()
		_, err = listenKubelet(t.Context(), c)
		if err == nil {
			t.Fatal("it listens where another one does")
		}
		for _, text := range []string{"node.kubeletListen", c.Node.KubeletListen, fmt.Sprintf("process %d (", os.Getpid()), "or 0 for any"} {
			if !strings.Contains(err.Error(), text) {
				t.Errorf("%q does not say %q", err, text)
			}
		}
	}
	if who := holder(0); who != "" {
		t.Errorf("%s listens at port 0", who)
	}
}

// Without a setting a kubelet has its usual port, and another one beside it any that is free. Neither is given away.
func TestTheUsualPortOfTheKubelet(t *testing.T) {
	c := config.Default()
	if got := ReservedPorts(c); !slices.Contains(got, config.KubeletPort) {
		t.Errorf("reserved are %v", got)
	}
	first, err := listenKubelet(t.Context(), c) // the usual one, unless a node of this machine has it
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = first.Close() }()
	second, err := listenKubelet(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = second.Close() }()
	if port := second.Addr().(*net.TCPAddr).Port; port == 0 || port == config.KubeletPort {
		t.Errorf("the second one listens at port %d", port)
	}
}
