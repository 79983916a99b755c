// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/proxy"

	"github.com/wasmplane/wasmplane/core/dial"
	"github.com/wasmplane/wasmplane/core/kubelet/logs"
	"github.com/wasmplane/wasmplane/core/kubelet/pod"
)

// refusal is an answer other than a stream.
type refusal struct {
	code int
	text string
}

func (r *refusal) Error() string { return r.text }

func notThere(s string) error   { return &refusal{http.StatusNotFound, s} }
func badRequest(s string) error { return &refusal{http.StatusBadRequest, s} }

func isUpgrade(r *http.Request) bool {
	return strings.Contains(strings.ToLower(r.Header.Get("Connection")), "upgrade")
}

// stream asks the runtime for the address of a stream and hands the connection on to it.
func (s *Server) stream(w http.ResponseWriter, r *http.Request, ask func(context.Context, Node, *corev1.Pod) (string, error)) {
	n, p := s.find(r)
	if p == nil {
		http.Error(w, "pod does not exist", http.StatusNotFound)
		return
	}
	if !isUpgrade(r) {
		http.Error(w, "you must specify at least 1 of stdin, stdout, stderr and ask for an upgrade of the connection", http.StatusBadRequest)
		return
	}
	to, err := ask(r.Context(), n, p)
	if err != nil {
		answer(w, err)
		return
	}
	u, err := url.Parse(to)
	if err != nil {
		answer(w, fmt.Errorf("the runtime answered an address that is none: %w", err))
		return
	}
	r.Header.Del("Authorization") // meant for us
	// The runtime writes a command's exit code last, and goes.
	transport := &http.Transport{DialContext: dial.ToTheEnd((&net.Dialer{}).DialContext)}
	h := proxy.NewUpgradeAwareHandler(u, transport, false, true, responder{})
	h.UseRequestLocation = false
	// A stream that nobody says anything on stays open: a shell waits for its user.
	h.FlushInterval = -1 * time.Millisecond
	h.ServeHTTP(w, r)
}

func answer(w http.ResponseWriter, err error) {
	var r *refusal
	switch {
	case asRefusal(err, &r):
		http.Error(w, r.text, r.code)
	case status.Code(err) == codes.NotFound:
		http.Error(w, status.Convert(err).Message(), http.StatusNotFound)
	case status.Code(err) == codes.InvalidArgument:
		http.Error(w, status.Convert(err).Message(), http.StatusBadRequest)
	case status.Code(err) == codes.Unimplemented:
		http.Error(w, status.Convert(err).Message(), http.StatusNotImplemented)
	default:
		http.Error(w, status.Convert(err).Message(), http.StatusInternalServerError)
	}
}

func asRefusal(err error, r **refusal) bool {
	x, ok := err.(*refusal) //nolint:errorlint // made here, and never wrapped
	*r = x
	return ok
}

type responder struct{}

// Error is for proxy.ErrorResponder.
func (responder) Error(w http.ResponseWriter, _ *http.Request, err error) {
	http.Error(w, err.Error(), http.StatusBadGateway)
}

type streams struct{ in, out, err, tty bool }

// streamsOf reads which streams are wanted, by the names that kubelets know and by those of the API.
func streamsOf(q url.Values) streams {
	yes := func(names ...string) bool {
		for _, n := range names {
			if v := q.Get(n); v == "1" || v == "true" {
				return true
			}
		}
		return false
	}
	o := streams{in: yes("input", "stdin"), out: yes("output", "stdout"), err: yes("error", "stderr"), tty: yes("tty")}
	if o.tty {
		o.err = false // a terminal has one output
	}
	return o
}

func portsOf(q url.Values) ([]int32, error) {
	var out []int32
	for _, v := range append(q["port"], q["ports"]...) {
		for part := range strings.SplitSeq(v, ",") {
			n, err := strconv.ParseUint(part, 10, 16)
			if err != nil || n == 0 {
				return nil, fmt.Errorf("unable to parse %q as a port", part)
			}
			out = append(out, int32(n))
		}
	}
	return out, nil
}

func hasContainer(p *corev1.Pod, name string) bool {
	c, _ := pod.Find(p, name)
	return c != nil
}

func ttyOf(p *corev1.Pod, name string) bool {
	c, _ := pod.Find(p, name)
	return c != nil && c.TTY
}

func statusOf(p *corev1.Pod, name string) *corev1.ContainerStatus {
	for _, list := range [][]corev1.ContainerStatus{
		p.Status.InitContainerStatuses, p.Status.ContainerStatuses,
		p.Status.EphemeralContainerStatuses,
	} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}

func bare(id string) string {
	if _, after, ok := strings.Cut(id, "://"); ok {
		return after
	}
	return id
}

func runningContainer(p *corev1.Pod, name string) (string, error) {
	if !hasContainer(p, name) {
		return "", notThere(fmt.Sprintf("container not found (%q)", name))
	}
	st := statusOf(p, name)
	if st == nil || st.State.Running == nil || st.ContainerID == "" {
		return "", notThere(fmt.Sprintf("container not found (%q)", name))
	}
	return bare(st.ContainerID), nil
}

// containerFor is the container whose log is meant: the one that runs, or the last that did.
func containerFor(p *corev1.Pod, name string, previous bool) (string, error) {
	st := statusOf(p, name)
	if st == nil {
		return "", fmt.Errorf("container %q in pod %q is not available", name, p.Name)
	}
	last := st.LastTerminationState.Terminated
	if previous {
		if last == nil || last.ContainerID == "" {
			return "", fmt.Errorf("previous terminated container %q in pod %q not found", name, p.Name)
		}
		return bare(last.ContainerID), nil
	}
	wait, term := st.State.Waiting, st.State.Terminated
	switch {
	case st.State.Running != nil:
		return bare(st.ContainerID), nil
	case term != nil && term.ContainerID != "":
		return bare(term.ContainerID), nil
	case term != nil:
		if last != nil && last.ContainerID != "" {
			return bare(last.ContainerID), nil
		}
		return "", fmt.Errorf("container %q in pod %q is terminated", name, p.Name)
	case last != nil && last.ContainerID != "":
		return bare(last.ContainerID), nil
	case wait != nil:
		switch wait.Reason {
		case "ErrImagePull":
			return "", fmt.Errorf("container %q in pod %q is waiting to start: image can't be pulled", name, p.Name)
		case "ImagePullBackOff":
			return "", fmt.Errorf("container %q in pod %q is waiting to start: trying and failing to pull image", name, p.Name)
		}
		return "", fmt.Errorf("container %q in pod %q is waiting to start: %v", name, p.Name, wait.Reason)
	}
	return "", fmt.Errorf("container %q in pod %q is waiting to start - no logs yet", name, p.Name)
}

// logOptions reads which part of a log is wanted.
func logOptions(q url.Values) (o logs.Options, previous bool, err error) {
	flag := func(name string) bool { b, _ := strconv.ParseBool(q.Get(name)); return b }
	number := func(name string) *int64 {
		v := q.Get(name)
		if v == "" || err != nil {
			return nil
		}
		n, perr := strconv.ParseInt(v, 10, 64)
		if perr != nil || n < 0 {
			err = fmt.Errorf("invalid %s %q: must be a number that is not negative", name, v)
			return nil
		}
		return &n
	}
	o.Follow, o.Timestamps, previous = flag("follow"), flag("timestamps"), flag("previous")
	if v := q.Get("tailLines"); v != "all" {
		o.Tail = number("tailLines")
	}
	o.Limit = number("limitBytes")
	if s := number("sinceSeconds"); s != nil {
		o.Since = time.Now().Add(-time.Duration(*s) * time.Second)
	}
	if v := q.Get("sinceTime"); v != "" && err == nil {
		if o.Since, err = time.Parse(time.RFC3339, v); err != nil {
			err = fmt.Errorf("invalid sinceTime %q: %w", v, err)
		}
	}
	switch q.Get("stream") {
	case "", "All":
		o.Stdout, o.Stderr = true, true
	case "Stdout":
		o.Stdout = true
	case "Stderr":
		o.Stderr = true
	default:
		err = fmt.Errorf("invalid stream %q: must be All, Stdout or Stderr", q.Get("stream"))
	}
	return o, previous, err
}
