// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"context"
	"fmt"
	"slices"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wasmplane/wasmplane/core/kubelet/pluginwatch"
)

// driver is one that has registered.
type driver struct {
	name     string
	endpoint string
	timeout  time.Duration
	took     *prometheus.HistogramVec
}

// operations are the calls of drivers, how long they took and what was answered, under upstream's names.
func operations() *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "csi_operations_seconds", Help: "How long CSI drivers took to answer, by the code of the answer.",
		Buckets: []float64{.1, .25, .5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600}, // upstream's
	}, []string{"driver_name", "method_name", "grpc_status_code", "migrated"})
}

// ask makes one call of the driver's node service, within its deadline.
func ask[A any](ctx context.Context, d *driver, what string, call func(context.Context, spec.NodeClient) (A, error)) (answer A, err error) {
	// A connection is made for each use, as upstream makes it: a driver that was replaced is
	// found at once, and nothing is held open for one that is not used.
	c, err := pluginwatch.Connect(d.endpoint)
	if err != nil {
		return answer, err
	}
	defer c.Close()
	bounded, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	began := time.Now()
	answer, err = call(bounded, spec.NewNodeClient(c))
	d.took.WithLabelValues(d.name, "/"+spec.Node_ServiceDesc.ServiceName+"/"+what, status.Code(err).String(), "false").
		Observe(time.Since(began).Seconds())
	if err == nil || ctx.Err() != nil {
		return answer, err
	}
	switch status.Code(err) {
	case codes.DeadlineExceeded:
		return answer, &failure{fmt.Sprintf("driver %s has not answered %s within %s: see the logs of its pod on this node", d.name, what,
			d.timeout), err}
	case codes.Unavailable:
		return answer, &failure{fmt.Sprintf("driver %s cannot be reached for %s at %s: see whether its pod on this node runs: %v", d.name, what, d.endpoint, err), err}
	default:
		return answer, &failure{fmt.Sprintf("driver %s: %s: %v", d.name, what, err), err}
	}
}

// failure of a call says whose it was.
type failure struct {
	text string
	err  error
}

func (f *failure) Error() string { return f.text }
func (f *failure) Unwrap() error { return f.err }

// code is what a driver answered, through what has been wrapped around it.
func code(err error) codes.Code {
	s, _ := status.FromError(err)
	return s.Code()
}

// powers are what a driver's node service offers.
type powers []spec.NodeServiceCapability_RPC_Type

func (p powers) has(t spec.NodeServiceCapability_RPC_Type) bool { return slices.Contains(p, t) }

func (d *driver) powers(ctx context.Context) (powers, error) {
	got, err := ask(ctx, d, "NodeGetCapabilities", func(ctx context.Context, c spec.NodeClient) (*spec.NodeGetCapabilitiesResponse, error) {
		return c.NodeGetCapabilities(ctx, &spec.NodeGetCapabilitiesRequest{})
	})
	if err != nil {
		return nil, err
	}
	var out powers
	for _, c := range got.GetCapabilities() {
		out = append(out, c.GetRpc().GetType())
	}
	return out, nil
}
