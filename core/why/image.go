// SPDX-License-Identifier: Apache-2.0

package why

import (
	"regexp"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/wasmplane/wasmplane/core/why/reply"
)

// imageReasons are the reasons of a container that waits for its image (upstream: pkg/kubelet/images/types.go).
var imageReasons = []string{
	"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError", "RegistryUnavailable",
	"SignatureValidationFailed",
}

// What messages of containerd's resolver, of Go's network and of registries have in common, by the cause.
var (
	unreachable = regexp.MustCompile(`dial (tcp|udp)|no such host|connection refused|i/o timeout|network is unreachable|TLS handshake|x509: ` +
		`|deadline exceeded|server gave HTTP response to HTTPS client|connection reset`)
	unauthorized = regexp.MustCompile(`\b40[13]\b|[Uu]nauthorized|[Ff]orbidden|authorization failed|authentication required|no basic auth`)
)

// image is why a container's image is not on its node; nil = it does not wait for one.
func (e *explainer) image(p *corev1.Pod, s *corev1.ContainerStatus) *Answer {
	w := s.State.Waiting
	if !slices.Contains(imageReasons, w.Reason) {
		return nil
	}
	a := reply.Stuck("image %s of container %s cannot be pulled (%s)", s.Image, s.Name, w.Reason)
	if w.Message != "" {
		a.More("%s", w.Message)
	}
	carry := func() {
		a.Or("carry it to node "+p.Spec.NodeName+" in a file, and import it there", "wasmplane image import FILE")
	}
	switch {
	case w.Reason == "ErrImageNeverPull":
		a.Cause = "image " + s.Image + " of container " + s.Name + " is not on node " + p.Spec.NodeName + ", and its pull policy is Never"
		carry()
	case w.Reason == "InvalidImageName":
		a.Cause = "image " + s.Image + " of container " + s.Name + " is not the name of an image"
	case unreachable.MatchString(w.Message):
		a.Cause = "image " + s.Image + " of container " + s.Name + " cannot be pulled: node " + p.Spec.NodeName + " does not reach its registry"
		carry()
	case unauthorized.MatchString(w.Message):
		a.Cause = "image " + s.Image + " of container " + s.Name + " cannot be pulled: its registry refuses to give it, or has none of that name"
		a.Or("say who asks, and name the secret in imagePullSecrets of the pod or its account",
			"kubectl create secret docker-registry NAME -n %s --docker-server=REGISTRY --docker-username=USER --docker-password=PASSWORD", p.Namespace)
	}
	return a.Or("name an image that there is", "kubectl set image %s %s=IMAGE -n %s", e.Owner(p), s.Name, p.Namespace)
}
