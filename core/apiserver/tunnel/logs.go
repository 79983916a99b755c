// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/streaming/pkg/httpstream/wsstream"
)

// Log serves a container's log. Admission is not asked: this reads.
func (t *Tunnel) Log(connection Connection) error {
	if t.backends == nil {
		return errNoNodes()
	}
	c := t.open(connection)
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
func (c *connection) logs(o *corev1.PodLogOptions) error {
	if errs := checkLogOptions(o); len(errs) > 0 {
		return apierrors.NewInvalid(schema.GroupKind{Kind: "PodLogOptions"}, c.Info.Name, errs)
	}
	location, err := c.location("containerLogs", o.Container, logQuery(o))
	if err != nil {
		return err
	}
	if location == nil { // no node has the pod yet
		c.W.Header().Set("Cache-Control", "no-cache, private")
		c.W.WriteHeader(http.StatusNoContent)
		return nil
	}
	c.W.Header().Set("Content-Type", "text/plain")
	c.W.Header().Set("Cache-Control", "no-cache, private")
	transport := c.tunnel.backends.kubelet
	if o.InsecureSkipTLSVerifyBackend {
		transport = c.tunnel.backends.unverified
	}
	out, err := http.NewRequestWithContext(c.Req.Context(), http.MethodGet, location.String(), nil)
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
	if wsstream.IsWebSocketRequest(c.Req) {
		// Browsers cannot read streams in another way. The buffer tells of the end
		// in a read of its own: what came together with it would get lost.
		_ = wsstream.NewReader(bufio.NewReader(response.Body), true, wsstream.NewDefaultReaderProtocols()).Copy(c.W,
			c.Req) // whoever has gone, there is nobody to tell
		return nil
	}
	c.W.WriteHeader(http.StatusOK)
	var to io.Writer = c.W
	if o.Follow {
		to = flushing{c.W, http.NewResponseController(c.W)}
	}
	_, _ = io.Copy(to, response.Body) // whoever has gone, there is nobody to tell
	return nil
}

// kubeletError passes on what a kubelet said, in the shape of an API error.
func (c *connection) kubeletError(response *http.Response) error {
	const most = 4 << 10
	body, _ := io.ReadAll(io.LimitReader(response.Body, most))
	text := string(body)
	switch response.StatusCode {
	case http.StatusInternalServerError:
		return apierrors.NewInternalError(fmt.Errorf("%s", text))
	case http.StatusBadRequest:
		return apierrors.NewBadRequest(text)
	}
	return apierrors.NewGenericServerResponse(response.StatusCode, "", schema.GroupResource{Resource: "pods/log"}, c.Info.Name, text, 0, false)
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
