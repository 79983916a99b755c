// SPDX-License-Identifier: Apache-2.0

// Package logquery answers questions about the logs of a node's machine: upstream's node log
// query, /logs/?query=kubelet&tailLines=20 of the kubelet. A question names services, whose
// logs are in the machine's journal or in files that are called like them, or one file.
//
// Parsing and checking are pure, and refuse what upstream refuses. The journal is read by
// journalctl, which gets each answer as one argument of its own and can be told nothing else;
// files are read through a file system that the caller has confined. Any question ends after
// half a minute, and only a few are answered at one time.
package logquery

import (
	"fmt"
	"net/url"
	"regexp"
	"regexp/syntax"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Upstream's limits.
const (
	maxTailLines = 100_000
	maxServices  = 4
	maxService   = 256
	maxPattern   = 4096 // ours: an argument of a command is bounded too
)

// Query is what is asked for.
type Query struct {
	// Services by their names in the journal, or by their files' names.
	Services []string
	// Files below the folder of logs: what is asked for with a slash.
	Files []string
	Options
}

// Options narrow what is read of services' journals.
type Options struct {
	Since, Until *time.Time
	// TailLines of the end; nil: all.
	TailLines *int
	// Boot is 0 for the one that runs, -1 for the one before it; nil: all of them.
	Boot *int
	// Pattern that lines match, a regular expression (PCRE2, as journalctl has them).
	Pattern string
}

func (o *Options) empty() bool { return *o == Options{} }

// Parse reads a request's query. It is nil where nothing of it is about logs: then the path
// names a file.
func Parse(values url.Values) (*Query, error) {
	var q Query
	var errs field.ErrorList
	for _, word := range values["query"] {
		switch {
		case strings.ContainsAny(word, `/\`):
			q.Files = append(q.Files, word)
		case strings.TrimSpace(word) != "":
			q.Services = append(q.Services, word)
		}
	}
	if values.Has("query") && len(q.Files)+len(q.Services) == 0 {
		errs = append(errs, field.Invalid(field.NewPath("query"), values["query"], "may not be empty"))
	}
	errs = append(errs, parse(values, "sinceTime", &q.Since, instant)...)
	errs = append(errs, parse(values, "untilTime", &q.Until, instant)...)
	errs = append(errs, parse(values, "boot", &q.Boot, strconv.Atoi)...)
	errs = append(errs, parse(values, "tailLines", &q.TailLines, strconv.Atoi)...)
	q.Pattern = values.Get("pattern")
	if len(errs) > 0 {
		return nil, errs.ToAggregate()
	}
	if len(q.Files)+len(q.Services) == 0 && q.empty() {
		return nil, nil
	}
	return &q, nil
}

func parse[T any](values url.Values, name string, to **T, read func(string) (T, error)) field.ErrorList {
	text := values.Get(name)
	if text == "" {
		return nil
	}
	v, err := read(text)
	if err != nil {
		return field.ErrorList{field.Invalid(field.NewPath(name), text, err.Error())}
	}
	*to = &v
	return nil
}

func instant(s string) (time.Time, error) {
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return t, fmt.Errorf("invalid time format, expected one as 2006-01-02T15:04:05Z (RFC 3339)")
	}
	return t, nil
}

// Validate refuses what cannot be answered. Whether the file is there is seen when it is opened.
func (q *Query) Validate() error {
	var errs field.ErrorList
	at := field.NewPath("query")
	for _, s := range q.Services {
		if reason := unsafe(s); reason != "" {
			errs = append(errs, field.Invalid(at, s, reason))
		}
	}
	if len(q.Services) > maxServices {
		errs = append(errs, field.TooMany(at, len(q.Services), maxServices))
	}
	switch files := len(q.Files); {
	case files == 0 && len(q.Services) == 0:
		errs = append(errs, field.Required(at, "cannot be empty with options"))
	case files > 0 && len(q.Services) > 0:
		errs = append(errs, field.Invalid(at, fmt.Sprintf("%v, %v", q.Files, q.Services), "cannot specify a file and service"))
	case files > 1:
		errs = append(errs, field.Invalid(at, q.Files, "cannot specify more than one file"))
	case files == 1 && !q.empty():
		errs = append(errs, field.Invalid(at, q.Files, "cannot specify file with options"))
	}
	return append(errs, q.checkOptions()...).ToAggregate()
}

func (o *Options) checkOptions() field.ErrorList {
	var errs field.ErrorList
	if o.Since != nil && o.Until != nil && o.Since.After(*o.Until) {
		errs = append(errs, field.Invalid(field.NewPath("untilTime"), o.Until, "must be after `sinceTime`"))
	}
	if o.Boot != nil && *o.Boot > 0 {
		errs = append(errs, field.Invalid(field.NewPath("boot"), *o.Boot, "must be less than 1"))
	}
	if o.TailLines != nil {
		for _, reason := range validation.IsInRange(*o.TailLines, 0, maxTailLines) {
			errs = append(errs, field.Invalid(field.NewPath("tailLines"), *o.TailLines, reason))
		}
	}
	if len(o.Pattern) > maxPattern || strings.ContainsRune(o.Pattern, 0) {
		errs = append(errs, field.Invalid(field.NewPath("pattern"), "", fmt.Sprintf("may have %d bytes, none of them zero", maxPattern)))
	} else if _, err := syntax.Parse(o.Pattern, syntax.Perl); err != nil {
		errs = append(errs, field.Invalid(field.NewPath("pattern"), o.Pattern, err.Error()))
	}
	return errs
}

// safe are the characters of a service's name, upstream's. None of them means anything to
// journalctl, which would take * as all services of that beginning.
var safe = regexp.MustCompile(`^[a-zA-Z\-_.:0-9@]+$`)

func unsafe(service string) (reason string) {
	switch {
	case len(service) > maxService:
		return fmt.Sprintf("length must be less than %d", maxService)
	case !safe.MatchString(service):
		return "input contains unsupported characters"
	}
	return ""
}
