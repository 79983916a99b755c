// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/wasmplane/wasmplane/test/conformance/internal/result"
)

// report prints and writes what is known of the tests. Not everything passed is an error.
func (j *job) report() error {
	sigs := map[string]string{}
	for _, t := range j.tests {
		sigs[t.Name] = t.SIG
	}
	lines := j.book.Summary(sigs)
	fmt.Fprint(j.out, result.Text(lines))
	how := "All figures are of one build: " + j.version + ".\n\n"
	if j.o.anyBuild {
		how = "The figures are of several builds: a test that had passed with one was not run again with the next.\n\n"
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
		", run against wasmplane with real nodes: " + j.set.title + ". This file is the report.\n\n" + howToRun
	if j.o.suite == conformance {
		text += cannotPass
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

// howToRun is how the report came about.
const howToRun = "```" + `
make conformance                                   # the conformance suite; what has passed with this build is not run again
make conformance FOCUS='sig-cli|sig-auth'          # a part, by regular expression on the tests' names
make conformance EXCEPT='\[Slow\]' LIMIT=30m        # without some, for a while; the next run carries on
make conformance SUITE=kind                        # what upstream runs against any cluster (1,606 tests)
make conformance SUITE=all                         # what needs no cloud, no Windows and no special hardware (2,578 tests)
` + "```" + `

The first run builds the suite (half an hour on two cores) and its images. It needs root, as a real node does, and Debian's apt and a C
compiler for the images.

- **Files** are in the user's cache directory (` + "`" + `~/.cache/wasmplane/conformance` + "`" + `); each run's log and JUnit report are in ` + "`" + `runs/` + "`" + `. The disk
  should be less than 80 % full, since the node removes unused images when it fills up.
- **Images** are built from the published modules (agnhost, sample-apiserver and so on), from the authors' source with its default
  configuration (busybox), or from Debian's packages (dig, curl, nginx), under the names that the suite uses. An image is built again when
  its sources change.
- **The cluster** has two nodes: this machine, and this machine again in its own network namespace, with its own kubelet, containerd, pod
  network and service proxy.
- Tests that must run alone ([Serial], [Disruptive]) run alone. A conformance test that is skipped has failed.

`

// cannotPass says what no build passes with these images.
const cannotPass = `One test cannot pass with these images:

- "ImageVolume should succeed with pod and pull policy of Always" reads two files in a volume that is an image. The first is part of the
  image, and is found. The second is ` + "`" + `/etc/os-release` + "`" + `, in which the test expects "Alpine Linux", because the original image is built on it.
  Ours is built on Debian's packages, and the file says so. A false name there would only show that the test can be deceived.

`
