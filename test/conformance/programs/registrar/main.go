// SPDX-License-Identifier: Apache-2.0

// Command registrar makes a CSI driver known to the kubelet, as upstream's
// node-driver-registrar does and with the flags of it that the suite's manifests
// use: it asks the driver for its name, and serves the kubelet's registration API
// at a socket in the kubelet's plugins_registry until it is told to end.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"syscall"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/pluginwatch"
)

type options struct {
	driver, atKubelet, registry, health string
	timeout                             time.Duration
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "registrar:", err)
		os.Exit(1)
	}
}

func parse(args []string, out io.Writer) (options, error) {
	var o options
	f := flag.NewFlagSet("registrar", flag.ContinueOnError)
	f.SetOutput(out)
	f.StringVar(&o.driver, "csi-address", "/run/csi/socket", "the driver's socket, as this container sees it")
	f.StringVar(&o.atKubelet, "kubelet-registration-path", "", "the driver's socket, as the kubelet sees it")
	f.StringVar(&o.registry, "plugin-registration-path", "/registration", "the kubelet's plugins_registry, as this container sees it")
	f.StringVar(&o.health, "http-endpoint", "", "address at which /healthz answers; empty = none")
	f.DurationVar(&o.timeout, "timeout", time.Second, "how long one question to the driver may take; it is asked until it answers")
	f.Int("v", 0, "accepted, and not used: what there is to say is always said")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 || o.atKubelet == "" || o.timeout <= 0 {
		return o, errors.New("expected --kubelet-registration-path=PATH, the driver's socket as the kubelet sees it, a --timeout above 0, and no argument that is no flag")
	}
	return o, nil
}

// run is the whole command.
func run(ctx context.Context, args []string) error {
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil))
	o, err := parse(args, os.Stderr)
	if err != nil {
		return err
	}
	name, err := driverName(ctx, o, logger)
	if err != nil {
		return err
	}
	if o.health != "" {
		stop, err := serveHealth(ctx, o.health)
		if err != nil {
			return err
		}
		defer stop()
	}
	ctx, refused := context.WithCancelCause(ctx)
	defer refused(nil)
	socket := filepath.Join(o.registry, name+"-reg.sock")
	logger.InfoContext(ctx, "registering a driver", "driver", name, "socket", socket)
	err = pluginwatch.Serve(ctx, socket, func(s *grpc.Server) {
		registration.RegisterRegistrationServer(s, registrar{logger: logger, name: name, endpoint: o.atKubelet, refused: refused})
	})
	if cause := context.Cause(ctx); err == nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

// validName keeps the driver's answer from naming a file elsewhere.
var validName = regexp.MustCompile(`^[a-zA-Z0-9]([-a-zA-Z0-9.]{0,61}[a-zA-Z0-9])?$`)

// driverName asks until the driver answers: it may start later than this program.
func driverName(ctx context.Context, o options, logger *slog.Logger) (string, error) {
	conn, err := pluginwatch.Connect(o.driver)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	for {
		one, cancel := context.WithTimeout(ctx, o.timeout)
		answer, err := spec.NewIdentityClient(conn).GetPluginInfo(one, &spec.GetPluginInfoRequest{}, grpc.WaitForReady(true))
		cancel()
		if err == nil {
			if !validName.MatchString(answer.GetName()) {
				return "", fmt.Errorf("the driver at %s calls itself %q, which is no name of a driver", o.driver, answer.GetName())
			}
			return answer.GetName(), nil
		}
		logger.InfoContext(ctx, "the driver does not answer yet", "error", err)
		retry := time.NewTimer(time.Second)
		select {
		case <-ctx.Done():
			retry.Stop()
			return "", ctx.Err()
		case <-retry.C:
		}
	}
}

func serveHealth(ctx context.Context, address string) (stop func(), err error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("--http-endpoint: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(l) }() // ends with stop
	return func() { _ = server.Close() }, nil
}

// registrar is what the kubelet asks.
type registrar struct {
	registration.UnimplementedRegistrationServer
	logger         *slog.Logger
	name, endpoint string
	refused        context.CancelCauseFunc
}

func (r registrar) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{
		Type: registration.CSIPlugin, Name: r.name, Endpoint: r.endpoint, SupportedVersions: []string{"1.0.0"},
	}, nil
}

// NotifyRegistrationStatus ends this program where the kubelet refuses the driver:
// it starts again, and asks again.
func (r registrar) NotifyRegistrationStatus(
	ctx context.Context, s *registration.RegistrationStatus,
) (*registration.RegistrationStatusResponse, error) {
	r.logger.InfoContext(ctx, "the kubelet has answered", "driver", r.name, "registered", s.GetPluginRegistered(), "error", s.GetError())
	if !s.GetPluginRegistered() {
		r.refused(fmt.Errorf("the kubelet refuses driver %s: %s", r.name, s.GetError()))
	}
	return &registration.RegistrationStatusResponse{}, nil
}
