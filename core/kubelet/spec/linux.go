package spec

import (
	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func sandboxLinux(p *corev1.Pod, place Place) *cri.LinuxPodSandboxConfig {
	return &cri.LinuxPodSandboxConfig{CgroupParent: place.CgroupParent, SecurityContext: &cri.LinuxSandboxSecurityContext{NamespaceOptions: namespaces(p)}}
}

func namespaces(p *corev1.Pod) *cri.NamespaceOption {
	o := &cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER}
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
	return o
}

func containerLinux(r ContainerRequest) (*cri.LinuxContainerConfig, error) {
	return &cri.LinuxContainerConfig{SecurityContext: &cri.LinuxContainerSecurityContext{NamespaceOptions: namespaces(r.Pod)}}, nil
}
