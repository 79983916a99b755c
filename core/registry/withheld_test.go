// SPDX-License-Identifier: Apache-2.0

package registry_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/store"
)

// A client learns that the store fails, and nothing of the server's files and addresses. The log has all.
func TestAFailingStoreShowsNothingOfTheServer(t *testing.T) {
	w := newWorld(t)
	maps := w.registry(t, "", "configmaps")
	const where = "/var/lib/wasmplane/etcd"
	for name, c := range map[string]struct {
		fails error
		is    func(error) bool
	}{
		"unavailable":   {fmt.Errorf("put /registry/x in %s: %w: 192.0.2.7:2379 refused", where, store.ErrUnavailable), apierrors.IsServiceUnavailable},
		"anything else": {errors.New("put /registry/x in " + where + ": input/output error at 192.0.2.7"), apierrors.IsInternalError},
	} {
		t.Run(name, func(t *testing.T) {
			w.store.fails = c.fails
			defer func() { w.store.fails = nil }()
			_, err := maps.Create(t.Context(), request("a", "", `{"metadata":{"name":"m"}}`, &metav1.CreateOptions{}))
			var status apierrors.APIStatus
			ok := errors.As(err, &status)
			if !ok || !c.is(err) {
				t.Fatalf("got %v", err)
			}
			answer := fmt.Sprint(status.Status())
			if strings.Contains(answer, "/var/lib") || strings.Contains(answer, "192.0.2.7") || strings.Contains(err.Error(), "/var/lib") {
				t.Errorf("the client is told %s", answer)
			}
			var log bytes.Buffer
			slog.New(slog.NewTextHandler(&log, nil)).Error("failed", "error", err)
			if !strings.Contains(log.String(), where) {
				t.Errorf("the log has %s", log.String())
			}
		})
	}
}
