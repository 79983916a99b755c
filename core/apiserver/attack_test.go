// SPDX-License-Identifier: Apache-2.0

package apiserver_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/wasmplane/wasmplane/core/apiserver/apiservertest"
	"github.com/wasmplane/wasmplane/core/auth/authz"
)

// spy is a kubelet that refuses to upgrade, and remembers what it was asked.
type spy struct {
	mu    sync.Mutex
	asked []string
}

func (s *spy) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	s.mu.Lock()
	s.asked = append(s.asked, req.URL.Path)
	s.mu.Unlock()
	if strings.HasPrefix(req.URL.Path, "/exec/connect/elsewhere") {
		http.Redirect(w, req, "https://127.0.0.1:1/stolen", http.StatusFound)
		return
	}
	http.Error(w, "no upgrade today", http.StatusBadRequest)
}

func (s *spy) was(path string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.asked {
		if strings.HasPrefix(p, path) {
			return true
		}
	}
	return false
}

// raw is a connection on which a client says what it likes.
type raw struct {
	t *testing.T
	*tls.Conn
	in *bufio.Reader
}

func dialRaw(t *testing.T, s *apiservertest.Server) *raw {
	t.Helper()
	at, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	dialer := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}}} //nolint:gosec // the test's own server
	conn, err := dialer.DialContext(t.Context(), "tcp", at.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	return &raw{t, conn.(*tls.Conn), bufio.NewReader(conn)}
}

// say sends a request; the answer is nil where the connection has ended.
func (r *raw) say(lines ...string) (*http.Response, string) {
	r.t.Helper()
	if _, err := fmt.Fprint(r, strings.Join(lines, "\r\n")+"\r\n\r\n"); err != nil {
		return nil, ""
	}
	response, err := http.ReadResponse(r.in, nil)
	if err != nil {
		return nil, ""
	}
	defer response.Body.Close()
	body, _ := io.ReadAll(response.Body)
	return response, string(body)
}

// CVE-2018-1002105: where a backend refuses an upgrade, the client must not be
// left connected to it, with the server's credentials.
func TestARefusedUpgradeLeavesNobodyConnectedToTheBackend(t *testing.T) {
	s, _, c := connectServer(t, apiservertest.Options{})
	kubelet := &spy{}
	startNodeWith(t, c, kubelet, "pod", "elsewhere")
	for _, pod := range []string{"pod", "elsewhere"} {
		for _, protocol := range []string{"SPDY/3.1", "websocket"} {
			conn := dialRaw(t, s)
			request := []string{"POST /api/v1/namespaces/connect/pods/" + pod + "/exec?command=x&stdout=true HTTP/1.1"}
			headers := []string{
				"Host: x", "Authorization: Bearer mallory", "Connection: Upgrade", "Upgrade: " + protocol,
				"X-Stream-Protocol-Version: v4.channel.k8s.io",
			}
			if protocol == "websocket" {
				request[0] = strings.Replace(request[0], "POST", "GET", 1)
				headers = append(headers, "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
					"Sec-WebSocket-Protocol: v4.channel.k8s.io")
			}
			first, body := conn.say(append(request, headers...)...)
			if first != nil && first.StatusCode < 300 && first.StatusCode != http.StatusSwitchingProtocols {
				t.Errorf("%s by %s: answered %d %s", pod, protocol, first.StatusCode, body)
			}
			if strings.Contains(body, "stolen") || first != nil && first.Header.Get("Location") != "" {
				t.Errorf("%s by %s: the redirect came through: %v", pod, protocol, first.Header)
			}
			// What comes next on the connection is for the apiserver, or for nobody.
			if second, _ := conn.say("GET /runningpods/ HTTP/1.1", "Host: x"); second != nil && second.StatusCode == http.StatusOK {
				t.Errorf("%s by %s: a request behind the refused upgrade was answered 200", pod, protocol)
			}
			if kubelet.was("/runningpods") {
				t.Fatalf("%s by %s: the kubelet was asked behind the server's back", pod, protocol)
			}
		}
	}
	if kubelet.was("/stolen") {
		t.Error("a redirect was followed")
	}
}

// What is authorized is what is served, whatever the path looks like.
func TestPathsCannotBeReadInTwoWays(t *testing.T) {
	var mu sync.Mutex
	var asked []authz.Attributes
	s := apiservertest.Start(t,
		apiservertest.Options{Authorizer: rule(func(_ context.Context, a authz.Attributes) (authz.Decision, string, error) {
			mu.Lock()
			defer mu.Unlock()
			asked = append(asked, a)
			if a.IsResourceRequest() && a.GetResource() == "secrets" {
				return authz.Deny, "", nil
			}
			return authz.Allow, "", nil
		})})
	c := kubernetes.NewForConfigOrDie(s.Config("setup"))
	namespace(t, c, "ns")
	if _, err := c.CoreV1().ConfigMaps("ns").Create(t.Context(), configMap("cm", "1"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{
		"/api/v1/namespaces/ns/configmaps/../secrets", "/api/v1/namespaces/ns/configmaps/%2e%2e/secrets",
		"/api/v1/namespaces/ns/configmaps/..%2fsecrets",
		"//api/v1/namespaces/ns/secrets", "/api//v1/namespaces/ns/secrets", "/api/v1/namespaces/ns//secrets", "/./api/v1/namespaces/ns/secrets",
		"/healthz/../api/v1/namespaces/ns/secrets", "/livez/%2e%2e/api/v1/secrets", "/api/v1/namespaces/ns/secrets/",
		"/api/v1/namespaces/ns/secrets;x", "/api/v1/namespaces/ns/secrets%00",
		// Parameters of a segment, which some servers cut off behind those that judge the path (CVE-2026-73553).
		"/api/v1/namespaces/ns/secrets;x=y", "/api/v1/namespaces/ns;x=y/secrets", "/api/v1;x=y/namespaces/ns/secrets",
		"/api;x=y/v1/namespaces/ns/secrets",
		"/api/v1/namespaces/ns/secrets%3bx=y", "/api/v1/namespaces/ns/configmaps;/../secrets", "/api/v1/namespaces/ns/configmaps/..;x=y/secrets",
		"/healthz/..;/api/v1/namespaces/ns/secrets", "/api/v1/namespaces/ns/configmaps%5c..%5csecrets",
		"/api/v1/namespaces/ns/configmaps/.%2e/secrets",
		"/api/v1/namespaces/ns/%73ecrets;x=y", "/api/v1/namespaces/ns/configmaps%252f..%252fsecrets",
		"/API/v1/namespaces/ns/secrets", "/api/v1/namespaces/ns%2fsecrets", "/api/v1/watch/namespaces/ns/secrets",
		"/api/v1/proxy/namespaces/ns/secrets",
		"https://other/api/v1/namespaces/ns/secrets", "*",
	} {
		response, body := dialRaw(t, s).say("GET "+path+" HTTP/1.1", "Host: x", "Authorization: Bearer mallory", "Connection: close")
		if response == nil {
			continue // net/http's own refusal
		}
		if response.StatusCode == http.StatusOK && strings.Contains(body, `"SecretList"`) {
			t.Errorf("%s: secrets came out: %s", path, body)
		}
	}
}

// One request is not two: where a body ends is said once, in the way that everybody behind reads it (CVE-2026-48743).
func TestARequestIsNotReadAsTwo(t *testing.T) {
	var mu sync.Mutex
	second := false
	see := rule(func(_ context.Context, a authz.Attributes) (authz.Decision, string, error) {
		mu.Lock()
		defer mu.Unlock()
		second = second || a.GetPath() == "/second"
		return authz.Allow, "", nil
	})
	s, _, c := connectServer(t, apiservertest.Options{Authorizer: see})
	kubelet := &spy{}
	startNodeWith(t, c, kubelet, "pod")
	const hidden = "GET /second HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer operator\r\n\r\n"
	for name, tc := range map[string]struct {
		headers []string
		body    string
	}{
		"two lengths":              {[]string{"Content-Length: 0", fmt.Sprintf("Content-Length: %d", len(hidden))}, hidden},
		"two lengths in one":       {[]string{fmt.Sprintf("Content-Length: 0, %d", len(hidden))}, hidden},
		"a length with a sign":     {[]string{"Content-Length: +0"}, hidden},
		"a length in hexadecimal":  {[]string{"Content-Length: 0x0"}, hidden},
		"a length below nothing":   {[]string{"Content-Length: -1"}, hidden},
		"an unknown coding":        {[]string{"Transfer-Encoding: xchunked"}, "0\r\n\r\n" + hidden},
		"two codings":              {[]string{"Transfer-Encoding: chunked", "Transfer-Encoding: identity"}, "0\r\n\r\n" + hidden},
		"a coding and another":     {[]string{"Transfer-Encoding: gzip, chunked"}, "0\r\n\r\n" + hidden},
		"a coding behind a tab":    {[]string{"Transfer-Encoding:\tx\tchunked"}, "0\r\n\r\n" + hidden},
		"a name with a space":      {[]string{"Transfer-Encoding : chunked", "Content-Length: 0"}, "0\r\n\r\n" + hidden},
		"a continued line":         {[]string{"X: y", " Transfer-Encoding: chunked", "Content-Length: 0"}, "0\r\n\r\n" + hidden},
		"a chunk of another size":  {[]string{"Transfer-Encoding: chunked"}, "0x0\r\n\r\n" + hidden},
		"a chunk that goes around": {[]string{"Transfer-Encoding: chunked"}, "10000000000000000\r\n\r\n" + hidden},
		"a chunk with a bare end":  {[]string{"Transfer-Encoding: chunked"}, "1;x\ny\r\n0\r\n\r\n" + hidden},
	} {
		for _, path := range []string{"/api/v1/namespaces/connect/configmaps", "/api/v1/nodes/node/proxy/first"} {
			conn := dialRaw(t, s)
			lines := append([]string{
				"POST " + path + " HTTP/1.1", "Host: x", "Content-Type: application/json", "Authorization: Bearer operator",
			}, tc.headers...)
			if _, err := fmt.Fprint(conn, strings.Join(lines, "\r\n")+"\r\n\r\n"+tc.body+"the end\r\n\r\n"); err != nil {
				continue // refused while it was written
			}
			rest, _ := io.ReadAll(conn.in) // what is no request ends the connection
			if !strings.Contains(string(rest), "Connection: close") {
				t.Errorf("%s at %s: the connection goes on: %s", name, path, rest)
			}
			mu.Lock()
			if second || kubelet.was("/second") {
				t.Errorf("%s at %s: what was in the body is a request", name, path)
			}
			second = false
			mu.Unlock()
		}
	}
	// Both a length and chunks: Go reads the chunks, and what it passes on has one of the two.
	conn := dialRaw(t, s)
	body := "5\r\nfirst\r\n0\r\n\r\n"
	if _, err := fmt.Fprintf(conn, "POST /api/v1/nodes/node/proxy/both HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer operator\r\nConnection: close\r\n"+
		"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n%s", len(body)+len(hidden), body+hidden); err != nil {
		t.Fatal(err)
	}
	if rest, _ := io.ReadAll(conn.in); strings.Count(string(rest), "HTTP/1.1 ") > 1 || kubelet.was("/second") || !kubelet.was("/both") {
		t.Errorf("a length and chunks: %s", rest)
	}
}

// Headers that make a request somebody else's.
func TestIdentityHeadersOfThoseWhoMayNot(t *testing.T) {
	s := apiservertest.Start(t,
		apiservertest.Options{Authorizer: rule(func(_ context.Context, a authz.Attributes) (authz.Decision, string, error) {
			if strings.HasPrefix(a.GetVerb(), "impersonate") {
				return authz.NoOpinion, "", nil
			}
			return authz.Allow, "", nil
		})})
	const who = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
	body := `{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}`
	post := func(headers ...string) (int, string) {
		t.Helper()
		r := dialRaw(t, s)
		lines := append([]string{
			"POST " + who + " HTTP/1.1", "Host: x", "Content-Type: application/json", "Connection: close",
			fmt.Sprintf("Content-Length: %d", len(body)),
		}, headers...)
		if _, err := fmt.Fprint(r, strings.Join(lines, "\r\n")+"\r\n\r\n"+body); err != nil {
			t.Fatal(err)
		}
		response, err := http.ReadResponse(r.in, nil)
		if err != nil {
			return 0, ""
		}
		defer response.Body.Close()
		text, _ := io.ReadAll(response.Body)
		return response.StatusCode, string(text)
	}
	for name, c := range map[string]struct {
		headers []string
		code    int
	}{
		"nobody as an administrator":    {[]string{"Impersonate-User: admin"}, 401},
		"a user as an administrator":    {[]string{"Authorization: Bearer mallory", "Impersonate-User: admin"}, 403},
		"a group without a user":        {[]string{"Authorization: Bearer mallory", "Impersonate-Group: system:masters"}, 400},
		"a uid without a user":          {[]string{"Authorization: Bearer mallory", "Impersonate-Uid: 0"}, 400},
		"extra without a user":          {[]string{"Authorization: Bearer mallory", "Impersonate-Extra-Scopes: all"}, 400},
		"an empty user with a group":    {[]string{"Authorization: Bearer mallory", "Impersonate-User:", "Impersonate-Group: system:masters"}, 400},
		"two users":                     {[]string{"Authorization: Bearer mallory", "Impersonate-User: mallory", "Impersonate-User: admin"}, 403},
		"a name that ends twice":        {[]string{"Authorization: Bearer mallory", "Impersonate-User: mallory\x00admin"}, 400},
		"a group that ends twice":       {[]string{"Authorization: Bearer mallory", "Impersonate-User: mallory", "Impersonate-Group: system:masters\x00"}, 400},
		"an extra key that is no key":   {[]string{"Authorization: Bearer mallory", "Impersonate-User: admin", "Impersonate-Extra-%zz: x"}, 400},
		"a proxy's headers":             {[]string{"X-Remote-User: admin", "X-Remote-Group: system:masters"}, 401},
		"a proxy's headers of a user":   {[]string{"Authorization: Bearer mallory", "X-Remote-User: admin", "X-Remote-Group: system:masters"}, 201},
		"two credentials":               {[]string{"Authorization: Bearer mallory", "Authorization: Bearer admin|system:masters"}, 201},
		"a header that is far too long": {[]string{"Authorization: Bearer mallory", "X-Long: " + strings.Repeat("x", 2<<20)}, 431},
	} {
		code, text := post(c.headers...)
		if code != c.code && !(c.code == 431 && code == 0) { // the server may hang up while we still talk
			t.Errorf("%s: answered %d, expected %d: %s", name, code, c.code, text)
		}
		if strings.Contains(text, `"username":"admin`) || strings.Contains(text, "system:masters\"]") {
			t.Errorf("%s: became an administrator: %s", name, text)
		}
	}
}
