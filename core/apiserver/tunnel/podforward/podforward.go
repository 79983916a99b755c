// SPDX-License-Identifier: Apache-2.0

// Package podforward connects to ports of pods by the port forwarding of their nodes' kubelets, for a server whose own
// machine is no node and has no route to pods. Webhooks, aggregated APIs and the proxies of pods and Services go that way.
//
// The kubelet connects within the pod, at its loopback address: what listens at the pod's address alone is not reached.
package podforward

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"

	"github.com/wasmplane/wasmplane/core/apiserver/tunnel"
	"github.com/wasmplane/wasmplane/core/dial"
	"github.com/wasmplane/wasmplane/core/run"
)

// within is how long connecting may take.
const within = 10 * time.Second

// mostMessage bounds what a kubelet says of a port that it could not connect to.
const mostMessage = 4096

// Config says how pods are found and kubelets reached.
type Config struct {
	// API answers where pods and nodes are, from the server's own cache.
	API kubernetes.Interface
	// Pods are the networks that the nodes' ranges of pod addresses are of. Nodes are not looked through for other addresses.
	Pods []netip.Prefix
	// Kubelets is the server towards kubelets. Its Dial must not lead back here.
	Kubelets *tunnel.KubeletClient
}

// Dialer connects to pods. It is safe for concurrent use.
type Dialer struct{ cfg Config }

// New makes a Dialer.
func New(cfg Config) *Dialer { return &Dialer{cfg} }

// Through is a dial.Through for the addresses of pods that have a network of their own and run.
func (d *Dialer) Through(ctx context.Context, network string, at netip.AddrPort) (net.Conn, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	pod, err := d.find(ctx, at.Addr().Unmap())
	if err != nil || pod == nil {
		return nil, false, nil // while the server starts there is nobody to ask, and other addresses are reached nevertheless
	}
	if network != "tcp" && network != "tcp4" && network != "tcp6" {
		return nil, true, fmt.Errorf("connect to pod %s/%s: its node forwards TCP only, not %s", pod.Namespace, pod.Name, network)
	}
	conn, err := d.forward(ctx, pod, at)
	if err != nil {
		return nil, true, fmt.Errorf("connect to port %d of pod %s/%s through node %s: %w",
			at.Port(), pod.Namespace, pod.Name, pod.Spec.NodeName, err)
	}
	return conn, true, nil
}

// find returns the running pod with an address, or nil.
func (d *Dialer) find(ctx context.Context, address netip.Addr) (*corev1.Pod, error) {
	pod, err := d.among(ctx, address, fields.OneTermEqualSelector("status.podIP", address.String()))
	if pod != nil || err != nil {
		return pod, err
	}
	if !slices.ContainsFunc(d.cfg.Pods, func(n netip.Prefix) bool { return n.Contains(address) }) {
		return nil, nil
	}
	// The address of a pod's second IP family is no field that lists select by: its node is looked for.
	nodes, err := d.cfg.API.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, err
	}
	for i := range nodes.Items {
		for _, text := range nodes.Items[i].Spec.PodCIDRs {
			if network, err := netip.ParsePrefix(text); err == nil && network.Contains(address) {
				return d.among(ctx, address, fields.OneTermEqualSelector("spec.nodeName", nodes.Items[i].Name))
			}
		}
	}
	return nil, nil
}

// among looks for the running pod with an address among those that a selector selects.
func (d *Dialer) among(ctx context.Context, address netip.Addr, selector fields.Selector) (*corev1.Pod, error) {
	pods, err := d.cfg.API.CoreV1().Pods("").List(ctx, metav1.ListOptions{ResourceVersion: "0", FieldSelector: selector.String()})
	if err != nil {
		return nil, err
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		if p.Spec.HostNetwork || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue // the address is the machine's, or is another pod's soon
		}
		if slices.ContainsFunc(p.Status.PodIPs, func(ip corev1.PodIP) bool { return same(ip.IP, address) }) || same(p.Status.PodIP, address) {
			return p, nil
		}
	}
	return nil, nil
}

func same(text string, address netip.Addr) bool {
	a, err := netip.ParseAddr(text)
	return err == nil && a.Unmap() == address
}

// forward opens a stream to a port of a pod.
func (d *Dialer) forward(ctx context.Context, pod *corev1.Pod, at netip.AddrPort) (net.Conn, error) {
	node, err := d.cfg.API.CoreV1().Nodes().Get(ctx, pod.Spec.NodeName, metav1.GetOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, err
	}
	location, err := d.cfg.Kubelets.URL(node)
	if err != nil {
		return nil, err
	}
	location.Path = "/portForward/" + pod.Namespace + "/" + pod.Name
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, location.String(), nil)
	if err != nil {
		return nil, err
	}
	link, err := d.upgrade(req)
	if err != nil {
		return nil, err
	}
	header := http.Header{}
	header.Set(corev1.PortHeader, strconv.Itoa(int(at.Port())))
	header.Set(corev1.PortForwardRequestIDHeader, "0")
	header.Set(corev1.StreamType, corev1.StreamTypeError)
	failures, err := link.CreateStream(header)
	if err != nil {
		return nil, errors.Join(err, link.Close())
	}
	header.Set(corev1.StreamType, corev1.StreamTypeData)
	data, err := link.CreateStream(header)
	if err != nil {
		// A kubelet that cannot connect resets this stream, at times before it has been taken for made.
		return nil, errors.Join(cmp.Or(refusal(ctx, link, failures), err), link.Close())
	}
	return carry(link, data, failures, at), nil
}

// refusal returns what a kubelet said of a port that it could not connect to, or nil. It waits for it until ctx ends.
func refusal(ctx context.Context, link httpstream.Connection, failures httpstream.Stream) error {
	stop := context.AfterFunc(ctx, func() { _ = link.Close() }) // the stream ends with it
	defer stop()
	if message, _ := io.ReadAll(io.LimitReader(failures, mostMessage)); len(message) > 0 {
		return errors.New(string(message))
	}
	return nil
}

// upgrade makes a connection to a kubelet into one of streams.
func (d *Dialer) upgrade(req *http.Request) (link httpstream.Connection, err error) {
	var raw net.Conn
	defer func() {
		if err != nil && raw != nil {
			_ = raw.Close() // nobody else does where the kubelet refuses
		}
	}()
	connect := d.cfg.Kubelets.Dial
	if connect == nil {
		connect = dial.Operator(nil).Context()
	}
	// The answer of a kubelet that was connected to is waited for as long as the context says.
	hurry, asked := func() bool { return true }, req.Context()
	trip, err := spdy.NewRoundTripperWithConfig(spdy.RoundTripperConfig{
		PingPeriod: 5 * time.Second,
		UpgradeTransport: &http.Transport{
			TLSClientConfig: d.cfg.Kubelets.TLS(),
			TLSNextProto:    map[string]func(string, *tls.Conn) http.RoundTripper{},
			DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				conn, err := connect(ctx, network, address)
				if raw = conn; err == nil {
					hurry = context.AfterFunc(asked, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
				}
				return conn, err
			},
		},
	})
	if err != nil {
		return nil, err
	}
	req.Header.Set(httpstream.HeaderProtocolVersion, portforward.PortForwardProtocolV1Name)
	answer, err := trip.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	if link, err = trip.NewConnection(answer); err != nil {
		return nil, err
	}
	if !hurry() {
		return nil, errors.Join(req.Context().Err(), link.Close())
	}
	if p := answer.Header.Get(httpstream.HeaderProtocolVersion); p != portforward.PortForwardProtocolV1Name {
		return nil, errors.Join(fmt.Errorf("expected the protocol %s, got %q", portforward.PortForwardProtocolV1Name, p), link.Close())
	}
	return link, nil
}

// conn is a stream as a connection, with deadlines.
type conn struct {
	net.Conn
	to netip.AddrPort
	// failure is what the kubelet said of the port, once it is known; the channel is closed then.
	known   chan struct{}
	failure string
}

// carry joins a stream with a connection. Both end with the first of them, the link and the tasks that carry with them.
func carry(link httpstream.Connection, data, failures httpstream.Stream, at netip.AddrPort) net.Conn {
	ours, theirs := net.Pipe()
	c := &conn{Conn: ours, to: at, known: make(chan struct{})}
	run.Go("pod forward: refusal", func() error {
		defer close(c.known)
		message, err := io.ReadAll(io.LimitReader(failures, mostMessage))
		c.failure = string(message)
		return err
	})
	run.Go("pod forward: to the pod", func() error {
		_, err := io.Copy(data, theirs)
		return errors.Join(err, data.Close(), link.Close())
	})
	run.Go("pod forward: from the pod", func() error {
		_, err := io.Copy(theirs, data)
		select { // the reason, if there is one, comes on its own stream
		case <-c.known:
		case <-link.CloseChan():
		}
		return errors.Join(err, theirs.Close())
	})
	return c
}

// Read reads what the pod sent. The end of a connection that the kubelet could not make is its reason.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if errors.Is(err, io.EOF) {
		select {
		case <-c.known:
			if c.failure != "" {
				err = errors.New(c.failure)
			}
		default:
		}
	}
	return n, err
}

// RemoteAddr is the pod's address.
func (c *conn) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(c.to) }
