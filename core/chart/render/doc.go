// SPDX-License-Identifier: Apache-2.0

// Package render makes objects of Helm charts by Helm's own libraries, in a child process: a
// template may loop for ever or write gigabytes, and archives, indexes and YAML are
// whatever their author wants. The child (core/run/confine) has neither network nor files; it has limits of
// memory and processor time that the kernel enforces, and is killed when its time is over.
//
// The parent reads nothing but JSON of bounded size. What a template looks up (lookup) the child
// asks the parent for, which answers as the account that the chart is installed by, a bounded
// number of times.
package render

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/wasmplane/wasmplane/core/chart/release"
)

// Limits bound one child. The zero value of a field means its default.
type Limits struct {
	Memory   int64         // bytes of address space that the child takes; default 384 MiB
	CPU      time.Duration // of processor time, in whole seconds; default 10 s
	Deadline time.Duration // by the clock; default 2 minutes
	Unpacked int64         // bytes of all files of an archive; default 32 MiB
	Files    int           // in an archive; default 5,000
	Objects  int           // that a chart makes, hooks included; default 1,000
	Output   int           // bytes of the answer; default 16 MiB
	Lookups  int           // that a chart makes; default 100
	Looked   int           // bytes of all answers to lookups; default 4 MiB
}

func (l Limits) withDefaults() Limits {
	set := func(p *int64, v int64) {
		if *p == 0 {
			*p = v
		}
	}
	count := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	set(&l.Memory, 384<<20)
	set((*int64)(&l.CPU), int64(10*time.Second))
	set((*int64)(&l.Deadline), int64(2*time.Minute))
	set(&l.Unpacked, 32<<20)
	count(&l.Files, 5000)
	count(&l.Objects, 1000)
	count(&l.Output, 16<<20)
	count(&l.Lookups, 100)
	count(&l.Looked, 4<<20)
	return l
}

// Order is what a chart is rendered for.
type Order struct {
	Release   string
	Namespace string
	Revision  int
	Upgrade   bool // else it is installed
	Tenant    bool // it is for somebody who has no rights over the machine
	// Values, each a document in YAML or JSON; later ones win.
	Values []string
	// KubeVersion (v1.37.1) and APIVersions (apps/v1, apps/v1/Deployment) of the cluster.
	KubeVersion string
	APIVersions []string
}

// Rendered is what a chart became.
type Rendered struct {
	Chart      json.RawMessage // as Helm keeps it in a release
	Config     json.RawMessage // the values of the order, merged
	Name       string
	Version    string
	AppVersion string
	Manifest   string
	Notes      string
	Hooks      []*release.Hook
	// CRDs are the objects of the chart's folder crds.
	CRDs []json.RawMessage
}

// Entry is a chart in the index of a repository.
type Entry struct {
	Version string
	URL     string // may be relative to the repository
	Digest  string // sha256:...; "" = the index has none
}

// Lookup is what a template asks for; without a name it is a list.
type Lookup struct {
	APIVersion, Kind, Namespace, Name string
}

// Answer to a Lookup.
type Answer struct {
	Object json.RawMessage `json:",omitempty"` // nil: there is none
	Error  string          `json:",omitempty"`
}

// request is what the parent asks. The body follows: an archive, an index or texts.
type request struct {
	Limits  Limits
	Order   *Order `json:",omitempty"`
	Texts   bool   `json:",omitempty"` // the body is a JSON list of manifests
	Find    string `json:",omitempty"` // the name of a chart, in the index that is the body
	Version string `json:",omitempty"`
}

// reply is what the child says: a question, or the end.
type reply struct {
	Lookup   *Lookup             `json:",omitempty"`
	Rendered *Rendered           `json:",omitempty"`
	Objects  [][]json.RawMessage `json:",omitempty"`
	Entry    *Entry              `json:",omitempty"`
	Error    string              `json:",omitempty"`
}

// inputLimit bounds what the child reads at a time.
const inputLimit = 64 << 20

func writeFrame(w io.Writer, b []byte) error {
	_, err := w.Write(append(binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(b)), uint32(len(b))), b...))
	return err
}

func readFrame(r io.Reader, limit int) ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint32(size[:]))
	if n > limit {
		return nil, &tooLargeError{n, limit}
	}
	b := make([]byte, n)
	_, err := io.ReadFull(r, b)
	return b, err
}

type tooLargeError struct{ bytes, limit int }

func (e *tooLargeError) Error() string {
	return fmt.Sprintf("what it makes has %d bytes, at most %d are allowed", e.bytes, e.limit)
}

func writeJSON(w io.Writer, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return writeFrame(w, b)
}

func readJSON(r io.Reader, limit int, v any) error {
	b, err := readFrame(r, limit)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, v)
}
