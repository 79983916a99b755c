// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"
)

// CompactKey is the key through which several API servers on one store, also
// upstream's, agree who compacts it: whoever moves it on first does.
const CompactKey = "compact_rev_key"

// CompactorConfig says how much history to keep.
type CompactorConfig struct {
	Store Store
	// Interval between compactions, and the age that history reaches at least; 0 = 5 minutes.
	Interval time.Duration
	Logger   *slog.Logger // nil = discard
}

// Compactor forgets old states of the store in time. Each round moves
// CompactKey on; whoever finds that it was moved meanwhile leaves that round to
// the other, so that history is as long as one server alone would keep it.
type Compactor struct {
	store    Store
	interval time.Duration
	log      *slog.Logger

	expect int64 // ModRevision of CompactKey as this server last knew it
	target int64 // newest revision at the last round: at least one interval old at the next
}

// NewCompactor checks cfg and makes a Compactor.
func NewCompactor(cfg CompactorConfig) (*Compactor, error) {
	if cfg.Store == nil {
		return nil, errors.New("compactor: no store given")
	}
	if cfg.Interval < 0 {
		return nil, fmt.Errorf("compactor: interval %v: want a positive duration", cfg.Interval)
	}
	if cfg.Interval == 0 {
		cfg.Interval = 5 * time.Minute
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Compactor{store: cfg.Store, interval: cfg.Interval, log: cfg.Logger}, nil
}

// Run compacts until ctx ends. A round that fails is logged and left to the next one.
func (c *Compactor) Run(ctx context.Context) error {
	tick := time.NewTicker(c.interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if err := c.Round(ctx); err != nil && ctx.Err() == nil {
			c.log.WarnContext(ctx, "store could not be compacted; trying again in the next round", "error", err, "interval", c.interval)
		}
	}
}

// Round is one round: the first only learns the newest revision, each later one
// compacts to what the round before it learned, unless another server was faster.
func (c *Compactor) Round(ctx context.Context) error {
	now, err := c.store.Put(ctx, CompactKey, []byte(strconv.FormatInt(c.target, 10)), c.expect, 0)
	var conflict *ConflictError
	if errors.As(err, &conflict) {
		c.expect = conflict.Current.ModRevision
		if c.target, err = c.store.Revision(ctx); err != nil {
			return fmt.Errorf("read the newest revision: %w", err)
		}
		return nil
	}
	done := c.target
	switch {
	case errors.Is(err, ErrFull):
		// A full store takes no key, but forgetting is what makes room in it.
		if c.target, err = c.store.Revision(ctx); err != nil {
			return fmt.Errorf("read the newest revision: %w", err)
		}
	case err != nil:
		return fmt.Errorf("move %s on: %w", CompactKey, err)
	default:
		c.expect, c.target = now, now
	}
	if done == 0 {
		return nil
	}
	if err := c.store.Compact(ctx, done); err != nil {
		return fmt.Errorf("compact to revision %d: %w", done, err)
	}
	c.log.DebugContext(ctx, "store compacted", "revision", done)
	return nil
}
