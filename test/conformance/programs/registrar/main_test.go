// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/pluginwatch"
)

// named is a driver of which only the name is known.
type named struct {
	spec.UnimplementedIdentityServer
	name string
}

func (n named) GetPluginInfo(context.Context, *spec.GetPluginInfoRequest) (*spec.GetPluginInfoResponse, error) {
	return &spec.GetPluginInfoResponse{Name: n.name}, nil
}

// start runs a driver and its registrar until the test ends.
func start(t *testing.T, name string) (registry string, ended chan error) {
	t.Helper()
	dir := t.TempDir()
	driver, registry := filepath.Join(dir, "csi.sock"), filepath.Join(dir, "registry")
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() {
		served <- pluginwatch.Serve(ctx, driver, func(s *grpc.Server) { spec.RegisterIdentityServer(s, named{name: name}) })
	}()
	ended = make(chan error, 1)
	go func() {
		ended <- run(ctx, []string{
			"--csi-address=" + driver, "--plugin-registration-path=" + registry, "--kubelet-registration-path=/at/the/kubelet.sock", "--v=5",
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return registry, ended
}

// TestRegistration: the kubelet is told the driver's name and where it is; where it
// refuses, the registrar ends and its socket goes.
func TestRegistration(t *testing.T) {
	registry, ended := start(t, "a.example.com")
	socket := filepath.Join(registry, "a.example.com-reg.sock")
	conn, err := pluginwatch.Connect(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	kubelet := registration.NewRegistrationClient(conn)
	info, err := kubelet.GetInfo(ctx, &registration.InfoRequest{}, grpc.WaitForReady(true))
	if err != nil || info.GetType() != registration.CSIPlugin || info.GetName() != "a.example.com" ||
		info.GetEndpoint() != "/at/the/kubelet.sock" {
		t.Fatalf("the kubelet is told %v (%v)", info, err)
	}
	// Its answer may be lost: the registrar ends at once.
	_, _ = kubelet.NotifyRegistrationStatus(ctx, &registration.RegistrationStatus{Error: "not today"})
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "not today") {
		t.Errorf("ended with %v", err)
	}
	if _, err := os.Stat(socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
}

// TestNamesThatAreNone would be files elsewhere.
func TestNamesThatAreNone(t *testing.T) {
	if _, ended := start(t, "../../etc/x"); !strings.Contains((<-ended).Error(), "no name of a driver") {
		t.Error("the name was taken")
	}
}

func TestFlags(t *testing.T) {
	for _, args := range [][]string{{}, {"--kubelet-registration-path=/x", "y"}, {"--kubelet-registration-path=/x", "--mode=z"}} {
		if o, err := parse(args, io.Discard); err == nil {
			t.Errorf("%q was taken for %+v", args, o)
		}
	}
}
