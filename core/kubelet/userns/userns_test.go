// SPDX-License-Identifier: Apache-2.0

package userns_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/kubelet/userns"
)

func TestConfigured(t *testing.T) {
	line := func(first, count int) string { return fmt.Sprintf("kubelet:%d:%d\n", first, count) }
	for _, c := range []struct {
		name, subuid, subgid string
		want                 userns.Span
		err                  string
	}{
		{name: "nobody's", want: userns.Unused()},
		{name: "others'", subuid: "ada:100000:65536\n", subgid: "ada:100000:65536\n", want: userns.Unused()},
		{
			name: "the administrator's", subuid: "ada:100000:65536\n" + line(1<<20, 1<<20), subgid: line(1<<20, 1<<20),
			want: userns.Span{First: 1 << 20, Count: 1 << 20},
		},
		{name: "users alone", subuid: line(1<<20, 1<<20), err: "the same line in /etc/subgid"},
		{name: "two", subuid: line(1<<20, 1<<20) + line(1<<21, 1<<20), subgid: line(1<<20, 1<<20), err: "needs one line"},
		{name: "different", subuid: line(1<<20, 1<<20), subgid: line(1<<21, 1<<20), err: "the same line"},
		{name: "uneven", subuid: line(100000, 65536), subgid: line(100000, 65536), err: "multiples of 65536"},
		{name: "none", subuid: line(1<<20, 0), subgid: line(1<<20, 0), err: "multiples of 65536"},
		{name: "the machine's own", subuid: line(0, 1<<20), subgid: line(0, 1<<20), err: "begin at 65536"},
		{name: "too far", subuid: line(0xffff0000, 65536), subgid: line(0xffff0000, 65536), err: "past the kernel's last"},
		{name: "no number", subuid: "kubelet:x:65536\n", err: "/etc/subuid: line 1: the first ID"},
		{name: "no line", subgid: "\nkubelet:65536\n", err: "/etc/subgid: line 2: want kubelet:FIRST:COUNT"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := userns.Configured(strings.NewReader(c.subuid), strings.NewReader(c.subgid))
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("got %v, %v; want an error with %q", got, err, c.err)
				}
				return
			}
			if err != nil || got != c.want {
				t.Errorf("got %v, %v; want %v", got, err, c.want)
			}
		})
	}
}

// Whatever pods come and go, and however often the process starts anew, no two have an
// ID in common, and a pod has the range that it had.
func TestNoTwoPodsShareIDs(t *testing.T) {
	span := userns.Span{First: 1 << 20, Count: 8 * userns.Size}
	for seed := range uint64(50) {
		dir, chance := t.TempDir(), rand.New(rand.NewPCG(seed, 0))
		file := func(uid types.UID) string { return filepath.Join(dir, string(uid)) }
		ranges, has := userns.New(span, "a"), map[types.UID]uint32{}
		for step := range 200 {
			uid := types.UID(fmt.Sprintf("pod-%d", chance.IntN(12)))
			switch chance.IntN(5) {
			case 0: // the process starts anew
				ranges = userns.New(span, "a")
				for uid := range has {
					if err := ranges.Load(uid, file(uid)); err != nil {
						t.Fatal(err)
					}
				}
			case 1:
				if err := os.RemoveAll(file(uid)); err != nil {
					t.Fatal(err)
				}
				ranges.Free(uid)
				delete(has, uid)
			default:
				first, err := ranges.Take(uid, file(uid))
				if err != nil {
					if len(has) != 8 {
						t.Fatalf("seed %d, step %d: with %d pods: %v", seed, step, len(has), err)
					}
					continue
				}
				if had, ok := has[uid]; ok && had != first {
					t.Fatalf("seed %d, step %d: %s had %d, and has %d", seed, step, uid, had, first)
				}
				has[uid] = first
			}
			seen := map[uint32]types.UID{}
			for uid, first := range has {
				if other, ok := seen[first]; ok {
					t.Fatalf("seed %d, step %d: %s and %s both have %d", seed, step, uid, other, first)
				}
				seen[first] = uid
				if first%userns.Size != 0 || first < span.First || first-span.First >= span.Count {
					t.Fatalf("seed %d, step %d: %s has %d, outside of %+v", seed, step, uid, first, span)
				}
			}
		}
	}
}

func TestClustersOfAMachineBeginElsewhere(t *testing.T) {
	dir, seen := t.TempDir(), map[uint32]bool{}
	for _, seed := range []string{"/var/lib/wasmplane/a", "/var/lib/wasmplane/b", "/var/lib/wasmplane/c"} {
		first, err := userns.New(userns.Unused(), seed).Take("pod", filepath.Join(dir, filepath.Base(seed)))
		if err != nil || seen[first] {
			t.Errorf("%s: %d, %v", seed, first, err)
		}
		seen[first] = true
	}
}

// What is in a pod's folder is believed only where this node could have written it.
func TestFilesThatLie(t *testing.T) {
	span := userns.Span{First: 1 << 20, Count: 8 * userns.Size}
	one := `{"hostId":1048576,"containerId":0,"length":65536}`
	for name, content := range map[string]string{
		"empty":        "",
		"not JSON":     "{",
		"no range":     `{}`,
		"two ranges":   `{"uidMappings":[` + one + `,` + one + `],"gidMappings":[` + one + `]}`,
		"the machine":  `{"uidMappings":[{"hostId":0,"length":65536}],"gidMappings":[{"hostId":0,"length":65536}]}`,
		"too long":     `{"uidMappings":[{"hostId":1048576,"length":131072}],"gidMappings":[{"hostId":1048576,"length":131072}]}`,
		"not root":     `{"uidMappings":[{"hostId":1048576,"containerId":1,"length":65536}],"gidMappings":[{"hostId":1048576,"containerId":1,"length":65536}]}`,
		"other groups": `{"uidMappings":[` + one + `],"gidMappings":[{"hostId":2097152,"length":65536}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "userns")
			if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			if first, err := userns.New(span, "").Take("pod", file); err == nil || !strings.Contains(err.Error(), "pod pod") {
				t.Errorf("taken %d, %v", first, err)
			}
		})
	}
	t.Run("another pod's", func(t *testing.T) {
		dir := t.TempDir()
		ranges := userns.New(span, "")
		if _, err := ranges.Take("a", filepath.Join(dir, "a")); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(filepath.Join(dir, "a"))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "b"), data, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := ranges.Load("b", filepath.Join(dir, "b")); err == nil || !strings.Contains(err.Error(), "pod a too") {
			t.Errorf("loaded: %v", err)
		}
	})
	t.Run("a range of former days", func(t *testing.T) { // the administrator has changed /etc/subuid
		dir := t.TempDir()
		file := filepath.Join(dir, "a")
		before, err := userns.New(userns.Unused(), "").Take("a", file)
		if err != nil {
			t.Fatal(err)
		}
		if now, err := userns.New(span, "").Take("a", file); err != nil || now != before {
			t.Errorf("%d, and now %d, %v", before, now, err)
		}
	})
}
