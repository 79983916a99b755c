// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"context"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
)

// socketEnded is what the library of WebSockets reports as an error whenever a connection ends
// other than by the client's word, which is after every command that kubectl runs in a container.
const socketEnded = "Error on socket receive"

// endings takes such reports for what they are: of interest to who looks for details.
type endings struct{ logr.LogSink }

// detail is upstream's level for the traffic of connections.
const detail = 4

// withEndings has what handles a connection in ctx log by endings.
func withEndings(ctx context.Context) context.Context {
	logger := klog.FromContext(ctx)
	return klog.NewContext(ctx, logger.WithSink(endings{logger.GetSink()}))
}

// Error implements logr.LogSink.
func (e endings) Error(err error, message string, values ...any) {
	if message != socketEnded {
		e.LogSink.Error(err, message, values...)
		return
	}
	if e.Enabled(detail) {
		e.Info(detail, "a client's connection ended", append(values, "why", err)...)
	}
}

// WithValues implements logr.LogSink.
func (e endings) WithValues(values ...any) logr.LogSink {
	return endings{e.LogSink.WithValues(values...)}
}

// WithName implements logr.LogSink.
func (e endings) WithName(name string) logr.LogSink { return endings{e.LogSink.WithName(name)} }
