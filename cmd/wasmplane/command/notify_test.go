// SPDX-License-Identifier: Apache-2.0

package command

import (
	"net"
	"os"
	"path/filepath"
	"testing"
)

// TestTheServiceManagerLearnsThatTheClusterIsReady: the unit of the packages is Type=notify, and
// would be killed after a while if nobody told it.
func TestTheServiceManagerLearnsThatTheClusterIsReady(t *testing.T) {
	if err := notifyReady(); err != nil {
		t.Errorf("without a service manager: %v", err)
	}
	path := filepath.Join(t.TempDir(), "s")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = socket.Close() }()
	t.Setenv("NOTIFY_SOCKET", path)
	if err := notifyReady(); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 64)
	n, err := socket.Read(b)
	if err != nil || string(b[:n]) != "READY=1" {
		t.Errorf("the service manager was sent %q, %v", b[:n], err)
	}
	if _, there := os.LookupEnv("NOTIFY_SOCKET"); there {
		t.Error("children would inherit the socket")
	}
}
