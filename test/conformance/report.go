// SPDX-License-Identifier: Apache-2.0

package main

import (
	_ "embed" // parts of the report are files
	"fmt"
	"os"
	"strings"

	"github.com/wasmplane/wasmplane/test/conformance/internal/result"
)

var (
	// howToRun is how the report came about.
	//
	//go:embed howtorun.md
	howToRun string
	// cannotPass is what no build passes with these images.
	//
	//go:embed cannotpass.md
	cannotPass string
)

// report prints and writes what is known of the tests. Not everything passed is an error.
func (j *job) report() error {
	sigs := map[string]string{}
	for _, t := range j.tests {
		sigs[t.Name] = t.SIG
	}
	lines := j.book.Summary(sigs)
	fmt.Fprint(j.out, result.Text(lines))
	with := ""
	if j.o.profile != "" {
		with = " and with `profile: " + j.o.profile + "`"
	}
	how := "All figures are of one build" + with + ": " + j.version + ".\n\n"
	if j.o.anyBuild {
		how = "The figures are of several builds" + with + ": a test that had passed with one was not run again with the next.\n\n"
	}
	text := j.intro() + how + result.Markdown(lines) + secondTry(j.book.Again(sigs))
	if err := os.WriteFile(j.o.out, []byte(text), 0o644); err != nil {
		return err
	}
	fmt.Fprintln(j.out, "report:", j.o.out)
	if t := result.Total(lines); t.Failed+t.NotRun > 0 {
		return fmt.Errorf("%d tests failed, %d did not run", t.Failed, t.NotRun)
	}
	return nil
}

// intro begins the report as a document.
func (j *job) intro() string {
	text := "# Conformance\n\nThe upstream end-to-end tests of Kubernetes " + kubernetesVersion +
		", run against wasmplane with real nodes: " + j.set.title + ". This file is the report.\n\n" + howToRun + "\n"
	if j.o.suite == conformance {
		text += cannotPass + "\n"
	}
	return text
}

// secondTry names the tests that passed only when they ran again.
func secondTry(names []string) string {
	if len(names) == 0 {
		return "\nNo test had to be run again to pass.\n"
	}
	var out strings.Builder
	fmt.Fprintf(&out, "\n## Passed only when run again: %d\n\n", len(names))
	for _, n := range names {
		fmt.Fprintf(&out, "- %s\n", n)
	}
	return out.String()
}
