// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// report writes the page and prints the sums. A failure is an error.
func (j *job) report(packages []string) error {
	page, sum := render(j.book, packages)
	file := filepath.Join(j.o.cache, "report.md")
	if err := os.WriteFile(file, []byte(page), 0o644); err != nil {
		return err
	}
	fmt.Fprintf(j.out, "\n%d passed, %d failed, %d skipped by upstream, %d need the server's inside; the report is %s\n",
		sum[passed], sum[failed], sum[skipped], sum[inside], file)
	if sum[failed] > 0 {
		return fmt.Errorf("%d tests failed", sum[failed])
	}
	return nil
}

// render is the page, and how often there was which outcome.
func render(b *book, packages []string) (string, map[string]int) {
	var page, failures strings.Builder
	sum, why := map[string]int{}, map[string]int{}
	fmt.Fprintf(&page, "# Upstream's integration tests with wasmplane %s\n\n"+
		"| package | passed | failed | skipped by upstream | needs the server's inside |\n|---|--:|--:|--:|--:|\n", b.build)
	for _, p := range packages {
		counts := map[string]int{}
		for _, test := range slices.Sorted(maps.Keys(b.all[p])) {
			r := b.all[p][test]
			if test == whole && r.Outcome == passed {
				continue
			}
			counts[r.Outcome]++
			sum[r.Outcome]++
			switch r.Outcome {
			case failed:
				fmt.Fprintf(&failures, "- `%s` `%s`: %s\n", p, test, r.Reason)
			case inside:
				_, reason, _ := strings.Cut(": "+r.Reason, ": ")
				why[reason]++
			}
		}
		if len(counts) == 0 {
			fmt.Fprintf(&page, "| %s | not run | | | |\n", p)
			continue
		}
		fmt.Fprintf(&page, "| %s | %d | %d | %d | %d |\n", p, counts[passed], counts[failed], counts[skipped], counts[inside])
	}
	fmt.Fprintf(&page, "| all | %d | %d | %d | %d |\n", sum[passed], sum[failed], sum[skipped], sum[inside])
	if failures.Len() > 0 {
		fmt.Fprintf(&page, "\n## Failed\n%s", failures.String())
	}
	if len(why) > 0 {
		page.WriteString("\n## What needs the server's inside\n")
		for _, reason := range slices.SortedFunc(maps.Keys(why), func(a, b string) int { return why[b] - why[a] }) {
			fmt.Fprintf(&page, "- %d: %s\n", why[reason], reason)
		}
	}
	return page.String(), sum
}
