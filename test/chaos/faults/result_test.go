// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/wasmplane/wasmplane/test/internal/journal"
)

// seconds is a duration as the table has it.
type seconds time.Duration

// String implements fmt.Stringer.
func (s seconds) String() string { return fmt.Sprintf("%.1f s", time.Duration(s).Seconds()) }

// result is what clients noticed of one class.
type result struct {
	Class  string `json:"class"`
	Binary string `json:"binary"` // the digest of what was tested

	Acknowledged int `json:"acknowledged"`
	Retried      int `json:"retried"`
	Failed       int `json:"failed"`
	Lost         int `json:"lost"`
	Calls        int `json:"calls"`
	CallsFailed  int `json:"callsFailed"`
	WrongWatches int `json:"wrongWatches"`
	Relists      int `json:"relists"`
	Restarts     int `json:"restarts"`

	Writes      seconds `json:"writes"`
	Scheduler   seconds `json:"scheduler"`
	Controllers seconds `json:"controllers"`
	Service     seconds `json:"service"`
	// Recovery is how long it took from the end of the fault until all was as before.
	Recovery seconds `json:"recovery"`

	// Breaches are what was worse than the class allows; none: it passed.
	Breaches []string `json:"breaches,omitempty"`
}

// results is a file of one result a line, of this and of former runs.
type results struct {
	path, binary string
	had          map[string]result
}

// openResults reads what a former run of the same binary has found.
func openResults(path, binary string) (*results, error) {
	build, err := journal.Build(binary)
	if err != nil {
		return nil, err
	}
	r := &results{path, build, map[string]result{}}
	if path == "" {
		return r, nil
	}
	return r, journal.Read(path, func(one result) {
		if one.Binary == build {
			r.had[one.Class] = one
		}
	})
}

// passed says whether a class need not be run again.
func (r *results) passed(class string) bool {
	one, ok := r.had[class]
	return ok && len(one.Breaches) == 0
}

func (r *results) add(one result) error {
	one.Binary = r.binary
	r.had[one.Class] = one
	if r.path == "" {
		return nil
	}
	return journal.Append(r.path, one)
}

// table is all results, in the catalogue's order.
func (r *results) table() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "CLASS\tFAILED\tLOST\tWRITES PAUSE\tSCHEDULER\tCONTROLLERS\tSERVICE\tCALLS FAILED\tWRONG WATCHES\tRESTARTS\tRECOVERY\tVERDICT")
	for _, c := range catalogue() {
		one, ok := r.had[c.id()]
		if !ok {
			continue
		}
		verdict := "passed"
		if len(one.Breaches) > 0 {
			verdict = "FAILED"
		}
		_, _ = fmt.Fprintf(w, "%s\t%d of %d\t%d\t%s\t%s\t%s\t%s\t%d of %d\t%d\t%d\t%s\t%s\n", one.Class, one.Failed, one.Acknowledged+one.Failed,
			one.Lost,
			one.Writes, one.Scheduler, one.Controllers, one.Service, one.CallsFailed, one.Calls+one.CallsFailed, one.WrongWatches, one.Restarts,
			one.Recovery,
			verdict)
	}
	_ = w.Flush()
	return b.String()
}

func TestResultsAreResumed(t *testing.T) {
	dir := t.TempDir()
	binary, other, path := filepath.Join(dir, "a"), filepath.Join(dir, "b"), filepath.Join(dir, "new", "results")
	for _, name := range []string{binary, other} {
		if err := os.WriteFile(name, []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	first, second := catalogue()[0].id(), catalogue()[1].id()
	open := func(of string) *results {
		r, err := openResults(path, of)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	r := open(binary)
	if err := errors.Join(r.add(result{Class: first, Failed: 3}), r.add(result{Class: second, Breaches: []string{"it was bad"}})); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = f.WriteString(`{"class":"half of a`)
	_ = f.Close()
	if r = open(binary); !r.passed(first) || r.passed(second) || len(r.had) != 2 {
		t.Errorf("what was found is %v", r.had)
	}
	lines := slices.Collect(strings.Lines(r.table()))
	if len(lines) != 3 || !strings.Contains(lines[1], "3 of 3") || !strings.Contains(lines[2], "FAILED") {
		t.Errorf("the table is\n%s", r.table())
	}
	if r = open(other); len(r.had) != 0 {
		t.Errorf("another binary has the results %v", r.had)
	}
}
