// SPDX-License-Identifier: Apache-2.0

package cronjob

import (
	"errors"
	"fmt"
	"strings"
	"time"
	// Schedules name time zones, and what they mean must not depend on whether this
	// machine has zone files.
	_ "time/tzdata"

	"github.com/robfig/cron/v3"
	batchv1 "k8s.io/api/batch/v1"
)

// manyMissed is from how many on missed starts are worth a warning.
const manyMissed = 100

// slack is added to a wait, because the clock of the server that stamps times and
// ours are not the same.
const slack = 100 * time.Millisecond

// parse reads a schedule in its time zone. The library panics on some input.
func parse(spec *batchv1.CronJobSpec) (s cron.Schedule, err error) {
	defer func() {
		if r := recover(); r != nil {
			s, err = nil, fmt.Errorf("invalid schedule format: %v", r)
		}
	}()
	text := spec.Schedule
	if spec.TimeZone != nil && !strings.Contains(text, "TZ") {
		text = "TZ=" + *spec.TimeZone + " " + text
	}
	return cron.ParseStandard(text)
}

// start is a time at which a Job is to be started.
type start struct {
	// at is the latest scheduled time that is due; zero if none is.
	at time.Time
	// many were missed.
	many bool
}

var (
	errTooOften = errors.New("time difference between two schedules is less than 1 second")
	// errNever: the library looks for a time within five years.
	errNever = errors.New("no time within five years is on it, as with a 31st of February")
)

// due finds the latest scheduled time up to now that has not been dealt with. Of
// several missed ones only the last counts. That none ever comes is an error, as it is upstream.
func due(job *batchv1.CronJob, s cron.Schedule, now time.Time) (start, error) {
	from := job.CreationTimestamp.Time
	if job.Status.LastScheduleTime != nil {
		from = job.Status.LastScheduleTime.Time
	}
	if d := job.Spec.StartingDeadlineSeconds; d != nil {
		if earliest := now.Add(-time.Duration(*d) * time.Second); earliest.After(from) {
			from = earliest
		}
	}
	first := s.Next(from)
	if first.IsZero() {
		return start{}, errNever
	}
	if first.After(now) {
		return start{}, nil
	}
	second := s.Next(first)
	if second.IsZero() || second.After(now) {
		return start{at: first}, nil
	}
	interval := second.Sub(first)
	if interval < time.Second {
		return start{}, errTooOften
	}
	return start{at: latest(s, first, interval, now), many: now.Sub(first)/interval+1 > manyMissed}, nil
}

// latest is the last scheduled time up to now. It looks back from now in steps that
// double, so that years of downtime don't have to be walked through minute by minute.
func latest(s cron.Schedule, first time.Time, interval time.Duration, now time.Time) time.Time {
	from := first
	for back := 2 * interval; back > 0 && now.Add(-back).After(first); back *= 2 {
		if t := s.Next(now.Add(-back)); !t.IsZero() && !t.After(now) {
			from = t
			break
		}
	}
	for t := s.Next(from); !t.IsZero() && !t.After(now); t = s.Next(t) {
		from = t
	}
	return from
}

// untilNext is how long it takes until the next scheduled time; 0 = it never comes.
func untilNext(s cron.Schedule, now time.Time) time.Duration {
	next := s.Next(now)
	if next.IsZero() {
		return 0
	}
	return next.Sub(now) + slack
}
