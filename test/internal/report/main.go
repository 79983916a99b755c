// Command report reads `go test -json` and prints what a person wants to see: a
// line for each package, the output of what failed, and the count at the end. A
// skipped test is a failure: a test that cannot run shows nothing.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"strings"
)

type event struct {
	Action, Package, Test, Output, ImportPath string
	Elapsed                                   float64
}

type result struct {
	output []string
	action string
}

func main() {
	if err := report(); err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
		os.Exit(2)
	}
}

func report() error {
	tests := map[string]*result{}
	var passed, failed, skipped int
	var bad []string
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(make([]byte, 1<<20), 64<<20)
	for in.Scan() {
		var e event
		if err := json.Unmarshal(in.Bytes(), &e); err != nil {
			fmt.Println(in.Text()) // what the toolchain itself says
			continue
		}
		name := e.Package + " " + e.Test
		if e.ImportPath != "" {
			name = e.ImportPath + " "
		}
		r := tests[name]
		if r == nil {
			r = &result{}
			tests[name] = r
		}
		switch e.Action {
		case "output", "build-output":
			r.output = append(r.output, e.Output)
		case "pass", "fail", "skip", "build-fail":
			r.action = e.Action
			count(e, name, &passed, &failed, &skipped, &bad)
			if e.Action == "pass" {
				r.output = nil
			}
		}
	}
	sort.Strings(bad)
	for _, name := range bad {
		fmt.Printf("\n--- %s: %s\n%s", strings.ToUpper(tests[name].action), name, tail(tests[name].output))
	}
	fmt.Printf("\n%d passed, %d failed, %d skipped\n", passed, failed, skipped)
	if err := in.Err(); err != nil {
		return fmt.Errorf("read the test log: %w", err)
	}
	if failed+skipped > 0 || passed == 0 {
		os.Exit(1)
	}
	return nil
}

func count(e event, name string, passed, failed, skipped *int, bad *[]string) {
	if e.Test == "" {
		if e.Action == "fail" || e.Action == "build-fail" {
			*bad = append(*bad, name)
			*failed++
		}
		if e.Action == "pass" || e.Action == "fail" {
			fmt.Printf("%-4s %-70s %6.1fs\n", e.Action, strings.TrimPrefix(e.Package, "github.com/wasmplane/wasmplane/"), e.Elapsed)
		}
		return
	}
	switch e.Action {
	case "pass":
		*passed++
	case "fail":
		*failed++
		*bad = append(*bad, name)
	case "skip":
		*skipped++
		*bad = append(*bad, name)
	}
}

// tail bounds what one failure prints.
func tail(lines []string) string {
	const most = 120
	if len(lines) > most {
		lines = append([]string{fmt.Sprintf("... %d lines ...\n", len(lines)-most)}, lines[len(lines)-most:]...)
	}
	return strings.Join(lines, "")
}
