// SPDX-License-Identifier: Apache-2.0

package schemacheck

import (
	"fmt"

	"k8s.io/kube-openapi/pkg/validation/errors"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// MaxErrors is how many errors are found before an object is looked at no further. The schema at one place may find a few more, and
// errors of long texts, of long enumerations or below long names, count as several.
const MaxErrors = 250

// MaxWork is how much work an object may be: a value that is held against a schema counts perValue, and one of which little is wanted,
// such as its type, counts once. It is one to one and a half seconds of a processor. An object as large as one may be has 750,000 values.
const MaxWork = 2_000_000

// What counts how much of that, by how long it takes.
const (
	perValue     = 5
	listed       = 2    // as many values in a list, beside what they count themselves, and each value in a map
	required     = 50   // names that a map has to have count 1, whether it has them or not
	compared     = 4    // as many values of an enumeration, times the values in a list or map that is compared with them
	formatted    = 20   // as many bytes of a text that has a format
	measured     = 500  // as many bytes of a text whose length is limited
	told         = 500  // as many bytes of a path, a pattern or an enumeration, of which the text of an error is made
	errorText    = 1000 // as many bytes of an error's text, and of the value that it names, count as one more error
	merged       = 20   // as many comparisons of the errors at one place, which upstream compares with each other
	perValueText = 20   // bytes of each value that an error names, if it is a list or a map
)

var (
	errTooMuch = fmt.Errorf("the object has too many values for its schema: each counts %d, or 1 if it is right by its type, length or limits alone, "+
		"again for each schema in allOf, anyOf, oneOf and not that it is held against, and 1 for each %d values of an enumeration and each %d bytes of a text that has a format; "+
		"the limit is %d", perValue, compared, formatted, MaxWork)
	errLongTexts = errors.New(errors.CompositeErrorCode, "the errors have long texts: the object is not held against its schema any further")
)

// counts are what one validation of one object comes to.
type counts struct {
	places  int // that were looked at
	work    int
	enums   map[*any]int  // bytes of an enumeration, by its first value
	weights map[error]int // of the values that errors name
}

// walk is the part of a validation that finds errors which belong together: those of the object, or of one alternative.
type walk struct {
	*counts
	errors int // by their weights, so far
	most   int
}

func newWalk() *walk { return &walk{counts: &counts{}, most: MaxErrors} }

// over says whether no further value is looked at.
func (w *walk) over() bool { return w.errors >= w.most || w.work > MaxWork }

// plainly counts the work at a place where plain has the result.
func (w *walk) plainly(s *spec.Schema, value any) {
	w.work++
	if text, ok := value.(string); ok {
		w.work += len(s.Enum)/required + len(text)/measured
	}
}

// add counts the work at any other place.
func (w *walk) add(s *spec.Schema, value any, path string) {
	w.work += perValue + len(s.Required)/required + (len(path)+len(s.Pattern))/told
	if len(s.Enum) > 0 {
		w.work += (len(s.Enum)*values(value, MaxWork))/compared + w.enumeration(s.Enum)/told
	}
	switch v := value.(type) {
	case string:
		w.work += len(v) / measured
		if s.Format != "" {
			w.work += len(v) / formatted
		}
	case map[string]any:
		w.work += len(v)
	case []any:
		w.work += len(v) / listed
	}
}

// found has the errors at a place count, with those that were found before it.
func (w *walk) found(errs []error, before int) {
	if n := len(errs); n > 0 {
		w.errors = before + w.weight(errs)
		w.work += n + n*n/merged
	}
}

// enumeration is how many bytes an enumeration has.
func (w *walk) enumeration(enum []any) int {
	n, ok := w.enums[&enum[0]]
	if !ok {
		for _, v := range enum {
			n += bytesOf(v)
		}
		if w.enums == nil {
			w.enums = map[*any]int{}
		}
		w.enums[&enum[0]] = n
	}
	return n
}

// values is how many values a value has in it, with itself; it counts to most.
func values(value any, most int) int {
	n := 1
	switch v := value.(type) {
	case map[string]any:
		for _, within := range v {
			if n += values(within, most-n); n >= most {
				return n
			}
		}
	case []any:
		for _, within := range v {
			if n += values(within, most-n); n >= most {
				return n
			}
		}
	}
	return n
}

// bytesOf is about how long the text of a value is.
func bytesOf(value any) int {
	n := perValueText
	switch v := value.(type) {
	case string:
		n += len(v)
	case map[string]any:
		for name, within := range v {
			n += len(name) + bytesOf(within)
		}
	case []any:
		for _, within := range v {
			n += bytesOf(within)
		}
	}
	return n
}

// weight is what errors count.
func (w *walk) weight(errs []error) (n int) {
	for _, err := range errs {
		n += 1 + (len(err.Error())+w.named(err))/errorText
	}
	return n
}

// named is how long the value is that an error names.
func (w *walk) named(err error) int {
	v, ok := err.(*errors.Validation) //nolint:errorlint // upstream's validator wraps none
	if !ok {
		return 0
	}
	switch v.Value.(type) {
	case string, map[string]any, []any:
	default:
		return 0
	}
	n, ok := w.weights[err]
	if !ok {
		n = bytesOf(v.Value)
		if w.weights == nil {
			w.weights = map[error]int{}
		}
		w.weights[err] = n
	}
	return n
}
