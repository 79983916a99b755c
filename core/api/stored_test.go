// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/wasmplane/wasmplane/core/api/envelope"
	"github.com/wasmplane/wasmplane/core/api/live"
	"github.com/wasmplane/wasmplane/core/api/ownership"
	"github.com/wasmplane/wasmplane/core/object"
)

// upstreamStored is one entry of upstream's test of what its server stores where.
type upstreamStored struct{ stub, path, gvk string }

// upstreamStorage reads the table of test/integration/etcd/data.go.
func upstreamStorage(t *testing.T) map[schema.GroupVersionResource]upstreamStored {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "data.go", upstreamFile(t, "test/integration/etcd/data.go"), 0)
	if err != nil {
		t.Fatal(err)
	}
	out := map[schema.GroupVersionResource]upstreamStored{}
	ast.Inspect(file, func(n ast.Node) bool {
		entry, ok := n.(*ast.KeyValueExpr)
		if !ok {
			return true
		}
		gvr, value := words(entry.Key), entry.Value
		body, ok := value.(*ast.CompositeLit)
		if !ok || len(gvr) != 3 {
			return true
		}
		var s upstreamStored
		for _, e := range body.Elts {
			kv := e.(*ast.KeyValueExpr)
			switch kv.Key.(*ast.Ident).Name {
			case "Stub":
				s.stub = text(kv.Value)
			case "ExpectedEtcdPath":
				s.path = text(kv.Value)
			case "ExpectedGVK":
				s.gvk = strings.Join(words(kv.Value), "/")
			}
		}
		out[schema.GroupVersionResource{Group: gvr[0], Version: gvr[1], Resource: gvr[2]}] = s
		return false
	})
	return out
}

// words are the arguments of a call such as gvr("apps", "v1", "deployments").
func words(e ast.Expr) []string {
	call, ok := e.(*ast.CallExpr)
	if !ok {
		return nil
	}
	var out []string
	for _, a := range call.Args {
		out = append(out, text(a))
	}
	return out
}

// text evaluates string literals and their sums.
func text(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		s, _ := strconv.Unquote(e.Value)
		return s
	case *ast.BinaryExpr:
		return text(e.X) + text(e.Y)
	case *ast.Ident:
		return map[string]string{"image": "image:1", "namespace": "etcdstoragepathtestnamespace"}[e.Name]
	}
	return ""
}

type allowAll struct{}

func (allowAll) Authorize(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
	return authorizer.DecisionAllow, "", nil
}

// Every stored row takes the object that upstream's own storage test posts:
// decoded strictly, prepared and validated by its strategy, it is stored under
// upstream's key in upstream's version, and comes back as it was.
func TestRowsStoreWhatUpstreamStores(t *testing.T) {
	c := newContract(t)
	c.Connect(live.Server{Authorizer: allowAll{}})
	upstream := upstreamStorage(t)
	for _, r := range c.Resources() {
		for _, version := range r.Versions {
			gvr := r.GroupResource.WithVersion(version)
			entry, ok := upstream[gvr]
			if r.Virtual {
				continue
			}
			t.Run(strings.ReplaceAll(gvr.String(), " ", ""), func(t *testing.T) {
				if !ok {
					t.Fatal("upstream's table has no such resource")
				}
				story := rowStory{t: t, c: c, r: r, version: version, upstream: entry}
				story.run()
			})
		}
	}
}

type rowStory struct {
	t        *testing.T
	c        *Contract
	r        *Resource
	version  string
	upstream upstreamStored
}

const testNamespace = "etcdstoragepathtestnamespace"

func (s rowStory) run() {
	t, c, r := s.t, s.c, s.r
	codec := r.Codec(s.version)
	// Three of upstream's objects have unknown fields, which are ignored.
	stub := strings.Replace(s.upstream.stub, `"Value"`, `"value"`, 1)
	versioned, _, err := c.DecodeStrict(r, s.version, []byte(stub), object.JSON)
	if err != nil {
		t.Fatalf("decode: %v", err)
	}
	codec.Default(versioned)
	internal, err := codec.Internal(versioned)
	if err != nil {
		t.Fatal(err)
	}
	ns := ""
	if r.Namespaced {
		ns = testNamespace
	}
	ctx := StrategyContext(t.Context(), StrategyInfo{Resource: r, Version: s.version, Namespace: ns, User: &user.DefaultInfo{Name: "tester"}})
	m := internal.(metav1.Object)
	m.SetNamespace(ns)
	rest.FillObjectMetaSystemFields(m)
	s.allocate(internal)
	if err := rest.BeforeCreate(r.Strategy, ctx, internal); err != nil {
		t.Fatalf("BeforeCreate: %v", err)
	}
	s.manage(internal)
	s.stored(internal, m)
	s.update(ctx, internal)
	s.print(ctx, internal)
}

// allocate does what the registry does for services.
func (s rowStory) allocate(internal runtime.Object) {
	if s.r.GroupResource.Resource != "services" {
		return
	}
	v, _ := s.r.Codec("v1").Versioned(internal)
	tree, _ := s.r.Codec("v1").ToTree(v)
	spec := tree["spec"].(map[string]any)
	spec["clusterIP"], spec["clusterIPs"] = "10.0.0.7", []any{"10.0.0.7"}
	spec["ipFamilies"], spec["ipFamilyPolicy"] = []any{"IPv4"}, "SingleStack"
	o, err := s.r.Codec("v1").FromTree(tree)
	if err != nil {
		s.t.Fatal(err)
	}
	if err := s.r.scheme.Convert(o, internal, nil); err != nil {
		s.t.Fatal(err)
	}
}

// manage: our field manager, which trusts Go structs, records of a create and
// of an update exactly what upstream's records.
func (s rowStory) manage(internal runtime.Object) {
	ours, err := s.c.FieldManager(s.r, s.version, "")
	if err != nil {
		s.t.Fatal(err)
	}
	upstreams := upstreamManager(s.t, s.c, s.r, s.version)
	changed := internal.DeepCopyObject()
	changed.(metav1.Object).SetLabels(map[string]string{"changed": "yes"})
	changed.(metav1.Object).SetFinalizers([]string{"example.com/a"})
	got := recordedFields(s.t, ours, s.r.New(), internal, changed)
	if diff := cmp.Diff(recordedFields(s.t, upstreams, s.r.New(), internal, changed), got); diff != "" {
		s.t.Errorf("managed fields (-upstream +ours):\n%s", diff)
	}
	managed := ours.UpdateNoErrors(s.r.New(), internal, "test")
	internal.(metav1.Object).SetManagedFields(managed.(metav1.Object).GetManagedFields())
}

// Items with the same key are allowed in a write, and refused in an apply.
func TestDuplicateKeysAreRefusedOnlyInApply(t *testing.T) {
	c := newContract(t)
	r := rowOf(t, c, "", "pods")
	codec := r.Codec("v1")
	state := func(body string) runtime.Object {
		o, _, err := c.DecodeStrict(r, "v1", []byte(body), object.JSON)
		if err != nil {
			t.Fatal(err)
		}
		codec.Default(o)
		internal, err := codec.Internal(o)
		if err != nil {
			t.Fatal(err)
		}
		return internal
	}
	twice := state(`{"metadata":{"name":"a"},"spec":{"containers":[{"name":"c","image":"i","env":[{"name":"A","value":"1"},{"name":"A","value":"2"},{"name":"B","value":"3"}]}]}}`)
	once := state(`{"metadata":{"name":"a"},"spec":{"containers":[{"name":"c","image":"i","env":[{"name":"A","value":"2"},{"name":"B","value":"4"}]}]}}`)
	ours, err := c.FieldManager(r, "v1", "")
	if err != nil {
		t.Fatal(err)
	}
	want := recordedFields(t, upstreamManager(t, c, r, "v1"), r.New(), twice, once, twice)
	if diff := cmp.Diff(want, recordedFields(t, ours, r.New(), twice, once, twice)); diff != "" {
		t.Errorf("managed fields (-upstream +ours):\n%s", diff)
	}
	applied, err := codec.ToTree(mustVersion(t, codec, twice))
	if err != nil {
		t.Fatal(err)
	}
	delete(applied, "status")
	if _, err := ours.Apply(r.New(), &unstructured.Unstructured{Object: applied}, "kubectl", false); err == nil || !strings.Contains(err.Error(), `duplicate entries for key [name="A"]`) {
		t.Errorf("apply of duplicates: %v", err)
	}
}

func mustVersion(t *testing.T, c object.Codec, o runtime.Object) runtime.Object {
	t.Helper()
	v, err := c.Versioned(o)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func upstreamManager(t *testing.T, c *Contract, r *Resource, version string) *managedfields.FieldManager {
	t.Helper()
	tc, err := c.TypeConverter(r)
	if err != nil {
		t.Fatal(err)
	}
	hub := schema.GroupVersion{Group: r.Group, Version: runtime.APIVersionInternal}
	fm, err := managedfields.NewDefaultFieldManager(tc.(*ownership.TrustingConverter).TypeConverter, r.scheme, r.scheme, r.scheme,
		r.GVK(version), hub, "", resetFilters(r.Strategy))
	if err != nil {
		t.Fatal(err)
	}
	return fm
}

// recordedFields are the entries after each of a row of writes by different managers.
func recordedFields(t *testing.T, fm ownership.Upstream, states ...runtime.Object) []string {
	t.Helper()
	var out []string
	live := states[0]
	for i, next := range states[1:] {
		next = next.DeepCopyObject()
		next.(metav1.Object).SetManagedFields(live.(metav1.Object).GetManagedFields())
		managed := fm.UpdateNoErrors(live.DeepCopyObject(), next, "manager"+strconv.Itoa(i))
		for _, e := range managed.(metav1.Object).GetManagedFields() {
			out = append(out, e.Manager+" "+string(e.Operation)+" "+e.APIVersion+" "+string(e.FieldsV1.GetRawBytes()))
		}
		live = managed
	}
	return out
}

func (s rowStory) stored(internal runtime.Object, m metav1.Object) {
	t, c, r := s.t, s.c, s.r
	key := "/registry/" + r.StoragePrefix + "/"
	if r.Namespaced {
		key += m.GetNamespace() + "/"
	}
	if key += m.GetName(); key != s.upstream.path {
		t.Errorf("key %s, upstream stores at %s", key, s.upstream.path)
	}
	want := s.upstream.gvk
	if want == "" {
		want = r.Group + "/" + s.version + "/" + r.Kind
	}
	if got := r.StorageVersion.Group + "/" + r.StorageVersion.Version + "/" + r.Kind; got != want {
		t.Errorf("stored as %s, upstream stores %s", got, want)
	}
	value, err := c.EncodeStorage(r, internal)
	if err != nil {
		t.Fatal(err)
	}
	if back := s.header(value); back != r.StorageVersion.WithKind(r.Kind) {
		t.Errorf("the value says %s", back)
	}
	o, l, f, err := c.WatchDecoder(r)(key, value, 42)
	if err != nil {
		t.Fatal(err)
	}
	s.same(internal, o)
	if diff := cmp.Diff(m.GetLabels(), map[string]string(l)); diff != "" && len(l) > 0 {
		t.Errorf("labels: %s", diff)
	}
	for _, label := range r.Selectable {
		selector, err := c.FieldSelector(r, s.version, fields.OneTermEqualSelector(label, "x"))
		if err != nil {
			t.Errorf("field %s is selectable but refused: %v", label, err)
			continue
		}
		to := selector.Requirements()[0].Field
		if label == "status.podIPs" {
			continue // accepted, and matches nothing: upstream's pods don't answer it
		}
		if _, has := f[to]; !has {
			t.Errorf("field %s (%s) is selectable but not among %v", label, to, f)
		}
	}
}

// header reads the kind off a stored value as any other reader would.
func (s rowStory) header(value []byte) schema.GroupVersionKind {
	if strings.HasPrefix(string(value), envelope.Prefix) {
		u := &runtime.Unknown{}
		if err := u.Unmarshal(value[len(envelope.Prefix):]); err != nil {
			s.t.Fatal(err)
		}
		return schema.FromAPIVersionAndKind(u.APIVersion, u.Kind)
	}
	m := tree(s.t, value)
	return schema.FromAPIVersionAndKind(m["apiVersion"].(string), m["kind"].(string))
}

// same compares as JSON, which cuts times as storing does. What is read back
// has been defaulted once more: a strategy may have emptied the status.
func (s rowStory) same(internal runtime.Object, o *object.Object) {
	back, err := o.Internal()
	if err != nil {
		s.t.Fatal(err)
	}
	for _, v := range s.r.Versions {
		codec := s.r.Codec(v)
		want := s.json(codec, internal)
		if diff := cmp.Diff(want, s.json(codec, back)); diff != "" {
			s.t.Errorf("%s came back different from the store:\n%s", v, diff)
		}
		for _, media := range []string{object.JSON, object.YAML, object.Protobuf} {
			if media == object.Protobuf && s.r.storageMedia == object.JSON {
				continue
			}
			out, err := codec.Versioned(internal)
			if err != nil {
				s.t.Fatal(err)
			}
			b, err := codec.Encode(out, media)
			if err != nil {
				s.t.Fatalf("encode %s as %s: %v", v, media, err)
			}
			again, err := codec.Decode(b, media)
			if err != nil {
				s.t.Fatalf("decode %s from %s: %v", v, media, err)
			}
			if diff := cmp.Diff(want, s.json(codec, again)); diff != "" {
				s.t.Errorf("%s through %s differs:\n%s", v, media, diff)
			}
		}
	}
}

func (s rowStory) json(codec object.Codec, o runtime.Object) map[string]any {
	o, err := codec.Versioned(o)
	if err != nil {
		s.t.Fatal(err)
	}
	o = o.DeepCopyObject()
	codec.Default(o)
	o.(metav1.Object).SetResourceVersion("")
	b, err := codec.Encode(o, object.JSON)
	if err != nil {
		s.t.Fatal(err)
	}
	return noEmpty(tree(s.t, b)).(map[string]any)
}

// noEmpty drops nulls and empty lists, which protobuf cannot tell apart.
func noEmpty(v any) any {
	m, ok := v.(map[string]any)
	if !ok {
		return v
	}
	for k, x := range m {
		if list, ok := x.([]any); x == nil || ok && len(list) == 0 {
			delete(m, k)
			continue
		}
		m[k] = noEmpty(x)
	}
	return m
}

// update: an object may be written back as it is, to itself and to its subresources.
func (s rowStory) update(ctx context.Context, internal runtime.Object) {
	internal.(metav1.Object).SetResourceVersion("7")
	if err := rest.BeforeUpdate(s.r.Strategy, ctx, internal.DeepCopyObject(), internal.DeepCopyObject()); err != nil {
		s.t.Errorf("BeforeUpdate: %v", err)
	}
	for name, sub := range s.r.Subresources {
		if sub.Strategy == nil {
			continue
		}
		ctx := StrategyContext(s.t.Context(), StrategyInfo{
			Resource: s.r, Version: s.version, Subresource: name, Namespace: internal.(metav1.Object).GetNamespace(),
			User: &user.DefaultInfo{Name: "tester"},
		})
		err := rest.BeforeUpdate(sub.Strategy, ctx, internal.DeepCopyObject(), internal.DeepCopyObject())
		if err != nil {
			s.t.Errorf("BeforeUpdate of %s: %v", name, err)
		}
		if _, err := s.c.FieldManager(s.r, s.version, name); err != nil {
			s.t.Error(err)
		}
	}
}

func (s rowStory) print(ctx context.Context, internal runtime.Object) {
	for _, q := range []TableRequest{
		{Version: s.version},
		{Version: s.version, TableOptions: metav1.TableOptions{IncludeObject: metav1.IncludeObject}},
		{Version: s.version, TableOptions: metav1.TableOptions{IncludeObject: metav1.IncludeNone, NoHeaders: true}},
	} {
		table, err := s.c.Table(ctx, s.r, q, []runtime.Object{internal, internal})
		if err != nil {
			s.t.Fatal(err)
		}
		if len(table.Rows) != 2 || (len(table.ColumnDefinitions) == 0) != q.NoHeaders {
			s.t.Errorf("table has %d rows, %d columns", len(table.Rows), len(table.ColumnDefinitions))
		}
	}
	if table, err := s.c.Table(ctx, s.r, TableRequest{Version: s.version}, nil); err != nil || len(table.ColumnDefinitions) == 0 {
		s.t.Errorf("empty table: %v %v", table, err)
	}
}
