// SPDX-License-Identifier: Apache-2.0

package support

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/wasmplane/wasmplane/core/client"
)

const (
	// pageSize and mostObjects bound what is read of one kind.
	pageSize    = 500
	mostObjects = 5000
	// mostNodes are asked for what they run.
	mostNodes = 5
)

// api is the cluster's; without an answer from it, every file says why.
type api struct {
	set *client.Set
	err error
}

// connect asks once whether there is an answer: nothing else waits for one in vain.
func connect(ctx context.Context, find func() (*rest.Config, error)) *api {
	cfg, err := find()
	if err != nil {
		return &api{err: err}
	}
	set, err := client.New(cfg)
	if err != nil {
		return &api{err: err}
	}
	a := &api{set: set}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if _, err := a.raw(ctx, "/version"); err != nil {
		return &api{err: fmt.Errorf("the API does not answer: %w", err)}
	}
	return a
}

func (a *api) raw(ctx context.Context, path string) ([]byte, error) {
	at, err := url.Parse(path)
	if err != nil {
		return nil, err
	}
	request := a.set.Kube.Discovery().RESTClient().Get().AbsPath(at.Path)
	for key, values := range at.Query() {
		request.Param(key, values[0])
	}
	return request.DoRaw(ctx)
}

// secrets are the values of the cluster's Secrets, to be found where they should not be.
// They are held by this process alone.
func (a *api) secrets(ctx context.Context) (values []string, err error) {
	if a.err != nil {
		return nil, a.err
	}
	const (
		most    = 16 << 20 // of all
		longest = 64 << 10 // of one; longer ones are archives of tools
	)
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	size := 0
	for next := ""; ; {
		page, err := a.set.Kube.CoreV1().Secrets("").List(ctx, metav1.ListOptions{Limit: pageSize, Continue: next})
		if err != nil {
			return values, fmt.Errorf("list Secrets: %w", err)
		}
		for i := range page.Items {
			for key, v := range page.Items[i].Data {
				if key == "namespace" || key == "ca.crt" || len(v) > longest { // are no secrets
					continue
				}
				if size += len(v); size > most {
					return values, fmt.Errorf("there are more than %d bytes of Secrets", most)
				}
				values = append(values, string(v))
			}
		}
		if next = page.Continue; next == "" {
			return values, nil
		}
	}
}

// kinds are those whose objects are in the archive, all of them without a place for secrets
// but those that are redacted.
var kinds = []schema.GroupVersionResource{
	{Version: "v1", Resource: "nodes"},
	{Version: "v1", Resource: "namespaces"},
	{Version: "v1", Resource: "pods"},
	{Version: "v1", Resource: "events"},
	{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"},
	{Group: "apps", Version: "v1", Resource: "deployments"},
	{Group: "apps", Version: "v1", Resource: "replicasets"},
	{Group: "apps", Version: "v1", Resource: "statefulsets"},
	{Group: "apps", Version: "v1", Resource: "daemonsets"},
	{Group: "batch", Version: "v1", Resource: "jobs"},
	{Version: "v1", Resource: "services"},
	{Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"},
	{Version: "v1", Resource: "persistentvolumes"},
	{Version: "v1", Resource: "persistentvolumeclaims"},
	{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"},
	{Group: "plugins.wasmplane.dev", Version: "v1", Resource: "plugins"},
}

// files are what the API has.
func (a *api) files(r *redactor) []File {
	files := []File{
		a.text("api/version.json", "versions of the API server", "/version"),
		a.text("api/readyz.txt", "the API server's checks", "/readyz?verbose=true"),
		a.text("api/units.txt", "parts of the server's process, and how each is", "/debug/units"),
		a.text("api/goroutines.txt", "what the server's process does at the moment (Go's stacks)", "/debug/pprof/goroutine?debug=2"),
		a.text("api/heap.txt", "what the memory of the server's process is used for", "/debug/pprof/heap?debug=1"),
		a.text("api/metrics.txt", "metrics of the server, in Prometheus' format", "/metrics"),
		{Name: "nodes/goroutines.txt", About: fmt.Sprintf("what processes of nodes do at the moment, of %d at most", mostNodes), Write: a.nodes},
	}
	for _, kind := range kinds {
		files = append(files, File{
			Name: "objects/" + kind.Resource + ".jsonl", About: "all " + kind.Resource + " of the cluster, one a line, redacted", Most: 8 << 20,
			Redacted: true,
			Write:    func(ctx context.Context, w io.Writer) error { return a.objects(ctx, w, kind, r) },
		})
	}
	if a.err == nil {
		return files
	}
	for i := range files {
		files[i].Write = func(context.Context, io.Writer) error { return a.err }
	}
	return files
}

func (a *api) text(name, about, path string) File {
	return File{Name: name, About: about, Most: 8 << 20, Write: func(ctx context.Context, w io.Writer) error {
		data, err := a.raw(ctx, path)
		_, _ = w.Write(data) // a check that fails is the answer too
		return err
	}}
}

// objects writes those of a kind, a line each: what is cut off harms no other.
func (a *api) objects(ctx context.Context, w io.Writer, kind schema.GroupVersionResource, r *redactor) error {
	lines := json.NewEncoder(w)
	lines.SetEscapeHTML(false)
	count := 0
	for next := ""; ; {
		page, err := a.set.Dynamic.Resource(kind).List(ctx, metav1.ListOptions{Limit: pageSize, Continue: next})
		if err != nil {
			return err
		}
		for i := range page.Items {
			if count++; count > mostObjects {
				return fmt.Errorf("there are more than %d", mostObjects)
			}
			if err := lines.Encode(r.object(page.Items[i].Object)); err != nil {
				return err
			}
		}
		if next = page.GetContinue(); next == "" {
			return nil
		}
	}
}

// nodes asks kubelets by the API what their processes do.
func (a *api) nodes(ctx context.Context, w io.Writer) error {
	list, err := a.set.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{Limit: mostNodes})
	if err != nil {
		return err
	}
	for i := range list.Items {
		name := list.Items[i].Name
		data, err := a.raw(ctx, "/api/v1/nodes/"+url.PathEscape(name)+"/proxy/debug/pprof/goroutine?debug=2")
		if err != nil {
			data = []byte(err.Error())
		}
		fmt.Fprintf(w, "== node %s\n%s\n\n", name, data)
	}
	return nil
}
