// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/robfig/cron/v3"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/backup/place"
	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/core/store/etcd/snapshotfile"
)

// Scheduled takes backups by a schedule. Each is read back before it counts, and the newest
// are kept.
type Scheduled struct {
	cluster  string
	schedule cron.Schedule
	keep     int
	from     Snapshotter
	to       place.Place
	scratch  string // a folder on this machine
	log      *slog.Logger
	failed   func(ctx context.Context, text string)

	failures    prometheus.Counter
	last, bytes prometheus.Gauge
}

// NewScheduled makes what takes the backups of a configuration; nil = it asks for none. failed
// is told when one did not work out.
func NewScheduled(c *config.Configuration, from Snapshotter, scratch string, metrics prometheus.Registerer, log *slog.Logger,
	failed func(context.Context, string),
) (*Scheduled, error) {
	if c.Backup.Schedule == "" {
		return nil, nil
	}
	schedule, err := cron.ParseStandard(c.Backup.Schedule)
	if err != nil {
		return nil, fmt.Errorf("backup.schedule: %w", err)
	}
	to, err := place.Of(c)
	if err != nil {
		return nil, err
	}
	s := &Scheduled{
		cluster: c.Cluster.Name, schedule: schedule, keep: c.Backup.Keep, from: from, to: to, scratch: scratch, log: log, failed: failed,
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "wasmplane_backup_failures_total", Help: "Scheduled backups that did not work out.",
		}),
		last: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "wasmplane_backup_last_success_timestamp_seconds", Help: "When the newest scheduled backup was taken and read back; 0 = none by this process.",
		}),
		bytes: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "wasmplane_backup_last_size_bytes", Help: "Size of the newest scheduled backup of this process.",
		}),
	}
	for _, m := range []prometheus.Collector{s.failures, s.last, s.bytes} {
		if err := metrics.Register(m); err != nil {
			return nil, fmt.Errorf("register the metrics of backups: %w", err)
		}
	}
	return s, nil
}

// stamp is the time in the names of backups: their order is that of the times.
const stamp = "20060102T150405Z"

// prefix of the names of a cluster's scheduled backups.
func prefix(cluster string) string { return "scheduled-" + cluster + "-" }

// Name of the backup of that time.
func Name(cluster string, at time.Time) string {
	return prefix(cluster) + at.UTC().Format(stamp) + ".db"
}

// Taken reads a name; ok is false for one that no schedule of this cluster has given.
func Taken(cluster, name string) (at time.Time, ok bool) {
	text, begins := strings.CutPrefix(name, prefix(cluster))
	text, ends := strings.CutSuffix(text, ".db")
	at, err := time.Parse(stamp, text)
	return at, begins && ends && err == nil
}

// List answers the scheduled backups of a cluster in a place, the oldest first.
func List(ctx context.Context, in place.Place, cluster string) ([]place.Item, error) {
	all, err := in.List(ctx, prefix(cluster))
	var found []place.Item
	for _, i := range all {
		if _, ok := Taken(cluster, i.Name); ok {
			found = append(found, i)
		}
	}
	return found, err
}

// Run takes backups until ctx ends. A time that nobody was there for is made up for at once.
func (s *Scheduled) Run(ctx context.Context) error {
	retry := run.Backoff{First: 30 * time.Second, Longest: 15 * time.Minute}
	next, known := time.Time{}, false
	for {
		if !known {
			var err error
			if next, err = s.next(ctx, time.Now()); err != nil {
				s.complain(ctx, err)
				if !retry.Wait(ctx) {
					return nil
				}
				continue
			}
			known = true
		}
		if !run.Sleep(ctx, time.Until(next)) {
			return nil
		}
		if err := s.Once(ctx, time.Now()); err != nil {
			if ctx.Err() != nil {
				return nil //nolint:nilerr // it was stopped: what it did not get done is no failure
			}
			s.complain(ctx, err)
			if !retry.Wait(ctx) {
				return nil
			}
			continue
		}
		retry.Reset()
		next = s.schedule.Next(time.Now())
	}
}

// next is when the next backup is due.
func (s *Scheduled) next(ctx context.Context, now time.Time) (time.Time, error) {
	found, err := List(ctx, s.to, s.cluster)
	if err != nil {
		return now, err
	}
	if len(found) == 0 {
		return s.schedule.Next(now), nil
	}
	last, _ := Taken(s.cluster, found[len(found)-1].Name)
	return s.schedule.Next(last), nil
}

func (s *Scheduled) complain(ctx context.Context, err error) {
	s.failures.Inc()
	s.log.ErrorContext(ctx, "a scheduled backup did not work out", "place", s.to.String(), "error", err)
	s.failed(ctx, fmt.Sprintf("the scheduled backup to %s did not work out: %v", s.to, err))
}

// Once takes one backup, reads it back and removes those that are too many.
func (s *Scheduled) Once(ctx context.Context, now time.Time) (err error) {
	if err := os.MkdirAll(s.scratch, 0o700); err != nil {
		return err
	}
	local, err := os.CreateTemp(s.scratch, "taking-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(local.Name())) }()
	_, err = s.from.Backup(ctx, local)
	if err = errors.Join(err, local.Close()); err != nil {
		return err
	}
	taken, err := snapshotfile.Check(local.Name())
	if err != nil {
		return err
	}
	name := Name(s.cluster, now)
	if err := s.to.Put(ctx, name, local.Name()); err != nil {
		return err
	}
	if err := s.readBack(ctx, name, taken); err != nil {
		return fmt.Errorf("the backup %s was written and cannot be read back: %w", name, errors.Join(err, s.to.Delete(ctx, name)))
	}
	s.last.Set(float64(now.Unix()))
	s.bytes.Set(float64(taken.Bytes))
	s.log.InfoContext(ctx, "a scheduled backup was taken", "name", name, "place", s.to.String(), "revision", taken.Revision, "bytes",
		taken.Bytes)
	return s.forget(ctx)
}

// readBack fails where the place does not hold what was taken.
func (s *Scheduled) readBack(ctx context.Context, name string, taken snapshotfile.Info) (err error) {
	back, err := os.CreateTemp(s.scratch, "reading-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(back.Name())) }()
	err = s.to.Get(ctx, name, back)
	if err = errors.Join(err, back.Close()); err != nil {
		return err
	}
	read, err := snapshotfile.Check(back.Name())
	if err == nil && read != taken {
		err = fmt.Errorf("it has the digest %s, expected %s", read.SHA256, taken.SHA256)
	}
	return err
}

func (s *Scheduled) forget(ctx context.Context) error {
	found, err := List(ctx, s.to, s.cluster)
	if err != nil {
		return err
	}
	for _, old := range found[:max(0, len(found)-s.keep)] {
		if err := s.to.Delete(ctx, old.Name); err != nil {
			return fmt.Errorf("remove the backup %s, which is too many: %w", old.Name, err)
		}
	}
	return nil
}
