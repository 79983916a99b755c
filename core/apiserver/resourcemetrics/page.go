// SPDX-License-Identifier: Apache-2.0

package resourcemetrics

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"
)

// Bounds of a page: a node may be somebody else's machine, and lie.
const (
	pageMost       = 8 << 20 // bytes
	lineMost       = 8 << 10
	containersMost = 20_000
)

// point is what somebody has used up to a moment.
type point struct {
	cpu     float64 // seconds, since the start
	memory  float64 // bytes, now
	at      time.Time
	started time.Time // zero = unknown

	has uint8 // of the two
}

const (
	hasCPU = 1 << iota
	hasMemory
)

func (p *point) whole() bool { return p.has == hasCPU|hasMemory }

// page is what one node said at one moment.
type page struct {
	node point
	pods map[podName]containers
}

type podName struct{ namespace, name string }

type containers map[string]*point

// readPage reads what a kubelet serves at /metrics/resource: the text format of
// Prometheus, of which a few metrics are wanted. Lines that are none of them are
// passed over; what cannot be read at all is an error.
func readPage(from io.Reader, now time.Time) (*page, error) {
	limited := &io.LimitedReader{R: from, N: pageMost + 1}
	lines := bufio.NewScanner(limited)
	lines.Buffer(make([]byte, 0, 4<<10), lineMost)
	p, n := &page{pods: map[podName]containers{}}, 0
	for lines.Scan() {
		l, ok := readLine(lines.Text(), now)
		if !ok {
			continue
		}
		to := &p.node
		if l.metric.ofContainer {
			if l.pod == "" || l.namespace == "" || l.container == "" {
				continue
			}
			var known bool
			if to, known = p.container(l); !known {
				if n++; n > containersMost {
					return nil, fmt.Errorf("the page has more than %d containers", containersMost)
				}
			}
		}
		l.metric.set(to, l.value, l.at)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read the page: %w", err)
	}
	if limited.N <= 0 {
		return nil, fmt.Errorf("the page has more than %d bytes", pageMost)
	}
	return p, nil
}

func (p *page) container(l line) (_ *point, known bool) {
	name := podName{l.namespace, l.pod}
	in, ok := p.pods[name]
	if !ok {
		// The line is a part of the page: what is kept must not keep all of it.
		in = containers{}
		p.pods[podName{strings.Clone(l.namespace), strings.Clone(l.pod)}] = in
	}
	c, ok := in[l.container]
	if !ok {
		c = &point{}
		in[strings.Clone(l.container)] = c
	}
	return c, ok
}

// metric is one that is wanted.
type metric struct {
	ofContainer bool
	set         func(to *point, value float64, at time.Time)
}

func setCPU(to *point, value float64, at time.Time) {
	to.cpu, to.at, to.has = value, at, to.has|hasCPU
}

func setMemory(to *point, value float64, _ time.Time) {
	to.memory, to.has = value, to.has|hasMemory
}

func setStart(to *point, value float64, _ time.Time) {
	if seconds, rest := math.Modf(value); value < 1<<33 {
		to.started = time.Unix(int64(seconds), int64(rest*1e9))
	}
}

func wanted(name string) (metric, bool) {
	switch name {
	case "node_cpu_usage_seconds_total":
		return metric{false, setCPU}, true
	case "node_memory_working_set_bytes":
		return metric{false, setMemory}, true
	case "container_cpu_usage_seconds_total":
		return metric{true, setCPU}, true
	case "container_memory_working_set_bytes":
		return metric{true, setMemory}, true
	case "container_start_time_seconds":
		return metric{true, setStart}, true
	}
	return metric{}, false
}

// line is one sample.
type line struct {
	metric                    metric
	namespace, pod, container string
	value                     float64
	at                        time.Time
}

// readLine reads NAME{LABEL="VALUE",...} NUMBER [MILLISECONDS]; ok is false for
// everything else, and for metrics that nobody wants.
func readLine(text string, now time.Time) (l line, ok bool) {
	end := strings.IndexAny(text, "{ ")
	if end < 0 {
		return l, false
	}
	if l.metric, ok = wanted(text[:end]); !ok {
		return l, false
	}
	rest := text[end:]
	if rest[0] == '{' {
		if rest, ok = l.labels(rest[1:]); !ok {
			return l, false
		}
	}
	fields := strings.Fields(rest)
	if len(fields) < 1 || len(fields) > 2 {
		return l, false
	}
	var err error
	if l.value, err = strconv.ParseFloat(fields[0], 64); err != nil || !(l.value >= 0 && l.value < 1e18) { // NaN is neither
		return l, false
	}
	l.at = now
	if len(fields) == 2 {
		ms, err := strconv.ParseInt(fields[1], 10, 64)
		if err != nil {
			return l, false
		}
		if at := time.UnixMilli(ms); at.Before(now) { // clocks differ; the future is none of them
			l.at = at
		}
	}
	return l, true
}

// labels reads up to the brace that ends them.
func (l *line) labels(text string) (rest string, ok bool) {
	for {
		text = strings.TrimLeft(text, " ,")
		if after, end := strings.CutPrefix(text, "}"); end {
			return after, true
		}
		name, after, found := strings.Cut(text, "=")
		if !found {
			return "", false
		}
		quoted, err := strconv.QuotedPrefix(after)
		if err != nil || quoted[0] != '"' {
			return "", false
		}
		value, err := strconv.Unquote(quoted)
		if err != nil {
			return "", false
		}
		switch strings.TrimSpace(name) {
		case "namespace":
			l.namespace = value
		case "pod":
			l.pod = value
		case "container":
			l.container = value
		}
		text = after[len(quoted):]
	}
}
