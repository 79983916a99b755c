// SPDX-License-Identifier: Apache-2.0

package render_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/wasmplane/wasmplane/core/chart/charttest"
	"github.com/wasmplane/wasmplane/core/chart/render"
)

func TestMain(m *testing.M) {
	render.MaybeRun()
	os.Exit(m.Run())
}

func renderer(t *testing.T, l render.Limits) *render.Renderer {
	t.Helper()
	l.Deadline = time.Hour // the machine may be busy
	r, err := render.New(l)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func order(values ...string) render.Order {
	return render.Order{
		Release: "front", Namespace: "shop", Revision: 3, Values: values, KubeVersion: "v1.37.1", APIVersions: []string{"v1", "apps/v1"},
	}
}

const configMap = `apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ .Release.Name }}"}
data: {greeting: {{ .Values.greeting | quote }}, revision: "{{ .Release.Revision }}"}
`

func TestAChartBecomesObjects(t *testing.T) {
	chart := charttest.Chart(t, map[string]string{
		"values.yaml":                "greeting: hello\n",
		"crds/shelf.yaml":            "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: shelves.shop.io}\n",
		"templates/config.yaml":      configMap,
		"templates/_helper.tpl":      `{{ define "nothing" }}{{ end }}`,
		"templates/NOTES.txt":        "Go to {{ .Values.greeting }}",
		"templates/z-namespace.yaml": "apiVersion: v1\nkind: Namespace\nmetadata: {name: other}\n",
		"templates/hook.yaml": "apiVersion: batch/v1\nkind: Job\nmetadata: {name: prepare, annotations: {helm.sh/hook: \"pre-install,pre-upgrade\"," +
			" helm.sh/hook-weight: \"-2\", helm.sh/hook-delete-policy: hook-succeeded}}\n",
	})
	r := renderer(t, render.Limits{})
	got, err := r.Render(t.Context(), chart, order("greeting: hi\nmore: 1\n", `{"more": 2}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	if got.Name != "shop" || got.Version != "1.0.0" || got.AppVersion != "7" || got.Notes != "Go to hi" || len(got.CRDs) != 1 ||
		string(got.Config) != `{"greeting":"hi","more":2}` {
		t.Errorf("%+v", got)
	}
	if strings.Index(got.Manifest, "kind: Namespace") > strings.Index(got.Manifest, "kind: ConfigMap") {
		t.Error("not in the order in which objects are installed: " + got.Manifest)
	}
	if len(got.Hooks) != 1 || got.Hooks[0].Weight != -2 || len(got.Hooks[0].Events) != 2 || !got.Hooks[0].Deletes("hook-succeeded") {
		t.Errorf("hooks: %+v", got.Hooks)
	}
	lists, err := r.Objects(t.Context(), []string{got.Manifest, got.Hooks[0].Manifest})
	if err != nil || len(lists) != 2 || len(lists[0]) != 2 || len(lists[1]) != 1 ||
		!strings.Contains(string(lists[0][1]), `"greeting":"hi","revision":"3"`) {
		t.Errorf("%s, %v", lists, err)
	}
}

func TestLookupsAreTheAccountsAndBounded(t *testing.T) {
	chart := charttest.Chart(t, map[string]string{"templates/c.yaml": `apiVersion: v1
kind: ConfigMap
metadata: {name: c}
data:
  one: {{ (lookup "v1" "Secret" "shop" "key").data.x | quote }}
  none: {{ empty (lookup "v1" "Secret" "shop" "missing") | quote }}
  many: {{ len (lookup "v1" "Node" "" "").items | quote }}
`})
	var asked []render.Lookup
	look := func(_ context.Context, l render.Lookup) render.Answer {
		asked = append(asked, l)
		switch l.Name {
		case "key":
			return render.Answer{Object: []byte(`{"data":{"x":"y"}}`)}
		case "":
			return render.Answer{Object: []byte(`{"kind":"NodeList","apiVersion":"v1","items":[{"kind":"Node"},{"kind":"Node"}]}`)}
		}
		return render.Answer{}
	}
	r := renderer(t, render.Limits{Lookups: 3})
	got, err := r.Render(t.Context(), chart, order(), look)
	if err != nil || !strings.Contains(got.Manifest, `one: "y"`) || !strings.Contains(got.Manifest, `none: "true"`) ||
		!strings.Contains(got.Manifest, `many: "2"`) || len(asked) != 3 {
		t.Fatalf("%+v, %v, asked %v", got, err, asked)
	}
	_, err = r.Render(t.Context(), chart, order(), func(context.Context, render.Lookup) render.Answer {
		return render.Answer{Error: "secrets is forbidden"}
	})
	if err == nil || !strings.Contains(err.Error(), "secrets is forbidden") {
		t.Errorf("a refused lookup: %v", err)
	}
	_, err = renderer(t, render.Limits{Lookups: 2}).Render(t.Context(), chart, order(), look)
	expensive(t, "many lookups", err, "more than 2 objects")
	_, err = renderer(t, render.Limits{Looked: 40}).Render(t.Context(), chart, order(), look)
	expensive(t, "large lookups", err, "more than 40 bytes")
}

func expensive(t *testing.T, what string, err error, want string) {
	t.Helper()
	var e *render.TooExpensiveError
	if !errors.As(err, &e) || !strings.Contains(err.Error(), want) {
		t.Errorf("%s: %v, want %q", what, err, want)
	}
}

// endless is a body of zeros.
type endless struct{}

func (endless) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

func TestHostileChartsCostTheirChildOnly(t *testing.T) {
	template := func(text string) []byte { return charttest.Chart(t, map[string]string{"templates/x.yaml": text}) }
	file := tar.Header{Name: "shop/Chart.yaml", Size: 10}
	for name, c := range map[string]struct {
		chart     []byte
		limits    render.Limits
		expensive bool
		want      string
	}{
		"a loop": {
			template(`{{ range $i := until 100000 }}{{ range $j := until 100000 }}{{ $x := mul $i $j }}{{ end }}{{ end }}`),
			render.Limits{CPU: 2e9},
			true, "2s of processor time",
		},
		"a bomb of memory": {template(`{{ $x := repeat 100000000 "0123456789" }}{{ len (cat $x $x $x) }}`), render.Limits{}, true, "MiB of memory"},
		"a bomb of text":   {template(`{{ range until 30 }}{{ repeat 1000000 "#" }}{{ end }}`), render.Limits{}, true, "at most"},
		"endless recursion": {
			template(`{{ define "a" }}{{ template "a" }}{{ end }}{{ template "a" }}`), render.Limits{}, true, "MiB of memory",
		},
		"a bomb of aliases": {template("a: &a [x,x,x,x,x,x,x,x,x]\n" + aliases()), render.Limits{CPU: 5e9}, false, "aliasing"},
		"too many objects": {
			template("{{ range until 20 }}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: c{{ . }}}\n{{ end }}"),
			render.Limits{Objects: 10},
			false, "more objects than are allowed",
		},
		"files of the host":       {template(`{{ .Files.Get "/etc/passwd" }}{{ .Files.Get "../../../etc/passwd" }}{{ env "HOME" }}`), render.Limits{}, false, `function "env" not defined`},
		"a name that leads out":   {charttest.Archive(t, []tar.Header{{Name: "shop/../../etc/x", Size: 1}}, strings.NewReader("x")), render.Limits{}, false, "parent directory"},
		"an absolute name":        {charttest.Archive(t, []tar.Header{{Name: "shop//etc/x", Size: 1}}, strings.NewReader("x")), render.Limits{}, false, "absolute"},
		"a link":                  {charttest.Archive(t, []tar.Header{{Name: "shop/x", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"}}), render.Limits{}, false, "is a link"},
		"a hard link":             {charttest.Archive(t, []tar.Header{{Name: "shop/x", Typeflag: tar.TypeLink, Linkname: "/etc/passwd"}}), render.Limits{}, false, "is a link"},
		"a device":                {charttest.Archive(t, []tar.Header{{Name: "shop/x", Typeflag: tar.TypeBlock}}), render.Limits{}, false, "neither file"},
		"a huge file":             {charttest.Archive(t, []tar.Header{{Name: "shop/x", Size: 100 << 20}}, io.LimitReader(endless{}, 100<<20)), render.Limits{}, false, "unpacked it has more than"},
		"many files":              {charttest.Archive(t, make20(file)), render.Limits{Files: 10}, false, "more than 10 files"},
		"no archive":              {[]byte("hello"), render.Limits{}, false, "no packed chart"},
		"no chart":                {charttest.Archive(t, []tar.Header{{Name: "shop/x", Size: 1}}, strings.NewReader("x")), render.Limits{}, false, "Chart.yaml"},
		"a library":               {charttest.Chart(t, map[string]string{"Chart.yaml": "apiVersion: v2\nname: shop\nversion: 1.0.0\ntype: library\n"}), render.Limits{}, false, "type library"},
		"a missing dependency":    {charttest.Chart(t, map[string]string{"Chart.yaml": "apiVersion: v2\nname: shop\nversion: 1.0.0\ndependencies: [{name: db, version: 1.0.0}]\n"}), render.Limits{}, false, "lacks the chart db"},
		"another Kubernetes":      {charttest.Chart(t, map[string]string{"Chart.yaml": "apiVersion: v2\nname: shop\nversion: 1.0.0\nkubeVersion: \"<1.20\"\n"}), render.Limits{}, false, "is for Kubernetes <1.20"},
		"no object":               {template("hello: world"), render.Limits{}, false, "no object with apiVersion"},
		"a failure":               {template(`{{ fail "set .Values.domain" }}`), render.Limits{}, false, "set .Values.domain"},
		"what the schema refuses": {charttest.Chart(t, map[string]string{"values.schema.json": `{"required":["domain"]}`}), render.Limits{}, false, "domain"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := renderer(t, c.limits).Render(t.Context(), c.chart, order(), nil)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("%v, want %q", err, c.want)
			}
			var e *render.TooExpensiveError
			if errors.As(err, &e) != c.expensive {
				t.Errorf("%T: %v", err, err)
			}
		})
	}
}

func make20(h tar.Header) []tar.Header {
	h.Size = 0
	out := make([]tar.Header, 20)
	for i := range out {
		out[i] = h
	}
	return out
}

func aliases() string {
	var b strings.Builder
	last := "a"
	for i := range 12 {
		next := fmt.Sprintf("b%d", i)
		fmt.Fprintf(&b, "%s: &%s [%s]\n", next, next, strings.TrimSuffix(strings.Repeat("*"+last+",", 9), ","))
		last = next
	}
	return b.String()
}

// A schema may name another by its address; the child has no network, and no files.
func TestAChildReachesNothing(t *testing.T) {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	secret := t.TempDir() + "/secret.json"
	if err := os.WriteFile(secret, []byte(`{"type":"object"}`), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, ref := range []string{"http://" + l.Addr().String() + "/x", "file://" + secret} {
		chart := charttest.Chart(t, map[string]string{"values.schema.json": `{"$ref":"` + ref + `"}`})
		if got, err := renderer(t, render.Limits{}).Render(t.Context(), chart, order(), nil); err == nil {
			t.Errorf("%s: %+v", ref, got)
		}
	}
}

func TestFind(t *testing.T) {
	index := []byte(`apiVersion: v1
entries:
  shop:
  - {version: 1.2.0, digest: aa, urls: [shop-1.2.0.tgz]}
  - {version: 2.0.0-rc.1, urls: [shop-2.0.0-rc.1.tgz]}
  - {version: 1.10.0, urls: ["https://elsewhere/shop-1.10.0.tgz"]}
  - {version: v1.3.0, urls: []}
`)
	r := renderer(t, render.Limits{})
	for version, want := range map[string]string{
		"": "1.10.0", "1.2.0": "1.2.0", "~1.2": "1.2.0", ">=2.0.0-0": "2.0.0-rc.1", "2.0.0-rc.1": "2.0.0-rc.1",
		"3": "no version 3", "x y": "neither",
	} {
		got, err := r.Find(t.Context(), false, index, "shop", version)
		if err != nil && !strings.Contains(err.Error(), want) || err == nil && got.Version != want {
			t.Errorf("%q: %+v, %v; want %s", version, got, err, want)
		}
		if want == "1.2.0" && got.Digest != "sha256:aa" {
			t.Errorf("%+v", got)
		}
	}
	for _, bad := range []string{"entries: [", "entries: {}", "a: &a [1]\n" + aliases()} {
		if got, err := r.Find(t.Context(), true, []byte(bad), "shop", ""); err == nil {
			t.Errorf("%q: %+v", bad, got)
		}
	}
}

func TestOneThatIsCancelledEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	chart := charttest.Chart(t, map[string]string{"templates/x.yaml": `{{ lookup "v1" "Pod" "a" "b" }}`})
	_, err := renderer(t, render.Limits{}).Render(ctx, chart, order(), func(context.Context, render.Lookup) render.Answer {
		cancel()
		return render.Answer{Object: json.RawMessage(`{}`)}
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func TestTheStreamOfAChildIsBounded(t *testing.T) {
	_, err := renderer(t, render.Limits{}).Objects(t.Context(), []string{string(bytes.Repeat([]byte("#"), 65<<20))})
	expensive(t, "a large manifest", err, "at most")
}

// A tenant's chart that takes its time holds up other tenants, and no operator.
func TestTenantsHoldUpNoOperator(t *testing.T) {
	r := renderer(t, render.Limits{})
	chart := charttest.Chart(t, map[string]string{"templates/x.yaml": `{{ if lookup "v1" "Pod" "a" "b" }}{{ end }}`})
	theirs := order()
	theirs.Tenant = true
	began, goOn, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		_, err := r.Render(t.Context(), chart, theirs, func(context.Context, render.Lookup) render.Answer {
			close(began)
			<-goOn
			return render.Answer{}
		})
		done <- err
	}()
	<-began
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := r.Render(t.Context(), chart, order(), func(context.Context, render.Lookup) render.Answer {
		cancel() // an operator's chart is rendered meanwhile
		return render.Answer{}
	}); err != nil {
		t.Error(err)
	}
	if _, err := r.Render(ctx, chart, theirs, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("another tenant does not wait: %v", err)
	}
	close(goOn)
	if err := <-done; err != nil {
		t.Error(err)
	}
}
