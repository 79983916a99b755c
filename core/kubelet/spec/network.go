// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"fmt"
	"slices"
	"strings"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/pod"
)

// Hostname of a pod, and its domain if it has a subdomain.
func Hostname(p *corev1.Pod, cl Cluster) (hostname, domain string, err error) {
	if o := p.Spec.HostnameOverride; o != nil && *o != "" {
		return *o, "", nil
	}
	hostname = p.Name
	if p.Spec.Hostname != "" {
		if msgs := validation.IsDNS1123Label(p.Spec.Hostname); len(msgs) > 0 {
			return "", "", fmt.Errorf("pod Hostname %q is not a valid DNS label: %s", p.Spec.Hostname, strings.Join(msgs, ";"))
		}
		hostname = p.Spec.Hostname
	}
	const most = 63
	if len(hostname) > most {
		hostname = strings.TrimRight(hostname[:most], "-.")
		if hostname == "" {
			return "", "", fmt.Errorf("hostname for pod %q was invalid: %q", p.Name, hostname)
		}
	}
	if p.Spec.Subdomain != "" {
		if msgs := validation.IsDNS1123Label(p.Spec.Subdomain); len(msgs) > 0 {
			return "", "", fmt.Errorf("pod Subdomain %q is not a valid DNS label: %s", p.Spec.Subdomain, strings.Join(msgs, ";"))
		}
		domain = fmt.Sprintf("%s.%s.svc.%s", p.Spec.Subdomain, p.Namespace, cl.Domain)
	}
	if p.Spec.SetHostnameAsFQDN != nil && *p.Spec.SetHostnameAsFQDN && domain != "" {
		fqdn := hostname + "." + domain
		const linuxMost = 64
		if len(fqdn) > linuxMost {
			return "", "", fmt.Errorf("failed to construct FQDN from pod hostname and cluster domain, FQDN %s is too long (64 characters is the max, %d characters requested)", fqdn, len(fqdn))
		}
		hostname = fqdn
	}
	return hostname, domain, nil
}

// OneLine refuses words that would begin another line of the file that they are
// written to, hosts or resolv.conf: whatever the API let pass, the line would be
// one that nobody validated. field is where the words are from.
func OneLine(field string, words ...string) error {
	for _, w := range words {
		if strings.ContainsFunc(w, func(r rune) bool { return unicode.IsControl(r) || r == '\u2028' || r == '\u2029' }) {
			return fmt.Errorf("%s: %q has a line break or another control character; it has to be a word", field, w)
		}
	}
	return nil
}

// DNS is a pod's resolver configuration by its policy.
func DNS(p *corev1.Pod, cl Cluster) *cri.DNSConfig {
	out := &cri.DNSConfig{}
	policy := p.Spec.DNSPolicy
	if policy == corev1.DNSClusterFirst && pod.HostNetwork(p) {
		policy = corev1.DNSDefault
	}
	if (policy == corev1.DNSClusterFirst || policy == corev1.DNSClusterFirstWithHostNet || policy == "") && len(cl.DNS) == 0 {
		policy = corev1.DNSDefault
	}
	switch policy {
	case corev1.DNSNone:
	case corev1.DNSDefault:
		if cl.HostResolv != nil {
			out.Servers = slices.Clone(cl.HostResolv.Servers)
			out.Searches = slices.Clone(cl.HostResolv.Searches)
			out.Options = slices.Clone(cl.HostResolv.Options)
		}
	default:
		out.Servers = slices.Clone(cl.DNS)
		out.Searches = []string{p.Namespace + ".svc." + cl.Domain, "svc." + cl.Domain, cl.Domain}
		if cl.HostResolv != nil {
			out.Searches = unique(append(out.Searches, cl.HostResolv.Searches...))
		}
		out.Options = []string{"ndots:5"}
	}
	if d := p.Spec.DNSConfig; d != nil {
		out.Servers = unique(append(out.Servers, d.Nameservers...))
		out.Searches = unique(append(out.Searches, d.Searches...))
		out.Options = mergeOptions(out.Options, d.Options)
	}
	// What resolvers take: three servers, and searches of 32 names and 2048 characters.
	const servers, searches, chars = 3, 32, 2048
	out.Servers = out.Servers[:min(len(out.Servers), servers)]
	out.Searches = out.Searches[:min(len(out.Searches), searches)]
	for len(strings.Join(out.Searches, " ")) > chars {
		out.Searches = out.Searches[:len(out.Searches)-1]
	}
	return out
}

func unique(in []string) []string {
	var out []string
	for _, s := range in {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// mergeOptions lets the pod's options win over those of the same name.
func mergeOptions(base []string, own []corev1.PodDNSConfigOption) []string {
	name := func(s string) string { n, _, _ := strings.Cut(s, ":"); return n }
	var out []string
	for _, b := range base {
		if !slices.ContainsFunc(own, func(o corev1.PodDNSConfigOption) bool { return o.Name == name(b) }) {
			out = append(out, b)
		}
	}
	for _, o := range own {
		s := o.Name
		if o.Value != nil && *o.Value != "" {
			s += ":" + *o.Value
		}
		out = append(out, s)
	}
	return out
}
