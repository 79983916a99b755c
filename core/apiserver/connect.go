package apiserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	utilproxy "k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"
	streamproxy "k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"github.com/wasmplane/wasmplane/core/auth/authz"
	"github.com/wasmplane/wasmplane/core/registry"
)

// connect hands the connection on to a kubelet, a pod or a service. Admission is
// asked first, with the options of the connection as the object.
func (c *call) connect() error {
	if c.s.backends == nil {
		return apierrors.NewServiceUnavailable("this server is not connected to nodes")
	}
	options, err := c.options(c.sub.Kind)
	if err != nil {
		return err
	}
	if err := c.mayCreate(); err != nil {
		return err
	}
	if err := c.reg.AdmitConnect(c.req.Context(), c.request(), c.sub.Kind, options); err != nil {
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
	return apierrors.NewMethodNotSupported(c.res.GroupResource, c.req.Method)
}

// endsWithServer has the request end when the server stops.
func (c *call) endsWithServer() (done func()) {
	ctx, cancel := context.WithCancel(c.req.Context())
	forget := c.s.streams.add(cancel)
	c.req = c.req.WithContext(ctx)
	return func() {
		forget()
		cancel()
	}
}

// options reads the query into an object of kind.
func (c *call) options(kind schema.GroupVersionKind) (runtime.Object, error) {
	path := ""
	if c.sub.Name == "proxy" && (len(c.info.Parts) > 3 || strings.HasSuffix(c.req.URL.Path, "/")) {
		path = "/" + strings.Join(c.info.Parts[3:], "/")
		if len(c.info.Parts) > 3 && strings.HasSuffix(c.req.URL.Path, "/") {
			path += "/"
		}
	}
	return connectOptions(kind, c.req.URL.Query(), path)
}

// mayCreate: a WebSocket is opened by a GET, and yet somebody who may only read
// pods must not run commands in them.
func (c *call) mayCreate() error {
	if c.info.Verb == "create" {
		return nil
	}
	switch c.sub.Name {
	case "exec", "attach", "portforward":
	default:
		return nil
	}
	who, _ := genericrequest.UserFrom(c.req.Context())
	question := attributes(c.info, who)
	question.Verb = "create"
	decision, reason, _ := c.s.cfg.Authorizer.Authorize(c.req.Context(), question)
	if decision != authorizer.DecisionAllow {
		return authz.Forbidden(question, reason)
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
func (c *call) location(verb, asked string, query url.Values) (*url.URL, error) {
	pod, err := c.s.cfg.Registries.ReadPod(c.req.Context(), c.info.Namespace, c.info.Name)
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
func (c *call) stream(verb, asked string, query url.Values, streams *streamproxy.Options) error {
	location, err := c.location(verb, asked, query)
	if err != nil {
		return err
	}
	through := c.upgrade(location, c.s.backends.kubelet, true)
	translator := streamproxy.NewStreamTranslatorHandler(location, c.s.backends.kubelet, 0, *streams)
	streamproxy.NewTranslatingHandler(through, translator, wsstream.IsWebSocketRequestWithStreamCloseProtocol).ServeHTTP(c.w, c.req)
	return nil
}

func (c *call) portForward(o *corev1.PodPortForwardOptions) error {
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
	through := c.upgrade(location, c.s.backends.kubelet, true)
	tunnel := streamproxy.NewTunnelingHandler(through)
	streamproxy.NewTranslatingHandler(through, tunnel, wsstream.IsWebSocketRequestWithTunnelingProtocol).ServeHTTP(c.w, c.req)
	return nil
}

// upgrade passes a request on. Where a connection has to become a stream, a
// backend that answers by a redirect is not followed: it could lead anywhere,
// with our client certificate.
func (c *call) upgrade(location *url.URL, transport http.RoundTripper, required bool) *utilproxy.UpgradeAwareHandler {
	h := utilproxy.NewUpgradeAwareHandler(location, transport, !required, required, responder{c})
	h.RejectForwardingRedirects = required
	return h
}

// responder answers what goes wrong before the connection is handed over.
type responder struct{ c *call }

// Error implements proxy.ErrorResponder.
func (r responder) Error(w http.ResponseWriter, req *http.Request, err error) {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		err = apierrors.NewGenericServerResponse(http.StatusBadGateway, "connect", r.c.res.GroupResource, r.c.info.Name, err.Error(), 0, false)
	}
	r.c.s.fail(w, req, err)
}

// log serves a container's log. It reads, so that admission has no say.
func (c *call) log() error {
	if c.s.backends == nil {
		return apierrors.NewServiceUnavailable("this server is not connected to nodes")
	}
	options, err := c.options(corev1.SchemeGroupVersion.WithKind("PodLogOptions"))
	if err != nil {
		return err
	}
	o, ok := options.(*corev1.PodLogOptions)
	if !ok {
		return apierrors.NewInternalError(fmt.Errorf("log options are a %T", options))
	}
	defer c.endsWithServer()()
	return c.logs(o)
}

// logs streams a container's log.
func (c *call) logs(o *corev1.PodLogOptions) error {
	if errs := checkLogOptions(o); len(errs) > 0 {
		return apierrors.NewInvalid(schema.GroupKind{Kind: "PodLogOptions"}, c.info.Name, errs)
	}
	location, err := c.location("containerLogs", o.Container, logQuery(o))
	if err != nil {
		return err
	}
	c.w.Header().Set("Content-Type", "text/plain")
	c.w.Header().Set("Cache-Control", "no-cache, private")
	if location == nil {
		return nil
	}
	transport := c.s.backends.kubelet
	if o.InsecureSkipTLSVerifyBackend {
		transport = c.s.backends.unverified
	}
	out, err := http.NewRequestWithContext(c.req.Context(), http.MethodGet, location.String(), nil)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	response, err := transport.RoundTrip(out) // which follows no redirects
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	defer response.Body.Close() //nolint:errcheck // read to its end or given up
	if response.StatusCode != http.StatusOK {
		return c.kubeletError(response)
	}
	c.w.WriteHeader(http.StatusOK)
	var to io.Writer = c.w
	if o.Follow {
		to = flushing{c.w, http.NewResponseController(c.w)}
	}
	_, _ = io.Copy(to, response.Body) // whoever has gone, there is nobody to tell
	return nil
}

// kubeletError passes on what a kubelet said, in the shape of an API error.
func (c *call) kubeletError(response *http.Response) error {
	const most = 4 << 10
	body, _ := io.ReadAll(io.LimitReader(response.Body, most))
	text := string(body)
	switch response.StatusCode {
	case http.StatusInternalServerError:
		return apierrors.NewInternalError(fmt.Errorf("%s", text))
	case http.StatusBadRequest:
		return apierrors.NewBadRequest(text)
	}
	return apierrors.NewGenericServerResponse(response.StatusCode, "", schema.GroupResource{Resource: "pods/log"}, c.info.Name, text, 0, false)
}

type flushing struct {
	w io.Writer
	f *http.ResponseController
}

// Write implements io.Writer.
func (f flushing) Write(p []byte) (int, error) {
	n, err := f.w.Write(p)
	if err == nil {
		err = f.f.Flush()
	}
	return n, err
}

func checkLogOptions(o *corev1.PodLogOptions) field.ErrorList {
	var errs field.ErrorList
	if o.TailLines != nil && *o.TailLines < 0 {
		errs = append(errs, field.Invalid(field.NewPath("tailLines"), *o.TailLines, "must be greater than or equal to 0"))
	}
	if o.LimitBytes != nil && *o.LimitBytes < 1 {
		errs = append(errs, field.Invalid(field.NewPath("limitBytes"), *o.LimitBytes, "must be greater than 0"))
	}
	switch {
	case o.SinceSeconds != nil && o.SinceTime != nil:
		errs = append(errs, field.Forbidden(field.NewPath(""), "at most one of `sinceTime` or `sinceSeconds` may be specified"))
	case o.SinceSeconds != nil && *o.SinceSeconds < 1:
		errs = append(errs, field.Invalid(field.NewPath("sinceSeconds"), *o.SinceSeconds, "must be greater than 0"))
	}
	if o.Stream != nil {
		all := []string{corev1.LogStreamAll, corev1.LogStreamStdout, corev1.LogStreamStderr}
		if !slices.Contains(all, *o.Stream) {
			errs = append(errs, field.NotSupported(field.NewPath("stream"), *o.Stream, all))
		}
		if *o.Stream != corev1.LogStreamAll && o.TailLines != nil {
			errs = append(errs, field.Forbidden(field.NewPath(""), "`tailLines` and specific `stream` are mutually exclusive for now"))
		}
	}
	return errs
}

func logQuery(o *corev1.PodLogOptions) url.Values {
	q := url.Values{}
	for _, p := range []struct {
		name string
		set  bool
	}{{"follow", o.Follow}, {"previous", o.Previous}, {"timestamps", o.Timestamps}} {
		if p.set {
			q.Set(p.name, "true")
		}
	}
	for _, p := range []struct {
		name  string
		value *int64
	}{{"sinceSeconds", o.SinceSeconds}, {"tailLines", o.TailLines}, {"limitBytes", o.LimitBytes}} {
		if p.value != nil {
			q.Set(p.name, strconv.FormatInt(*p.value, 10))
		}
	}
	if o.SinceTime != nil {
		q.Set("sinceTime", o.SinceTime.Format(time.RFC3339))
	}
	stream := corev1.LogStreamAll
	if o.Stream != nil {
		stream = *o.Stream
	}
	q.Set("stream", stream)
	return q
}

// proxyPod passes a request on to a port of a pod: NAME, NAME:PORT or SCHEME:NAME:PORT.
func (c *call) proxyPod(path string) error {
	urlScheme, name, port, ok := utilnet.SplitSchemeNamePort(c.info.Name)
	if !ok {
		return apierrors.NewBadRequest(fmt.Sprintf("invalid pod request %q", c.info.Name))
	}
	pod, err := c.s.cfg.Registries.ReadPod(c.req.Context(), c.info.Namespace, name)
	if err != nil {
		return err
	}
	for i := 0; port == "" && i < len(pod.Spec.Containers); i++ {
		if ports := pod.Spec.Containers[i].Ports; len(ports) > 0 {
			port = strconv.Itoa(int(ports[0].ContainerPort))
		}
	}
	ip := net.ParseIP(pod.Status.PodIP)
	if ip == nil || !ip.IsGlobalUnicast() {
		return apierrors.NewBadRequest(errLoopback.Error())
	}
	return c.proxy(&url.URL{Scheme: urlScheme, Host: hostPort(pod.Status.PodIP, port), Path: path}, c.s.backends.pods)
}

func hostPort(host, port string) string {
	if port != "" {
		return net.JoinHostPort(host, port)
	}
	if strings.Contains(host, ":") {
		return "[" + host + "]"
	}
	return host
}

func (c *call) proxy(location *url.URL, transport http.RoundTripper) error {
	c.upgrade(location, transport, false).ServeHTTP(c.w, c.req)
	return nil
}

// proxyNode passes a request on to a kubelet, or to another port of its node.
func (c *call) proxyNode(path string) error {
	urlScheme, name, port, ok := utilnet.SplitSchemeNamePort(c.info.Name)
	if !ok {
		return apierrors.NewBadRequest(fmt.Sprintf("invalid node request %q", c.info.Name))
	}
	location, err := c.node(name)
	if err != nil {
		return err
	}
	transport := c.s.backends.kubelet
	if port != "" && port != location.Port() {
		if err := proxyable(c.req.Context(), location.Hostname()); err != nil {
			return apierrors.NewBadRequest(err.Error())
		}
		location = &url.URL{Scheme: urlScheme, Host: net.JoinHostPort(location.Hostname(), port)}
		transport = c.s.backends.pods
	}
	location.Path = path
	return c.proxy(location, transport)
}

// proxyService passes a request on to one of a Service's ready endpoints.
func (c *call) proxyService(path string) error {
	urlScheme, name, port, ok := utilnet.SplitSchemeNamePort(c.info.Name)
	if !ok {
		return apierrors.NewBadRequest(fmt.Sprintf("invalid service request %q", c.info.Name))
	}
	service, err := registry.Read[*corev1.Service](c.req.Context(), c.s.cfg.Registries, schema.GroupResource{Resource: "services"}, c.info.Namespace, name)
	if err != nil {
		return err
	}
	if number, err := strconv.ParseInt(port, 10, 32); err == nil {
		i := slices.IndexFunc(service.Spec.Ports, func(p corev1.ServicePort) bool { return int64(p.Port) == number })
		if i < 0 {
			return apierrors.NewServiceUnavailable(fmt.Sprintf("no service port %d found for service %q", number, name))
		}
		port = service.Spec.Ports[i].Name
	}
	host, err := c.endpoint(name, port)
	if err != nil {
		return err
	}
	return c.proxy(&url.URL{Scheme: urlScheme, Host: host, Path: path}, c.s.backends.pods)
}

// endpoint picks a ready address of a Service that has the port.
func (c *call) endpoint(service, port string) (string, error) {
	reg, ok := c.s.cfg.Registries.For(discoveryv1.Resource("endpointslices"))
	if !ok {
		return "", apierrors.NewServiceUnavailable(fmt.Sprintf("no endpoints available for service %q", service))
	}
	list, err := reg.List(c.req.Context(), &registry.Request{Version: "v1", Namespace: c.info.Namespace},
		registry.ListOptions{Labels: labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: service})})
	if err != nil {
		return "", err
	}
	var hosts []string
	for _, item := range list.Items {
		versioned, err := item.Object.Versioned()
		if err != nil {
			return "", apierrors.NewInternalError(err)
		}
		if s, ok := versioned.(*discoveryv1.EndpointSlice); ok {
			hosts = append(hosts, c.readyHosts(s, port)...)
		}
	}
	if len(hosts) == 0 {
		return "", apierrors.NewServiceUnavailable(fmt.Sprintf("no endpoints available for service %q", service))
	}
	return hosts[rand.IntN(len(hosts))], nil
}

// readyHosts are a slice's ready addresses with the port. Only pods count, at
// the address that the pod has: whoever may write an EndpointSlice must not be
// able to point the server anywhere.
func (c *call) readyHosts(s *discoveryv1.EndpointSlice, port string) []string {
	var number string
	for _, p := range s.Ports {
		if p.Port != nil && (p.Name == nil && port == "" || p.Name != nil && *p.Name == port || port == "" && len(s.Ports) == 1) {
			number = strconv.Itoa(int(*p.Port))
		}
	}
	if number == "" {
		return nil
	}
	var hosts []string
	for _, e := range s.Endpoints {
		if e.Conditions.Ready != nil && !*e.Conditions.Ready || e.TargetRef == nil || e.TargetRef.Kind != "Pod" || len(e.Addresses) == 0 {
			continue
		}
		pod, err := c.s.cfg.Registries.ReadPod(c.req.Context(), s.Namespace, e.TargetRef.Name)
		if err != nil || !slices.ContainsFunc(pod.Status.PodIPs, func(ip corev1.PodIP) bool { return ip.IP == e.Addresses[0] }) {
			continue
		}
		if ip := net.ParseIP(e.Addresses[0]); ip != nil && ip.IsGlobalUnicast() {
			hosts = append(hosts, net.JoinHostPort(e.Addresses[0], number))
		}
	}
	return hosts
}
