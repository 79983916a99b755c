// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/backup"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/process"
	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/core/run/leader"
)

// backupLease is held by the server that takes the scheduled backups.
const backupLease = "wasmplane-backup"

// openBackups makes what takes scheduled backups; nil where the configuration asks for none.
func (s *server) openBackups() (err error) {
	scratch := filepath.Join(s.Options.Dir.Backups(), "tmp")
	s.backups, err = backup.NewScheduled(s.Options.Config, s.storage.disk, scratch, s.metrics, s.Options.Logger, s.reportBackup)
	return err
}

// takeBackups takes scheduled backups while this server is the one that does.
func (s *server) takeBackups(ctx context.Context) error {
	if !run.Await(ctx, s.boot.Ready()) {
		return nil
	}
	if s.backups == nil {
		return untilEnd(ctx)
	}
	holder, err := process.Identity(s.Options)
	if err != nil {
		return err
	}
	return leader.Election{
		Client: s.internal.Kube, Namespace: metav1.NamespaceSystem, Name: backupLease, Identity: holder, Logger: s.Options.Logger,
	}.Stand(ctx, s.backups.Run)
}

// reportBackup has a failure be seen among the cluster's events.
func (s *server) reportBackup(ctx context.Context, text string) {
	s.warn(ctx, backupLease, "BackupFailed", text)
}

// warn writes an event about what the holder of a lease does.
func (b base) warn(ctx context.Context, lease, reason, text string) {
	b.warnAbout(ctx, metav1.NamespaceSystem, corev1.ObjectReference{
		APIVersion: "coordination.k8s.io/v1", Kind: "Lease", Namespace: metav1.NamespaceSystem, Name: lease,
	}, reason, text)
}

// warnAbout writes an event about an object into a namespace.
func (b base) warnAbout(ctx context.Context, namespace string, object corev1.ObjectReference, reason, text string) {
	const longest = 1000 // of an event's message
	if len(text) > longest {
		text = text[:longest]
	}
	now := metav1.NewTime(time.Now())
	_, err := b.internal.Kube.CoreV1().Events(namespace).Create(ctx, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{GenerateName: object.Name + "."}, InvolvedObject: object,
		Type: corev1.EventTypeWarning, Reason: reason, Message: text, Source: corev1.EventSource{Component: "wasmplane"},
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}, metav1.CreateOptions{})
	if err != nil && ctx.Err() == nil {
		b.Options.Logger.WarnContext(ctx, "an event was not written", "reason", reason, "message", text, "error", err)
	}
}
