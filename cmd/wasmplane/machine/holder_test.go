// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"fmt"
	"net"
	"os"
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
