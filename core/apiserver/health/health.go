// SPDX-License-Identifier: Apache-2.0

// Package health serves the probes of a server, /livez, /readyz and /healthz: whether
// all is well, in a line for each check, in upstream's words. Checks have upstream's
// names where the same thing is checked. Why something is not well is for the log, and
// for those who may ask for a single check, because the pages of all checks are open
// to everybody.
package health

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gorilla/mux"
)

// checkTimeout bounds one round of checks.
const checkTimeout = 5 * time.Second

// Check is one thing that has to be well.
type Check struct {
	// Name by which it is asked for alone and excluded. It may contain slashes.
	Name string
	// Check answers nil when all is well. It must return soon.
	Check func(ctx context.Context) error
	// Live: a failure makes /livez fail too, so that a supervisor restarts us. A failure of
	// any other check is told at /livez, and does not fail it: a restart would not mend it.
	Live bool
	// ReadyOnly: it is asked at /readyz alone.
	ReadyOnly bool
	// Advisory: a failure is told, and fails no probe but that of the check alone, because
	// who is taken out of a balancer cannot be mended through it.
	Advisory bool
}

// Started is a check of a part of the server's start, which upstream does in a hook of
// this name: it fails until done is closed. Until then a server is not ready.
func Started(hook string, done <-chan struct{}) Check {
	return Check{Name: "poststarthook/" + hook, Check: func(context.Context) error {
		select {
		case <-done:
			return nil
		default:
			return fmt.Errorf("the part of the start that %s stands for is not done yet", hook)
		}
	}}
}

// Probes serves them. Every field is needed.
type Probes struct {
	Checks []Check
	// Stopping is what /readyz asks last: an error once the server ends.
	Stopping func(context.Context) error
	// Observe is told how each check went.
	Observe func(check, probe string, err error)
	Log     *slog.Logger
}

// Handler serves one of /livez, /readyz and /healthz, and PROBE/CHECK for each check.
//
// The probe answers "ok", or with ?verbose and on failure a line for each check.
// ?exclude=NAME leaves one out. A check alone answers "ok", or what is wrong: asking
// for it is a right of its own.
func (p *Probes) Handler(probe string) http.HandlerFunc {
	checks := p.checks(probe)
	return func(w http.ResponseWriter, req *http.Request) {
		ctx, cancel := context.WithTimeout(req.Context(), checkTimeout)
		defer cancel()
		w.Header().Set("Cache-Control", "no-cache, private")
		if name := mux.Vars(req)["check"]; name != "" {
			p.one(ctx, w, probe, checks, name)
			return
		}
		query := req.URL.Query()
		lines, failed := p.all(ctx, probe, checks, query["exclude"])
		if failed {
			http.Error(w, fmt.Sprintf("%s%s check failed", lines, probe), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		if _, verbose := query["verbose"]; !verbose {
			fmt.Fprint(w, "ok")
			return
		}
		fmt.Fprintf(w, "%s%s check passed\n", lines, probe)
	}
}

// one answers for a single check.
func (p *Probes) one(ctx context.Context, w http.ResponseWriter, probe string, checks []Check, name string) {
	at := slices.IndexFunc(checks, func(c Check) bool { return c.Name == name })
	if at < 0 {
		http.Error(w, "404 page not found", http.StatusNotFound)
		return
	}
	err := checks[at].Check(ctx)
	p.Observe(name, probe, err)
	if err != nil {
		http.Error(w, "internal server error: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	fmt.Fprint(w, "ok")
}

// all asks all checks but those that are excluded.
func (p *Probes) all(ctx context.Context, probe string, checks []Check, excluded []string) (lines []byte, failed bool) {
	var out bytes.Buffer
	for _, c := range checks {
		if slices.Contains(excluded, c.Name) {
			fmt.Fprintf(&out, "[+]%s excluded: ok\n", c.Name)
			continue
		}
		err := c.Check(ctx)
		p.Observe(c.Name, probe, err)
		if err == nil {
			fmt.Fprintf(&out, "[+]%s ok\n", c.Name)
			continue
		}
		if c.Name != LogName { // it would hold up this answer too
			p.Log.WarnContext(ctx, "a health check failed", "check", c.Name, "probe", probe, "error", err)
		}
		switch {
		case probe == "livez" && !c.Live:
			fmt.Fprintf(&out, "[-]%s failed: reason withheld; a restart would not mend it\n", c.Name)
		case c.Advisory:
			fmt.Fprintf(&out, "[-]%s failed: reason withheld; the server serves nevertheless\n", c.Name)
		default:
			fmt.Fprintf(&out, "[-]%s failed: reason withheld\n", c.Name)
			failed = true
		}
	}
	out.WriteString(Unmatched(excluded, func(name string) bool {
		return slices.ContainsFunc(checks, func(c Check) bool { return c.Name == name })
	}))
	return out.Bytes(), failed
}

// Unmatched is upstream's line about names that were to be excluded and that no check has; "" where there are none.
func Unmatched(excluded []string, known func(name string) bool) string {
	var unknown []string
	for _, name := range excluded {
		if !known(name) {
			unknown = append(unknown, strconv.Quote(name))
		}
	}
	if len(unknown) == 0 {
		return ""
	}
	slices.Sort(unknown)
	return fmt.Sprintf("warn: some health checks cannot be excluded: no matches for %s\n", strings.Join(slices.Compact(unknown), ","))
}

// checks are those of a probe in their order, upstream's.
func (p *Probes) checks(probe string) []Check {
	checks := []Check{{Name: "ping", Live: true, Check: func(context.Context) error { return nil }}}
	for _, c := range p.Checks {
		if !c.ReadyOnly || probe == "readyz" {
			checks = append(checks, c)
		}
	}
	if probe == "readyz" {
		checks = append(checks, Check{Name: "shutdown", Check: p.Stopping})
	}
	return checks
}
