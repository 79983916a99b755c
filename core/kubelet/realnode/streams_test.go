// SPDX-License-Identifier: Apache-2.0

package realnode_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	clientexec "k8s.io/client-go/util/exec"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/realnode/nodetest"
)

// The URLs that the engine answers speak the streaming protocols over SPDY: input
// and output, exit codes, attach, forwarded ports. containerd refuses the newest
// WebSocket subprotocol, v5, with 403: whoever takes that from a client translates.
func TestStreams(t *testing.T) {
	node := nodetest.Start(t)
	sandbox, container := node.Run(t, "web", "serve", ":80")
	e := node.Engine()
	input := make([]byte, 8<<20)
	if _, err := rand.Read(input); err != nil {
		t.Fatal(err)
	}
	t.Run("exec", func(t *testing.T) {
		at, err := e.Exec(t.Context(), &cri.ExecRequest{
			ContainerId: container, Cmd: []string{"/testprogram", "cat"}, Stdin: true, Stdout: true,
			Stderr: true,
		})
		if err != nil {
			t.Fatal(err)
		}
		var out, stderr bytes.Buffer
		err = stream(t, at, remotecommand.StreamOptions{Stdin: bytes.NewReader(input), Stdout: &out, Stderr: &stderr})
		if err != nil || !bytes.Equal(out.Bytes(), input) {
			t.Errorf("%d of %d bytes came back (%v, %s)", out.Len(), len(input), err, &stderr)
		}
	})
	t.Run("exit code", func(t *testing.T) {
		at, err := e.Exec(t.Context(), &cri.ExecRequest{
			ContainerId: container, Cmd: []string{"/testprogram", "fail", "42"}, Stdout: true,
			Stderr: true,
		})
		if err != nil {
			t.Fatal(err)
		}
		var stderr bytes.Buffer
		err = stream(t, at, remotecommand.StreamOptions{Stdout: io.Discard, Stderr: &stderr})
		var code clientexec.CodeExitError
		if !errors.As(err, &code) || code.Code != 42 || !strings.Contains(stderr.String(), "failing with 42") {
			t.Errorf("the command ends with %v and says %q", err, &stderr)
		}
	})
	t.Run("attach", func(t *testing.T) {
		c := nodetest.Container("echo", "cat")
		c.Stdin, c.StdinOnce = true, true
		_, id := node.RunWith(t, node.Sandbox("echo"), c)
		at, err := e.Attach(t.Context(), &cri.AttachRequest{ContainerId: id, Stdin: true, Stdout: true, Stderr: true})
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := stream(t, at, remotecommand.StreamOptions{Stdin: strings.NewReader("hello\n"), Stdout: &out, Stderr: io.Discard}); err != nil {
			t.Error(err)
		}
		if out.String() != "hello\n" {
			t.Errorf("came back: %q", &out)
		}
	})
	t.Run("port-forward", func(t *testing.T) {
		at, err := e.PortForward(t.Context(), &cri.PortForwardRequest{PodSandboxId: sandbox})
		if err != nil {
			t.Fatal(err)
		}
		if body := forwarded(t, at); !strings.HasPrefix(body, "web /through") {
			t.Errorf("through the forwarded port: %q", body)
		}
	})
}

func stream(t *testing.T, at string, o remotecommand.StreamOptions) error {
	t.Helper()
	u, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	e, err := remotecommand.NewSPDYExecutor(&rest.Config{}, "POST", u)
	if err != nil {
		t.Fatal(err)
	}
	return e.StreamWithContext(t.Context(), o)
}

// forwarded gets a page by way of a forwarded port.
func forwarded(t *testing.T, at string) string {
	t.Helper()
	u, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	transport, upgrader, err := spdy.RoundTripperFor(&rest.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ready := make(chan struct{})
	fw, err := portforward.NewOnAddresses(spdy.NewDialer(upgrader, &http.Client{Transport: transport}, "POST", u),
		[]string{"127.0.0.1"}, []string{"0:80"}, ctx.Done(), ready, io.Discard, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- fw.ForwardPorts() }()
	select {
	case <-ready:
	case err := <-done:
		t.Fatal(err)
	}
	ports, err := fw.GetPorts()
	if err != nil {
		t.Fatal(err)
	}
	body, err := get(t, fmt.Sprintf("http://127.0.0.1:%d/through", ports[0].Local))
	if err != nil {
		t.Error(err)
	}
	cancel()
	<-done
	return body
}
