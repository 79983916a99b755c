// SPDX-License-Identifier: Apache-2.0

// Package certwatch shows when the certificates of a machine end: in metrics, and in an Event on its
// Node once one is in its last days. All are renewed long before then, so such
// a certificate is one whose renewal fails, or an authority that only its owner can renew.
package certwatch

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/datadir"
	"github.com/wasmplane/wasmplane/core/pki"
	"github.com/wasmplane/wasmplane/core/run"
)

const (
	// every is how often it is looked: Events are kept for an hour by default.
	every = time.Hour
	// lastDays before its end a certificate is reported, or in the last twentieth of
	// its life, where that is less.
	lastDays = 7 * 24 * time.Hour
	reason   = "CertificateEnds"
)

var ends = prometheus.NewDesc("wasmplane_certificate_expiration_timestamp_seconds",
	"When a certificate of this machine ends, by its file in the data directory.", []string{"file"}, nil)

// Watch is over the certificates in a data directory.
type Watch struct {
	Dir  datadir.Dir
	Node string // which the Events are about
	Kube kubernetes.Interface
	Log  *slog.Logger
}

// Describe implements prometheus.Collector.
func (w *Watch) Describe(all chan<- *prometheus.Desc) { all <- ends }

// Collect implements prometheus.Collector. It reads the files, about twenty, when it is asked.
func (w *Watch) Collect(all chan<- prometheus.Metric) {
	found, err := w.list()
	if err != nil {
		all <- prometheus.NewInvalidMetric(ends, err)
		return
	}
	for _, c := range found {
		all <- prometheus.MustNewConstMetric(ends, prometheus.GaugeValue, float64(c.Ends.Unix()), w.name(c))
	}
}

func (w *Watch) list() ([]pki.Certificate, error) { return pki.List(w.Dir.PKI(), w.Dir.Member()) }

func (w *Watch) name(c pki.Certificate) string {
	if file, err := filepath.Rel(string(w.Dir), c.File); err == nil {
		return file
	}
	return c.File
}

// Run reports certificates in their last days until ctx ends.
func (w *Watch) Run(ctx context.Context) error {
	for {
		w.report(ctx, time.Now())
		if !run.Sleep(ctx, every) {
			return nil
		}
	}
}

func (w *Watch) report(ctx context.Context, now time.Time) {
	found, err := w.list()
	if err != nil {
		w.Log.ErrorContext(ctx, "the certificates of this machine cannot be read", "error", err)
		return
	}
	for _, c := range found {
		left := c.Ends.Sub(now)
		// What an earlier authority has signed, and is being dropped, goes by itself.
		if left > min(lastDays, c.Life/20) || c.Leaves {
			continue
		}
		text := fmt.Sprintf("The certificate %s (%s) ends at %s and was not renewed. See the log of wasmplane on this machine; `wasmplane certs list` shows all.",
			w.name(c), c.For, c.Ends.UTC().Format(time.RFC3339))
		if left <= 0 {
			text = fmt.Sprintf("The certificate %s (%s) ended at %s and was not renewed. See the log of wasmplane on this machine; `wasmplane certs list` shows all.",
				w.name(c), c.For, c.Ends.UTC().Format(time.RFC3339))
		}
		w.Log.ErrorContext(ctx, "a certificate is about to end, or has ended, and was not renewed", "file", c.File, "ends", c.Ends)
		if err := w.event(ctx, text, now); err != nil && ctx.Err() == nil {
			w.Log.WarnContext(ctx, "the event about a certificate was not written", "error", err)
		}
	}
}

func (w *Watch) event(ctx context.Context, text string, now time.Time) error {
	at := metav1.NewTime(now)
	_, err := w.Kube.CoreV1().Events(metav1.NamespaceDefault).Create(ctx, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, GenerateName: w.Node + "."},
		// As kubelets name their Node, by which `kubectl describe node` finds it.
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: w.Node, UID: types.UID(w.Node)},
		Type:           corev1.EventTypeWarning, Reason: reason, Message: text,
		Source:         corev1.EventSource{Component: "wasmplane", Host: w.Node},
		FirstTimestamp: at, LastTimestamp: at, Count: 1,
	}, metav1.CreateOptions{})
	return err
}
