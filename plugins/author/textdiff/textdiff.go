// SPDX-License-Identifier: Apache-2.0

// Package textdiff shows people how two values differ: as YAML, line by line, in a
// bounded time. Values are compared as JSON has them, so a number is a number whatever
// its Go type.
package textdiff

import (
	"encoding/json"
	"reflect"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Plain is v as JSON has it.
func Plain(v any) (out any) {
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	if err := json.Unmarshal(b, &out); err != nil {
		return err.Error()
	}
	return out
}

// Diff shows two values; "" where they are the same. - is what was expected, + what came.
func Diff(want, got any) string {
	want, got = Plain(want), Plain(got)
	if reflect.DeepEqual(want, got) {
		return ""
	}
	return lines(text(want), text(got))
}

func text(v any) []string {
	if s, ok := v.(string); ok {
		return strings.Split(s, "\n")
	}
	if v == nil {
		return []string{"(nothing)"}
	}
	b, err := yaml.Marshal(v)
	if err != nil {
		return []string{err.Error()}
	}
	return strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
}

// lines is a diff by the longest common subsequence: - what was expected, + what came.
func lines(a, b []string) string {
	const longest = 2000 // lines: the table is quadratic
	a, b = a[:min(len(a), longest)], b[:min(len(b), longest)]
	table := make([][]int, len(a)+1)
	for i := range table {
		table[i] = make([]int, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if a[i] == b[j] {
				table[i][j] = table[i+1][j+1] + 1
			} else {
				table[i][j] = max(table[i+1][j], table[i][j+1])
			}
		}
	}
	var out []string
	i, j := 0, 0
	for i < len(a) || j < len(b) {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			out = append(out, "  "+a[i])
			i, j = i+1, j+1
		case j == len(b) || i < len(a) && table[i+1][j] >= table[i][j+1]:
			out = append(out, "- "+a[i])
			i++
		default:
			out = append(out, "+ "+b[j])
			j++
		}
	}
	return strings.Join(out, "\n")
}
