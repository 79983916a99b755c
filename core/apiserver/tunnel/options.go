// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// query reads connection options out of a URL as upstream's conversions do. The
// first bad value is kept.
type query struct {
	values url.Values
	err    error
}

// yes is whether a parameter is set, to anything but "false" or "0".
func (q *query) yes(name string) bool {
	v, ok := q.values[name]
	if !ok || len(v) == 0 {
		return false
	}
	return !strings.EqualFold(v[0], "false") && v[0] != "0"
}

func (q *query) number(name string) *int64 {
	text := q.values.Get(name)
	if text == "" {
		return nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		q.fail(name, text, "a whole number")
		return nil
	}
	return &n
}

func (q *query) time(name string) *metav1.Time {
	text := q.values.Get(name)
	if text == "" {
		return nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		q.fail(name, text, "a time such as 2006-01-02T15:04:05Z")
		return nil
	}
	return &metav1.Time{Time: t}
}

func (q *query) ports(name string) []int32 {
	var ports []int32
	for _, text := range q.values[name] {
		for _, one := range strings.Split(text, ",") {
			n, err := strconv.ParseInt(one, 10, 32)
			if err != nil {
				q.fail(name, text, "port numbers")
				return nil
			}
			ports = append(ports, int32(n))
		}
	}
	return ports
}

func (q *query) text(name string) *string {
	if text := q.values.Get(name); text != "" {
		return &text
	}
	return nil
}

func (q *query) fail(name, got, want string) {
	if q.err == nil {
		q.err = apierrors.NewBadRequest(fmt.Sprintf("parameter %s: expected %s, found %q", name, want, got))
	}
}

// connectOptions makes the options object of a kind. path is what follows "proxy".
func connectOptions(kind schema.GroupVersionKind, values url.Values, path string) (runtime.Object, error) {
	q := &query{values: values}
	var o runtime.Object
	switch kind.Kind {
	case "PodLogOptions":
		o = &corev1.PodLogOptions{
			Container: values.Get("container"), Follow: q.yes("follow"), Previous: q.yes("previous"), Timestamps: q.yes("timestamps"),
			SinceSeconds: q.number("sinceSeconds"), SinceTime: q.time("sinceTime"), TailLines: q.number("tailLines"),
			LimitBytes:                   q.number("limitBytes"),
			InsecureSkipTLSVerifyBackend: q.yes("insecureSkipTLSVerifyBackend"), Stream: q.text("stream"),
		}
	case "PodExecOptions":
		o = &corev1.PodExecOptions{
			Stdin: q.yes("stdin"), Stdout: q.yes("stdout"), Stderr: q.yes("stderr"), TTY: q.yes("tty"),
			Container: values.Get("container"), Command: values["command"],
		}
	case "PodAttachOptions":
		o = &corev1.PodAttachOptions{
			Stdin: q.yes("stdin"), Stdout: q.yes("stdout"), Stderr: q.yes("stderr"), TTY: q.yes("tty"),
			Container: values.Get("container"),
		}
	case "PodPortForwardOptions":
		o = &corev1.PodPortForwardOptions{Ports: q.ports("ports")}
	case "PodProxyOptions":
		o = &corev1.PodProxyOptions{Path: path}
	case "ServiceProxyOptions":
		o = &corev1.ServiceProxyOptions{Path: path}
	case "NodeProxyOptions":
		o = &corev1.NodeProxyOptions{Path: path}
	default:
		return nil, apierrors.NewInternalError(fmt.Errorf("no connection has options of kind %s", kind))
	}
	o.GetObjectKind().SetGroupVersionKind(kind)
	return o, q.err
}
