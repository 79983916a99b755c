// SPDX-License-Identifier: Apache-2.0

// Package cadvisor writes what pods and their machine use under the names and labels that cAdvisor has, which dashboards and alerts of
// Kubernetes ask for. It writes what it is given: a number that nobody has counted is not on the page. Lines have no time, since
// everything was read when the page was asked for; so series end when their pod does.
package cadvisor

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/wasmplane/wasmplane/core/kubelet/counters"
)

// Subject is whose counters they are: a container; a sandbox, which has no container; a pod, which has no name either; or the cgroups
// above all pods, which belong to none.
type Subject struct {
	// Container of the pod by its name in the spec, Name by the ID that the runtime knows it by, ID by the cgroup.
	Container, Pod, Namespace, Image, Name, ID string
	counters.Group
	// Told is what the runtime says, in place of a cgroup.
	Told    Usage
	Network []counters.Interface
	Files   []FileSystem
	Started time.Time
}

// Usage as far as it is known: CPU in seconds, the others in bytes.
type Usage struct{ CPU, Memory, WorkingSet, RSS *float64 }

// FileSystem is one, and how much of it the subject takes.
type FileSystem struct {
	Device             string
	Used, Size         uint64
	Inodes, InodesFree uint64 // zero: not known
}

// Machine is what one has.
type Machine struct {
	counters.Machine
	Cores        int
	Memory, Swap uint64
}

// Page of metrics.
type Page struct {
	At       time.Time
	Subjects []Subject
	Machine  *Machine // nil: not known, or several
	Failed   bool     // something could not be read
}

// Write writes the page in the text format.
func (p *Page) Write(w io.Writer) error {
	b := bufio.NewWriter(w)
	labels := make([]string, len(p.Subjects))
	for i := range p.Subjects {
		labels[i] = p.Subjects[i].labels()
	}
	for _, f := range families {
		begun := false
		for i := range p.Subjects {
			for _, v := range f.of(&p.Subjects[i]) {
				if !begun {
					begun = true
					head(b, f.name, f.help, f.kind)
				}
				line(b, f.name, v.labels+labels[i], v.number)
			}
		}
	}
	if len(p.Subjects) > 0 {
		head(b, "container_last_seen", "When the container was seen last, in seconds since 1970.", "gauge")
		for _, l := range labels {
			line(b, "container_last_seen", l, float64(p.At.Unix()))
		}
	}
	p.Machine.write(b)
	head(b, "container_scrape_error", "1 if something of this page could not be read.", "gauge")
	failed := 0
	if p.Failed {
		failed = 1
	}
	fmt.Fprintf(b, "container_scrape_error %d\n", failed)
	return b.Flush()
}

func (m *Machine) write(b *bufio.Writer) {
	if m == nil {
		return
	}
	labels := fmt.Sprintf(`boot_id=%s,machine_id=%s,system_uuid=%s`, quote(m.Boot), quote(m.ID), quote(m.UUID))
	for _, f := range []struct {
		name, help string
		number     float64
	}{
		{"machine_cpu_cores", "Logical processors of the machine.", float64(m.Cores)},
		{"machine_memory_bytes", "Memory of the machine.", float64(m.Memory)},
		{"machine_swap_bytes", "Swap space of the machine.", float64(m.Swap)},
	} {
		head(b, f.name, f.help, "gauge")
		line(b, f.name, labels, f.number)
	}
}

func (s *Subject) labels() string {
	return fmt.Sprintf(`container=%s,id=%s,image=%s,name=%s,namespace=%s,pod=%s`,
		quote(s.Container), quote(s.ID), quote(s.Image), quote(s.Name), quote(s.Namespace), quote(s.Pod))
}

// escapes of values of labels, which are the format's.
var escapes = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)

func quote(value string) string { return `"` + escapes.Replace(value) + `"` }

func head(b *bufio.Writer, name, help, kind string) {
	fmt.Fprintf(b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
}

func line(b *bufio.Writer, name, labels string, number float64) {
	_, _ = b.WriteString(name + "{" + labels + "} " + strconv.FormatFloat(number, 'g', -1, 64) + "\n") // Flush tells of errors
}
