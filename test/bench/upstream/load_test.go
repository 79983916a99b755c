package upstream

import (
	"bytes"
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
	"text/tabwriter"
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
	count int
	took  time.Duration // of the whole
	cpu   time.Duration // of the side
	each  []time.Duration
}

func (s *sample) add(o sample) {
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
	var next, failed atomic.Int64
	var mu sync.Mutex
	var wg sync.WaitGroup
	out := sample{count: count}
	connections := make([]*http.Client, workers)
	for i := range connections {
		connections[i] = s.client()
		s.must(tb.Context(), tb, connections[i], http.MethodGet, "/version", "") // the handshake is not what is measured
	}
	before, began := s.cpu(tb), time.Now()
	for _, c := range connections {
		wg.Go(func() {
			var each []time.Duration
			for {
				i := int(next.Add(1)) - 1
				if i >= count {
					break
				}
				method, path, mediaType, body := request(i)
				sent := time.Now()
				if err := s.send(tb.Context(), c, method, path, mediaType, body); err != nil {
					if failed.Add(1) == 1 {
						tb.Error(err)
					}
					continue
				}
				each = append(each, time.Since(sent))
			}
			mu.Lock()
			defer mu.Unlock()
			out.each = append(out.each, each...)
		})
	}
	wg.Wait()
	out.took, out.cpu = time.Since(began), s.cpu(tb)-before
	for _, c := range connections {
		c.CloseIdleConnections()
	}
	if n := failed.Load(); n > 0 {
		tb.Fatalf("%s: %d of %d requests failed", s.name, n, count)
	}
	return out
}

// prepare makes the namespace and the account that its pods run under, which
// controllers make elsewhere.
func (s *side) prepare(tb testing.TB) {
	tb.Helper()
	c := s.client()
	defer c.CloseIdleConnections()
	s.must(tb.Context(), tb, c, http.MethodPost, "/api/v1/namespaces", `{"metadata":{"name":"`+namespace+`"}}`)
	s.must(tb.Context(), tb, c, http.MethodPost, "/api/v1/namespaces", `{"metadata":{"name":"`+namespace+`-watched"}}`)
	s.must(tb.Context(), tb, c, http.MethodPost, "/api/v1/namespaces/"+namespace+"/serviceaccounts", `{"metadata":{"name":"default"},"automountServiceAccountToken":false}`)
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
	before, began := s.cpu(tb), time.Now()
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
	took := time.Since(began)
	return sample{count: 1, took: took, cpu: s.cpu(tb) - before, each: []time.Duration{took}}
}

// page reads a page and finds the token in the list's metadata, which is at its beginning.
func (s *side) page(ctx context.Context, c *http.Client, path, accept string, paged bool) (token string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+path, nil)
	if err != nil {
		return "", err
	}
	req.Header.Set("Accept", accept)
	resp, err := c.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: GET %s answered %s", s.name, path, resp.Status)
	}
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
		s.must(ctx, tb, writer, http.MethodPost, watched, fmt.Sprintf(`{"metadata":{"name":%q},"data":{"at":"0","pad":%q}}`, object(i), strings.Repeat("x", 1000)))
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

	before, began := s.cpu(tb), time.Now()
	tick := time.NewTicker(time.Second / time.Duration(rate))
	defer tick.Stop()
	var writes sync.WaitGroup
	for i := range updates {
		<-tick.C
		body := fmt.Sprintf(`{"data":{"at":"%d"}}`, time.Now().UnixNano())
		writes.Go(func() {
			if err := s.send(ctx, writer, http.MethodPatch, watched+"/"+object(i), "application/merge-patch+json", body); err != nil {
				tb.Error(err)
			}
		})
	}
	writes.Wait()
	limit := time.AfterFunc(5*time.Minute, cancel)
	defer limit.Stop()
	wg.Wait()
	out := sample{count: updates, took: time.Since(began), cpu: s.cpu(tb) - before, each: slices.Concat(each...)}
	for _, c := range connections {
		c.CloseIdleConnections()
	}
	if got, want := len(out.each), watchers*updates; got != want {
		tb.Fatalf("%s: %d events arrived of %d", s.name, got, want)
	}
	return out
}

// perWatch has a number of watches wait for events that don't come, and tells by how
// many bytes each let the side's resident memory grow, buffers of its stream and
// the collector's share included.
func (s *side) perWatch(tb testing.TB, watches int) int64 {
	tb.Helper()
	ctx, cancel := context.WithCancel(tb.Context())
	defer cancel()
	before := s.memory(tb)
	var wg sync.WaitGroup
	bodies := make([]io.Closer, watches)
	for first := 0; first < watches; first += 50 { // as many streams to a connection
		c := s.client()
		defer c.CloseIdleConnections()
		for i := first; i < min(first+50, watches); i++ {
			wg.Go(func() {
				resp, err := s.watch(ctx, c)
				if err != nil {
					tb.Error(err)
					return
				}
				bodies[i] = resp.Body
			})
		}
	}
	wg.Wait()
	grown := s.memory(tb) - before
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
	resp, err := s.watch(ctx, c)
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
		for {
			line, rest, whole := bytes.Cut(buf, []byte{'\n'})
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
			buf = append(buf[:0], rest...)
		}
		if err != nil {
			break
		}
	}
	if initial > 0 {
		begun()
	}
	return took
}

// watch begins a watch, and comes again where the server is busy: hundreds that
// one user begins at once are more than fairness lets in, on both sides.
func (s *side) watch(ctx context.Context, c *http.Client) (*http.Response, error) {
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+watched+"?watch=1", nil)
		if err != nil {
			return nil, err
		}
		resp, err := c.Do(req)
		if err != nil || resp.StatusCode == http.StatusOK {
			return resp, err
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusTooManyRequests {
			return nil, fmt.Errorf("%s: a watch was answered %s", s.name, resp.Status)
		}
		timer := time.NewTimer(100 * time.Millisecond)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, ctx.Err()
		}
	}
}

// comparison is the table that is printed.
type comparison struct {
	before string
	rows   [][]string
}

func newComparison() *comparison {
	return &comparison{before: loadAverage(), rows: [][]string{{"", "wasmplane", "upstream", "ratio"}}}
}

func (c *comparison) row(what, ours, theirs string, ratio float64) {
	c.rows = append(c.rows, []string{what, ours, theirs, fmt.Sprintf("%.2f", ratio)})
}

func (c *comparison) durations(what string, ours, theirs time.Duration) {
	c.row(what, short(ours), short(theirs), float64(ours)/float64(max(theirs, 1)))
}

func (c *comparison) bytes(what string, ours, theirs int64) {
	c.row(what, size(ours), size(theirs), float64(ours)/float64(max(theirs, 1)))
}

func size(bytes int64) string {
	if bytes < 1<<20 {
		return fmt.Sprintf("%.1f KiB", float64(bytes)/(1<<10))
	}
	return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20))
}

// requests are the four figures of a kind of request.
func (c *comparison) requests(what string, ours, theirs *sample) {
	c.row(what+", requests/s", fmt.Sprintf("%.0f", ours.perSecond()), fmt.Sprintf("%.0f", theirs.perSecond()), ours.perSecond()/theirs.perSecond())
	c.durations("  p50", ours.quantile(0.5), theirs.quantile(0.5))
	c.durations("  p99", ours.quantile(0.99), theirs.quantile(0.99))
	c.durations("  CPU each", ours.cpuEach(), theirs.cpuEach())
}

// String is the table with the machine's load.
func (c *comparison) String() string {
	var b strings.Builder
	b.WriteString("\nThe API beside upstream's (kube-apiserver and etcd), turn by turn; a ratio is ours by theirs\n")
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, r := range c.rows {
		fmt.Fprintf(w, "  %s\n", strings.Join(r, "\t"))
	}
	_ = w.Flush()
	fmt.Fprintf(&b, "  load average %s before, %s after\n", c.before, loadAverage())
	return b.String()
}

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
