// SPDX-License-Identifier: Apache-2.0

// Package profiling serves Go's profiles of this process below /debug/pprof/, where upstream's
// components have them: profile (processor), heap, goroutine, mutex, block, trace and so on.
//
// The handler asks nobody who they are: what mounts it has to authorize the path as it does
// /metrics. A profile shows names of functions and, by its labels, of tasks; a goroutine dump
// shows no values. One that takes time takes a minute at most, and there is one processor
// profile at a time.
package profiling

import (
	"fmt"
	"net/http"
	"net/http/pprof"
	"strconv"
	"strings"
)

// Prefix of all paths.
const Prefix = "/debug/pprof/"

// longest is how many seconds a profile may take; servers end requests that take longer.
const longest = 60

// Handler of Prefix and what is below it.
func Handler() http.Handler {
	named := map[string]http.HandlerFunc{
		"": pprof.Index, "cmdline": pprof.Cmdline, "profile": pprof.Profile, "symbol": pprof.Symbol, "trace": pprof.Trace,
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s := r.URL.Query().Get("seconds"); s != "" {
			if n, err := strconv.ParseFloat(s, 64); err != nil || !(n >= 0 && n <= longest) {
				http.Error(w, fmt.Sprintf("seconds: found %q, expected a number from 0 to %d", s, longest), http.StatusBadRequest)
				return
			}
		}
		name := strings.TrimPrefix(r.URL.Path, Prefix)
		if h, ok := named[name]; ok {
			h(w, r)
			return
		}
		pprof.Handler(name).ServeHTTP(w, r)
	})
}
