// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestWithoutNodesEveryConnectionIsRefused(t *testing.T) {
	tunnel := New(Config{})
	c := Connection{W: httptest.NewRecorder(), Req: httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)}
	for name, err := range map[string]error{"connect": tunnel.Connect(c), "log": tunnel.Log(c)} {
		if !apierrors.IsServiceUnavailable(err) {
			t.Errorf("%s: %v; want ServiceUnavailable", name, err)
		}
	}
}

func TestOptionsAreReadFromTheQuery(t *testing.T) {
	lines, port := int64(7), []int32{80, 81, 90}
	stream := corev1.LogStreamStderr
	for _, c := range []struct {
		kind, query string
		want        any
	}{
		{"PodExecOptions", "command=a&command=b&stdin=true&tty=1&stdout=false&stderr=0&container=c", &corev1.PodExecOptions{Command: []string{"a", "b"}, Stdin: true, TTY: true, Container: "c"}},
		{"PodPortForwardOptions", "ports=80,81&ports=90", &corev1.PodPortForwardOptions{Ports: port}},
		{"PodLogOptions", "follow&previous=&tailLines=7&stream=Stderr", &corev1.PodLogOptions{Follow: true, Previous: true, TailLines: &lines, Stream: &stream}},
		{"NodeProxyOptions", "", &corev1.NodeProxyOptions{Path: "/metrics"}},
	} {
		values, err := url.ParseQuery(c.query)
		if err != nil {
			t.Fatal(err)
		}
		o, err := connectOptions(corev1.SchemeGroupVersion.WithKind(c.kind), values, "/metrics")
		if err != nil {
			t.Errorf("%s: %v", c.kind, err)
			continue
		}
		o.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
		if diff := cmp.Diff(c.want, o); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.kind, diff)
		}
	}
	for kind, query := range map[string]string{"PodLogOptions": "tailLines=many", "PodPortForwardOptions": "ports=http"} {
		values, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		name, _, _ := strings.Cut(query, "=")
		if _, err := connectOptions(corev1.SchemeGroupVersion.WithKind(kind), values, ""); !apierrors.IsBadRequest(err) ||
			!strings.Contains(err.Error(), name) {
			t.Errorf("%s?%s: %v", kind, query, err)
		}
	}
}

func TestTheContainerThatIsMeant(t *testing.T) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a"}}, InitContainers: []corev1.Container{{Name: "first"}}}}
	for asked, want := range map[string]string{"": "a", "a": "a", "first": "first"} {
		if got, err := container(pod, asked); err != nil || got != want {
			t.Errorf("%q: %q, %v", asked, got, err)
		}
	}
	if _, err := container(pod, "b"); !apierrors.IsBadRequest(err) {
		t.Errorf("one that there is not: %v", err)
	}
	pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: "b"})
	if _, err := container(pod, ""); !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), "[a b]") || !strings.Contains(err.Error(),
		"[first]") {
		t.Errorf("one of two: %v", err)
	}
}

func TestAddressesOfTheServersOwnMachineAreRefused(t *testing.T) {
	for host, allowed := range map[string]bool{
		"10.1.2.3": true, "fd00::1": true, "127.0.0.1": false, "169.254.169.254": false, "::1": false,
		"0.0.0.0": false, "224.0.0.1": false, "localhost": false,
	} {
		if address, err := proxyable(t.Context(), host); (err == nil) != allowed {
			t.Errorf("%s: %q, %v", host, address, err)
		}
	}
}

func TestLogOptionsAreCheckedBeforeANodeIsAsked(t *testing.T) {
	minus, zero, one := int64(-1), int64(0), int64(1)
	other := "Other"
	for name, o := range map[string]*corev1.PodLogOptions{
		"negative tail": {TailLines: &minus}, "no bytes": {LimitBytes: &zero}, "no seconds": {SinceSeconds: &zero},
		"unknown stream": {Stream: &other},
	} {
		if errs := checkLogOptions(o); len(errs) != 1 {
			t.Errorf("%s: %v", name, errs)
		}
	}
	if errs := checkLogOptions(&corev1.PodLogOptions{TailLines: &zero, LimitBytes: &one, SinceSeconds: &one}); len(errs) > 0 {
		t.Errorf("what is right was refused: %v", errs)
	}
	if q := logQuery(&corev1.PodLogOptions{Follow: true, TailLines: &one}); q.Encode() != "follow=true&stream=All&tailLines=1" {
		t.Errorf("the kubelet is asked %s", q.Encode())
	}
}
