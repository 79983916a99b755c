// SPDX-License-Identifier: Apache-2.0

package linuxhost_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/spec"
)

// FuzzHosts: whatever names a pod gives others, its hosts file has one line for each, and
// nothing that nobody wrote into a field of its own.
func FuzzHosts(f *testing.F) {
	g, _ := newHost(f)
	f.Add("10.0.0.1", "a.example", "web", "sub.ns.svc")
	f.Add("10.0.0.1\n1.2.3.4 evil", "a", "b", "c")
	f.Add("::1", "a\rb", "x\x00y", "")
	f.Fuzz(func(t *testing.T, ip, name, host, domain string) {
		p := aPod()
		p.Spec.HostAliases = []corev1.HostAlias{{IP: ip, Hostnames: []string{name}}}
		if err := os.MkdirAll(g.PodDir(p.UID), 0o700); err != nil {
			t.Fatal(err)
		}
		if _, err := g.Files(t.Context(), spec.FilesRequest{
			Pod: p, Container: &corev1.Container{Name: "c"}, IPs: []string{"10.1.1.1"},
			Hostname: host, Domain: domain,
		}); err != nil {
			return
		}
		text, err := os.ReadFile(filepath.Join(g.PodDir(p.UID), "etc-hosts"))
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(text), "\n"); n != 11 || strings.ContainsAny(string(text), "\r\x00") {
			t.Errorf("%d lines:\n%q", n, text)
		}
	})
}
