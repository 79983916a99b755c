// SPDX-License-Identifier: Apache-2.0

package comparison_test

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/wasmplane/wasmplane/core/simulate"
	"github.com/wasmplane/wasmplane/core/simulate/comparison"
)

func results() []*simulate.Result {
	one := &simulate.Result{
		Policy: "default", Pods: simulate.Pods{Placed: 10000, Pending: 2}, Waiting: simulate.Waiting{P90: 0.004, P99: 5400},
		Resources: map[corev1.ResourceName]simulate.Use{"cpu": {Mean: 0.406, Peak: 0.5}, "memory": {Mean: 0.3, Peak: 0.4}},
		Nodes:     simulate.Nodes{Mean: 975.8, Peak: 1000, Hours: 23402.2, Cost: 18019.72}, Zones: map[string]int{"a": 3, "b": 4},
		Plugins: []simulate.PluginUse{{Name: "NodeResourcesFit", Decided: 9000}},
		Pending: []simulate.Reason{{Plugin: "NodeResourcesFit", Reason: "Insufficient cpu", Pods: 2}},
		Series:  []simulate.Sample{{Hours: 0, CPU: 0.1, Nodes: 10}, {Hours: 12, CPU: 0.4, Nodes: 900}, {Hours: 24, CPU: 0.2, Nodes: 1000}},
	}
	two := *one
	two.Policy, two.Pending = "<packed>", nil
	two.Plugins = []simulate.PluginUse{{Name: "bin-packing", RefusedNodes: 1234567}}
	return []*simulate.Result{one, &two}
}

func TestResultsStandSideBySide(t *testing.T) {
	var b strings.Builder
	if err := comparison.Write(&b, results()); err != nil {
		t.Fatal(err)
	}
	want := `                                default    <packed>
pods placed                      10,000      10,000
  pending at the end                  2           2
  preempted                           0           0
waiting, median                      0s          0s
  90 of 100 at most                 4ms         4ms
  99 of 100 at most                1.5h        1.5h
cpu requested, mean               40.6%       40.6%
  peak                            50.0%       50.0%
memory requested, mean            30.0%       30.0%
  peak                            40.0%       40.0%
free cpu that is stranded          0.0%        0.0%
nodes in use, mean                975.8       975.8
  peak                            1,000       1,000
  hours                         23402.2     23402.2
  cost                         18019.72    18019.72
unevenness of nodes' cpu           0.0%        0.0%
pods by zone, at the end        a:3 b:4     a:3 b:4
tries                                 0           0
nodes refused by
  bin-packing                         0   1,234,567
decided by the scores of
  NodeResourcesFit                9,000           0

What keeps the 2 pods that are pending (default):
  2: Insufficient cpu (NodeResourcesFit)
`
	if got := strings.ReplaceAll(b.String(), "\t", " "); squeeze(got) != squeeze(want) {
		t.Errorf("got\n%s", got)
	}
}

// squeeze takes the padding out, which follows from the widest cell.
func squeeze(s string) string {
	var lines []string
	for line := range strings.Lines(s) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	return strings.Join(lines, "\n")
}

func TestLinesShowThePoliciesBelowEachOther(t *testing.T) {
	var b strings.Builder
	if err := comparison.Lines(&b, results()); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(b.String(), "\ncpu requested, up to 50%\n  default   ▂▇▄\n  <packed>  ▂▇▄\n") || !strings.Contains(b.String(),
		"nodes in use, up to 1,000\n") {
		t.Errorf("got\n%s", b.String())
	}
}

func TestPicturesAreXMLWithALineForEachPolicy(t *testing.T) {
	for _, p := range comparison.Plots() {
		svg := p.SVG(results())
		if svg != p.SVG(results()) {
			t.Errorf("%s: the same results gave two pictures", p.Name)
		}
		lines, names := 0, ""
		dec := xml.NewDecoder(strings.NewReader(svg))
		for {
			token, err := dec.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v\n%s", p.Name, err, svg)
			}
			switch x := token.(type) {
			case xml.StartElement:
				if x.Name.Local == "polyline" {
					lines++
				}
			case xml.CharData:
				names += string(x) + "\n"
			}
		}
		if lines != 2 || !strings.Contains(names, "<packed>") || strings.Contains(svg, "NaN") {
			t.Errorf("%s: %d lines; texts %q", p.Name, lines, names)
		}
	}
}
