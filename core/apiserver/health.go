// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/gorilla/mux"
)

// checkTimeout bounds one round of checks.
const checkTimeout = 5 * time.Second

// health serves one of /livez, /readyz and /healthz: "ok", or with ?verbose and
// on failure a line for each check. ?exclude=NAME leaves one out.
func (s *Server) health(probe string) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		ctx, cancel := context.WithTimeout(req.Context(), checkTimeout)
		defer cancel()
		query := req.URL.Query()
		excluded := map[string]bool{}
		for _, name := range query["exclude"] {
			excluded[name] = true
		}
		checks := s.checks(probe)
		if only := mux.Vars(req)["check"]; only != "" {
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
				s.metrics.chain.checked(c.Name, probe, err)
				if err != nil {
					// The cause is for the log: this page is open to everybody.
					s.cfg.Logger.WarnContext(ctx, "a health check failed", "check", c.Name, "error", err)
					fmt.Fprintf(&lines, "[-]%s failed: reason withheld\n", c.Name)
					failed++
				} else {
					fmt.Fprintf(&lines, "[+]%s ok\n", c.Name)
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

func (s *Server) checks(probe string) []Check {
	checks := []Check{{Name: "ping", Live: true, Check: func(context.Context) error { return nil }}}
	for _, c := range s.cfg.Checks {
		if c.Live || probe != "livez" {
			checks = append(checks, c)
		}
	}
	if probe == "readyz" {
		checks = append(checks, Check{Name: "shutdown", Check: func(context.Context) error {
			if s.isStopping() {
				return errors.New("the server is shutting down")
			}
			return nil
		}})
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
