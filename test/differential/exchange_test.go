// SPDX-License-Identifier: Apache-2.0

package differential

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/wasmplane/wasmplane/test/internal/sides"
)

const (
	jsonType     = "application/json"
	yamlType     = "application/yaml"
	protobufType = "application/vnd.kubernetes.protobuf"
	jsonPatch    = "application/json-patch+json"
	mergePatch   = "application/merge-patch+json"
	strategic    = "application/strategic-merge-patch+json"
	applyYAML    = "application/apply-patch+yaml"
)

// request is one of a story.
type request struct {
	// name tells it from the others of its story; "" = its number, method and path.
	name         string
	method, path string
	// body of what media type; "" = JSON.
	body, contentType string
	accept            string
	// header has further lines, as `Name: value`.
	header []string
	// as impersonates a user; anonymous shows no certificate.
	as        string
	anonymous bool
	// keep takes a value out of the answer for later requests of the story, which
	// write ${name} for it: name=path.in.the.body.
	keep string
	// quiet requests set the stage: their answers are compared by status alone.
	quiet bool
	// eventually repeats a read until the answer holds this text: what is published
	// takes either side its time.
	eventually string
}

// differs lists what is in an answer that is another one in each run, of either
// side: keys, certificates, versions of the build.
var differs = regexp.MustCompile(`/version|jwks|openid|/metrics|who am I|selfsubjectreviews|protobuf|FlowSchema|/openapi/|flowschemas|prioritylevel|remainingItemCount|[Nn]amespaces\?limit|log\?|/api/v1/(services|endpoints|configmaps)$|endpointslices$|leases$|servicecidrs$|resourceVersion=9999|^25 (/apis|alice)|^let go$|^established$|^outside of ranges$|^default class used$|^gone$|configmaps\?watch|^\d+: (then|again|status)`)

// loose requests are recorded by their status alone.
func (r request) loose() bool {
	return r.quiet || differs.MatchString(r.name) || differs.MatchString(r.path)
}

// story is a sequence of requests that nothing else disturbs.
type story struct {
	name     string
	requests []request
}

// asker sends requests to one side.
type asker struct {
	side      *sides.Side
	known     *http.Client
	anonymous *http.Client
}

func newAsker(t *testing.T, side *sides.Side) *asker {
	t.Helper()
	a := &asker{side: side, known: side.Client()}
	config := side.TLS.Clone()
	config.Certificates = nil
	a.anonymous = &http.Client{Transport: &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true, DisableCompression: true}}
	for _, c := range []*http.Client{a.known, a.anonymous} {
		c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		t.Cleanup(c.CloseIdleConnections)
	}
	return a
}

// patience bounds how long either side may take to publish something.
const patience = time.Minute

// tell sends a story's requests and returns the answers.
func (a *asker) tell(ctx context.Context, s story) ([]answer, error) {
	kept := map[string]string{}
	answers := make([]answer, 0, len(s.requests))
	for i, r := range s.requests {
		got, err := a.ask(ctx, r, kept)
		for deadline := time.Now().Add(patience); r.eventually != "" && err == nil && !strings.Contains(string(got.raw), r.eventually); {
			if time.Now().After(deadline) {
				break
			}
			if err := wait(ctx, 50*time.Millisecond); err != nil {
				return nil, err
			}
			got, err = a.ask(ctx, r, kept)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %s, request %d (%s %s): %w", a.side.Name, s.name, i, r.method, r.path, err)
		}
		if name, path, ok := strings.Cut(r.keep, "="); ok {
			kept[name] = got.value(path)
		}
		answers = append(answers, *got)
	}
	return answers, nil
}

func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

func expand(text string, kept map[string]string) string {
	for name, value := range kept {
		text = strings.ReplaceAll(text, "${"+name+"}", value)
	}
	return text
}

// ask sends one request and normalises the answer.
func (a *asker) ask(ctx context.Context, r request, kept map[string]string) (*answer, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, r.method, a.side.URL+expand(r.path, kept), strings.NewReader(expand(r.body, kept)))
	if err != nil {
		return nil, err
	}
	if r.body == "" {
		req.Body, req.ContentLength = http.NoBody, 0
	}
	req.Header.Set("User-Agent", "differential/v1")
	if r.body != "" || r.contentType != "" {
		contentType := r.contentType
		if contentType == "" {
			contentType = jsonType
		}
		req.Header.Set("Content-Type", contentType)
	}
	if r.accept != "" {
		req.Header.Set("Accept", r.accept)
	}
	if r.as != "" {
		req.Header.Set("Impersonate-User", r.as)
	}
	for _, line := range r.header {
		name, value, _ := strings.Cut(line, ": ")
		req.Header.Add(name, expand(value, kept))
	}
	client := a.known
	if r.anonymous {
		client = a.anonymous
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("reading the answer, %d bytes of which came: %w", len(body), err)
	}
	return normalise(resp, body)
}

// title names a request within its story.
func (r request) title(i int) string {
	if r.name != "" {
		return r.name
	}
	return fmt.Sprintf("%d %s %s", i, r.method, r.path)
}

// unique fails for two stories or two requests of one name: the recording and
// the table of decided differences go by names.
func unique(t *testing.T, stories []story) {
	t.Helper()
	seen := map[string]bool{}
	for _, s := range stories {
		names := []string{s.name}
		for i, r := range s.requests {
			names = append(names, s.name+": "+r.title(i))
		}
		for _, name := range names {
			if seen[name] {
				t.Errorf("two are called %q", name)
			}
			seen[name] = true
		}
	}
	if !slices.ContainsFunc(stories, func(s story) bool { return len(s.requests) > 1 }) {
		t.Error("no story has more than one request")
	}
}
