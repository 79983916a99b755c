// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"sort"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/podbounds"
)

// EnvRequest is what a container's environment is made of.
type EnvRequest struct {
	Pod       *corev1.Pod
	Container *corev1.Container
	Objects   Objects
	// Services of the pod's namespace and, of the default namespace, "kubernetes".
	Services []*corev1.Service
	PodIPs   []string
	Cluster  Cluster
	// Allocatable of the node: the limit of who has none.
	Allocatable corev1.ResourceList
	// File answers the contents of a file in a volume of the pod, for fileKeyRef.
	File func(volume, path string) ([]byte, error)
}

// Env is a container's environment: service variables, then envFrom, then env,
// later ones winning, each expanded by what was set before it.
func Env(ctx context.Context, r EnvRequest) ([]*cri.KeyValue, error) {
	services := serviceEnv(r)
	vars := map[string]string{}
	var order []string
	set := func(k, v string) {
		if _, ok := vars[k]; !ok {
			order = append(order, k)
		}
		vars[k] = v
	}
	if err := envFrom(ctx, r, set); err != nil {
		return nil, err
	}
	lookup := func(k string) (string, bool) {
		if v, ok := vars[k]; ok {
			return v, true
		}
		v, ok := services[k]
		return v, ok
	}
	for i := range r.Container.Env {
		e := &r.Container.Env[i]
		v, ok, err := r.value(ctx, e, lookup)
		if err != nil {
			return nil, err
		}
		if ok {
			set(e.Name, v)
		}
	}
	var out []*cri.KeyValue
	for _, k := range order {
		out = append(out, &cri.KeyValue{Key: k, Value: []byte(vars[k])})
	}
	for _, k := range slices.Sorted(maps.Keys(services)) {
		if _, ok := vars[k]; !ok {
			out = append(out, &cri.KeyValue{Key: k, Value: []byte(services[k])})
		}
	}
	return out, nil
}

// EnvMap of an environment.
func EnvMap(env []*cri.KeyValue) map[string]string {
	out := make(map[string]string, len(env))
	for _, e := range env {
		out[e.Key] = string(e.Value)
	}
	return out
}

func envFrom(ctx context.Context, r EnvRequest, set func(k, v string)) error {
	for i := range r.Container.EnvFrom {
		f := &r.Container.EnvFrom[i]
		data := map[string]string{}
		switch {
		case f.ConfigMapRef != nil:
			cm, err := r.Objects.ConfigMap(ctx, r.Pod.Namespace, f.ConfigMapRef.Name)
			if skip, err := optional(err, f.ConfigMapRef.Optional); skip || err != nil {
				if err != nil {
					return err
				}
				continue
			}
			maps.Copy(data, cm.Data)
		case f.SecretRef != nil:
			s, err := r.Objects.Secret(ctx, r.Pod.Namespace, f.SecretRef.Name)
			if skip, err := optional(err, f.SecretRef.Optional); skip || err != nil {
				if err != nil {
					return err
				}
				continue
			}
			for k, v := range s.Data {
				data[k] = string(v)
			}
		}
		for _, k := range slices.Sorted(maps.Keys(data)) {
			if name := f.Prefix + k; len(validation.IsRelaxedEnvVarName(name)) == 0 {
				set(name, data[k])
			}
		}
	}
	return nil
}

func optional(err error, opt *bool) (skip bool, _ error) {
	if apierrors.IsNotFound(err) && opt != nil && *opt {
		return true, nil
	}
	return false, err
}

// value of one variable; not ok if it is to be left out.
func (r *EnvRequest) value(ctx context.Context, e *corev1.EnvVar, lookup func(string) (string, bool)) (string, bool, error) {
	src := e.ValueFrom
	if src == nil {
		return expand(e.Value, lookup), true, nil
	}
	switch {
	case src.FieldRef != nil:
		v, err := r.field(src.FieldRef.FieldPath)
		return v, true, err
	case src.ResourceFieldRef != nil:
		v, err := ResourceField(src.ResourceFieldRef, r.Pod, r.Container, r.Allocatable)
		return v, true, err
	case src.ConfigMapKeyRef != nil:
		ref := src.ConfigMapKeyRef
		cm, err := r.Objects.ConfigMap(ctx, r.Pod.Namespace, ref.Name)
		if skip, err := optional(err, ref.Optional); skip || err != nil {
			return "", false, err
		}
		if v, ok := cm.Data[ref.Key]; ok {
			return v, true, nil
		}
		if ref.Optional != nil && *ref.Optional {
			return "", false, nil
		}
		return "", false, fmt.Errorf("couldn't find key %v in ConfigMap %v/%v", ref.Key, r.Pod.Namespace, ref.Name)
	case src.SecretKeyRef != nil:
		ref := src.SecretKeyRef
		s, err := r.Objects.Secret(ctx, r.Pod.Namespace, ref.Name)
		if skip, err := optional(err, ref.Optional); skip || err != nil {
			return "", false, err
		}
		if v, ok := s.Data[ref.Key]; ok {
			return string(v), true, nil
		}
		if ref.Optional != nil && *ref.Optional {
			return "", false, nil
		}
		return "", false, fmt.Errorf("couldn't find key %v in Secret %v/%v", ref.Key, r.Pod.Namespace, ref.Name)
	case src.FileKeyRef != nil:
		return r.fileKey(src.FileKeyRef)
	}
	return "", true, nil
}

func (r *EnvRequest) field(p string) (string, error) {
	ips := r.Cluster.HostIPs
	first := func(list []string) string {
		if len(list) == 0 {
			return ""
		}
		return list[0]
	}
	switch p {
	case "spec.nodeName":
		return r.Pod.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return r.Pod.Spec.ServiceAccountName, nil
	case "status.hostIP":
		return first(ips), nil
	case "status.hostIPs":
		return strings.Join(ips, ","), nil
	case "status.podIP":
		return first(r.PodIPs), nil
	case "status.podIPs":
		return strings.Join(r.PodIPs, ","), nil
	}
	return Field(r.Pod, p)
}

// Field is what the downward API says of a pod's metadata.
func Field(p *corev1.Pod, path string) (string, error) {
	if base, key, ok := subscript(path); ok {
		switch base {
		case "metadata.annotations":
			return p.Annotations[key], nil
		case "metadata.labels":
			return p.Labels[key], nil
		}
	}
	switch path {
	case "metadata.annotations":
		return formatMap(p.Annotations), nil
	case "metadata.labels":
		return formatMap(p.Labels), nil
	case "metadata.name":
		return p.Name, nil
	case "metadata.namespace":
		return p.Namespace, nil
	case "metadata.uid":
		return string(p.UID), nil
	}
	return "", fmt.Errorf("unsupported fieldPath: %v", path)
}

func subscript(path string) (base, key string, ok bool) {
	base, rest, found := strings.Cut(path, "['")
	if !found || !strings.HasSuffix(rest, "']") {
		return "", "", false
	}
	return base, strings.TrimSuffix(rest, "']"), true
}

func formatMap(m map[string]string) string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(m)) {
		fmt.Fprintf(&b, "%v=%q\n", k, m[k])
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// ResourceField is what the downward API says of a container's resources; who has
// no limit has what the node can give.
func ResourceField(ref *corev1.ResourceFieldSelector, p *corev1.Pod, c *corev1.Container, allocatable corev1.ResourceList) (string, error) {
	if ref.ContainerName != "" && (c == nil || ref.ContainerName != c.Name) {
		if c = containerNamed(p, ref.ContainerName); c == nil {
			return "", fmt.Errorf("container %v not found", ref.ContainerName)
		}
	}
	what, name, ok := strings.Cut(ref.Resource, ".")
	if !ok {
		return "", fmt.Errorf("unsupported container resource : %v", ref.Resource)
	}
	list := c.Resources.Requests
	if what == "limits" {
		list = podbounds.Inherit(&c.Resources, p.Spec.Resources).Limits
	}
	q, set := list[corev1.ResourceName(name)]
	if what == "limits" && (!set || q.IsZero()) {
		q = allocatable[corev1.ResourceName(name)]
	}
	divisor := ref.Divisor
	if divisor.IsZero() {
		if name == string(corev1.ResourceCPU) {
			return strconv.FormatInt((q.MilliValue()+999)/1000, 10), nil
		}
		return strconv.FormatInt(q.Value(), 10), nil
	}
	n, d := q.Value(), divisor.Value()
	if name == string(corev1.ResourceCPU) {
		n, d = q.MilliValue(), divisor.MilliValue()
	}
	return strconv.FormatInt((n+d-1)/d, 10), nil
}

func containerNamed(p *corev1.Pod, name string) *corev1.Container {
	for _, list := range [][]corev1.Container{p.Spec.Containers, p.Spec.InitContainers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}

// serviceEnv are Docker-style variables of the Services that the pod can see.
func serviceEnv(r EnvRequest) map[string]string {
	out := map[string]string{}
	links := r.Pod.Spec.EnableServiceLinks == nil || *r.Pod.Spec.EnableServiceLinks
	services := slices.Clone(r.Services)
	sort.Slice(services, func(i, j int) bool {
		return services[i].CreationTimestamp.Before(&services[j].CreationTimestamp)
	})
	for _, s := range services {
		if s.Spec.ClusterIP == "" || s.Spec.ClusterIP == corev1.ClusterIPNone || len(s.Spec.Ports) == 0 {
			continue
		}
		api := s.Namespace == corev1.NamespaceDefault && s.Name == "kubernetes"
		own := s.Namespace == r.Pod.Namespace
		if api || own && links {
			if _, taken := out[envName(s.Name)+"_SERVICE_HOST"]; taken && api && r.Pod.Namespace != corev1.NamespaceDefault {
				continue // the namespace's own Service of that name comes first
			}
			oneService(out, s)
		}
	}
	return out
}

func envName(s string) string { return strings.ToUpper(strings.ReplaceAll(s, "-", "_")) }

func oneService(out map[string]string, s *corev1.Service) {
	name, ip := envName(s.Name), s.Spec.ClusterIP
	out[name+"_SERVICE_HOST"] = ip
	out[name+"_SERVICE_PORT"] = strconv.Itoa(int(s.Spec.Ports[0].Port))
	for i := range s.Spec.Ports {
		p := &s.Spec.Ports[i]
		if p.Name != "" {
			out[name+"_SERVICE_PORT_"+envName(p.Name)] = strconv.Itoa(int(p.Port))
		}
		proto := string(corev1.ProtocolTCP)
		if p.Protocol != "" {
			proto = string(p.Protocol)
		}
		port := strconv.Itoa(int(p.Port))
		link := strings.ToLower(proto) + "://" + net.JoinHostPort(ip, port)
		if i == 0 {
			out[name+"_PORT"] = link
		}
		prefix := name + "_PORT_" + port + "_" + strings.ToUpper(proto)
		out[prefix] = link
		out[prefix+"_PROTO"] = strings.ToLower(proto)
		out[prefix+"_PORT"] = port
		out[prefix+"_ADDR"] = ip
	}
}

// Expand replaces $(NAME) by its value; $$ is a dollar, and a name that is not set stays as it is written.
func Expand(s string, env map[string]string) string {
	return expand(s, func(k string) (string, bool) { v, ok := env[k]; return v, ok })
}

// ExpandFunc is Expand with a function that answers values.
func ExpandFunc(s string, lookup func(string) (string, bool)) string { return expand(s, lookup) }

func expand(s string, lookup func(string) (string, bool)) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '$' || i+1 == len(s) {
			b.WriteByte(s[i])
			continue
		}
		switch s[i+1] {
		case '$':
			b.WriteByte('$')
			i++
		case '(':
			end := strings.IndexByte(s[i+2:], ')')
			if end < 0 {
				b.WriteString("$(")
				i++
				continue
			}
			name := s[i+2 : i+2+end]
			if v, ok := lookup(name); ok {
				b.WriteString(v)
			} else {
				b.WriteString("$(" + name + ")")
			}
			i += 2 + end
		default:
			b.WriteByte('$')
		}
	}
	return b.String()
}
