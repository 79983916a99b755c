// SPDX-License-Identifier: Apache-2.0

package spec_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/pod"
	"github.com/wasmplane/wasmplane/core/kubelet/spec"
)

// objects are those of one namespace.
type objects struct {
	maps    map[string]map[string]string
	secrets map[string]map[string][]byte
}

func (o objects) ConfigMap(_ context.Context, _, name string) (*corev1.ConfigMap, error) {
	if d, ok := o.maps[name]; ok {
		return &corev1.ConfigMap{Data: d}, nil
	}
	return nil, apierrors.NewNotFound(corev1.Resource("configmaps"), name)
}

func (o objects) Secret(_ context.Context, _, name string) (*corev1.Secret, error) {
	if d, ok := o.secrets[name]; ok {
		return &corev1.Secret{Data: d}, nil
	}
	return nil, apierrors.NewNotFound(corev1.Resource("secrets"), name)
}

func TestExpand(t *testing.T) {
	env := map[string]string{"A": "a", "EMPTY": ""}
	for in, want := range map[string]string{
		"": "", "plain": "plain", "$(A)": "a", "x$(A)y$(A)": "xaya", "$$(A)": "$(A)", "$(NONE)": "$(NONE)", "$(EMPTY)": "", "$": "$", "$A": "$A",
		"$(A": "$(A", "$$": "$", "$$$(A)": "$a", "$(A)$": "a$",
	} {
		if got := spec.Expand(in, env); got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
}

func FuzzExpand(f *testing.F) {
	for _, s := range []string{"$(A)", "$$(A)", "$(", "$($(A))", "a$"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := spec.Expand(s, map[string]string{"A": "1"})
		if !strings.Contains(s, "$") && got != s {
			t.Errorf("%q became %q", s, got)
		}
	})
}

func service(ns, name, ip string, ports ...corev1.ServicePort) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}, Spec: corev1.ServiceSpec{ClusterIP: ip, Ports: ports}}
}

func TestEnvironment(t *testing.T) {
	yes := true
	c := &corev1.Container{
		Name: "c",
		EnvFrom: []corev1.EnvFromSource{
			{Prefix: "P_", ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "conf"}}},
			{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "sec"}}},
			{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "none"}, Optional: &yes}},
		},
		Env: []corev1.EnvVar{
			{Name: "PLAIN", Value: "1"},
			{Name: "CHAIN", Value: "$(PLAIN)-$(P_color)-$(API_SERVICE_HOST)-$(LATER)"},
			{Name: "LATER", Value: "2"},
			{Name: "key", Value: "mine"},
			{Name: "NAME", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}},
			{Name: "LABEL", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels['a/b']"}}},
			{Name: "IPS", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.podIPs"}}},
			{Name: "HOST", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.hostIP"}}},
			{Name: "MEM", ValueFrom: &corev1.EnvVarSource{ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: "limits.memory", Divisor: resource.MustParse("1Mi")}}},
			{Name: "CPU", ValueFrom: &corev1.EnvVarSource{ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: "requests.cpu", Divisor: resource.MustParse("1m")}}},
			{Name: "SKIPPED", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "conf"}, Key: "none", Optional: &yes}}},
		},
		Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("250m")}},
	}
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", Labels: map[string]string{"a/b": "v"}}}
	r := spec.EnvRequest{
		Pod: p, Container: c, Objects: objects{
			maps:    map[string]map[string]string{"conf": {"color": "blue", "not valid=": "x"}},
			secrets: map[string]map[string][]byte{"sec": {"key": []byte("theirs")}},
		}, Services: []*corev1.Service{
			service("default", "kubernetes", "10.0.0.1", corev1.ServicePort{Name: "https", Port: 443}),
			service("ns", "api", "10.0.0.2", corev1.ServicePort{Port: 80, Protocol: corev1.ProtocolUDP}),
			service("ns", "headless", "None", corev1.ServicePort{Port: 80}),
		}, PodIPs: []string{"10.1.0.1", "fd00::1"}, Cluster: spec.Cluster{HostIPs: []string{"192.0.2.1"}},
		Allocatable: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("4Gi")},
	}
	list, err := spec.Env(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	env := spec.EnvMap(list)
	want := map[string]string{
		"PLAIN": "1", "CHAIN": "1-blue-10.0.0.2-$(LATER)", "LATER": "2", "key": "mine", "P_color": "blue", "NAME": "web", "LABEL": "v",
		"IPS": "10.1.0.1,fd00::1", "HOST": "192.0.2.1", "MEM": "4096", "CPU": "250",
		"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443", "KUBERNETES_SERVICE_PORT_HTTPS": "443",
		"KUBERNETES_PORT":         "tcp://10.0.0.1:443",
		"KUBERNETES_PORT_443_TCP": "tcp://10.0.0.1:443", "KUBERNETES_PORT_443_TCP_PROTO": "tcp", "KUBERNETES_PORT_443_TCP_PORT": "443",
		"KUBERNETES_PORT_443_TCP_ADDR": "10.0.0.1",
		"API_SERVICE_HOST":             "10.0.0.2", "API_SERVICE_PORT": "80", "API_PORT": "udp://10.0.0.2:80",
		"API_PORT_80_UDP": "udp://10.0.0.2:80", "API_PORT_80_UDP_PROTO": "udp", "API_PORT_80_UDP_PORT": "80", "API_PORT_80_UDP_ADDR": "10.0.0.2",
	}
	if !maps.Equal(env, want) {
		t.Errorf("environment\n%v\nwant\n%v", env, want)
	}
	no := false
	p.Spec.EnableServiceLinks = &no
	list, err = spec.Env(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	env = spec.EnvMap(list)
	if env["API_SERVICE_HOST"] != "" || env["KUBERNETES_SERVICE_HOST"] != "10.0.0.1" {
		t.Errorf("without service links: %v", env)
	}
}

func TestEnvironmentSaysWhatIsMissing(t *testing.T) {
	for want, e := range map[string]corev1.Container{
		`configmaps "none" not found`:              {EnvFrom: []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "none"}}}}},
		`secrets "none" not found`:                 {Env: []corev1.EnvVar{{Name: "A", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "none"}}}}}},
		"couldn't find key k in ConfigMap ns/conf": {Env: []corev1.EnvVar{{Name: "A", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "conf"}, Key: "k"}}}}},
		"unsupported fieldPath: spec.secret":       {Env: []corev1.EnvVar{{Name: "A", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "spec.secret"}}}}},
	} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns"}}
		_, err := spec.Env(t.Context(), spec.EnvRequest{Pod: p, Container: &e, Objects: objects{maps: map[string]map[string]string{"conf": {}}}})
		if err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

func TestNames(t *testing.T) {
	yes := true
	for _, c := range []struct {
		name         string
		change       func(*corev1.Pod)
		host, domain string
		err          string
	}{
		{"its name", func(*corev1.Pod) {}, "web", "", ""},
		{"its hostname", func(p *corev1.Pod) { p.Spec.Hostname = "h" }, "h", "", ""},
		{"with a subdomain", func(p *corev1.Pod) { p.Spec.Hostname, p.Spec.Subdomain = "h", "s" }, "h", "s.ns.svc.cluster.local", ""},
		{"in full", func(p *corev1.Pod) { p.Spec.Subdomain, p.Spec.SetHostnameAsFQDN = "s", &yes }, "web.s.ns.svc.cluster.local", "s.ns.svc.cluster.local", ""},
		{"too long", func(p *corev1.Pod) { p.Name = strings.Repeat("a", 62) + "-bc" }, strings.Repeat("a", 62), "", ""},
		{"too long in full", func(p *corev1.Pod) {
			p.Name, p.Spec.Subdomain, p.Spec.SetHostnameAsFQDN = strings.Repeat("a", 50), "s", &yes
		}, "", "", "FQDN"},
		{"no name", func(p *corev1.Pod) { p.Spec.Hostname = "Not.Valid" }, "", "", "not a valid DNS label"},
	} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"}}
		c.change(p)
		h, d, err := spec.Hostname(p, spec.Cluster{Domain: "cluster.local"})
		if h != c.host || d != c.domain || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %q %q %v", c.name, h, d, err)
		}
	}
}

func TestDNS(t *testing.T) {
	three := "3"
	host := &cri.DNSConfig{Servers: []string{"9.9.9.9"}, Searches: []string{"example.org"}, Options: []string{"rotate"}}
	cl := spec.Cluster{DNS: []string{"10.96.0.10"}, Domain: "cluster.local", HostResolv: host}
	cluster := []string{"ns.svc.cluster.local", "svc.cluster.local", "cluster.local", "example.org"}
	for _, c := range []struct {
		name   string
		pod    corev1.PodSpec
		server []string
		search []string
		opts   []string
	}{
		{"of the cluster", corev1.PodSpec{DNSPolicy: corev1.DNSClusterFirst}, []string{"10.96.0.10"}, cluster, []string{"ndots:5"}},
		{"of the node", corev1.PodSpec{DNSPolicy: corev1.DNSDefault}, []string{"9.9.9.9"}, []string{"example.org"}, []string{"rotate"}},
		{"on the node's network", corev1.PodSpec{DNSPolicy: corev1.DNSClusterFirst, HostNetwork: true}, []string{"9.9.9.9"}, []string{"example.org"}, []string{"rotate"}},
		{"of the cluster all the same", corev1.PodSpec{DNSPolicy: corev1.DNSClusterFirstWithHostNet, HostNetwork: true}, []string{"10.96.0.10"}, cluster, []string{"ndots:5"}},
		{"its own", corev1.PodSpec{DNSPolicy: corev1.DNSNone, DNSConfig: &corev1.PodDNSConfig{Nameservers: []string{"1.1.1.1"}, Searches: []string{"a"}}}, []string{"1.1.1.1"}, []string{"a"}, nil},
		{
			"more of its own",
			corev1.PodSpec{DNSPolicy: corev1.DNSClusterFirst, DNSConfig: &corev1.PodDNSConfig{
				Nameservers: []string{"1.1.1.1", "10.96.0.10"},
				Options:     []corev1.PodDNSConfigOption{{Name: "ndots", Value: &three}, {Name: "debug"}},
			}},
			[]string{"10.96.0.10", "1.1.1.1"},
			cluster,
			[]string{"ndots:3", "debug"},
		},
	} {
		got := spec.DNS(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns"}, Spec: c.pod}, cl)
		if !slices.Equal(got.Servers, c.server) || !slices.Equal(got.Searches, c.search) || !slices.Equal(got.Options, c.opts) {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

// What the API lets pass, an option's value for one, does not write lines of its own
// to resolv.conf.
func TestDNSWritesNoLinesOfItsOwn(t *testing.T) {
	for _, bad := range []string{"1\nnameserver 6.6.6.6", "1\r2", "a\x00", "a\u2028b"} {
		for name, d := range map[string]corev1.PodDNSConfig{
			"server": {Nameservers: []string{bad}}, "search": {Searches: []string{bad}},
			"option": {Options: []corev1.PodDNSConfigOption{{Name: bad}}}, "value": {Options: []corev1.PodDNSConfigOption{{Name: "ndots", Value: &bad}}},
		} {
			p := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"},
				Spec:       corev1.PodSpec{DNSPolicy: corev1.DNSNone, DNSConfig: &d},
			}
			if _, err := spec.Sandbox(p, 0, spec.Place{}, spec.Cluster{}); err == nil || !strings.Contains(err.Error(), "spec.dnsConfig") {
				t.Errorf("%s %q: %v", name, bad, err)
			}
		}
	}
	good := "trust-ad"
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"},
		Spec:       corev1.PodSpec{DNSConfig: &corev1.PodDNSConfig{Options: []corev1.PodDNSConfigOption{{Name: good}}}},
	}
	if c, err := spec.Sandbox(p, 0, spec.Place{}, spec.Cluster{}); err != nil || !slices.Equal(c.DnsConfig.Options, []string{good}) {
		t.Errorf("%v, %v", c, err)
	}
}

func linux(t *testing.T,
	change func(*corev1.Pod, *corev1.Container,
		*spec.ContainerRequest),
) (*cri.LinuxContainerSecurityContext, *cri.LinuxContainerResources, error) {
	t.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "u"}}
	p.Spec.Containers = []corev1.Container{{Name: "c"}}
	r := spec.ContainerRequest{Pod: p, Container: &p.Spec.Containers[0], Image: &cri.Image{}, NodeMemory: 1 << 30, SeccompRoot: "/seccomp"}
	change(p, r.Container, &r)
	got, err := spec.Container(r)
	return got.GetLinux().GetSecurityContext(), got.GetLinux().GetResources(), err
}

func TestSecurity(t *testing.T) {
	yes, no, zero, user, group := true, false, int64(0), int64(1000), int64(2000)
	sec := func(c *corev1.Container) *corev1.SecurityContext {
		if c.SecurityContext == nil {
			c.SecurityContext = &corev1.SecurityContext{}
		}
		return c.SecurityContext
	}
	type L = *cri.LinuxContainerSecurityContext
	for _, tc := range []struct {
		name   string
		change func(*corev1.Pod, *corev1.Container, *spec.ContainerRequest)
		ok     func(L) bool
		err    string
	}{
		{"by default", func(*corev1.Pod, *corev1.Container, *spec.ContainerRequest) {}, func(l L) bool {
			return !l.Privileged && !l.NoNewPrivs && l.Seccomp.ProfileType == cri.SecurityProfile_RuntimeDefault && slices.Contains(l.MaskedPaths,
				"/proc/kcore") && l.RunAsUser.Value == 0
		}, ""},
		{"privileged", func(_ *corev1.Pod, c *corev1.Container, _ *spec.ContainerRequest) { sec(c).Privileged = &yes }, func(l L) bool {
			return l.Privileged && l.Seccomp.ProfileType == cri.SecurityProfile_Unconfined
		}, ""},
		{"no escalation", func(_ *corev1.Pod, c *corev1.Container, _ *spec.ContainerRequest) {
			sec(c).AllowPrivilegeEscalation, sec(c).ReadOnlyRootFilesystem = &no, &yes
		}, func(l L) bool { return l.NoNewPrivs && l.ReadonlyRootfs }, ""},
		{"capabilities", func(_ *corev1.Pod, c *corev1.Container, _ *spec.ContainerRequest) {
			sec(c).Capabilities = &corev1.Capabilities{Add: []corev1.Capability{"NET_ADMIN"}, Drop: []corev1.Capability{"ALL"}}
		}, func(l L) bool {
			return l.Capabilities.AddCapabilities[0] == "NET_ADMIN" && l.Capabilities.DropCapabilities[0] == "ALL"
		}, ""},
		{"the container's user over the pod's", func(p *corev1.Pod, c *corev1.Container, _ *spec.ContainerRequest) {
			p.Spec.SecurityContext = &corev1.PodSecurityContext{
				RunAsUser: &zero, RunAsGroup: &group, FSGroup: &group,
				SupplementalGroups: []int64{7},
			}
			sec(c).RunAsUser = &user
		}, func(l L) bool {
			return l.RunAsUser.Value == 1000 && l.RunAsGroup.Value == 2000 && slices.Equal(l.SupplementalGroups, []int64{7, 2000})
		}, ""},
		{"the image's user", func(_ *corev1.Pod, _ *corev1.Container, r *spec.ContainerRequest) {
			r.Image.Uid = &cri.Int64Value{Value: 65532}
		}, func(l L) bool { return l.RunAsUser.Value == 65532 }, ""},
		{"the image's named user", func(_ *corev1.Pod, _ *corev1.Container, r *spec.ContainerRequest) { r.Image.Username = "nobody" }, func(l L) bool {
			return l.RunAsUser == nil && l.RunAsUsername == "nobody"
		}, ""},
		{
			"not root, but the image is", func(_ *corev1.Pod, c *corev1.Container, _ *spec.ContainerRequest) { sec(c).RunAsNonRoot = &yes }, nil,
			`container has runAsNonRoot and image will run as root (pod: "web_ns(u)", container: c)`,
		},
		{"not root, but says so", func(_ *corev1.Pod, c *corev1.Container, _ *spec.ContainerRequest) {
			sec(c).RunAsNonRoot, sec(c).RunAsUser = &yes, &zero
		}, nil, `container's runAsUser breaks non-root policy (pod: "web_ns(u)", container: c)`},
		{"not root, by a name", func(_ *corev1.Pod, c *corev1.Container, r *spec.ContainerRequest) {
			sec(c).RunAsNonRoot, r.Image.Username = &yes, "app"
		}, nil, `container has runAsNonRoot and image has non-numeric user (app), cannot verify user is non-root (pod: "web_ns(u)", container: c)`},
		{"a profile of the node's cannot lead away", func(_ *corev1.Pod, c *corev1.Container, _ *spec.ContainerRequest) {
			path := "../../etc/passwd"
			sec(c).SeccompProfile = &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeLocalhost, LocalhostProfile: &path}
		}, func(l L) bool { return l.Seccomp.LocalhostRef == "/seccomp/etc/passwd" }, ""},
		{"looking into another", func(_ *corev1.Pod, _ *corev1.Container, r *spec.ContainerRequest) { r.Target = "id" }, func(l L) bool {
			return l.NamespaceOptions.Pid == cri.NamespaceMode_TARGET && l.NamespaceOptions.TargetId == "id"
		}, ""},
		{"on the node's namespaces", func(p *corev1.Pod, _ *corev1.Container, _ *spec.ContainerRequest) {
			p.Spec.HostNetwork, p.Spec.HostPID = true, true
		}, func(l L) bool {
			return l.NamespaceOptions.Network == cri.NamespaceMode_NODE && l.NamespaceOptions.Pid == cri.NamespaceMode_NODE
		}, ""},
	} {
		l, _, err := linux(t, tc.change)
		switch {
		case tc.err != "":
			if err == nil || err.Error() != tc.err {
				t.Errorf("%s: %v", tc.name, err)
			}
		case err != nil || !tc.ok(l):
			t.Errorf("%s: %+v %v", tc.name, l, err)
		}
	}
}

func TestResources(t *testing.T) {
	list := func(cpu, mem string) corev1.ResourceList {
		l := corev1.ResourceList{}
		if cpu != "" {
			l[corev1.ResourceCPU] = resource.MustParse(cpu)
		}
		if mem != "" {
			l[corev1.ResourceMemory] = resource.MustParse(mem)
		}
		return l
	}
	for _, c := range []struct {
		name                       string
		req, lim                   corev1.ResourceList
		shares, quota, memory, oom int64
	}{
		{"nothing", nil, nil, 2, 0, 0, 1000},
		{"a request", list("500m", "256Mi"), nil, 512, 0, 0, 750},
		{"a limit is a request", nil, list("1", "128Mi"), 1024, 100000, 128 << 20, -997},
		{"guaranteed", list("2", "1Gi"), list("2", "1Gi"), 2048, 200000, 1 << 30, -997},
		{"very little", list("1m", "1"), list("1m", ""), 2, 1000, 0, 999},
	} {
		_, r, err := linux(t, func(_ *corev1.Pod, ct *corev1.Container, _ *spec.ContainerRequest) {
			if c.req == nil && c.lim != nil {
				c.req = nil
				ct.Resources.Requests = c.lim // as defaulting has it
			} else {
				ct.Resources.Requests = c.req
			}
			ct.Resources.Limits = c.lim
		})
		if err != nil || r.CpuShares != c.shares || r.CpuQuota != c.quota || r.MemoryLimitInBytes != c.memory || r.OomScoreAdj != c.oom {
			t.Errorf("%s: %+v %v", c.name, r, err)
		}
	}
}

// Limits that a container has not are its pod's, and so is a part of the memory that the pod asks for.
func TestResourcesOfAPodAsAWhole(t *testing.T) {
	whole := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("512Mi")}
	limits := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("1Gi")}
	own := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("128Mi")}
	_, r, err := linux(t, func(p *corev1.Pod, ct *corev1.Container, _ *spec.ContainerRequest) {
		p.Spec.Resources = &corev1.ResourceRequirements{Requests: whole, Limits: limits}
		ct.Resources.Requests, ct.Resources.Limits = own, own
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "other"})
	})
	// It asks for 128Mi, and has half of the 384Mi that nobody asks for: 320Mi of 1Gi.
	if err != nil || r.CpuShares != 2048 || r.CpuQuota != 200000 || r.MemoryLimitInBytes != 128<<20 || r.OomScoreAdj != 1000-312 {
		t.Errorf("%+v %v", r, err)
	}
	// A sidecar lives at least as long as the container that asks for least.
	_, r, err = linux(t, func(p *corev1.Pod, ct *corev1.Container, _ *spec.ContainerRequest) {
		always := corev1.ContainerRestartPolicyAlways
		ct.Resources.Requests = own
		p.Spec.InitContainers = []corev1.Container{{Name: "side", RestartPolicy: &always}}
		*ct = p.Spec.InitContainers[0]
		p.Spec.Containers = []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Requests: own}}}
	})
	if err != nil || r.OomScoreAdj != 1000-125 {
		t.Errorf("%+v %v", r, err)
	}
}

func TestSandbox(t *testing.T) {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "web", UID: "u",
		Labels: map[string]string{"app": "web", pod.UIDLabel: "forged"},
	}}
	p.Spec.Containers = []corev1.Container{{
		Name:  "c",
		Ports: []corev1.ContainerPort{{ContainerPort: 80, HostPort: 8080, Protocol: corev1.ProtocolUDP}},
	}}
	c, err := spec.Sandbox(p, 2, spec.Place{CgroupParent: "/x", LogDir: "/logs"}, spec.Cluster{})
	if err != nil {
		t.Fatal(err)
	}
	if c.Labels[pod.UIDLabel] != "u" || c.Labels["app"] != "web" || c.Metadata.Attempt != 2 || c.Hostname != "web" ||
		c.Linux.CgroupParent != "/x" || c.LogDirectory != "/logs" ||
		c.PortMappings[0].HostPort != 8080 || c.PortMappings[0].Protocol != cri.Protocol_UDP {
		t.Errorf("%+v", c)
	}
}

// A runtime refuses a privileged container in a sandbox that is not, whatever the kind of the container.
func TestSandboxOfPrivileged(t *testing.T) {
	yes := true
	sec := &corev1.SecurityContext{Privileged: &yes}
	for name, tc := range map[string]struct {
		spec corev1.PodSpec
		want bool
	}{
		"none":      {corev1.PodSpec{}, false},
		"init":      {corev1.PodSpec{InitContainers: []corev1.Container{{Name: "i", SecurityContext: sec}}}, true},
		"container": {corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}, {Name: "d", SecurityContext: sec}}}, true},
		"ephemeral": {corev1.PodSpec{
			Containers: []corev1.Container{{Name: "c"}},
			EphemeralContainers: []corev1.EphemeralContainer{{
				EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "e", SecurityContext: sec},
			}},
		}, true},
	} {
		c, err := spec.Sandbox(&corev1.Pod{Spec: tc.spec}, 0, spec.Place{}, spec.Cluster{})
		if err != nil || c.Linux.SecurityContext.Privileged != tc.want {
			t.Errorf("%s: %v, %v, want %v", name, c.GetLinux().GetSecurityContext().GetPrivileged(), err, tc.want)
		}
	}
}

// A pod with users of its own has them in its sandbox, in its containers and on all that they mount; without,
// it is not made at all.
func TestOwnUsers(t *testing.T) {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "u"}}
	p.Spec.HostUsers = new(bool)
	p.Spec.Containers = []corev1.Container{{Name: "c"}}
	ids := []*cri.IDMapping{{HostId: 1 << 20, Length: 1 << 16}}
	place := spec.Place{Users: &cri.UserNamespace{Mode: cri.NamespaceMode_POD, Uids: ids, Gids: ids}}
	container := func(place spec.Place) (*cri.ContainerConfig, error) {
		return spec.Container(spec.ContainerRequest{
			Pod: p, Container: &p.Spec.Containers[0], Kind: pod.Regular, Image: &cri.Image{}, Place: place,
			Mounts: []*cri.Mount{{ContainerPath: "/a"}, {ContainerPath: "/b", Image: &cri.ImageSpec{Image: "i"}}},
		})
	}
	sandbox, err := spec.Sandbox(p, 0, place, spec.Cluster{})
	if err != nil {
		t.Fatal(err)
	}
	if got := sandbox.Linux.SecurityContext.NamespaceOptions.UsernsOptions; got != place.Users {
		t.Errorf("the sandbox has %v", got)
	}
	c, err := container(place)
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Linux.SecurityContext.NamespaceOptions.UsernsOptions; got != place.Users {
		t.Errorf("the container has %v", got)
	}
	for _, m := range c.Mounts {
		if len(m.UidMappings) != 1 || m.UidMappings[0] != ids[0] || len(m.GidMappings) != 1 {
			t.Errorf("the mount at %s has %v", m.ContainerPath, m)
		}
	}
	if _, err := spec.Sandbox(p, 0, spec.Place{}, spec.Cluster{}); err == nil || !strings.Contains(err.Error(), "hostUsers") {
		t.Errorf("a sandbox as the machine's users: %v", err)
	}
	if _, err := container(spec.Place{}); err == nil || !strings.Contains(err.Error(), "hostUsers") {
		t.Errorf("a container as the machine's users: %v", err)
	}
	p.Spec.HostUsers = nil
	c, err = container(spec.Place{})
	if err != nil || c.Mounts[0].UidMappings != nil || c.Linux.SecurityContext.NamespaceOptions.UsernsOptions != nil {
		t.Errorf("of the machine's users: %v, %v", c, err)
	}
}
