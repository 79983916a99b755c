// SPDX-License-Identifier: Apache-2.0

package threshold

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Settings of a node's evictions, as upstream's KubeletConfiguration has them: of EvictionHard the signals that are not named
// have their defaults, of the others they have none.
type Settings struct {
	// Hard limits: below one, pods are evicted at once. Soft ones: below one for as long as SoftGracePeriod says, pods are
	// evicted, and have their own time to end, at most MaxPodGracePeriod.
	Hard, Soft        map[string]string
	SoftGracePeriod   map[string]time.Duration
	MaxPodGracePeriod time.Duration
	// MinimumReclaim is how much more than the limit there is to be before evictions end.
	MinimumReclaim map[string]string
	// PressureTransitionPeriod is how long the node stays under pressure when nothing is short any more.
	PressureTransitionPeriod time.Duration
}

// Rules are Settings that have been read.
type Rules struct {
	Hard, Soft, MinimumReclaim                  Set
	SoftGracePeriod                             map[string]time.Duration
	MaxPodGracePeriod, PressureTransitionPeriod time.Duration
}

// SettingError is what is wrong with one of the Settings.
type SettingError struct {
	// Setting by upstream's name, such as evictionSoft.
	Setting string
	Err     error
}

func (e *SettingError) Error() string { return e.Setting + ": " + e.Err.Error() }

func (e *SettingError) Unwrap() error { return e.Err }

// Read the settings. What is wrong is a SettingError.
func (s *Settings) Read() (Rules, error) {
	r := Rules{
		SoftGracePeriod: s.SoftGracePeriod, MaxPodGracePeriod: s.MaxPodGracePeriod, PressureTransitionPeriod: s.PressureTransitionPeriod,
	}
	var err error
	if r.Hard, err = Parse(s.Hard); err != nil {
		return r, &SettingError{"evictionHard", err}
	}
	if r.Soft, err = parseAll(s.Soft); err != nil {
		return r, &SettingError{"evictionSoft", err}
	}
	if r.MinimumReclaim, err = parseAll(s.MinimumReclaim); err != nil {
		return r, &SettingError{"evictionMinimumReclaim", err}
	}
	if err := s.checkGrace(); err != nil {
		return r, &SettingError{"evictionSoftGracePeriod", err}
	}
	for name, d := range map[string]time.Duration{
		"evictionMaxPodGracePeriod": s.MaxPodGracePeriod, "evictionPressureTransitionPeriod": s.PressureTransitionPeriod,
	} {
		if d < 0 {
			return r, &SettingError{name, fmt.Errorf("expected at least 0s, found %v", d)}
		}
	}
	if d := s.MaxPodGracePeriod; d != d.Truncate(time.Second) {
		return r, &SettingError{"evictionMaxPodGracePeriod", fmt.Errorf("expected whole seconds, as pods have them, found %v", d)}
	}
	return r, nil
}

// checkGrace: each soft limit has its period, and each period its limit.
func (s *Settings) checkGrace() error {
	for _, signal := range slices.Sorted(maps.Keys(s.Soft)) {
		if _, ok := s.SoftGracePeriod[signal]; !ok {
			return fmt.Errorf("expected how long %s may stay below its limit in evictionSoft before pods are evicted (%s: 90s)", signal, signal)
		}
	}
	for _, signal := range slices.Sorted(maps.Keys(s.SoftGracePeriod)) {
		if _, ok := s.Soft[signal]; !ok {
			return fmt.Errorf("%s has no limit in evictionSoft: expected one there, or no period here", signal)
		}
		if d := s.SoftGracePeriod[signal]; d < 0 {
			return fmt.Errorf("%s: expected at least 0s, found %v", signal, d)
		}
	}
	return nil
}

// parseAll parses limits; signals that are not named have none.
func parseAll(limits map[string]string) (Set, error) {
	known, set := Defaults(), Set{}
	for _, signal := range slices.Sorted(maps.Keys(limits)) {
		if _, ok := known[signal]; !ok {
			return nil, fmt.Errorf("unknown signal %q: expected one of %s", signal, strings.Join(slices.Sorted(maps.Keys(known)), ", "))
		}
		limit, err := parse(limits[signal])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", signal, err)
		}
		set[signal] = limit
	}
	return set, nil
}
