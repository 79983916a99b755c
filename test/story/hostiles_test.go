// SPDX-License-Identifier: Apache-2.0

package story

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"log"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/wasmplane/wasmplane/test/internal/harness"
)

// loadHostiles is a program of the stories of hostile modules:
//
//	hostiles write DIR WHAT               write the modules: "slow", which take long to compile, or "large", which take much memory
//	hostiles load KUBECONFIG DIR URL CA WHAT  load each by a TenantPlugin of namespace red, all at once, and wait until each is
//	                                      decided; print what became of it, and the most memory that all processes of this binary had
func loadHostiles() {
	switch {
	case len(os.Args) == 4 && os.Args[1] == "write":
		for name, module := range hostileModules(os.Args[3]) {
			if err := os.WriteFile(filepath.Join(os.Args[2], name+".wasm"), module, 0o600); err != nil {
				log.Fatal(err)
			}
		}
	case len(os.Args) == 7 && os.Args[1] == "load":
		if err := tryHostiles(os.Args[2], os.Args[3], os.Args[4], strings.ReplaceAll(os.Args[5], `\n`, "\n"), os.Args[6]); err != nil {
			log.Fatal(err)
		}
	default:
		log.Fatal("usage: hostiles write DIR WHAT, or hostiles load KUBECONFIG DIR URL CA WHAT")
	}
}

func varuint(n int) []byte { return binary.AppendUvarint(nil, uint64(n)) }

func wasmSection(id byte, content ...[]byte) []byte {
	all := bytes.Join(content, nil)
	return slices.Concat([]byte{id}, varuint(len(all)), all)
}

func wasmModule(sections ...[]byte) []byte {
	return append([]byte("\x00asm\x01\x00\x00\x00"), bytes.Join(sections, nil)...)
}

// wasmFunctions are n functions of the first type, with one body.
func wasmFunctions(n int, body []byte) [][]byte {
	one := append(varuint(len(body)), body...)
	return [][]byte{wasmSection(3, varuint(n), make([]byte, n)), wasmSection(10, varuint(n), bytes.Repeat(one, n))}
}

// hostileModules are those of the attacks that were seen: bytes of one thing, by its name.
func hostileModules(what string) map[string][]byte {
	const i32, i64, end, brTable, block = 0x7f, 0x7e, 0x0b, 0x0e, 0x02
	plain := wasmSection(1, []byte{1, 0x60, 0, 0})
	of := func(types []byte, functions [][]byte) []byte {
		return wasmModule(append([][]byte{types}, functions...)...)
	}
	locals := func(n int, kind byte) []byte { return slices.Concat([]byte{1}, varuint(n), []byte{kind, end}) }
	if what == "large" {
		return map[string][]byte{
			"locals":   of(plain, wasmFunctions(6000, locals(5000, i64))),
			"locals-2": of(plain, wasmFunctions(20_000, locals(5000, i64))),
			"segments": wasmModule(wasmSection(5, []byte{1, 0, 1}), wasmSection(11, varuint(8<<20), bytes.Repeat([]byte{1, 0}, 8<<20))),
			"globals":  wasmModule(wasmSection(6, varuint(3<<20), bytes.Repeat([]byte{i32, 0, 0x41, 0, end}, 3<<20))),
			"customs":  append(wasmModule(), bytes.Repeat([]byte{0, 1, 0}, 5<<20)...),
			"tables":   wasmModule(wasmSection(4, varuint(1000), bytes.Repeat([]byte{0x70, 0, 0xff, 0xff, 0x0f}, 1000))),
		}
	}
	targets := func(n int) []byte {
		return slices.Concat([]byte{0x41, 0, brTable}, varuint(n), make([]byte, n), []byte{0})
	}
	parameters := func(n int) []byte {
		return slices.Concat([]byte{0x60}, varuint(n), bytes.Repeat([]byte{i32}, n), []byte{0})
	}
	return map[string][]byte{
		"targets": of(plain, wasmFunctions(1, slices.Concat([]byte{0}, targets(1_000_000), []byte{end}))),
		"blocks": of(wasmSection(1, []byte{2, 0x60, 0, 0}, parameters(1000)),
			wasmFunctions(1, slices.Concat([]byte{0}, bytes.Repeat(slices.Concat(bytes.Repeat([]byte{0x41, 0}, 1000), []byte{block, 1},
				bytes.Repeat([]byte{0x1a}, 1000), []byte{end}), 2000), []byte{end}))),
		"parameters": of(wasmSection(1, []byte{1}, parameters(65_000)), wasmFunctions(1, []byte{0, end})),
		"types":      wasmModule(wasmSection(1, varuint(16_000), bytes.Repeat(parameters(2000), 16_000))),
		"tables":     of(plain, wasmFunctions(300, slices.Concat([]byte{0}, bytes.Repeat(targets(500), 60), []byte{end}))),
	}
}

func tryHostiles(kubeconfig, dir, url, authority, what string) error {
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	cfg.QPS = -1
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), harness.Patience)
	defer cancel()
	kind := schema.GroupVersionResource{Group: "plugins.wasmplane.dev", Version: "v1", Resource: "tenantplugins"}
	plugins := client.Resource(kind).Namespace("red")
	began, waiting := time.Now(), map[string]bool{}
	for name := range hostileModules(what) {
		module, err := os.ReadFile(filepath.Join(dir, name+".wasm"))
		if err != nil {
			return err
		}
		digest := sha256.Sum256(module)
		plugin := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "plugins.wasmplane.dev/v1", "kind": "TenantPlugin", "metadata": map[string]any{"name": name},
			"spec": map[string]any{
				"source": url + "/" + name + ".wasm", "digest": "sha256:" + hex.EncodeToString(digest[:]), "fetch": map[string]any{"ca": authority},
				"points": []any{"admission.validate"},
			},
		}}
		if _, err := plugins.Create(ctx, plugin, metav1.CreateOptions{}); err != nil {
			return err
		}
		waiting[name] = true
	}
	fmt.Println("loading", slices.Sorted(maps.Keys(waiting)))
	most, tick := 0, time.NewTicker(100*time.Millisecond)
	defer tick.Stop()
	for len(waiting) > 0 {
		select {
		case <-ctx.Done():
			return fmt.Errorf("after %s nobody knows what becomes of %v", time.Since(began).Round(time.Second), slices.Sorted(maps.Keys(waiting)))
		case <-tick.C:
		}
		most = max(most, residentMiB())
		list, err := plugins.List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for i := range list.Items {
			decided(&list.Items[i], waiting, began)
		}
	}
	fmt.Printf("the processes of the server had %d MiB at most\n", most)
	return nil
}

// decided prints what became of a plugin that was waited for.
func decided(p *unstructured.Unstructured, waiting map[string]bool, began time.Time) {
	conditions, _, _ := unstructured.NestedSlice(p.Object, "status", "conditions")
	for _, c := range conditions {
		c, _ := c.(map[string]any)
		if c["type"] != "Updated" || c["status"] == "Unknown" || !waiting[p.GetName()] {
			continue
		}
		fmt.Printf("%s: %v %v: %v, after %s\n", p.GetName(), c["status"], c["reason"], c["message"], time.Since(began).Round(time.Millisecond))
		delete(waiting, p.GetName())
	}
}

// residentMiB is what all processes of the story's data directory have in memory, those that they started too.
func residentMiB() (sum int) {
	parents, resident, ours := map[int]int{}, map[int]int{}, map[int]bool{}
	processes, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range processes {
		pid, _ := strconv.Atoi(filepath.Base(p))
		line, _ := os.ReadFile(filepath.Join(p, "cmdline"))
		ours[pid] = bytes.Contains(line, []byte(os.Getenv("DATA"))) && bytes.Contains(line, []byte("\x00up\x00"))
		status, _ := os.ReadFile(filepath.Join(p, "status"))
		for l := range strings.Lines(string(status)) {
			switch name, value, _ := strings.Cut(l, ":"); name {
			case "PPid":
				parents[pid], _ = strconv.Atoi(strings.TrimSpace(value))
			case "VmRSS":
				kb, _ := strconv.Atoi(strings.Fields(value)[0])
				resident[pid] = kb >> 10
			}
		}
	}
	for pid, mib := range resident {
		for at := pid; at > 1; at = parents[at] {
			if ours[at] {
				sum += mib
				break
			}
		}
	}
	return sum
}
