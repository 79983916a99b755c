// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"errors"
	"log/slog"

	oteltrace "go.opentelemetry.io/otel/trace"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
)

// Env is what a controller is built with: its own identity towards the API, the
// shared caches, and where it reports.
type Env struct {
	// Client speaks as the controller's own service account.
	Client kubernetes.Interface
	// Reader speaks as the process that hosts the controllers, as the shared
	// informers do: it may list and watch everything. Controllers whose informer is
	// theirs alone (one name, one type) watch through it.
	Reader kubernetes.Interface
	// Informers are shared with the other controllers of the process; nobody
	// mutates what comes out of them.
	Informers informers.SharedInformerFactory
	// Recorder makes the controller's event recorder; component is the source that
	// events show ("deployment-controller").
	Recorder func(component string) record.EventRecorder
	Log      *slog.Logger
	Tracer   oteltrace.Tracer
}

// ErrStale tells a Loop that the cache has not yet seen a write that this
// controller itself made. Deciding on it could make the same change twice; the
// key comes again, at the latest after a short delay, and nothing is logged.
var ErrStale = errors.New("the cache has not seen our last write yet")

// ErrNotYet tells a Loop that a reconcile did what it could and that the rest
// waits for something that no event announces. The key comes again with a growing
// delay, and nothing is logged.
var ErrNotYet = errors.New("not done yet")

// Key names the object that a namespaced or cluster-wide reconcile is about.
type Key = cache.ObjectName
