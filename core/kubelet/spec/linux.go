// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/pod"
	"github.com/wasmplane/wasmplane/core/kubelet/podbounds"
	"github.com/wasmplane/wasmplane/core/kubelet/status"
)

// namespaces of a pod or container. Without users of its own, a pod that asks for them gets none: to run it as
// the machine's would take away what it relies on.
func namespaces(p *corev1.Pod, users *cri.UserNamespace) (*cri.NamespaceOption, error) {
	if pod.OwnUsers(p) && users == nil {
		return nil, errors.New("the pod asks for user IDs of its own (hostUsers: false), which this node does not offer")
	}
	o := &cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER, UsernsOptions: users}
	if p.Spec.HostNetwork {
		o.Network = cri.NamespaceMode_NODE
	}
	if p.Spec.HostIPC {
		o.Ipc = cri.NamespaceMode_NODE
	}
	switch {
	case p.Spec.HostPID:
		o.Pid = cri.NamespaceMode_NODE
	case p.Spec.ShareProcessNamespace != nil && *p.Spec.ShareProcessNamespace:
		o.Pid = cri.NamespaceMode_POD
	}
	return o, nil
}

// owned are mounts whose files have the pod's owners inside, and those that they were given outside.
func owned(mounts []*cri.Mount, users *cri.UserNamespace) []*cri.Mount {
	if users == nil {
		return mounts
	}
	for _, m := range mounts {
		m.UidMappings, m.GidMappings = users.GetUids(), users.GetGids()
	}
	return mounts
}

func sandboxLinux(p *corev1.Pod, place Place) (*cri.LinuxPodSandboxConfig, error) {
	options, err := namespaces(p, place.Users)
	if err != nil {
		return nil, err
	}
	sec := &cri.LinuxSandboxSecurityContext{
		NamespaceOptions: options, Privileged: anyPrivileged(p),
		Seccomp: &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault},
	}
	l := &cri.LinuxPodSandboxConfig{CgroupParent: place.CgroupParent, SecurityContext: sec, Sysctls: map[string]string{}}
	l.Resources = PodResources(p)
	l.Overhead = &cri.LinuxContainerResources{}
	if len(p.Spec.Overhead) > 0 {
		l.Overhead = resources(p.Spec.Overhead, p.Spec.Overhead)
	}
	sc := p.Spec.SecurityContext
	if sc == nil {
		return l, nil
	}
	for _, s := range sc.Sysctls {
		l.Sysctls[s.Name] = s.Value
	}
	if sc.RunAsUser != nil {
		sec.RunAsUser = &cri.Int64Value{Value: *sc.RunAsUser}
		if sc.RunAsGroup != nil {
			sec.RunAsGroup = &cri.Int64Value{Value: *sc.RunAsGroup}
		}
	}
	sec.SupplementalGroups = supplemental(sc)
	sec.SupplementalGroupsPolicy = groupsPolicy(sc)
	sec.SelinuxOptions = selinux(sc.SELinuxOptions)
	return l, nil
}

// anyPrivileged is also of ephemeral containers, which come later: a runtime refuses to create a privileged container
// with a sandbox that is not privileged itself.
func anyPrivileged(p *corev1.Pod) bool {
	containers := slices.Concat(p.Spec.InitContainers, p.Spec.Containers)
	for i := range p.Spec.EphemeralContainers {
		containers = append(containers, corev1.Container(p.Spec.EphemeralContainers[i].EphemeralContainerCommon))
	}
	return slices.ContainsFunc(containers, func(c corev1.Container) bool { return privileged(&c) })
}

func privileged(c *corev1.Container) bool {
	return c.SecurityContext != nil && c.SecurityContext.Privileged != nil && *c.SecurityContext.Privileged
}

func supplemental(sc *corev1.PodSecurityContext) []int64 {
	if sc == nil {
		return nil
	}
	groups := slices.Clone(sc.SupplementalGroups)
	if sc.FSGroup != nil {
		groups = append(groups, *sc.FSGroup)
	}
	return groups
}

func groupsPolicy(sc *corev1.PodSecurityContext) cri.SupplementalGroupsPolicy {
	if sc != nil && sc.SupplementalGroupsPolicy != nil && *sc.SupplementalGroupsPolicy == corev1.SupplementalGroupsPolicyStrict {
		return cri.SupplementalGroupsPolicy_Strict
	}
	return cri.SupplementalGroupsPolicy_Merge
}

func selinux(o *corev1.SELinuxOptions) *cri.SELinuxOption {
	if o == nil {
		return nil
	}
	return &cri.SELinuxOption{User: o.User, Role: o.Role, Type: o.Type, Level: o.Level}
}

func containerLinux(r ContainerRequest) (*cri.LinuxContainerConfig, error) {
	sec, err := security(r)
	if err != nil {
		return nil, err
	}
	return &cri.LinuxContainerConfig{Resources: Resources(r.Pod, r.Container, r.NodeMemory, r.Place), SecurityContext: sec}, nil
}

// security is the effective context of a container: its own, over its pod's.
func security(r ContainerRequest) (*cri.LinuxContainerSecurityContext, error) {
	ps, cs := r.Pod.Spec.SecurityContext, r.Container.SecurityContext
	if ps == nil {
		ps = &corev1.PodSecurityContext{}
	}
	if cs == nil {
		cs = &corev1.SecurityContext{}
	}
	options, err := namespaces(r.Pod, r.Place.Users)
	if err != nil {
		return nil, err
	}
	sec := &cri.LinuxContainerSecurityContext{
		NamespaceOptions: options, Privileged: privileged(r.Container),
		ReadonlyRootfs:     cs.ReadOnlyRootFilesystem != nil && *cs.ReadOnlyRootFilesystem,
		NoNewPrivs:         cs.AllowPrivilegeEscalation != nil && !*cs.AllowPrivilegeEscalation,
		SupplementalGroups: supplemental(ps), SupplementalGroupsPolicy: groupsPolicy(ps),
		SelinuxOptions: selinux(first(cs.SELinuxOptions, ps.SELinuxOptions)),
	}
	if r.Target != "" {
		sec.NamespaceOptions.Pid = cri.NamespaceMode_TARGET
		sec.NamespaceOptions.TargetId = r.Target
	}
	if c := cs.Capabilities; c != nil {
		sec.Capabilities = &cri.Capability{}
		for _, a := range c.Add {
			sec.Capabilities.AddCapabilities = append(sec.Capabilities.AddCapabilities, string(a))
		}
		for _, d := range c.Drop {
			sec.Capabilities.DropCapabilities = append(sec.Capabilities.DropCapabilities, string(d))
		}
	}
	if cs.ProcMount == nil || *cs.ProcMount == corev1.DefaultProcMount {
		sec.MaskedPaths, sec.ReadonlyPaths = slices.Clone(maskedPaths), slices.Clone(readonlyPaths)
	}
	if g := first(cs.RunAsGroup, ps.RunAsGroup); g != nil {
		sec.RunAsGroup = &cri.Int64Value{Value: *g}
	}
	if err := asUser(sec, r, first(cs.RunAsUser, ps.RunAsUser), first(cs.RunAsNonRoot, ps.RunAsNonRoot)); err != nil {
		return nil, err
	}
	sec.Apparmor = apparmor(r)
	sec.Seccomp, err = seccomp(r, first(cs.SeccompProfile, ps.SeccompProfile))
	return sec, err
}

// What a container must not see, or not change, of the node's /proc and /sys, as upstream has it.
var (
	maskedPaths = []string{
		"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
		"/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap",
	}
	readonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

func first[T any](a, b *T) *T {
	if a != nil {
		return a
	}
	return b
}

// asUser says whom a container runs as, and refuses root where it is not wanted.
func asUser(sec *cri.LinuxContainerSecurityContext, r ContainerRequest, user *int64, nonRoot *bool) error {
	where := fmt.Sprintf("(pod: %q, container: %s)", pod.Format(r.Pod), r.Container.Name)
	forbid := nonRoot != nil && *nonRoot
	if user != nil {
		if forbid && *user == 0 {
			return fmt.Errorf("container's runAsUser breaks non-root policy %s", where)
		}
		sec.RunAsUser = &cri.Int64Value{Value: *user}
		return nil
	}
	uid, name := r.Image.GetUid(), r.Image.GetUsername()
	if forbid {
		switch {
		case uid != nil && uid.Value == 0, uid == nil && name == "":
			return fmt.Errorf("container has runAsNonRoot and image will run as root %s", where)
		case uid == nil:
			return fmt.Errorf("container has runAsNonRoot and image has non-numeric user (%s), cannot verify user is non-root %s", name, where)
		}
	}
	switch {
	case uid != nil:
		sec.RunAsUser = &cri.Int64Value{Value: uid.Value}
	case name != "":
		sec.RunAsUsername = name
	default:
		sec.RunAsUser = &cri.Int64Value{}
	}
	return nil
}

func seccomp(r ContainerRequest, p *corev1.SeccompProfile) (*cri.SecurityProfile, error) {
	switch {
	case p == nil && privileged(r.Container):
		return &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Unconfined}, nil
	case p == nil, p.Type == corev1.SeccompProfileTypeRuntimeDefault:
		return &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault}, nil
	case p.Type == corev1.SeccompProfileTypeLocalhost:
		if p.LocalhostProfile == nil || *p.LocalhostProfile == "" {
			return nil, errors.New("localhostProfile must be set if seccompProfile type is Localhost")
		}
		rel := filepath.Clean("/" + *p.LocalhostProfile)
		return &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Localhost, LocalhostRef: filepath.Join(r.SeccompRoot, rel)}, nil
	case p.Type == corev1.SeccompProfileTypeUnconfined:
		return &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Unconfined}, nil
	}
	return nil, fmt.Errorf("unknown seccomp profile type %q", p.Type)
}

func apparmor(r ContainerRequest) *cri.SecurityProfile {
	var p *corev1.AppArmorProfile
	if sc := r.Pod.Spec.SecurityContext; sc != nil {
		p = sc.AppArmorProfile
	}
	if sc := r.Container.SecurityContext; sc != nil {
		p = first(sc.AppArmorProfile, p)
	}
	if p == nil {
		return nil
	}
	switch p.Type {
	case corev1.AppArmorProfileTypeRuntimeDefault:
		return &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault}
	case corev1.AppArmorProfileTypeUnconfined:
		return &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Unconfined}
	case corev1.AppArmorProfileTypeLocalhost:
		if p.LocalhostProfile != nil {
			return &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Localhost, LocalhostRef: *p.LocalhostProfile}
		}
	}
	return nil
}

// Figures of the kernel's schedulers.
const (
	cpuPeriod = 100_000 // us
	minQuota  = 1000    // us
	minShares = 2
	maxShares = 262144
)

// Shares of the processor that a request is worth.
func Shares(milliCPU int64) int64 {
	if milliCPU <= 0 {
		return minShares
	}
	return min(max(milliCPU*1024/1000, minShares), maxShares)
}

// Quota of processor time in a period of 100 ms that a limit is worth; 0 is none.
func Quota(milliCPU int64) int64 {
	if milliCPU <= 0 {
		return 0
	}
	return max(milliCPU*cpuPeriod/1000, minQuota)
}

func resources(requests, limits corev1.ResourceList) *cri.LinuxContainerResources {
	request, limit := requests.Cpu().MilliValue(), limits.Cpu().MilliValue()
	if _, ok := requests[corev1.ResourceCPU]; !ok && limit > 0 {
		request = limit
	}
	return &cri.LinuxContainerResources{
		CpuShares: Shares(request), CpuPeriod: cpuPeriod, CpuQuota: Quota(limit),
		MemoryLimitInBytes: limits.Memory().Value(),
	}
}

// Resources of a container, for its cgroup.
func Resources(p *corev1.Pod, c *corev1.Container, nodeMemory int64, at Place) *cri.LinuxContainerResources {
	has := podbounds.Inherit(&c.Resources, p.Spec.Resources)
	r := resources(has.Requests, has.Limits)
	r.OomScoreAdj = oomScore(p, c, nodeMemory)
	if at.CgroupV2 {
		// One process out of memory takes its container along, rather than leave half of it.
		r.Unified = map[string]string{"memory.oom.group": "1"}
	}
	at.Swap.Set(p, c, r)
	for name, q := range has.Limits {
		if size, ok := strings.CutPrefix(string(name), corev1.ResourceHugePagesPrefix); ok {
			r.HugepageLimits = append(r.HugepageLimits, &cri.HugepageLimit{PageSize: strings.TrimSuffix(size, "i") + "B", Limit: uint64(q.Value())})
		}
	}
	return r
}

// oomScore decides who goes first when the node runs out of memory: who asked
// for nothing, then who asked for little.
func oomScore(p *corev1.Pod, c *corev1.Container, nodeMemory int64) int64 {
	const guaranteed, bestEffort = -997, 1000
	if p.Spec.PriorityClassName == "system-node-critical" {
		return guaranteed
	}
	switch status.QOS(p) {
	case corev1.PodQOSGuaranteed:
		return guaranteed
	case corev1.PodQOSBestEffort:
		return bestEffort
	case corev1.PodQOSBurstable: // between the two, by what it asks for
	}
	if nodeMemory <= 0 {
		return bestEffort - 1
	}
	rest := unshared(p)
	score := 1000 - 1000*(c.Resources.Requests.Memory().Value()+rest)/nodeMemory
	if c, kind := pod.Find(p, c.Name); c != nil && kind == pod.Sidecar {
		// It outlives those that rely on it.
		least := p.Spec.Containers[0].Resources.Requests.Memory().Value()
		for i := range p.Spec.Containers {
			least = min(least, p.Spec.Containers[i].Resources.Requests.Memory().Value())
		}
		score = min(score, 1000-1000*(least+rest)/nodeMemory)
	}
	return min(max(score, 1000+guaranteed), bestEffort-1)
}

// unshared is each container's part of the memory that its pod asks for as a whole beyond what they do.
func unshared(p *corev1.Pod) int64 {
	if p.Spec.Resources == nil || p.Spec.Resources.Requests.Memory().IsZero() {
		return 0
	}
	asked := resourcehelper.AggregateContainerRequests(p, resourcehelper.PodResourcesOptions{})
	rest := p.Spec.Resources.Requests.Memory().Value() - asked.Memory().Value()
	return max(rest, 0) / int64(len(p.Spec.Containers)+len(p.Spec.InitContainers))
}

// PodResources are what a pod's cgroup is bounded to: its requests as shares,
// and its limits.
func PodResources(p *corev1.Pod) *cri.LinuxContainerResources {
	r := podbounds.Of(p).Resources()
	return resources(r.Requests, r.Limits)
}
