// SPDX-License-Identifier: Apache-2.0

// Package threshold says below what a node is under pressure: the signals and the
// notation of upstream's evictionHard ("10%", "1Gi"), with one addition. A limit
// may be the smaller of several ("10%,4Gi"): a tenth of a disk of 2 TB is not a
// shortage.
package threshold

import (
	"fmt"
	"maps"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Signals that a node watches, by upstream's names.
const (
	MemoryAvailable = "memory.available"
	DiskAvailable   = "nodefs.available"
	InodesFree      = "nodefs.inodesFree"
	PIDsAvailable   = "pid.available"
)

// Defaults are upstream's, but that no more of a disk than 4 GiB is kept free, and
// that the last 5 % of process IDs are.
func Defaults() map[string]string {
	return map[string]string{MemoryAvailable: "100Mi", DiskAvailable: "10%,4Gi", InodesFree: "5%", PIDsAvailable: "5%"}
}

// Limit of one signal: the smallest of its parts.
type Limit []part

type part struct {
	percent float64 // of the capacity; if negative, amount counts
	amount  int64
}

// Of a capacity, in its unit.
func (l Limit) Of(capacity int64) int64 {
	least := capacity
	for _, p := range l {
		n := p.amount
		if p.percent >= 0 {
			n = int64(float64(capacity) / 100 * p.percent)
		}
		least = min(least, n)
	}
	return least
}

// Set of limits, by signal.
type Set map[string]Limit

// Parse limits on top of the defaults. "0%" switches a signal off.
func Parse(limits map[string]string) (Set, error) {
	set, err := parseAll(limits)
	if err != nil {
		return nil, err
	}
	usual, err := parseAll(Defaults())
	if err != nil {
		return nil, err
	}
	maps.Copy(usual, set)
	return usual, nil
}

func parse(text string) (Limit, error) {
	var l Limit
	for s := range strings.SplitSeq(text, ",") {
		s = strings.TrimSpace(s)
		if share, ok := strings.CutSuffix(s, "%"); ok {
			percent, err := strconv.ParseFloat(share, 64)
			if err != nil || !(percent >= 0 && percent < 100) {
				return nil, fmt.Errorf("expected a percentage from 0%% to below 100%%, found %q", s)
			}
			l = append(l, part{percent: percent})
			continue
		}
		q, err := resource.ParseQuantity(s)
		if err != nil || q.Sign() < 0 {
			return nil, fmt.Errorf("expected a percentage (10%%), an amount (1Gi), or several of which the smallest counts (10%%,4Gi), found %q", text)
		}
		l = append(l, part{percent: -1, amount: q.Value()})
	}
	return l, nil
}
