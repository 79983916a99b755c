// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

const ginkgoReport = `[{"SpecReports":[
 {"LeafNodeType":"SynchronizedBeforeSuite","State":"passed"},
 {"ContainerHierarchyTexts":["[sig-apps] Job"],"LeafNodeType":"It","LeafNodeText":"should run (a) [Conformance]","IsInOrderedContainer":true,"State":"passed","RunTime":2000000000},
 {"ContainerHierarchyTexts":["[sig-apps] Job","in order","one"],"LeafNodeType":"It","LeafNodeText":"begins","IsInOrderedContainer":true,"State":"passed"},
 {"ContainerHierarchyTexts":["[sig-apps] Job","in order","two"],"LeafNodeType":"It","LeafNodeText":"goes on","IsInOrderedContainer":true,"State":"passed"},
 {"ContainerHierarchyTexts":["[sig-node] Pods","deep"],"LeafNodeType":"It","LeafNodeText":"should stop [Serial]","State":"failed","Failure":{"Message":"it did not"}},
 {"ContainerHierarchyTexts":["[sig-node] Pods"],"LeafNodeType":"It","LeafNodeText":"not chosen","State":"skipped"}]}]`

func TestOutcomes(t *testing.T) {
	r, err := parse([]byte(ginkgoReport), nil)
	if err != nil {
		t.Fatal(err)
	}
	job, pods, lost := "[sig-apps] Job should run (a) [Conformance]", "[sig-node] Pods deep should stop [Serial]", "[sig-node] lost"
	got := outcomes(r, errors.New("signal: killed"), []string{job, pods, lost}, 3*time.Second)
	if len(got) != 3 || !got[0].Passed() || got[0].Took != 2*time.Second {
		t.Fatalf("outcomes: %+v", got)
	}
	if got[1].Passed() || got[1].Message != "it did not" {
		t.Errorf("a failure: %+v", got[1])
	}
	if got[2].Passed() || got[2].Message != "the suite did not say how it ended: signal: killed" {
		t.Errorf("a test of which nothing is known: %+v", got[2])
	}
	listed := tests(r)
	if len(listed) == 3 && (listed[1].Chain != "[sig-apps] Job in order" || listed[2].Chain != listed[1].Chain) {
		t.Errorf("tests of an ordered container: %+v", listed)
	}
	if len(listed) != 3 || listed[0].SIG != "sig-apps" || listed[0].Alone || listed[0].Chain != "[sig-apps] Job" {
		t.Errorf("tests: %+v", listed)
	}
	focus := regexp.MustCompile(Focus([]string{job, pods}))
	if !focus.MatchString("Kubernetes e2e suite "+job) || focus.MatchString("Kubernetes e2e suite "+lost) ||
		focus.MatchString(job+" and more") {
		t.Errorf("focus %s", focus)
	}
}

func TestAReportThatIsNone(t *testing.T) {
	if _, err := parse([]byte("{"), nil); err == nil {
		t.Error("half a report was taken")
	}
}

func TestOneTestThatEndsTheProcessDoesNotFailTheOthers(t *testing.T) {
	// A suite whose process ends without a report if the bad test is among those to run.
	const program = `#!/bin/sh
for a; do
  case $a in
  --ginkgo.json-report=*) file=${a#*=} ;;
  --ginkgo.focus=*) focus=${a#*=} ;;
  esac
done
case $focus in *bad*) exit 2 ;; esac
echo '[{"SpecReports":[{"ContainerHierarchyTexts":["[sig-a]"],"LeafNodeType":"It","LeafNodeText":"good","State":"passed"}]}]' >"$file"
`
	s := Suite{Program: filepath.Join(t.TempDir(), "e2e.test"), Dir: t.TempDir(), Patience: time.Minute}
	if err := os.WriteFile(s.Program, []byte(program), 0o700); err != nil {
		t.Fatal(err)
	}
	got := s.Run(t.Context(), "worker", []string{"[sig-a] bad", "[sig-a] good"})
	if len(got) != 2 || got[0].Passed() || !strings.Contains(got[0].Message, "left no report") || !got[1].Passed() {
		t.Errorf("outcomes: %+v", got)
	}
}
