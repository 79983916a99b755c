// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const (
	namespace = "bench"
	clients   = 32
	pods      = "/api/v1/namespaces/" + namespace + "/pods"
	maps      = "/api/v1/namespaces/" + namespace + "/configmaps"
	watched   = "/api/v1/namespaces/" + namespace + "-watched/configmaps"
	protobuf  = "application/vnd.kubernetes.protobuf"
	jsonType  = "application/json"
	table     = "application/json;as=Table;v=v1;g=meta.k8s.io"
)

// sample is what one measurement of one side gave.
type sample struct {
	side   string
	count  int           // of what went well
	again  int           // requests that were answered 429 and sent again
	failed int           // requests that are left out, and
	err    error         // why the first of them failed
	took   time.Duration // of the whole
	cpu    time.Duration // of the side
	each   []time.Duration
}

func (s *sample) add(o sample) {
	s.side = o.side
	s.again += o.again
	s.failed += o.failed
	s.err = cmp.Or(s.err, o.err)
	s.count += o.count
	s.took += o.took
	s.cpu += o.cpu
	s.each = append(s.each, o.each...)
}

func (s *sample) quantile(q float64) time.Duration {
	if len(s.each) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s.each))
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

func (s *sample) perSecond() float64 { return float64(s.count) / s.took.Seconds() }

func (s *sample) cpuEach() time.Duration {
	if s.count == 0 {
		return 0
	}
	return s.cpu / time.Duration(s.count)
}

// load has a number of clients, each with a connection of its own, send count
// requests; request makes the i-th.
func (s *side) load(tb testing.TB, workers, count int, request func(i int) (method, path, mediaType, body string)) sample {
	tb.Helper()
	var next atomic.Int64
	var mu sync.Mutex
	var wg sync.WaitGroup
	connections := make([]*http.Client, workers)
	for i := range connections {
		connections[i] = s.client()
		s.must(tb.Context(), tb, connections[i], http.MethodGet, "/version", "") // the handshake is not what is measured
	}
	out := s.begin(tb)
	for _, c := range connections {
		wg.Go(func() {
			var mine sample
			for i := int(next.Add(1)) - 1; i < count; i = int(next.Add(1)) - 1 {
				method, path, mediaType, body := request(i)
				sent := time.Now()
				if err := s.send(tb.Context(), c, method, path, mediaType, body); err != nil {
					mine.fail(err)
					continue
				}
				mine.count++
				mine.each = append(mine.each, time.Since(sent))
			}
			mu.Lock()
			defer mu.Unlock()
			out.merge(mine)
		})
	}
	wg.Wait()
	out.finish(tb, s)
	for _, c := range connections {
		c.CloseIdleConnections()
	}
	return out.sample
}

// running is a sample that is being taken.
type running struct {
	sample
	began time.Time
	cpu   time.Duration // of the side, before
	again int64
}

func (s *side) begin(tb testing.TB) *running {
	tb.Helper()
	return &running{sample: sample{side: s.Name}, began: time.Now(), cpu: s.CPU(tb), again: s.again.Load()}
}

func (r *running) merge(o sample) {
	o.side = r.side
	r.add(o)
}

// finish ends the sample; one in which nothing went well ends the benchmark.
func (r *running) finish(tb testing.TB, s *side) {
	tb.Helper()
	r.took, r.sample.cpu = time.Since(r.began), s.CPU(tb)-r.cpu
	r.sample.again = int(s.again.Load() - r.again)
	if r.count == 0 {
		tb.Fatalf("%s: all of %d requests failed: %v", s.Name, r.failed, r.err)
	}
}

func (s *sample) fail(err error) {
	s.failed++
	s.err = cmp.Or(s.err, err)
}

// prepare makes the namespace and the account that its pods run under, which
// controllers make elsewhere.
func (s *side) prepare(tb testing.TB) {
	tb.Helper()
	c := s.client()
	defer c.CloseIdleConnections()
	s.must(tb.Context(), tb, c, http.MethodPost, "/api/v1/namespaces", `{"metadata":{"name":"`+namespace+`"}}`)
	s.must(tb.Context(), tb, c, http.MethodPost, "/api/v1/namespaces", `{"metadata":{"name":"`+namespace+`-watched"}}`)
	s.must(tb.Context(), tb, c, http.MethodPost, "/api/v1/namespaces/"+namespace+"/serviceaccounts",
		`{"metadata":{"name":"default"},"automountServiceAccountToken":false}`)
}

// pod is one of about 4 KB.
func pod(name string) string {
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,"labels":{"app":"bench","tier":"web"},"annotations":{"note":%q}},
"spec":{"containers":[{"name":"main","image":"registry.example/app:v1","ports":[{"containerPort":80}],
"env":[{"name":"A","value":"b"},{"name":"C","valueFrom":{"fieldRef":{"fieldPath":"metadata.name"}}}],
"resources":{"requests":{"cpu":"100m","memory":"64Mi"},"limits":{"memory":"128Mi"}},
"readinessProbe":{"httpGet":{"path":"/ready","port":80}},"volumeMounts":[{"name":"data","mountPath":"/data"}]}],
"volumes":[{"name":"data","emptyDir":{}}],"nodeSelector":{"disk":"ssd"}}}`, name, strings.Repeat("x", 2400))
}

// list reads the whole of the pods once, in pages of limit where it is not 0.
func (s *side) list(tb testing.TB, accept string, limit int) sample {
	tb.Helper()
	c := s.client()
	defer c.CloseIdleConnections()
	s.must(tb.Context(), tb, c, http.MethodGet, "/version", "")
	out := s.begin(tb)
	path := pods
	if limit > 0 {
		path += "?limit=" + strconv.Itoa(limit)
	}
	for next := path; next != ""; {
		token, err := s.page(tb.Context(), c, next, accept, limit > 0)
		if err != nil {
			tb.Fatal(err)
		}
		if next = ""; token != "" {
			next = path + "&continue=" + token
		}
	}
	out.count = 1
	out.finish(tb, s)
	out.each = []time.Duration{out.took}
	return out.sample
}

// page reads a page and finds the token in the list's metadata, which is at its beginning.
func (s *side) page(ctx context.Context, c *http.Client, path, accept string, paged bool) (token string, err error) {
	resp, err := s.request(ctx, c, http.MethodGet, path, accept, "")
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	head := make([]byte, 1<<10)
	n, err := io.ReadFull(resp.Body, head)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return "", err
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return "", err
	}
	if !paged {
		return "", nil
	}
	_, after, ok := bytes.Cut(head[:n], []byte(`"continue":"`))
	if !ok {
		return "", nil
	}
	value, _, _ := bytes.Cut(after, []byte(`"`))
	return string(value), nil
}

// fanOut has watchers follow a hundred objects while a client updates them in
// turn at a rate, and measures from the sending of an update to its arrival at
// each watcher.
func (s *side) fanOut(tb testing.TB, watchers, updates, rate int) sample {
	tb.Helper()
	ctx, cancel := context.WithCancel(tb.Context())
	defer cancel()
	const objects = 100
	writer := s.client()
	defer writer.CloseIdleConnections()
	object := func(i int) string { return fmt.Sprintf("fan-out-%d", i%objects) }
	for i := range objects {
		s.must(ctx, tb, writer, http.MethodPost, watched, fmt.Sprintf(`{"metadata":{"name":%q},"data":{"at":"0","pad":%q}}`, object(i),
			strings.Repeat("x", 1000)))
		defer s.must(tb.Context(), tb, writer, http.MethodDelete, watched+"/"+object(i), "")
	}

	var wg, begun sync.WaitGroup
	each := make([][]time.Duration, watchers)
	begun.Add(watchers)
	var c *http.Client
	var connections []*http.Client
	for i := range watchers {
		if i%50 == 0 { // as many streams to a connection
			c = s.client()
			connections = append(connections, c)
		}
		wg.Go(func() { each[i] = s.follow(ctx, tb, c, objects, updates, begun.Done) })
	}
	begun.Wait()

	out := s.begin(tb)
	tick := time.NewTicker(time.Second / time.Duration(rate))
	defer tick.Stop()
	var mu sync.Mutex
	var writes sync.WaitGroup
	for i := range updates {
		<-tick.C
		body := fmt.Sprintf(`{"data":{"at":"%d"}}`, time.Now().UnixNano())
		writes.Go(func() {
			if err := s.send(ctx, writer, http.MethodPatch, watched+"/"+object(i), "application/merge-patch+json", body); err != nil {
				mu.Lock()
				defer mu.Unlock()
				out.fail(err)
			}
		})
	}
	writes.Wait()
	limit := time.AfterFunc(2*time.Minute, cancel) // for the events of updates that failed
	defer limit.Stop()
	wg.Wait()
	out.each = slices.Concat(each...)
	// A server may end the watch of a client that it takes to be too slow. What did
	// not arrive was not paid for either.
	written := updates - out.failed
	out.count = len(out.each) / watchers
	out.finish(tb, s)
	for _, c := range connections {
		c.CloseIdleConnections()
	}
	if missing := watchers*written - len(out.each); missing > 0 {
		out.failed += missing
		out.err = cmp.Or(out.err, fmt.Errorf("%d events did not arrive", missing))
	}
	return out.sample
}

// perWatch has a number of watches wait for events that don't come, and tells by how
// many bytes each let the side's resident memory grow, buffers of its stream and
// the collector's share included.
func (s *side) perWatch(tb testing.TB, watches int) int64 {
	tb.Helper()
	ctx, cancel := context.WithCancel(tb.Context())
	defer cancel()
	before := s.Memory(tb)
	var wg sync.WaitGroup
	bodies := make([]io.Closer, watches)
	for first := 0; first < watches; first += 50 { // as many streams to a connection
		c := s.client()
		defer c.CloseIdleConnections()
		for i := first; i < min(first+50, watches); i++ {
			wg.Go(func() {
				resp, err := s.request(ctx, c, http.MethodGet, watched+"?watch=1", jsonType, "")
				if err != nil {
					tb.Error(err)
					return
				}
				bodies[i] = resp.Body
			})
		}
	}
	wg.Wait()
	grown := s.Memory(tb) - before
	cancel()
	for _, b := range bodies {
		if b != nil {
			_ = b.Close()
		}
	}
	return max(0, grown) / int64(watches)
}

// follow watches the objects and takes the time that each update needed to arrive.
// None of them is lost: each is an event, behind those that tell what is there.
func (s *side) follow(ctx context.Context, tb testing.TB, c *http.Client, objects, updates int, begun func()) []time.Duration {
	resp, err := s.request(ctx, c, http.MethodGet, watched+"?watch=1", jsonType, "")
	if err != nil {
		tb.Error(err)
		begun()
		return nil
	}
	defer resp.Body.Close()
	took := make([]time.Duration, 0, updates)
	initial := objects
	buf := make([]byte, 0, 64<<10)
	chunk := make([]byte, 16<<10)
	for len(took) < updates {
		n, err := resp.Body.Read(chunk)
		now := time.Now()
		buf = append(buf, chunk[:n]...)
		unread := buf
		for {
			line, rest, whole := bytes.Cut(unread, []byte{'\n'})
			if !whole {
				break
			}
			if initial > 0 {
				if initial--; initial == 0 {
					begun()
				}
			} else if _, after, ok := bytes.Cut(line, []byte(`"at":"`)); ok {
				at, _, _ := bytes.Cut(after, []byte{'"'})
				if ns, err := strconv.ParseInt(string(at), 10, 64); err == nil {
					took = append(took, now.Sub(time.Unix(0, ns)))
				}
			}
			unread = rest
		}
		buf = append(buf[:0], unread...)
		if err != nil {
			break
		}
	}
	if initial > 0 {
		begun()
	}
	return took
}

// comparison is a table that is printed line by line, as it is measured: what
// goes wrong late does not take the rest with it.
type comparison struct{ before string }

func newComparison(sides []*side) *comparison {
	c := &comparison{before: loadAverage()}
	if len(sides) == 1 {
		fmt.Printf("\nThe API alone\n")
		c.row("", sides[0].Name)
		return c
	}
	fmt.Printf("\nThe API beside upstream's (kube-apiserver and etcd), turn by turn; a ratio is ours by theirs\n")
	c.row("", sides[0].Name, sides[1].Name, "ratio")
	return c
}

func (c *comparison) row(what string, cells ...string) {
	line := fmt.Sprintf("  %-45s", what)
	for _, cell := range cells {
		line += fmt.Sprintf(" %-11s", cell)
	}
	fmt.Println(strings.TrimRight(line, " "))
}

// figures prints a value of each side, and their ratio.
func (c *comparison) figures(what string, values []float64, show func(float64) string) {
	cells := make([]string, 0, len(values)+1)
	for _, v := range values {
		cells = append(cells, show(v))
	}
	if len(values) == 2 {
		cells = append(cells, fmt.Sprintf("%.2f", values[0]/values[1]))
	}
	c.row(what, cells...)
}

func (c *comparison) durations(what string, sides []*side, of func(*side) time.Duration) {
	c.figures(what, each(sides, func(s *side) float64 { return float64(of(s)) }), shortOf)
}

func (c *comparison) memory(tb testing.TB, what string, sides []*side) {
	tb.Helper()
	c.bytes(what, sides, func(s *side) int64 { return s.Memory(tb) })
}

func (c *comparison) bytes(what string, sides []*side, of func(*side) int64) {
	c.figures(what, each(sides, func(s *side) float64 { return float64(of(s)) }), size)
}

func size(bytes float64) string {
	if bytes < 1<<20 {
		return fmt.Sprintf("%.1f KiB", bytes/(1<<10))
	}
	return fmt.Sprintf("%.1f MiB", bytes/(1<<20))
}

func (c *comparison) quantile(what string, samples []sample, q float64) {
	c.figures(what, each(samples, func(s sample) float64 { return float64(s.quantile(q)) }), shortOf)
	c.trouble(samples)
}

func (c *comparison) cpu(what string, samples []sample) {
	c.figures(what, each(samples, func(s sample) float64 { return float64(s.cpuEach()) }), shortOf)
}

// requests are the four figures of a kind of request.
func (c *comparison) requests(what string, samples []sample) {
	c.figures(what+", requests/s", each(samples, func(s sample) float64 { return s.perSecond() }), func(v float64) string { return fmt.Sprintf("%.0f", v) })
	c.trouble(samples)
	c.quantile("  p50", samples, 0.5)
	c.quantile("  p99", samples, 0.99)
	c.cpu("  CPU each", samples)
}

// trouble tells of requests that did not go as they should, each once.
func (c *comparison) trouble(samples []sample) {
	for i := range samples {
		s := &samples[i]
		if s.again > 0 {
			c.row(fmt.Sprintf("  ! %s: %d were answered 429 and sent again", s.side, s.again))
		}
		if s.failed > 0 {
			c.row(fmt.Sprintf("  ! %s: %d failed, and are left out: %v", s.side, s.failed, s.err))
		}
		s.again, s.failed = 0, 0
	}
}

func (c *comparison) end() {
	fmt.Printf("  load average %s before, %s after\n\n", c.before, loadAverage())
}

func each[T any](of []T, value func(T) float64) []float64 {
	out := make([]float64, len(of))
	for i, v := range of {
		out[i] = value(v)
	}
	return out
}

func shortOf(v float64) string { return short(time.Duration(v)) }

func loadAverage() string {
	data, err := os.ReadFile(filepath.Join("/proc", "loadavg"))
	if err != nil {
		return err.Error()
	}
	return strings.Join(strings.Fields(string(data))[:3], " ")
}

func short(d time.Duration) string {
	switch {
	case d >= time.Second:
		return d.Round(10 * time.Millisecond).String()
	case d >= 10*time.Millisecond:
		return d.Round(100 * time.Microsecond).String()
	}
	return d.Round(time.Microsecond).String()
}
