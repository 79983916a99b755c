// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/test/conformance/internal/result"
	"github.com/wasmplane/wasmplane/test/conformance/internal/suite"
)

func TestTestsAreChosenAndCut(t *testing.T) {
	all := []suite.Test{{Name: "[sig-b] two", SIG: "sig-b"}, {Name: "[sig-a] one", SIG: "sig-a"}, {Name: "[sig-b] three", SIG: "sig-b"}}
	some, err := matching(all, "sig-b|one", "")
	if err != nil || len(some) != 3 {
		t.Fatalf("matching: %v, %v", some, err)
	}
	if _, err := matching(all, "nothing", ""); err == nil || !strings.Contains(err.Error(), "--list") {
		t.Errorf("a focus without tests: %v", err)
	}
	if _, err := matching(all, "(", ""); err == nil {
		t.Error("a focus that is no regular expression was taken")
	}
	if some, err = matching(all, "", "sig-b"); err != nil || len(some) != 1 {
		t.Errorf("all but sig-b: %v, %v", some, err)
	}
	cut := batches(all, 2)
	if len(cut) != 2 || cut[0][0].SIG != "sig-a" || len(cut[0]) != 2 || len(cut[1]) != 1 {
		t.Errorf("batches: %v", cut)
	}
	if all[0].SIG != "sig-b" {
		t.Error("cutting sorted its argument")
	}
}

func TestChainsStayTogether(t *testing.T) {
	var all []suite.Test
	for _, name := range []string{"a", "b1", "b2", "b3", "c1", "c2", "d", "e"} {
		one := suite.Test{Name: name}
		if len(name) == 2 {
			one.Chain = name[:1]
		}
		all = append(all, one)
	}
	var got []string
	for _, part := range batches(all, 2) {
		var names []string
		for _, one := range part {
			names = append(names, one.Name)
		}
		got = append(got, strings.Join(names, " "))
	}
	if want := []string{"a b1 b2 b3", "c1 c2", "d e"}; !slices.Equal(got, want) {
		t.Errorf("cut to %q, expected %q", got, want)
	}
	book, err := result.Open(filepath.Join(t.TempDir(), "results.jsonl"), "")
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range all {
		if err := book.Add(result.Result{Test: one.Name, Passed: one.Name != "b3" && one.Name != "d"}); err != nil {
			t.Fatal(err)
		}
	}
	got = nil
	for _, one := range (&job{tests: all, book: book}).pending() {
		got = append(got, one.Name)
	}
	if want := []string{"b1", "b2", "b3", "d"}; !slices.Equal(got, want) {
		t.Errorf("to be run: %q, expected %q", got, want)
	}
}

func TestBadFlagsSayWhatToDo(t *testing.T) {
	for _, args := range [][]string{
		{"--parallel", "0"},
		{"focus"},
		{"--suite", "some"},
		{"--profile", "soft"},
		{"--wasmplane", "/nowhere/wasmplane", "--cache", t.TempDir(), "--patience", "x"},
	} {
		if err := run(t.Context(), args, &bytes.Buffer{}); err == nil {
			t.Errorf("%v: no error", args)
		}
	}
}

func TestEachProfileHasResultsOfItsOwn(t *testing.T) {
	for want, args := range map[string][]string{
		"report.md":               nil,
		"report-hardened.md":      {"--profile", "hardened"},
		"report-node.md":          {"--suite", nodeSuite},
		"report-node-hardened.md": {"--suite", nodeSuite, "--profile", "hardened"},
	} {
		o, err := parseOptions(args)
		if err != nil || filepath.Base(o.out) != want {
			t.Errorf("%v: the report is %s (%v), expected %s", args, o.out, err, want)
		}
	}
}

func TestTheProfileIsInTheConfiguration(t *testing.T) {
	for _, profile := range []string{"", config.Hardened} {
		text := (&cluster{profile: profile}).configuration("cluster: {name: test}\nnode:\n", "http://198.51.100.1:5000")
		c, err := config.Load("test.yaml", []byte(text))
		if err != nil || c.Profile != profile {
			t.Errorf("profile %q: %v\n%s", profile, err, text)
		}
	}
}

func TestSettingsTakeThePlaceOfDefaults(t *testing.T) {
	const defaults = "# Settings\n# CONFIG_STATIC is not set\nCONFIG_STATIC_LIBGCC=y\nCONFIG_TC=y\nCONFIG_LS=y\n"
	lines := strings.Split(strings.TrimSpace(withSettings(defaults, map[string]string{"CONFIG_STATIC": "y", "CONFIG_TC": "n"})), "\n")
	slices.Sort(lines)
	want := []string{"# CONFIG_TC is not set", "# Settings", "CONFIG_LS=y", "CONFIG_STATIC=y", "CONFIG_STATIC_LIBGCC=y"}
	if !slices.Equal(lines, want) {
		t.Errorf("got %q, want %q", lines, want)
	}
}

func TestSetsTakeTestsByTheirNames(t *testing.T) {
	for _, test := range []struct{ name, in string }{
		{"[sig-node] Pods should run [Conformance]", "all conformance kind"},
		{"[sig-node] Pods should run", "all kind"},
		{"[sig-apps] StatefulSet should scale [Conformance] [Slow]", "all conformance"},
		{"[sig-network] Netpol [Feature:NetworkPolicy] should deny", "all"},
		{"[sig-storage] [Driver: local] disruptive [Provider:gce,aws,local,azure] [Disruptive]", "all"},
		{"[sig-storage] [Driver: vsphere] [Provider:vsphere] volumes should store data", "kind"},
		{"[sig-apps] ReplicaSet should serve a private image [Provider:gce]", "kind"},
		{"[sig-windows] Services should serve [Feature:Windows]", ""},
	} {
		var in []string
		for _, name := range slices.Sorted(maps.Keys(sets())) {
			if name == nodeSuite {
				continue // it is all of another program's tests
			}
			s, err := setOf(name)
			if err != nil {
				t.Fatal(err)
			}
			if s.takes(test.name) {
				in = append(in, name)
			}
		}
		if got := strings.Join(in, " "); got != test.in {
			t.Errorf("%s: in %q, expected %q", test.name, got, test.in)
		}
	}
}

// What a kernel lacks is found by asking it, and concerns the tests that use it alone.
func TestNeedsOfTheKernel(t *testing.T) {
	if met, err := hasFilesystems("tmpfs"); err != nil || !met {
		t.Errorf("tmpfs: %v %v", met, err)
	}
	if met, err := hasFilesystems("tmpfs", "no-such-filesystem"); err != nil || met {
		t.Errorf("no-such-filesystem: %v %v", met, err)
	}
	for name, want := range map[string]int{
		"[sig-storage] In-tree Volumes [Driver: nfs3] [Testpattern: Dynamic PV (default fs)] subPath should unmount":        0,
		"[sig-node] kubelet host cleanup Host cleanup after disrupting NFS volume [NFS] after stopping the nfs-server":      0,
		"[sig-storage] PersistentVolumes NFS with Single PV - PVC pairs should create a non-pre-bound PV":                   0,
		"[sig-node] PrivilegedPod should enable privileged commands [LinuxOnly] [NodeConformance]":                          1,
		"[sig-storage] CSI Volumes [Driver: csi-hostpath] [Testpattern: Dynamic PV (default fs)] volumes should store data": -1,
	} {
		if got := slices.IndexFunc(needs, func(n need) bool { return n.tests.MatchString(name) }); got != want {
			t.Errorf("%s: need %d, expected %d", name, got, want)
		}
	}
}
