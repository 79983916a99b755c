// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
)

// BenchmarkHostileRequests is what one request, made to cost as much as it can, costs the server. With HOSTILE=TEXT in the
// environment only the shapes are sent whose names contain the text.
func BenchmarkHostileRequests(b *testing.B) {
	for b.Loop() {
		measureHostile(b, 1, 1).publish(b)
	}
}

// hostile is one request that asks for more than it looks. The body has at most what the server takes.
type hostile struct {
	what         string
	method, path string
	media        string // JSON, if empty
	body         string
	before       []hostile // what is there before, not measured
}

// list is n entries by a format with their number, in order, with a comma between.
func list(n int, format string) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, format, i)
	}
	return b.String()
}

const (
	strategic = "application/strategic-merge-patch+json"
	applied   = "application/apply-patch+yaml"
	jsonOps   = "application/json-patch+json"
	yamlText  = "application/yaml"
)

// hostiles are the shapes; n is about 1,000 for the sizes that fill a request.
func hostiles(n int) []hostile {
	const maps, pods = "/api/v1/namespaces/default/configmaps", "/api/v1/namespaces/default/pods"
	pod := func(name, spec string) string {
		return `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"` + name + `"},"spec":{"containers":[{"name":"c","image":"x"` + spec + `}]}}`
	}
	whole := func(name, spec string) string {
		return `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"` + name + `"},"spec":{` + spec + `,"containers":[{"name":"c","image":"x"}]}}`
	}
	cm := func(name, data string) string {
		return `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"` + name + `"},"data":{` + data + `}}`
	}
	create := func(what, path, body string) hostile {
		return hostile{what: what, method: "POST", path: path, body: body}
	}
	const crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	crd := func(plural, kind, schema, more string) string {
		return `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"` + plural + `.bench.example"},
			"spec":{"group":"bench.example","scope":"Namespaced","names":{"plural":"` + plural + `","kind":"` + kind + `"},
			"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":` + schema + `}}}` + more + `}]}}`
	}
	custom := func(plural, kind, spec string) hostile {
		return create("", "/apis/bench.example/v1/namespaces/default/"+plural,
			`{"apiVersion":"bench.example/v1","kind":"`+kind+`","metadata":{"generateName":"x"},"spec":`+spec+`}`)
	}
	with := func(what string, h hostile, before ...hostile) hostile { h.what, h.before = what, before; return h }
	deep := strings.Repeat("[", 30*n)
	return append([]hostile{
		create("a map of small keys", maps, cm("keys", list(60*n, `"k%d":""`))),
		create("a pod of environment variables", pods, pod("env", `,"env":[`+list(30*n, `{"name":"E%d"}`)+`]`)),
		create("variables that refer to others", pods, pod("refer", `,"env":[`+list(15*n, `{"name":"E%d","value":"$(A)$(B)$(C)$(D)$(E)$(F)"}`)+`]`)),
		create("a pod of containers", pods, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"many"},"spec":{"containers":[`+list(20*n, `{"name":"c%d","image":"x"}`)+`]}}`),
		create("a pod of ports", pods, pod("ports", `,"ports":[`+list(20*n, `{"containerPort":%d}`)+`]`)),
		create("a pod of host ports", pods, pod("hostports", `,"ports":[`+list(15*n, `{"containerPort":1,"hostPort":%d}`)+`]`)),
		create("a pod of volumes and mounts", pods, whole("volumes", `"volumes":[`+list(30*n, `{"name":"v%d","emptyDir":{}}`)+`]`)),
		create("tolerations", pods, whole("tolerations", `"tolerations":[`+list(30*n, `{"key":"k%d","operator":"Exists"}`)+`]`)),
		create("affinity of many terms", pods, whole("affinity", `"affinity":{"podAffinity":{"preferredDuringSchedulingIgnoredDuringExecution":[`+
			list(8*n, `{"weight":1,"podAffinityTerm":{"topologyKey":"k%d","namespaceSelector":{},"labelSelector":{}}}`)+`]}}`)),
		create("spread of many keys", pods, whole("spread", `"topologySpreadConstraints":[`+
			list(8*n, `{"maxSkew":1,"topologyKey":"k%d","whenUnsatisfiable":"ScheduleAnyway","labelSelector":{}}`)+`]`)),
		create("unknown fields, warned of", maps+"?fieldValidation=Warn", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"unknown"},`+list(100*n, `"x%d":0`)+`}`),
		create("duplicate fields, warned of", maps+"?fieldValidation=Warn", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"twice"},`+list(100*n, `"kind":"ConfigMap","x%d":0`)+`}`),
		create("a list in lists", maps, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"deep"},"x":`+deep+strings.Repeat("]", 30*n)+`}`),
		{what: "YAML: a list in lists", method: "POST", path: maps, media: yamlText, body: "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: deepyaml}\nx: " + deep + strings.Repeat("]", 30*n)},
		{what: "YAML: lists by indentation", method: "POST", path: maps, media: yamlText, body: "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: dashes}\nx: " + strings.Repeat("\n- ", 1) + strings.Repeat("- ", 500*n)},
		{what: "YAML: keys of keys", method: "POST", path: maps, media: yamlText, body: "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: q}\nx:\n  " + strings.Repeat("? ", 500*n)},
		{what: "YAML: anchors and aliases", method: "POST", path: maps, media: yamlText, body: "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: alias}\na: &a [x,x,x,x,x,x,x,x,x,x]\n" +
			"b: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c]\ne: [*d,*d,*d,*d,*d,*d,*d,*d]\n"},
		{what: "YAML: many anchors", method: "POST", path: maps, media: yamlText, body: "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: anchors}\nx:\n" + strings.ReplaceAll(list(60*n, "- &a%d x"), ",", "\n")},
		{what: "YAML: merges of a map", method: "POST", path: maps, media: yamlText, body: "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: merges}\nb: &b {" + list(10*n, "k%d: x") + "}\nx:\n" + strings.ReplaceAll(list(10*n, "- {<<: *b, y: %d}"), "},", "}\n")},
		{what: "YAML: quotes that open", method: "POST", path: maps, media: yamlText, body: "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: quotes}\nx: \"" + strings.Repeat(`\x41`, 600*n) + `"`},
		{what: "YAML: a plain text of lines", method: "POST", path: maps, media: yamlText, body: "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: lines}\ndata:\n  x: a" + strings.Repeat("\n   b", 400*n)},
		{what: "YAML: a map of keys", method: "POST", path: maps, media: yamlText, body: "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: ykeys}\ndata: {" + list(60*n, "k%d: ''") + "}"},
		{
			what: "strategic merge: a thousand among many", method: "PATCH", path: pods + "/sm1", media: strategic,
			body:   `{"spec":{"containers":[{"name":"c","env":[` + list(n, `{"name":"N%d"}`) + `]}]}}`,
			before: []hostile{create("", pods, pod("sm1", `,"env":[`+list(9*n, `{"name":"E%d"}`)+`]`))},
		},
		{
			what: "strategic merge: an order of many", method: "PATCH", path: pods + "/sm2", media: strategic,
			body:   `{"spec":{"$setElementOrder/containers":[` + list(60*n, `{"name":"c%d"}`) + `],"containers":[{"name":"c","image":"y"}]}}`,
			before: []hostile{create("", pods, pod("sm2", ""))},
		},
		{
			what: "strategic merge: deletions that are not there", method: "PATCH", path: pods + "/sm3", media: strategic,
			body:   `{"spec":{"tolerations":[` + list(9*n, `{"key":"k%d","$patch":"delete"}`) + `]}}`,
			before: []hostile{create("", pods, whole("sm3", `"tolerations":[`+list(n, `{"key":"k%d","operator":"Exists"}`)+`]`))},
		},
		{
			what: "strategic merge: finalizers to delete", method: "PATCH", path: maps + "/sm4", media: strategic,
			body:   `{"metadata":{"$deleteFromPrimitiveList/finalizers":[` + list(100*n, `"a/b%d"`) + `],"$setElementOrder/finalizers":[` + list(60*n, `"a/b%d"`) + `]}}`,
			before: []hostile{create("", maps, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"sm4","finalizers":[`+list(min(n, 1000), `"example.com/f%d"`)+`]}}`)},
		},
		{what: "apply: a pod of environment variables", method: "PATCH", path: pods + "/apply1?fieldManager=a&force=true", media: applied, body: pod("apply1", `,"env":[`+list(18*n, `{"name":"E%d"}`)+`]`)},
		{what: "apply: the same by another manager", method: "PATCH", path: pods + "/apply1?fieldManager=b&force=true", media: applied, body: pod("apply1", `,"env":[`+list(18*n, `{"name":"E%d"}`)+`]`)},
		{
			what: "apply: conflicts in all", method: "PATCH", path: maps + "/apply2?fieldManager=b", media: applied, body: cm("apply2", list(18*n, `"k%d":"2"`)),
			before: []hostile{{method: "PATCH", path: maps + "/apply2?fieldManager=a", media: applied, body: cm("apply2", list(18*n, `"k%d":"1"`))}},
		},
		{
			what: "apply: a list that is given up", method: "PATCH", path: pods + "/apply3?fieldManager=a", media: applied, body: pod("apply3", `,"env":[{"name":"A"}]`),
			before: []hostile{{method: "PATCH", path: pods + "/apply3?fieldManager=a", media: applied, body: pod("apply3", `,"env":[`+list(18*n, `{"name":"E%d"}`)+`]`)}},
		},
		{
			what: "JSON patch: tests of a large object", method: "PATCH", path: maps + "/jp1", media: jsonOps, body: `[` + list(9*n, `{"op":"test","path":"/data/k%d","value":""}`) + `]`,
			before: []hostile{create("", maps, cm("jp1", list(18*n, `"k%d":""`)))},
		},
		{
			what: "JSON patch: tests of the whole", method: "PATCH", path: maps + "/jp2", media: jsonOps, body: `[` + strings.Repeat(`{"op":"test","path":"/data/nothing","value":null},`, 9*n) + `{"op":"add","path":"/data/y","value":"z"}]`,
			before: []hostile{create("", maps, cm("jp2", list(18*n, `"k%d":""`)))},
		},
		{
			what: "JSON patch: moves", method: "PATCH", path: maps + "/jp3", media: jsonOps, body: `[` + strings.Repeat(`{"op":"move","from":"/data","path":"/binaryData"},{"op":"move","from":"/binaryData","path":"/data"},`, 4*n) + `{"op":"add","path":"/data/y","value":"z"}]`,
			before: []hostile{create("", maps, cm("jp3", list(18*n, `"k%d":""`)))},
		},
		{what: "labels that are one of many", method: "GET", path: maps + "?labelSelector=" + url.QueryEscape("a in ("+list(60*n, "v%d")+")")},
		{what: "many label requirements", method: "GET", path: maps + "?labelSelector=" + url.QueryEscape(list(50*n, "a%d"))},
		{what: "many field requirements", method: "GET", path: maps + "?fieldSelector=" + url.QueryEscape(list(30*n, "metadata.name!=a%d"))},
		create("a policy of blocks and exceptions", "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies", `{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"np"},
			"spec":{"podSelector":{},"ingress":[{"from":[`+list(5*n, `{"ipBlock":{"cidr":"fd00::/8","except":["fd00::%[1]x/128","fd01::%[1]x/128"]}}`)+`]}]}}`),
		create("an ingress of rules", "/apis/networking.k8s.io/v1/namespaces/default/ingresses", `{"apiVersion":"networking.k8s.io/v1","kind":"Ingress","metadata":{"name":"in"},
			"spec":{"rules":[`+list(20*n, `{"host":"h%d.example.com"}`)+`]}}`),
		create("a service of ports", "/api/v1/namespaces/default/services", `{"apiVersion":"v1","kind":"Service","metadata":{"name":"ports"},"spec":{"selector":{"a":"b"},"ports":[`+list(20*n, `{"name":"p%[1]d","port":%[1]d}`)+`]}}`),
		create("a service of node ports", "/api/v1/namespaces/default/services", `{"apiVersion":"v1","kind":"Service","metadata":{"name":"nodeports"},"spec":{"type":"NodePort","selector":{"a":"b"},"ports":[`+list(3*n, `{"name":"p%[1]d","port":1%[1]d}`)+`]}}`),
		create("a role whose rules multiply", "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles?tenant", `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"Role","metadata":{"name":"product"},
			"rules":[{"verbs":[`+list(n/3, `"v%d"`)+`],"apiGroups":[`+list(n/3, `"g%d"`)+`],"resources":[`+list(n/3, `"r%d"`)+`]}]}`),
		create("a role of many rules", "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles?tenant", `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"Role","metadata":{"name":"long"},
			"rules":[`+list(10*n, `{"verbs":["get"],"apiGroups":[""],"resources":["r%d"]}`)+`]}`),
		create("a binding of subjects", "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings", `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"RoleBinding","metadata":{"name":"subjects"},
			"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"view"},"subjects":[`+list(12*n, `{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"u%d"}`)+`]}`),
		create("a review for many groups", "/apis/authorization.k8s.io/v1/subjectaccessreviews", `{"apiVersion":"authorization.k8s.io/v1","kind":"SubjectAccessReview",
			"spec":{"user":"u","groups":[`+list(100*n, `"g%d"`)+`],"resourceAttributes":{"verb":"get","resource":"pods","namespace":"default"}}}`),
		create("a token of a MiB", "/apis/authentication.k8s.io/v1/tokenreviews", `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenReview","spec":{"token":"`+strings.Repeat("eyJh.", 200*n)+`"}}`),
		create("an account of secrets", "/api/v1/namespaces/default/serviceaccounts", `{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"sa"},"imagePullSecrets":[`+list(40*n, `{"name":"s%d"}`)+`]}`),
		create("a deployment of expressions", "/apis/apps/v1/namespaces/default/deployments", `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"dep"},"spec":{"replicas":1,
			"selector":{"matchLabels":{"a":"b"},"matchExpressions":[`+list(12*n, `{"key":"k%d","operator":"DoesNotExist"}`)+`]},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"x"}]}}}}`),
		create("a definition of properties", crds, crd("wides", "Wide", `{"type":"object","properties":{`+list(25*n, `"p%d":{"type":"string"}`)+`}}`, "")),
		create("a definition in depth", crds, crd("deeps", "Deep", strings.Repeat(`{"type":"object","properties":{"a":`, n/2)+`{"type":"string"}`+strings.Repeat("}}", n/2), "")),
		create("patterns that repeat", crds, crd("patterns", "Pattern", `{"type":"object","properties":{`+list(n, `"p%d":{"type":"string","pattern":"((a{0,30}){0,30})*$"}`)+`}}`, "")),
		create("rules in a definition", crds, crd("rules", "Rule", `{"type":"object","properties":{`+list(n, `"p%d":{"type":"string","maxLength":9,"x-kubernetes-validations":[{"rule":"self.startsWith('a')"}]}`)+`}}`, "")),
		with("a set of many", custom("sets", "Set", `{"l":[`+list(100*n, `"%d"`)+`]}`), create("", crds, crd("sets", "Set", `{"type":"object","properties":{"l":{"type":"array","x-kubernetes-list-type":"set","items":{"type":"string"}}}}`, ""))),
		with("a map by keys of many", custom("keyeds", "Keyed", `{"l":[`+list(40*n, `{"a":"%d"}`)+`]}`), create("", crds, crd("keyeds", "Keyed",
			`{"type":"object","properties":{"l":{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["a"],"items":{"type":"object","required":["a"],"properties":{"a":{"type":"string"}}}}}}`, ""))),
		with("items that must differ", custom("uniques", "Unique", `{"l":[`+list(100*n, `%d`)+`]}`), create("", crds, crd("uniques", "Unique", `{"type":"object","properties":{"l":{"type":"array","items":{"type":"integer"}}}}`, ""))),
		with("a pattern against a long text", custom("longs", "Long", `{"s":"`+strings.Repeat("a", 1000*n)+`!"}`), create("", crds, crd("longs", "Long", `{"type":"object","properties":{"s":{"type":"string","pattern":"^(a|aa|a{1,50}|[a-z]{1,90})*$"}}}`, ""))),
		with("a rule over two lists", custom("pairs", "Pair", `{"l":[`+list(2*n, `%d`)+`]}`), create("", crds, crd("pairs", "Pair",
			`{"type":"object","properties":{"l":{"type":"array","maxItems":2000,"items":{"type":"integer"}}},"x-kubernetes-validations":[{"rule":"self.l.all(x, self.l.exists(y, y == x + 1 || x > 0))"}]}`, ""))),
		with("columns that look everywhere", hostile{method: "GET", path: "/apis/bench.example/v1/namespaces/default/columns", media: "table"},
			create("", crds, crd("columns", "Column", `{"type":"object","x-kubernetes-preserve-unknown-fields":true}`, `,"additionalPrinterColumns":[{"name":"A","type":"string","jsonPath":"..a"},{"name":"B","type":"string","jsonPath":".spec..a"}]`)),
			custom("columns", "Column", strings.Repeat(`{"a":`, min(n, 400))+`{}`+strings.Repeat(`}`, min(n, 400)))),
	}, moreHostiles(n)...)
}

// allow gives the impersonated tenant the role admin in one namespace.
func (c *cluster) allow(tb testing.TB, cfg *restclient.Config) {
	tb.Helper()
	kube, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	if _, err := kube.RbacV1().RoleBindings("default").Create(tb.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "tenant"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "admin"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "tenant"}},
	}, metav1.CreateOptions{}); err != nil {
		tb.Fatal(err)
	}
}

// restMemory is the memory that the process has now, above which its peak is counted from here on.
func restMemory(pid int) (int64, error) {
	if err := os.WriteFile(filepath.Join("/proc", strconv.Itoa(pid), "clear_refs"), []byte("5"), 0); err != nil {
		return 0, err
	}
	m, err := memoryOf(pid)
	return m.rss, err
}

// atRest is the processor time that the process has used, once it uses little: what a request has set
// going, such as controllers' work, belongs to it.
func atRest(ctx context.Context, pid int) (time.Duration, error) {
	const window = time.Second
	last, err := cpuOf(pid)
	for deadline := time.Now().Add(patience); err == nil && time.Now().Before(deadline); {
		pause(ctx, window)
		now, err := cpuOf(pid)
		if err != nil || now-last < window/10 {
			return now, err
		}
		last = now
	}
	return last, err
}

// measureHostile sends each shape once, or one of so many.
func measureHostile(tb testing.TB, scale float64, one int) *report {
	r := newReport("Requests that ask for more than they look, one at a time", "", "request", "answer", "took", "processor of the server", "memory above before")
	c := newCluster(tb, "--nodes", "simulated:5")
	defer c.purge()
	c.start()
	cfg, err := c.Config()
	if err != nil {
		tb.Fatal(err)
	}
	tenant := restclient.CopyConfig(cfg)
	tenant.Impersonate = restclient.ImpersonationConfig{UserName: "tenant", Groups: []string{"system:authenticated"}}
	c.allow(tb, cfg)
	admin, err := restclient.HTTPClientFor(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	limited, err := restclient.HTTPClientFor(tenant)
	if err != nil {
		tb.Fatal(err)
	}
	send := func(h hostile) (string, int) {
		client := admin
		if strings.HasSuffix(h.path, "?tenant") {
			client = limited
		}
		ctx, cancel := context.WithTimeout(tb.Context(), 3*time.Minute)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, h.method, cfg.Host+strings.TrimSuffix(h.path, "?tenant"), strings.NewReader(h.body))
		if err != nil {
			tb.Fatal(err)
		}
		switch h.media {
		case "table":
			req.Header.Set("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
		case "discovery":
			req.Header.Set("Accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
		default:
			req.Header.Set("Content-Type", cmp.Or(h.media, "application/json"))
		}
		resp, err := client.Do(req)
		if err != nil {
			return err.Error(), 0
		}
		defer resp.Body.Close()
		answer, err := io.ReadAll(resp.Body)
		if err != nil {
			return err.Error(), 0
		}
		var status struct{ Message string }
		if resp.StatusCode >= 300 && json.Unmarshal(bytes.TrimSpace(answer), &status) == nil {
			return fmt.Sprintf("%d %.90s", resp.StatusCode, status.Message), resp.StatusCode
		}
		return fmt.Sprintf("%d, %d bytes", resp.StatusCode, len(answer)), resp.StatusCode
	}
	var worst time.Duration
	for i, h := range hostiles(int(1000 * scale)) {
		if want := os.Getenv("HOSTILE"); i%one != 0 || want != "" && !strings.Contains(h.what, want) {
			continue
		}
		prepared := true
		for _, b := range h.before {
			for deadline := time.Now().Add(patience); ; {
				said, code := send(b)
				if code == http.StatusNotFound && prepared && time.Now().Before(deadline) { // a definition that is not served yet
					pause(tb.Context(), 100*time.Millisecond)
					continue
				}
				if code >= 300 || code == 0 {
					prepared = false
					r.note("%s: before it: %s", h.what, said)
				}
				break
			}
		}
		said := ""
		var used, took time.Duration
		rests, err := restMemory(c.pid())
		if err != nil {
			tb.Fatal(err)
		}
		for deadline := time.Now().Add(patience); ; {
			before, err := cpuOf(c.pid())
			if err != nil {
				tb.Fatal(err)
			}
			began := time.Now()
			var code int
			said, code = send(h)
			took = time.Since(began)
			if code == http.StatusNotFound && prepared && time.Now().Before(deadline) {
				pause(tb.Context(), 100*time.Millisecond)
				continue
			}
			after, err := atRest(tb.Context(), c.pid())
			if err != nil {
				tb.Fatalf("%s: the server: %v", h.what, err)
			}
			used = after - before
			break
		}
		m, err := memoryOf(c.pid())
		if err != nil {
			tb.Fatal(err)
		}
		worst = max(worst, used)
		tb.Logf("%s: %s, took %s, processor %s, memory %s above %s", h.what, said, short(took), short(used), mib(m.peak-rests), mib(rests))
		r.row(h.what, fmt.Sprintf("%.2f MB", float64(len(h.body)+len(h.path))/1e6), said, short(took), short(used), mib(m.peak-rests))
	}
	r.duration("worst-processor", worst)
	return r
}
