// SPDX-License-Identifier: Apache-2.0

// Package userns gives the pods of a node that ask for a user namespace of their own
// (hostUsers: false) user and group IDs of the machine that nobody else has. It knows
// nothing of pods but their UIDs.
package userns

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/run/atomicfile"
)

// Size is how many IDs a pod has: all that a file system or a program of 16 bits can name.
const Size = 1 << 16

// Span is a range of IDs on the machine, of users and of groups alike.
type Span struct {
	// First and Count are multiples of Size.
	First, Count uint32
}

// Unused are IDs that are nobody's by the field's conventions: above those that
// directories of users are mapped to by default (sssd: up to 2,000,200,000), in what
// systemd's table of user IDs lists as unused (up to 2,147,352,575), and far above
// what /etc/subuid gives to users.
func Unused() Span {
	const first, end = 0x7740_0000, 0x7ffe_0000
	return Span{First: first, Count: end - first}
}

// Configured is the range that the machine's administrator gives to pods: the lines
// of the user "kubelet" in /etc/subuid and /etc/subgid, as upstream's kubelet reads
// them. Without such lines it is Unused.
func Configured(subuid, subgid io.Reader) (Span, error) {
	users, err := ofKubelet(subuid)
	if err != nil {
		return Span{}, fmt.Errorf("/etc/subuid: %w", err)
	}
	groups, err := ofKubelet(subgid)
	if err != nil {
		return Span{}, fmt.Errorf("/etc/subgid: %w", err)
	}
	switch {
	case len(users) == 0 && len(groups) == 0:
		return Unused(), nil
	case len(users) != 1 || len(groups) != 1 || users[0] != groups[0]:
		return Span{}, errors.New("the user kubelet needs one line in /etc/subuid and the same line in /etc/subgid, or none in both")
	}
	return users[0], users[0].check()
}

// ConfiguredHere is Configured of this machine's files; one that is missing is empty.
func ConfiguredHere() (Span, error) {
	var readers [2]io.Reader
	for i, file := range []string{"/etc/subuid", "/etc/subgid"} {
		f, err := os.Open(file)
		if errors.Is(err, fs.ErrNotExist) {
			readers[i] = strings.NewReader("")
			continue
		}
		if err != nil {
			return Span{}, err
		}
		defer f.Close()
		readers[i] = f
	}
	return Configured(readers[0], readers[1])
}

func ofKubelet(r io.Reader) ([]Span, error) {
	var out []Span
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		fields := strings.Split(strings.TrimSpace(lines.Text()), ":")
		if fields[0] != "kubelet" {
			continue
		}
		if len(fields) != 3 {
			return nil, fmt.Errorf("line %d: want kubelet:FIRST:COUNT", n)
		}
		first, err := strconv.ParseUint(fields[1], 10, 32)
		if err != nil {
			return nil, fmt.Errorf("line %d: the first ID: %w", n, err)
		}
		count, err := strconv.ParseUint(fields[2], 10, 32)
		if err != nil {
			return nil, fmt.Errorf("line %d: the count of IDs: %w", n, err)
		}
		out = append(out, Span{First: uint32(first), Count: uint32(count)})
	}
	return out, lines.Err()
}

func (s Span) check() error {
	switch {
	case s.First%Size != 0 || s.Count%Size != 0 || s.Count == 0:
		return fmt.Errorf("the IDs %d:%d of the user kubelet in /etc/subuid cannot be divided among pods: both numbers have to be multiples of %d",
			s.First, s.Count, Size)
	case s.First < Size:
		return fmt.Errorf("the IDs %d:%d of the user kubelet in /etc/subuid have the machine's own users among them: begin at %d or above",
			s.First, s.Count, Size)
	case uint64(s.First)+uint64(s.Count) > 1<<32-Size: // the last ID means "none" to the kernel
		return fmt.Errorf("the IDs %d:%d of the user kubelet in /etc/subuid go past the kernel's last one", s.First, s.Count)
	}
	return nil
}

// Ranges of a node's pods. Each pod's is in a file, so that it has the same one for as
// long as the file is there: its containers outlive the process that chose it.
type Ranges struct {
	span Span
	// start is the index of the range to try first. Clusters of one machine begin at different
	// ones, so that their pods share IDs only where one of them has very many.
	start uint32

	mu    sync.Mutex
	of    map[types.UID]uint32 // the first ID
	taken map[uint32]types.UID
}

// New ranges out of span; seed tells the clusters of a machine apart.
func New(span Span, seed string) *Ranges {
	h := fnv.New32a()
	h.Write([]byte(seed))
	return &Ranges{span: span, start: h.Sum32() % (span.Count / Size), of: map[types.UID]uint32{}, taken: map[uint32]types.UID{}}
}

// Load takes in the range that a pod has by its file. One without a file has none.
func (r *Ranges) Load(uid types.UID, file string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, err := r.load(uid, file)
	return err
}

func (r *Ranges) load(uid types.UID, file string) (found bool, err error) {
	if _, ok := r.of[uid]; ok {
		return true, nil
	}
	first, err := read(file)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("the user IDs of pod %s cannot be read: %w", uid, err)
	}
	if owner, ok := r.taken[first]; ok {
		return false, fmt.Errorf("the user IDs of pod %s, from %d on, are those of pod %s too: delete one of the pods", uid, first, owner)
	}
	r.of[uid], r.taken[first] = first, uid
	return true, nil
}

// Take is the first ID of a pod's range: that of its file, or else a free one, which is
// written there before it is used. The file's folder must exist.
func (r *Ranges) Take(uid types.UID, file string) (uint32, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	found, err := r.load(uid, file)
	if err != nil {
		return 0, err
	}
	if found {
		return r.of[uid], nil
	}
	first, ok := r.free()
	if !ok {
		return 0, fmt.Errorf("all %d ranges of user IDs of this node are taken by pods with hostUsers: false", r.span.Count/Size)
	}
	if err := write(file, first); err != nil {
		return 0, err
	}
	r.of[uid], r.taken[first] = first, uid
	return first, nil
}

func (r *Ranges) free() (uint32, bool) {
	n := r.span.Count / Size
	for i := range n {
		first := r.span.First + (r.start+i)%n*Size
		if _, ok := r.taken[first]; !ok {
			return first, true
		}
	}
	return 0, false
}

// Free gives a pod's range back. Its file is to be gone by then, and its containers.
func (r *Ranges) Free(uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if first, ok := r.of[uid]; ok {
		delete(r.of, uid)
		delete(r.taken, first)
	}
}

// mappings is the file's content, as upstream's kubelet has it.
type mappings struct {
	UIDs []mapping `json:"uidMappings"`
	GIDs []mapping `json:"gidMappings"`
}

type mapping struct {
	Host      uint32 `json:"hostId"`
	Container uint32 `json:"containerId"`
	Length    uint32 `json:"length"`
}

func write(file string, first uint32) error {
	one := []mapping{{Host: first, Length: Size}}
	data, err := json.Marshal(mappings{UIDs: one, GIDs: one})
	if err != nil {
		return err
	}
	return atomicfile.Write(file, data, 0o600)
}

func read(file string) (uint32, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	var m mappings
	if err := json.Unmarshal(data, &m); err != nil {
		return 0, fmt.Errorf("%s: %w", file, err)
	}
	if len(m.UIDs) != 1 || len(m.GIDs) != 1 || m.UIDs[0] != m.GIDs[0] {
		return 0, fmt.Errorf("%s: want one range, the same for users and groups", file)
	}
	got := m.UIDs[0]
	if err := (Span{First: got.Host, Count: got.Length}).check(); err != nil || got.Length != Size || got.Container != 0 {
		return 0, fmt.Errorf("%s: from %d on %d IDs as %d: no range that this node gives", file, got.Host, got.Length, got.Container)
	}
	return got.Host, nil
}
