// SPDX-License-Identifier: Apache-2.0

// Package health serves the probes of a server, /livez, /readyz and /healthz: whether
// all is well, in a line for each check. Why something is not is for the log, because
// the pages are open to everybody.
package health

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/gorilla/mux"
)

// checkTimeout bounds one round of checks.
const checkTimeout = 5 * time.Second

// Check is one thing that has to be well.
type Check struct {
	Name string
	// Check answers nil when all is well. It must return soon.
	Check func(ctx context.Context) error
	// Live: a failure makes /livez fail too, so that a supervisor restarts us.
	Live bool
	// Advisory: a failure is told, and fails no probe but /readyz/NAME, because who is
	// taken out of a balancer cannot be mended through it.
	Advisory bool
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

// Handler serves one of /livez, /readyz and /healthz: "ok", or with ?verbose and
// on failure a line for each check. ?exclude=NAME leaves one out. What an advisory
// check finds stands in its line, and fails /readyz/NAME, but not the probe.
func (p *Probes) Handler(probe string) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		ctx, cancel := context.WithTimeout(req.Context(), checkTimeout)
		defer cancel()
		query := req.URL.Query()
		excluded := map[string]bool{}
		for _, name := range query["exclude"] {
			excluded[name] = true
		}
		checks := p.checks(probe)
		only := mux.Vars(req)["check"]
		if only != "" {
			checks = pick(checks, only)
			if checks == nil {
				http.Error(w, "404 page not found", http.StatusNotFound)
				return
			}
		}
		var lines bytes.Buffer
		failed := 0
		for _, c := range checks {
			switch {
			case excluded[c.Name]:
				fmt.Fprintf(&lines, "[+]%s excluded: ok\n", c.Name)
			default:
				err := c.Check(ctx)
				p.Observe(c.Name, probe, err)
				if err != nil {
					// The cause is for the log: this page is open to everybody.
					p.Log.WarnContext(ctx, "a health check failed", "check", c.Name, "error", err)
				}
				switch {
				case err == nil:
					fmt.Fprintf(&lines, "[+]%s ok\n", c.Name)
				case c.Advisory && only == "":
					fmt.Fprintf(&lines, "[-]%s failed: reason withheld; the server serves nevertheless\n", c.Name)
				default:
					fmt.Fprintf(&lines, "[-]%s failed: reason withheld\n", c.Name)
					failed++
				}
			}
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Cache-Control", "no-cache, private")
		switch _, verbose := query["verbose"]; {
		case failed > 0:
			w.WriteHeader(http.StatusInternalServerError)
			fmt.Fprintf(w, "%s%s check failed\n", lines.Bytes(), probe)
		case verbose:
			fmt.Fprintf(w, "%s%s check passed\n", lines.Bytes(), probe)
		default:
			fmt.Fprint(w, "ok")
		}
	}
}

func (p *Probes) checks(probe string) []Check {
	checks := []Check{{Name: "ping", Live: true, Check: func(context.Context) error { return nil }}}
	for _, c := range p.Checks {
		if c.Live || probe != "livez" {
			checks = append(checks, c)
		}
	}
	if probe == "readyz" {
		checks = append(checks, Check{Name: "shutdown", Check: p.Stopping})
	}
	return checks
}

func pick(checks []Check, name string) []Check {
	for _, c := range checks {
		if c.Name == name {
			return []Check{c}
		}
	}
	return nil
}
