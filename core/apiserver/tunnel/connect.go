// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilproxy "k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"
	streamproxy "k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"github.com/wasmplane/wasmplane/core/auth/authz"
)

// Connect hands a connection on to a kubelet, a pod or a Service. Admission is
// asked first, with the options of the connection as the object.
func (t *Tunnel) Connect(connection Connection) error {
	if t.backends == nil {
		return errNoNodes()
	}
	c := t.open(connection)
	options, err := c.options(c.Subresource.Kind)
	if err != nil {
		return err
	}
	if err := c.mayCreate(); err != nil {
		return err
	}
	if err := c.Registry.AdmitConnect(c.Req.Context(), c.Request, c.Subresource.Kind, options); err != nil {
		return err
	}
	defer c.endsWithServer()()
	switch o := options.(type) {
	case *corev1.PodExecOptions:
		return c.stream("exec", o.Container, streamQuery(o.Stdin, o.Stdout, o.Stderr, o.TTY, o.Command),
			&streamproxy.Options{Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr, Tty: o.TTY})
	case *corev1.PodAttachOptions:
		return c.stream("attach", o.Container, streamQuery(o.Stdin, o.Stdout, o.Stderr, o.TTY, nil),
			&streamproxy.Options{Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr, Tty: o.TTY})
	case *corev1.PodPortForwardOptions:
		return c.portForward(o)
	case *corev1.PodProxyOptions:
		return c.proxyPod(o.Path)
	case *corev1.ServiceProxyOptions:
		return c.proxyService(o.Path)
	case *corev1.NodeProxyOptions:
		return c.proxyNode(o.Path)
	}
	return apierrors.NewMethodNotSupported(c.Registry.Resource().GroupResource, c.Req.Method)
}

// endsWithServer has the request end when the server stops.
func (c *connection) endsWithServer() (done func()) {
	ctx, cancel := context.WithCancel(withEndings(c.Req.Context()))
	forget := c.tunnel.ends.Add(cancel)
	c.Req = c.Req.WithContext(ctx)
	return func() {
		forget()
		cancel()
	}
}

// options reads the query into an object of kind.
func (c *connection) options(kind schema.GroupVersionKind) (runtime.Object, error) {
	path := ""
	if c.Subresource.Name == "proxy" && (len(c.Info.Parts) > 3 || strings.HasSuffix(c.Req.URL.Path, "/")) {
		path = "/" + strings.Join(c.Info.Parts[3:], "/")
		if len(c.Info.Parts) > 3 && strings.HasSuffix(c.Req.URL.Path, "/") {
			path += "/"
		}
	}
	return connectOptions(kind, c.Req.URL.Query(), path)
}

// mayCreate: a WebSocket is opened by a GET, and yet somebody who may only read
// pods must not run commands in them.
func (c *connection) mayCreate() error {
	if c.Info.Verb == "create" {
		return nil
	}
	switch {
	case c.Subresource.Name == "exec", c.Subresource.Name == "attach", c.Subresource.Name == "portforward":
	case c.Subresource.Name == "proxy" && c.Info.Resource == "nodes" && httpstream.IsUpgradeRequest(c.Req):
		// The kubelet runs commands too, and there we come with our own rights.
	default:
		return nil
	}
	who, _ := genericrequest.UserFrom(c.Req.Context())
	question := authz.AttributesOf(c.Info, who)
	question.Verb = "create"
	decision, reason, err := c.tunnel.authorizer.Authorize(c.Req.Context(), question)
	if decision != authorizer.DecisionAllow {
		return authz.Refused(question, reason, err)
	}
	return nil
}

// container picks the container that is meant.
func container(pod *corev1.Pod, asked string) (string, error) {
	var usual, initial, ephemeral []string
	for _, c := range pod.Spec.Containers {
		usual = append(usual, c.Name)
	}
	for _, c := range pod.Spec.InitContainers {
		initial = append(initial, c.Name)
	}
	for _, c := range pod.Spec.EphemeralContainers {
		ephemeral = append(ephemeral, c.Name)
	}
	if asked != "" {
		if slices.Contains(usual, asked) || slices.Contains(initial, asked) || slices.Contains(ephemeral, asked) {
			return asked, nil
		}
		return "", apierrors.NewBadRequest(fmt.Sprintf("container %s is not valid for pod %s", asked, pod.Name))
	}
	if len(usual) == 1 {
		return usual[0], nil
	}
	message := fmt.Sprintf("a container name must be specified for pod %s", pod.Name)
	if len(usual) > 0 {
		message += fmt.Sprintf(", choose one of: %v", usual)
	}
	if len(initial) > 0 {
		message += fmt.Sprintf(" or one of the init containers: %v", initial)
	}
	if len(ephemeral) > 0 {
		message += fmt.Sprintf(" or one of the ephemeral containers: %v", ephemeral)
	}
	return "", apierrors.NewBadRequest(message)
}

func streamQuery(stdin, stdout, stderr, tty bool, command []string) url.Values {
	q := url.Values{}
	for _, p := range []struct {
		name string
		set  bool
	}{{corev1.ExecStdinParam, stdin}, {corev1.ExecStdoutParam, stdout}, {corev1.ExecStderrParam, stderr}, {corev1.ExecTTYParam, tty}} {
		if p.set {
			q.Set(p.name, "1")
		}
	}
	if len(command) > 0 {
		q[corev1.ExecCommandParam] = command
	}
	return q
}

// location is a path of the kubelet that the pod runs on.
func (c *connection) location(verb, asked string, query url.Values) (*url.URL, error) {
	pod, err := c.tunnel.registries.ReadPod(c.Req.Context(), c.Info.Namespace, c.Info.Name)
	if err != nil {
		return nil, err
	}
	path := "/" + verb + "/" + pod.Namespace + "/" + pod.Name
	if verb != "portForward" {
		name, err := container(pod, asked)
		if err != nil {
			return nil, err
		}
		path += "/" + name
	}
	if pod.Spec.NodeName == "" {
		if verb == "containerLogs" {
			return nil, nil // nothing was said yet
		}
		return nil, apierrors.NewBadRequest(fmt.Sprintf("pod %s does not have a host assigned", pod.Name))
	}
	location, err := c.node(pod.Spec.NodeName)
	if err != nil {
		return nil, err
	}
	location.Path, location.RawQuery = path, query.Encode()
	return location, nil
}

// stream connects to a running container. A client that speaks the newest
// WebSocket protocol is translated to SPDY, which every kubelet speaks; others pass through.
func (c *connection) stream(verb, asked string, query url.Values, streams *streamproxy.Options) error {
	location, err := c.location(verb, asked, query)
	if err != nil {
		return err
	}
	kubelet := c.tunnel.backends.kubelet.Transport()
	through := c.upgrade(location, kubelet, true)
	translator := streamproxy.NewStreamTranslatorHandler(location, kubelet, 0, *streams)
	streamproxy.NewTranslatingHandler(through, translator, wsstream.IsWebSocketRequestWithStreamCloseProtocol).ServeHTTP(c.W, c.Req)
	return nil
}

func (c *connection) portForward(o *corev1.PodPortForwardOptions) error {
	query := url.Values{}
	if len(o.Ports) > 0 {
		ports := make([]string, len(o.Ports))
		for i, p := range o.Ports {
			ports[i] = strconv.Itoa(int(p))
		}
		query.Set(corev1.PortHeader, strings.Join(ports, ","))
	}
	location, err := c.location("portForward", "", query)
	if err != nil {
		return err
	}
	through := c.upgrade(location, c.tunnel.backends.kubelet.Transport(), true)
	tunnel := streamproxy.NewTunnelingHandler(through)
	streamproxy.NewTranslatingHandler(through, tunnel, wsstream.IsWebSocketRequestWithTunnelingProtocol).ServeHTTP(c.W, c.Req)
	return nil
}

// upgrade passes a request on. Where a connection has to become a stream, a
// backend that answers by a redirect is not followed: it could lead anywhere,
// with our client certificate.
func (c *connection) upgrade(location *url.URL, transport http.RoundTripper, required bool) *utilproxy.UpgradeAwareHandler {
	h := utilproxy.NewUpgradeAwareHandler(location, transport, !required, required, responder{c})
	h.RejectForwardingRedirects = required
	return h
}

// responder answers what goes wrong before the connection is handed over.
type responder struct{ c *connection }

// Error implements proxy.ErrorResponder.
func (r responder) Error(w http.ResponseWriter, req *http.Request, err error) {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		err = apierrors.NewGenericServerResponse(http.StatusBadGateway, "connect", r.c.Registry.Resource().GroupResource, r.c.Info.Name,
			err.Error(), 0, false)
	}
	r.c.tunnel.answers.Fail(w, req, err)
}
