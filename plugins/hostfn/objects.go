// SPDX-License-Identifier: Apache-2.0

package hostfn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/admission/fence"
	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/host"
	"github.com/wasmplane/wasmplane/plugins/manifest"
)

// Objects reads API objects. They are shared with others and never changed.
type Objects interface {
	// Find says what serves a kind or, where resource is not empty, a resource of a
	// group version. What is not served is a NotFound of the API.
	Find(ctx context.Context, gv schema.GroupVersion, kind, resource string) (Resource, error)
	// Get reads one object; nil is none. fresh asks for the newest state, where
	// otherwise what the process has seen will do. revision is the resourceVersion at
	// which the object, or its absence, was seen; it may be older than that.
	Get(ctx context.Context, r Resource, namespace, name string, fresh bool) (o runtime.Object, revision string, err error)
	// List reads the objects of a namespace, or of all.
	List(ctx context.Context, r Resource, s Selection) (Page, error)
}

// Resource is a served resource.
type Resource struct {
	schema.GroupVersionResource
	Kind       string
	Namespaced bool
}

// GVK is the kind with group and version.
func (r Resource) GVK() schema.GroupVersionKind { return r.GroupVersion().WithKind(r.Kind) }

// Selection says which objects a list has.
type Selection struct {
	Namespace string // "" = all
	Labels    labels.Selector
	Fields    fields.Selector
	Fresh     bool
	Limit     int // 0 = all
}

// Page is a list, consistent at one resourceVersion.
type Page struct {
	Items           []runtime.Object
	ResourceVersion string
	More            bool // the limit left some out
}

// Target names a kind (or a resource) of an API version, as objects do.
type Target struct {
	APIVersion string `json:"apiVersion"`
	// Kind ("Namespace") or Resource ("namespaces"): one of them will do.
	Kind     string `json:"kind,omitempty"`
	Resource string `json:"resource,omitempty"`
}

// GetRequest asks for one object.
type GetRequest struct {
	Target
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// Fields to read, as paths; none: all that the grant covers.
	Fields []string `json:"fields,omitempty"`
	// Fresh asks for the newest state.
	Fresh bool `json:"fresh,omitempty"`
}

// GetReply is an object as JSON, nil where there is none.
type GetReply struct {
	ResourceVersion string          `json:"resourceVersion"`
	Object          json.RawMessage `json:"object"`
}

// ListRequest asks for objects.
type ListRequest struct {
	Target
	Namespace     string   `json:"namespace,omitempty"`
	LabelSelector string   `json:"labelSelector,omitempty"`
	FieldSelector string   `json:"fieldSelector,omitempty"`
	Fields        []string `json:"fields,omitempty"`
	Limit         int      `json:"limit,omitempty"`
	Fresh         bool     `json:"fresh,omitempty"`
}

// ListReply is a list; the items are JSON objects.
type ListReply struct {
	ResourceVersion string            `json:"resourceVersion"`
	Kind            string            `json:"kind"`
	Items           []json.RawMessage `json:"items"`
	More            bool              `json:"more,omitempty"`
}

// What looking at one object costs in fuel, besides the bytes of the reply.
const costOfObject = 200

// replyLimit bounds a list; the host's own limit of a reply is the same by default.
const replyLimit = 1 << 20

// GetObject reads one object.
func (c *Caller) GetObject(ctx context.Context, q GetRequest) (GetReply, error) {
	objects := c.f.backend.Objects
	if objects == nil {
		return GetReply{}, notHere("API to read from")
	}
	if q.Name == "" {
		return GetReply{}, errors.New("name is missing")
	}
	r, err := c.find(ctx, q.Target)
	if err != nil {
		return GetReply{}, err
	}
	namespace, err := c.namespace(r, q.Namespace)
	if err != nil {
		return GetReply{}, err
	}
	if r.Namespaced && namespace == "" {
		return GetReply{}, fmt.Errorf("namespace is missing: %s have one", r.Resource)
	}
	g, err := c.covering(r, namespace, q.Name)
	if err != nil {
		return GetReply{}, err
	}
	if err := c.mayRead(ctx, r, namespace, "get", q.Name); err != nil {
		return GetReply{}, err
	}
	mask, err := c.mask(g, q.Fields)
	if err != nil {
		return GetReply{}, err
	}
	if err := host.Charge(ctx, costOfObject); err != nil {
		return GetReply{}, err
	}
	if err := raise(ctx, r, q.Fresh); err != nil {
		return GetReply{}, err
	}
	o, revision, err := objects.Get(ctx, r, namespace, q.Name, q.Fresh)
	if err != nil && !apierrors.IsNotFound(err) {
		return GetReply{}, fmt.Errorf("read %s %q: %w", r.Resource, q.Name, err)
	}
	reply := GetReply{ResourceVersion: revision}
	if err == nil && o != nil {
		reply.Object = mask.encode(o, r)
	}
	return reply, nil
}

// ListObjects reads objects.
func (c *Caller) ListObjects(ctx context.Context, q ListRequest) (ListReply, error) {
	seen, err := c.Look(ctx, q)
	if err != nil {
		return ListReply{}, err
	}
	return seen.Encode(ctx)
}

// Seen is a list that has been read and not been encoded yet, which costs most.
type Seen struct {
	// State is the same only where the objects are; "" where that cannot be told.
	State string
	// Encode makes the reply.
	Encode func(ctx context.Context) (ListReply, error)
}

// raise holds the request that is being judged against what others write to the group of r from now on: a policy
// that asks for the newest state means that of the moment in which the request is stored.
func raise(ctx context.Context, r Resource, fresh bool) error {
	if !fresh {
		return nil
	}
	if err := fence.Raise(ctx, r.GVK().Group); err != nil {
		return fmt.Errorf("look whether others write what excludes this: %w", err)
	}
	return nil
}

// stateOf are the objects' identities with their versions.
func stateOf(kind string, list []runtime.Object) string {
	var b strings.Builder
	b.WriteString(kind)
	for _, o := range list {
		m, err := meta.Accessor(o)
		if err != nil || m.GetUID() == "" || m.GetResourceVersion() == "" {
			return ""
		}
		fmt.Fprintf(&b, "\n%s@%s", m.GetUID(), m.GetResourceVersion())
	}
	return b.String()
}

// Look reads objects, and leaves encoding them to whoever finds that they have changed.
func (c *Caller) Look(ctx context.Context, q ListRequest) (*Seen, error) {
	objects := c.f.backend.Objects
	if objects == nil {
		return nil, notHere("API to read from")
	}
	r, err := c.find(ctx, q.Target)
	if err != nil {
		return nil, err
	}
	s, err := selection(q)
	if err != nil {
		return nil, err
	}
	if s.Namespace, err = c.namespace(r, q.Namespace); err != nil {
		return nil, err
	}
	g, err := c.covering(r, s.Namespace, "")
	if err != nil {
		return nil, err
	}
	if err := c.mayList(ctx, r, s.Namespace, g); err != nil {
		return nil, err
	}
	mask, err := c.mask(g, q.Fields)
	if err != nil {
		return nil, err
	}
	if len(g.Names) > 0 {
		s.Limit = 0 // what is not granted must not count
	}
	if err := raise(ctx, r, q.Fresh); err != nil {
		return nil, err
	}
	page, err := objects.List(ctx, r, s)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", r.Resource, err)
	}
	return &Seen{State: stateOf(r.GVK().String(), page.Items), Encode: func(ctx context.Context) (ListReply, error) {
		return c.listReply(ctx, r, g, mask, q.Limit, page)
	}}, nil
}

func (c *Caller) listReply(ctx context.Context, r Resource, g *manifest.ReadGrant, mask mask, limit int, page Page) (ListReply, error) {
	reply := ListReply{ResourceVersion: page.ResourceVersion, Kind: r.Kind, Items: []json.RawMessage{}, More: page.More}
	size := 0
	for _, o := range page.Items {
		if err := host.Charge(ctx, costOfObject); err != nil {
			return ListReply{}, err
		}
		if len(g.Names) > 0 && !named(g, o) {
			continue
		}
		if limit > 0 && len(reply.Items) == limit {
			reply.More = true
			break
		}
		b := mask.encode(o, r)
		if size += len(b); size > replyLimit {
			return ListReply{}, fmt.Errorf("%s: the reply is more than %d bytes; ask for fields, for a selector or with a limit", r.Resource, replyLimit)
		}
		reply.Items = append(reply.Items, b)
	}
	return reply, nil
}

func selection(q ListRequest) (Selection, error) {
	s := Selection{Limit: q.Limit, Fresh: q.Fresh, Labels: labels.Everything(), Fields: fields.Everything()}
	var err error
	if q.LabelSelector != "" {
		if s.Labels, err = labels.Parse(q.LabelSelector); err != nil {
			return s, fmt.Errorf("labelSelector: %w", err)
		}
	}
	if q.FieldSelector != "" {
		if s.Fields, err = fields.ParseSelector(q.FieldSelector); err != nil {
			return s, fmt.Errorf("fieldSelector: %w", err)
		}
	}
	if q.Limit < 0 {
		return s, fmt.Errorf("limit: %d is negative", q.Limit)
	}
	return s, nil
}

func (c *Caller) find(ctx context.Context, t Target) (Resource, error) {
	gv, err := schema.ParseGroupVersion(t.APIVersion)
	if err != nil || gv.Version == "" {
		return Resource{}, fmt.Errorf("apiVersion: expected v1 or a group and a version such as apps/v1, found %q", t.APIVersion)
	}
	if t.Kind == "" && t.Resource == "" {
		return Resource{}, errors.New("kind or resource is missing")
	}
	r, err := c.f.backend.Objects.Find(ctx, gv, t.Kind, t.Resource)
	if err != nil {
		return Resource{}, fmt.Errorf("%s of %s is not served here: %w", t.Kind+t.Resource, t.APIVersion, err)
	}
	return r, nil
}

// namespace is where a tenant's plugin may look, or what was asked for.
func (c *Caller) namespace(r Resource, asked string) (string, error) {
	if !r.Namespaced {
		if c.e.Namespace != "" {
			return "", &host.RefusedError{Reason: fmt.Sprintf("plugin %q of namespace %s may not read %s, which belong to no namespace", c.e.Name,
				c.e.Namespace, r.Resource)}
		}
		return "", nil
	}
	if c.e.Namespace == "" {
		return asked, nil
	}
	if asked != "" && asked != c.e.Namespace {
		return "", &host.RefusedError{Reason: fmt.Sprintf("plugin %q of namespace %s may not read namespace %s", c.e.Name, c.e.Namespace, asked)}
	}
	return c.e.Namespace, nil
}

// covering finds the grant that covers an object, or a list where name is "".
func (c *Caller) covering(r Resource, namespace, name string) (*manifest.ReadGrant, error) {
	for i := range c.e.Grants.Read {
		if g := &c.e.Grants.Read[i]; covers(g, r, namespace, name) {
			return g, nil
		}
	}
	group := ""
	if r.Group != "" {
		group = "apiGroups: [" + r.Group + "], "
	}
	in := ""
	if namespace != "" {
		in = " in namespace " + namespace
	}
	return nil, c.refused("read "+r.Resource+in, fmt.Sprintf("read: [{%sresources: [%s]}]", group, r.Resource))
}

// mayRead: what a plugin of the API reads, its writer may read.
func (c *Caller) mayRead(ctx context.Context, r Resource, namespace, verb, name string) error {
	return c.may(ctx, authorizationv1.ResourceAttributes{
		Verb: verb, Group: r.Group, Version: r.Version, Resource: r.Resource, Namespace: namespace, Name: name,
	})
}

// mayList: objects that the grant names are read one by one, as far as rights go.
func (c *Caller) mayList(ctx context.Context, r Resource, namespace string, g *manifest.ReadGrant) error {
	for _, name := range g.Names {
		if err := c.mayRead(ctx, r, namespace, "get", name); err != nil {
			return err
		}
	}
	if len(g.Names) > 0 {
		return nil
	}
	return c.mayRead(ctx, r, namespace, "list", "")
}

func covers(g *manifest.ReadGrant, r Resource, namespace, name string) bool {
	if len(g.APIGroups) == 0 && r.Group != "" || len(g.APIGroups) > 0 && !slices.Contains(g.APIGroups, r.Group) && !slices.Contains(g.APIGroups, "*") {
		return false
	}
	secret := r.Group == "" && r.Resource == "secrets"
	if !slices.Contains(g.Resources, r.Resource) && (secret || !slices.Contains(g.Resources, "*")) {
		return false
	}
	if len(g.Namespaces) > 0 && !slices.Contains(g.Namespaces, namespace) {
		return false
	}
	return name == "" || len(g.Names) == 0 || slices.Contains(g.Names, name)
}

func named(g *manifest.ReadGrant, o runtime.Object) bool {
	m, err := meta.Accessor(o)
	return err == nil && slices.Contains(g.Names, m.GetName())
}

// mask writes the fields of an object that were asked for and granted.
type mask struct{ projection *abi.Projection }

var writers = sync.Pool{New: func() any { return new(abi.Writer) }}

func (m mask) encode(o runtime.Object, r Resource) json.RawMessage {
	w := writers.Get().(*abi.Writer)
	m.projection.Write(w, &abi.Object{Object: o, GVK: r.GVK()}, r.Kind)
	b := slices.Clone(w.Bytes())
	writers.Put(w)
	return b
}

// mask is what was asked for, held against what the grant opens.
func (c *Caller) mask(g *manifest.ReadGrant, asked []string) (mask, error) {
	if len(asked) > 64 {
		return mask{}, fmt.Errorf("fields: %d paths: at most 64 are allowed", len(asked))
	}
	want := asked
	if len(want) == 0 {
		want = g.Fields
	}
	p, err := c.f.masks.of(want)
	if err != nil {
		return mask{}, fmt.Errorf("fields: %w", err)
	}
	if len(g.Fields) == 0 || len(asked) == 0 {
		return mask{p}, nil
	}
	for _, a := range asked {
		if !within(a, g.Fields) {
			return mask{}, c.refused(fmt.Sprintf("read the field %s of %s", a, strings.Join(g.Resources, ", ")), "read[].fields")
		}
	}
	return mask{p}, nil
}

func within(asked string, granted []string) bool {
	a, err := abi.ParsePath(asked)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(granted, func(text string) bool {
		p, err := abi.ParsePath(text)
		return err == nil && a.Within(p)
	})
}

// masks keeps compiled masks: plugins ask for the same few again and again.
type masks struct {
	mu   sync.Mutex
	made map[string]*abi.Projection
}

// mostMasks bounds what plugins can make the process keep.
const mostMasks = 256

func (m *masks) of(paths []string) (*abi.Projection, error) {
	key := strings.Join(paths, "\n")
	m.mu.Lock()
	defer m.mu.Unlock()
	if p := m.made[key]; p != nil {
		return p, nil
	}
	p, err := abi.NewMask(paths)
	if err != nil {
		return nil, err
	}
	if m.made == nil || len(m.made) >= mostMasks {
		m.made = map[string]*abi.Projection{}
	}
	m.made[key] = p
	return p, nil
}

// get and list are the calls of the plugins' own ABI: their replies hold the
// encoded objects as they are, without another pass over them.
func (c *Caller) get(ctx context.Context, input []byte) ([]byte, error) {
	var q GetRequest
	if err := decode(input, &q); err != nil {
		return nil, err
	}
	reply, err := c.GetObject(ctx, q)
	if err != nil {
		return nil, err
	}
	out := fmt.Appendf(nil, `{"resourceVersion":%q,"object":`, reply.ResourceVersion)
	if reply.Object == nil {
		return append(out, "null}"...), nil
	}
	return append(append(out, reply.Object...), '}'), nil
}

func (c *Caller) list(ctx context.Context, input []byte) ([]byte, error) {
	var q ListRequest
	if err := decode(input, &q); err != nil {
		return nil, err
	}
	reply, err := c.ListObjects(ctx, q)
	if err != nil {
		return nil, err
	}
	out := fmt.Appendf(nil, `{"resourceVersion":%q,"more":%t,"items":[`, reply.ResourceVersion, reply.More)
	for i, item := range reply.Items {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, item...)
	}
	return append(out, "]}"...), nil
}
