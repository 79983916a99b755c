// SPDX-License-Identifier: Apache-2.0

package story

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// attackServer is a program of the stories of attacks:
//
//	attack seats KUBECONFIG      heads without bodies, and watches that nobody reads
//	attack patches KUBECONFIG    patches that multiply
//	attack streams KUBECONFIG    HTTP/2 of strangers
//
// Meanwhile fast, a user with a token, writes ConfigMaps in namespace blue. It prints what came of both.
func attackServer() {
	attacks := map[string]func(*attack) error{"seats": (*attack).seats, "patches": (*attack).patches, "streams": (*attack).http2}
	if len(os.Args) != 3 || attacks[os.Args[1]] == nil {
		log.Fatal("usage: attack seats|patches|streams KUBECONFIG")
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	cfg.QPS = -1
	at, err := url.Parse(cfg.Host)
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if err := attacks[os.Args[1]](&attack{ctx: ctx, cfg: cfg, host: at.Host}); err != nil {
		log.Fatal(err) //nolint:gocritic // the end of the process ends the context too
	}
}

// attack is one program's run.
type attack struct {
	ctx  context.Context //nolint:containedctx // it is the program's
	cfg  *rest.Config    // of the administrator
	host string
}

// as is a client of a user with a token.
func (a *attack) as(user string) (*kubernetes.Clientset, error) {
	if user == "" {
		return kubernetes.NewForConfig(a.cfg)
	}
	cfg := rest.AnonymousClientConfig(a.cfg)
	cfg.QPS, cfg.BearerToken = -1, user+"s-token"
	return kubernetes.NewForConfig(cfg)
}

// beside has fast write n ConfigMaps, one after the other, and prints how that went: whether one took longer than is slow, too.
func (a *attack) beside(what string, n int, slow time.Duration) error {
	fast, err := a.as("fast")
	if err != nil {
		return err
	}
	refused, slowest := 0, time.Duration(0)
	for range n {
		began := time.Now()
		m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "m"}}
		_, err := fast.CoreV1().ConfigMaps("blue").Create(a.ctx, m, metav1.CreateOptions{})
		switch {
		case apierrors.IsTooManyRequests(err), apierrors.IsTimeout(err), apierrors.IsServerTimeout(err):
			refused++
		case err != nil:
			return err
		}
		slowest = max(slowest, time.Since(began))
	}
	fmt.Printf("%d writes beside %s: %d refused, slow: %t (%s)\n", n, what, refused, slowest > slow, slowest.Round(time.Millisecond))
	return nil
}

// dial is a connection to the server that takes little before it is read.
func (a *attack) dial(protocol string) (net.Conn, error) {
	plain, err := (&net.Dialer{}).DialContext(a.ctx, "tcp", a.host)
	if err != nil {
		return nil, err
	}
	if tcp, ok := plain.(*net.TCPConn); ok {
		if err := tcp.SetReadBuffer(4 << 10); err != nil {
			return nil, err
		}
	}
	conn := tls.Client(plain, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{protocol}}) //nolint:gosec // the story's own server
	return conn, conn.HandshakeContext(a.ctx)
}

// seats takes more connections than there are seats.
func (a *attack) seats() error {
	const heads, watches, large = 700, 40, 12
	var conns sync.Map
	defer conns.Range(func(conn, _ any) bool { return conn.(net.Conn).Close() == nil }) // not before: nobody else holds them
	open := func(n int, format string) error {
		failed := make(chan error, n)
		for range n {
			go func() {
				conn, err := a.dial("http/1.1")
				if err == nil {
					conns.Store(conn, true)
					_, err = fmt.Fprintf(conn, format, a.host)
				}
				failed <- err
			}()
		}
		for range n {
			if err := <-failed; err != nil {
				return err
			}
		}
		return nil
	}
	const head = "POST /api/v1/namespaces/red/configmaps HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: 10\r\n"
	if err := open(heads/2, head+"Authorization: Bearer slows-token\r\n\r\n"); err != nil {
		return err
	}
	if err := open(heads/2, head+"Authorization: Bearer nobodys-token\r\n\r\n"); err != nil {
		return err
	}
	if err := a.beside("bodies that never come", 30, 5*time.Second); err != nil {
		return err
	}
	admin, err := a.as("")
	if err != nil {
		return err
	}
	for i := range large { // more than any buffer on the way has
		data := map[string]string{"x": strings.Repeat("x", 1<<20)}
		m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("large", i)}, Data: data}
		if _, err := admin.CoreV1().ConfigMaps("red").Create(a.ctx, m, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	if err := open(watches, "GET /api/v1/namespaces/red/configmaps?watch=true HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer slows-token\r\n\r\n"); err != nil {
		return err
	}
	if err := a.beside("watches that nobody reads", 30, 15*time.Second); err != nil {
		return err
	}
	for {
		text, err := admin.RESTClient().Get().AbsPath("/metrics").DoRaw(a.ctx)
		if err != nil {
			return fmt.Errorf("no watch was cut off: %w", err)
		}
		for line := range bytes.Lines(text) {
			if n, ok := bytes.CutPrefix(line, []byte("wasmplane_apiserver_stalled_answers_total ")); ok && n[0] != '0' {
				fmt.Printf("watches that nobody reads are cut off\n")
				return nil
			}
		}
		select {
		case <-a.ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// seconds is the processor time of the server.
func (a *attack) seconds() (s float64, err error) {
	admin, err := a.as("")
	if err != nil {
		return 0, err
	}
	text, err := admin.RESTClient().Get().AbsPath("/metrics").DoRaw(a.ctx)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if _, err := fmt.Sscanf(line, "process_cpu_seconds_total %g", &s); err == nil {
			return s, nil
		}
	}
	return 0, fmt.Errorf("the metrics have no process_cpu_seconds_total")
}

// patient is how long an attack waits for one answer: much longer than any takes that is bounded.
const patient = 20 * time.Second

// patches sends patches whose entries are compared with all others.
func (a *attack) patches() error {
	list := func(n int, format string) string {
		var b strings.Builder
		for i := range n {
			if i > 0 {
				b.WriteByte(',')
			}
			fmt.Fprintf(&b, format, i)
		}
		return b.String()
	}
	slow, err := a.as("slow")
	if err != nil {
		return err
	}
	env := make([]corev1.EnvVar, 9000)
	for i := range env {
		env[i].Name = fmt.Sprint("E", i)
	}
	if _, err := slow.CoreV1().Pods("red").Create(a.ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "many"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "x", Env: env}}},
	}, metav1.CreateOptions{}); err != nil {
		return err
	}
	for _, p := range []struct{ what, kind, body string }{
		{"variables", "application/strategic-merge-patch+json", `{"spec":{"containers":[{"name":"c","env":[` + list(20_000, `{"name":"N%d"}`) + `]}]}}`},
		{"an image", "application/strategic-merge-patch+json", `{"spec":{"containers":[{"name":"c","image":"z"}]}}`},
		{"an order", "application/strategic-merge-patch+json", `{"spec":{"$setElementOrder/containers":[` + list(20_000, `{"name":"c%d"}`) + `],"containers":[{"name":"c","image":"y"}]}}`},
		{"deletions", "application/strategic-merge-patch+json", `{"spec":{"containers":[{"name":"c","env":[` + list(20_000, `{"name":"N%d","$patch":"delete"}`) + `]}]}}`},
		{"one container again and again", "application/strategic-merge-patch+json", `{"spec":{"containers":[` + list(1000, `{"name":"c","env":[{"name":"N%d"}]}`) + `]}}`},
		{"removals", "application/json-patch+json", `[` + strings.TrimSuffix(strings.Repeat(`{"op":"remove","path":"/spec/containers/0/env/0"},`, 8999), ",") + `]`},
		{"an apply", "application/apply-patch+yaml", `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"many"},"spec":{"containers":[{"name":"c","env":[` + list(20_000, `{"name":"N%d"}`) + `]}]}}`},
	} {
		before, err := a.seconds()
		if err != nil {
			return err
		}
		began := time.Now()
		ctx, cancel := context.WithTimeout(a.ctx, patient)
		request := slow.CoreV1().RESTClient().Verb(http.MethodPatch).Namespace("red").Resource("pods").Name("many").Param("fieldManager", "m").
			SetHeader("Content-Type", p.kind).Body([]byte(p.body))
		if strings.Contains(p.kind, "apply") {
			request.Param("force", "true")
		}
		result := request.Do(ctx)
		cancel()
		took := time.Since(began)
		if errors.Is(result.Error(), context.DeadlineExceeded) { // what follows would only take longer
			return fmt.Errorf("a patch of %s is not answered within %s: what it costs is not bounded", p.what, patient)
		}
		after, err := a.seconds()
		if err != nil {
			return err
		}
		code := 0
		result.StatusCode(&code)
		fmt.Printf("a patch of %s: %d, cheap: %t (%s, %.1f s of a processor) %.150v\n", p.what, code, after-before < 5 && took < patient,
			took.Round(time.Millisecond), after-before, result.Error())
	}
	return a.beside("patches", 10, 5*time.Second)
}

// framed is a connection on which the attacker says HTTP/2 frame by frame.
func (a *attack) framed() (*http2.Framer, net.Conn, error) {
	conn, err := a.dial(http2.NextProtoTLS)
	if err != nil {
		return nil, nil, err
	}
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		return nil, nil, err
	}
	f := http2.NewFramer(conn, conn)
	return f, conn, f.WriteSettings()
}

func ask(f *http2.Framer, stream uint32, host string) error {
	var block bytes.Buffer
	e := hpack.NewEncoder(&block)
	for _, h := range [][2]string{{":method", "GET"}, {":scheme", "https"}, {":authority", host}, {":path", "/api/v1/pods"}} {
		if err := e.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]}); err != nil {
			return err
		}
	}
	return f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true})
}

// end reads up to the connection's end, and says how many streams it may have and how many answers came.
func end(f *http2.Framer) (streams uint32, answers int, ended bool) {
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return streams, answers, !os.IsTimeout(err)
		}
		switch frame := frame.(type) {
		case *http2.SettingsFrame:
			if n, ok := frame.Value(http2.SettingMaxConcurrentStreams); ok {
				streams = n
			}
		case *http2.HeadersFrame:
			answers++
		}
	}
}

// http2 asks without credentials: once, and then by streams that are opened and reset in one breath.
func (a *attack) http2() error {
	f, conn, err := a.framed()
	if err != nil {
		return err
	}
	if err := ask(f, 1, a.host); err != nil {
		return err
	}
	streams, answers, ended := end(f)
	_ = conn.Close()
	fmt.Printf("a stranger's connection: %d streams, %d answers, ended: %t\n", streams, answers, ended)

	const connections, opened = 8, 20_000
	var sent, lives atomic.Int64
	var all sync.WaitGroup
	failed := make(chan error, connections)
	for range connections {
		f, conn, err := a.framed()
		if err != nil {
			return err
		}
		all.Go(func() {
			defer func() { _ = conn.Close() }()
			read := make(chan bool)
			go func() {
				_, _, ended := end(f)
				read <- ended
			}()
			for i := range uint32(opened) {
				if ask(f, 2*i+1, a.host) != nil || f.WriteRSTStream(2*i+1, http2.ErrCodeCancel) != nil {
					break // cut off
				}
				sent.Add(1)
			}
			if !<-read {
				lives.Add(1)
			}
		})
	}
	if err := a.beside("streams that are reset", 30, 5*time.Second); err != nil {
		return err
	}
	all.Wait()
	close(failed)
	fmt.Printf("rapid resets: connections that live on: %d, sent before they were cut off: %d of %d\n", lives.Load(), sent.Load(), connections*opened)
	return nil
}
