// SPDX-License-Identifier: Apache-2.0

package openapi

import (
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/common"

	"github.com/wasmplane/wasmplane/core/api"
	"github.com/wasmplane/wasmplane/core/object"
)

// The routes of the table in the form that kube-openapi reads. They describe
// what the server serves; they serve nothing.

type route struct {
	method, path, operation, doc string
	parameters                   []common.Parameter
	consumes, produces           []string
	metadata                     map[string]any
	body, answer                 any
	codes                        []common.StatusCodeResponse
}

func (r *route) Method() string                                   { return r.method }
func (r *route) Path() string                                     { return r.path }
func (r *route) OperationName() string                            { return r.operation }
func (r *route) Parameters() []common.Parameter                   { return r.parameters }
func (r *route) Description() string                              { return r.doc }
func (r *route) Consumes() []string                               { return r.consumes }
func (r *route) Produces() []string                               { return r.produces }
func (r *route) Metadata() map[string]any                         { return r.metadata }
func (r *route) RequestPayloadSample() any                        { return r.body }
func (r *route) ResponsePayloadSample() any                       { return r.answer }
func (r *route) StatusCodeResponses() []common.StatusCodeResponse { return r.codes }

type routeContainer struct {
	root   string
	routes []common.Route
}

func (c routeContainer) RootPath() string                   { return c.root }
func (c routeContainer) PathParameters() []common.Parameter { return nil }
func (c routeContainer) Routes() []common.Route             { return c.routes }

type parameter struct {
	name, doc, dataType string
	kind                common.ParameterKind
	required            bool
}

func (p parameter) Name() string               { return p.name }
func (p parameter) Description() string        { return p.doc }
func (p parameter) Required() bool             { return p.required }
func (p parameter) Kind() common.ParameterKind { return p.kind }
func (p parameter) DataType() string           { return p.dataType }
func (p parameter) AllowMultiple() bool        { return false }

type response struct {
	code    int
	message string
	model   any
}

func (r response) Code() int       { return r.code }
func (r response) Message() string { return r.message }
func (r response) Model() any      { return r.model }

// RootPath is the path that a group version is served below.
func RootPath(gv schema.GroupVersion) string {
	if gv.Group == "" {
		return "/api/" + gv.Version
	}
	return "/apis/" + gv.Group + "/" + gv.Version
}

// describer makes the routes of one group version.
type describer struct {
	gv     schema.GroupVersion
	root   string
	scheme *runtime.Scheme
	routes []common.Route
}

func (docs *Documents) describe(gv schema.GroupVersion) (routeContainer, error) {
	d := &describer{gv: gv, root: RootPath(gv), scheme: docs.contract.Scheme(gv.Group)}
	d.discovery()
	for _, r := range docs.contract.InVersion(gv) {
		if err := d.resource(r); err != nil {
			return routeContainer{}, fmt.Errorf("routes of %s: %w", r.GroupResource, err)
		}
	}
	return routeContainer{root: d.root, routes: d.routes}, nil
}

func (d *describer) discovery() {
	list := sample(&metav1.APIResourceList{})
	media := []string{object.JSON, object.YAML, object.Protobuf}
	d.routes = append(d.routes, &route{
		method: http.MethodGet, path: d.root + "/", operation: "getAPIResources", doc: "get available resources",
		consumes: media, produces: media, answer: list, codes: []common.StatusCodeResponse{response{http.StatusOK, "OK", list}},
	})
}

// place is a resource or subresource in one version.
type place struct {
	*describer
	res        *api.Resource
	sub        *api.Subresource // nil for the resource itself
	kind       schema.GroupVersionKind
	object     any // sample of what is read and written
	verbs      []string
	collection string
	item       string
}

func (d *describer) resource(r *api.Resource) error {
	o, err := d.scheme.New(r.GVK(d.gv.Version))
	if err != nil {
		return err
	}
	base := d.root + "/" + r.GroupResource.Resource
	if r.Namespaced {
		base = d.root + "/namespaces/{namespace}/" + r.GroupResource.Resource
	}
	e := place{describer: d, res: r, kind: r.GVK(d.gv.Version), object: sample(o), verbs: r.Verbs, collection: base, item: base + "/{name}"}
	if err := e.describe(); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(r.Subresources)) {
		if err := d.subresource(e, r.Subresources[name]); err != nil {
			return fmt.Errorf("subresource %s: %w", name, err)
		}
	}
	return nil
}

func (d *describer) subresource(parent place, s *api.Subresource) error {
	e := parent
	e.sub, e.kind, e.verbs = s, s.Kind, s.Verbs
	if s.Strategy != nil {
		e.kind = parent.kind
	}
	o, err := d.scheme.New(e.kind)
	if err != nil {
		return err
	}
	e.object = sample(o)
	e.item = parent.item + "/" + s.Name
	e.collection = e.item
	if s.ConnectMethods != nil {
		return e.connect(o)
	}
	return e.describe()
}

// describe adds a route for each verb.
func (e place) describe() error {
	for _, verb := range e.verbs {
		switch verb {
		case "create":
			e.create()
		case "delete":
			e.delete()
		case "deletecollection":
			e.deleteCollection()
		case "get":
			if err := e.get(); err != nil {
				return err
			}
		case "list":
			if err := e.list(); err != nil {
				return err
			}
		case "patch":
			e.patch()
		case "update":
			e.update()
		case "watch":
			e.watch()
		}
	}
	return nil
}

func (e place) namespaced() string {
	if e.res.Namespaced {
		return "Namespaced"
	}
	return ""
}

// name is an operation's name: readNamespacedPodStatus.
func (e place) name(verb string) string {
	return verb + e.namespaced() + e.res.Kind + title(e.subName())
}

func (e place) subName() string {
	if e.sub == nil {
		return ""
	}
	return e.sub.Name
}

// of is "Pod", or "status of the specified Pod".
func (e place) of(verb, plain, between string) string {
	if e.sub == nil {
		return verb + " " + plain + e.res.Kind
	}
	return verb + " " + e.sub.Name + " " + between + e.res.Kind
}

// add completes a route: path parameters, media types, the kind it is about.
func (e place) add(r *route, action string) {
	if r.produces == nil {
		r.produces = plainMedia()
	}
	if r.consumes == nil {
		r.consumes = []string{"*/*"}
	}
	for _, p := range []struct{ name, doc string }{
		{"{namespace}", "object name and auth scope, such as for teams and projects"},
		{"{name}", "name of the " + e.kind.Kind},
		{"{path:*}", "path to the resource"},
	} {
		if strings.Contains(r.path, p.name) {
			name, _, _ := strings.Cut(strings.Trim(p.name, "{}"), ":")
			r.parameters = append(r.parameters, parameter{name, p.doc, "string", common.PathParameterKind, true})
		}
	}
	r.metadata = map[string]any{
		"x-kubernetes-action":             action,
		"x-kubernetes-group-version-kind": metav1.GroupVersionKind{Group: e.kind.Group, Version: e.kind.Version, Kind: e.kind.Kind},
	}
	e.describer.routes = append(e.describer.routes, r)
}

func (e place) create() {
	e.add(&route{
		method: http.MethodPost, path: e.collection, operation: e.name("create"),
		doc:        e.of("create", article(e.res.Kind), "of "+article(e.res.Kind)),
		parameters: with(body(e.object, true), pretty(), queries(&metav1.CreateOptions{})...), body: e.object, answer: e.object,
		codes: []common.StatusCodeResponse{
			response{http.StatusOK, "OK", e.object},
			response{http.StatusCreated, "Created", e.object},
			response{http.StatusAccepted, "Accepted", e.object},
		},
	}, "post")
}

func (e place) update() {
	e.add(&route{
		method: http.MethodPut, path: e.item, operation: e.name("replace"), doc: e.of("replace", "the specified ", "of the specified "),
		parameters: with(body(e.object, true), pretty(), queries(&metav1.UpdateOptions{})...), body: e.object, answer: e.object,
		codes: []common.StatusCodeResponse{response{http.StatusOK, "OK", e.object}, response{http.StatusCreated, "Created", e.object}},
	}, "put")
}

func (e place) patch() {
	patch := metav1.Patch{}
	e.add(&route{
		method: http.MethodPatch, path: e.item, operation: e.name("patch"),
		doc:        e.of("partially update", "the specified ", "of the specified "),
		parameters: with(body(patch, true), pretty(), queries(&metav1.PatchOptions{})...), body: patch, answer: e.object,
		consumes: []string{
			"application/json-patch+json", "application/merge-patch+json", "application/strategic-merge-patch+json",
			"application/apply-patch+yaml",
		},
		codes: []common.StatusCodeResponse{response{http.StatusOK, "OK", e.object}, response{http.StatusCreated, "Created", e.object}},
	}, "patch")
}

func (e place) delete() {
	answer := sample(&metav1.Status{})
	// Upstream returns a deleted namespace, but doesn't say so.
	if e.res.ReturnDeleted && e.res.Kind != "Namespace" {
		answer = e.object
	}
	options := metav1.DeleteOptions{}
	e.add(&route{
		method: http.MethodDelete, path: e.item, operation: e.name("delete"),
		doc:        e.of("delete", article(e.res.Kind), "of "+article(e.res.Kind)),
		parameters: with(body(options, false), pretty(), queries(&options)...), body: options, answer: answer,
		codes: []common.StatusCodeResponse{response{http.StatusOK, "OK", answer}, response{http.StatusAccepted, "Accepted", answer}},
	}, "delete")
}

func (e place) deleteCollection() {
	options, status := metav1.DeleteOptions{}, metav1.Status{}
	parameters := with(body(options, false), pretty(), queries(&options)...)
	e.add(&route{
		method: http.MethodDelete, path: e.collection, operation: e.name("deletecollection"), doc: "delete collection of " + e.res.Kind,
		parameters: append(parameters, queries(&metav1.ListOptions{}, "watch", "allowWatchBookmarks")...), body: options, answer: status,
		codes: []common.StatusCodeResponse{response{http.StatusOK, "OK", status}},
	}, "deletecollection")
}

func (e place) get() error {
	r := &route{
		method: http.MethodGet, path: e.item, operation: e.name("read"), doc: e.of("read", "the specified ", "of the specified "),
		parameters: []common.Parameter{pretty()}, answer: e.object, codes: []common.StatusCodeResponse{response{http.StatusOK, "OK", e.object}},
	}
	if e.subName() == "log" {
		options, err := e.scheme.New(schema.GroupVersionKind{Version: "v1", Kind: "PodLogOptions"})
		if err != nil {
			return err
		}
		r.parameters = append(r.parameters, queries(options)...)
		r.produces = append([]string{"text/plain"}, plainMedia()...)
		r.answer, r.codes = "", []common.StatusCodeResponse{response{http.StatusOK, "OK", ""}}
	}
	e.add(r, "get")
	return nil
}

func (e place) list() error {
	o, err := e.scheme.New(e.gv.WithKind(e.res.ListKind))
	if err != nil {
		return err
	}
	list := sample(o)
	doc := "list objects of kind " + e.res.Kind
	if slices.Contains(e.verbs, "watch") {
		doc = "list or watch objects of kind " + e.res.Kind
	}
	add := func(path, operation string) {
		e.add(&route{
			method: http.MethodGet, path: path, operation: operation, doc: doc, produces: allMedia(),
			parameters: append(queries(&metav1.ListOptions{}), pretty()), answer: list,
			codes: []common.StatusCodeResponse{response{http.StatusOK, "OK", list}},
		}, "list")
	}
	add(e.collection, e.name("list"))
	if e.res.Namespaced {
		add(e.root+"/"+e.res.GroupResource.Resource, "list"+e.res.Kind+"ForAllNamespaces")
	}
	return nil
}

// watch paths of their own have been deprecated since 1.11, and are served still.
func (e place) watch() {
	event := metav1.WatchEvent{}
	const deprecated = ". deprecated: use the 'watch' parameter with a list operation instead"
	add := func(path, operation, doc, action string) {
		e.add(&route{
			method: http.MethodGet, path: e.root + "/watch" + strings.TrimPrefix(path, e.root), operation: operation, doc: doc, produces: allMedia(),
			parameters: append(queries(&metav1.ListOptions{}), pretty()), answer: event,
			codes: []common.StatusCodeResponse{response{http.StatusOK, "OK", event}},
		}, action)
	}
	many := "watch individual changes to a list of " + e.res.Kind + deprecated + "."
	add(e.collection, e.name("watch")+"List", many, "watchlist")
	add(e.item, e.name("watch"), "watch changes to an object of kind "+e.res.Kind+deprecated+
		", filtered to a single item with the 'fieldSelector' parameter.", "watch")
	if e.res.Namespaced {
		add(e.root+"/"+e.res.GroupResource.Resource, "watch"+e.res.Kind+"ListForAllNamespaces", many, "watchlist")
	}
}

// connect adds a route for each method; a proxy has a second one with a path below it.
func (e place) connect(options runtime.Object) error {
	type variant struct{ path, suffix string }
	paths := []variant{{e.item, ""}}
	if e.sub.Name == "proxy" {
		paths = append(paths, variant{e.item + "/{path:*}", "WithPath"})
	}
	for _, p := range paths {
		for _, method := range e.sub.ConnectMethods {
			e.add(&route{
				method: method, path: p.path, operation: e.name("connect"+title(strings.ToLower(method))) + p.suffix,
				doc:      "connect " + method + " requests to " + e.sub.Name + " of " + e.res.Kind,
				produces: []string{"*/*"}, parameters: queries(options), answer: "string",
			}, "connect")
		}
	}
	return nil
}

func plainMedia() []string { return []string{object.JSON, object.YAML, object.Protobuf} }

func allMedia() []string {
	return append(plainMedia(), object.JSON+";stream=watch", object.Protobuf+";stream=watch")
}

func pretty() common.Parameter {
	return parameter{
		"pretty", "If 'true', then the output is pretty printed. Defaults to 'false' unless the user-agent indicates a browser or command-line HTTP tool (curl and wget).",
		"string", common.QueryParameterKind, false,
	}
}

func body(sample any, required bool) common.Parameter {
	return parameter{"body", "", reflect.TypeOf(sample).String(), common.BodyParameterKind, required}
}

func with(first, second common.Parameter, more ...common.Parameter) []common.Parameter {
	return append([]common.Parameter{first, second}, more...)
}

// queries are the query parameters that an options type has: its plain fields, with its docs.
func queries(options any, without ...string) []common.Parameter {
	docs := map[string]string{}
	if d, ok := options.(interface{ SwaggerDoc() map[string]string }); ok {
		docs = d.SwaggerDoc()
	}
	var out []common.Parameter
	t := reflect.TypeOf(options).Elem()
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" || slices.Contains(without, name) || !queryable(f.Type) {
			continue
		}
		out = append(out, parameter{name, docs[name], jsonType(f.Type), common.QueryParameterKind, false})
	}
	return out
}

func queryable(t reflect.Type) bool {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t.Kind() != reflect.Struct && t.Kind() != reflect.Interface
}

func jsonType(t reflect.Type) string {
	if t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.Bool:
		return "boolean"
	case reflect.Int, reflect.Int32, reflect.Int64, reflect.Uint32, reflect.Uint64:
		return "integer"
	default:
		return "string"
	}
}

// sample is the value behind a pointer: kube-openapi names models by value types.
func sample(pointer any) any { return reflect.ValueOf(pointer).Elem().Interface() }

func title(s string) string {
	if s == "" {
		return ""
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

func article(kind string) string {
	switch {
	case !strings.HasSuffix(kind, "ss") && strings.HasSuffix(kind, "s"):
		return ""
	case strings.ContainsRune("AEIOUaeiou", rune(kind[0])):
		return "an "
	}
	return "a "
}
