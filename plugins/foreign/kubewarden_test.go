// SPDX-License-Identifier: Apache-2.0

package foreign_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/admissiontest"
	"github.com/wasmplane/wasmplane/plugins/hostfn"
	"github.com/wasmplane/wasmplane/plugins/sign"
)

// cluster answers what policies ask: one namespace, one image, one user.
type cluster struct{}

func (cluster) Find(_ context.Context, gv schema.GroupVersion, kind, _ string) (hostfn.Resource, error) {
	known := map[string]string{"Namespace": "namespaces", "Pod": "pods", "Secret": "secrets"}
	r, ok := known[kind]
	if !ok {
		return hostfn.Resource{}, apierrors.NewNotFound(schema.GroupResource{Resource: kind}, "")
	}
	return hostfn.Resource{GroupVersionResource: gv.WithResource(r), Kind: kind, Namespaced: kind != "Namespace"}, nil
}

func namespace() *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default", Labels: map[string]string{"team": "blue"}}}
}

func (cluster) Get(_ context.Context, r hostfn.Resource, _, name string, _ bool) (runtime.Object, string, error) {
	if r.Kind != "Namespace" || name != "default" {
		return nil, "7", nil
	}
	return namespace(), "7", nil
}

func (cluster) List(_ context.Context, r hostfn.Resource, s hostfn.Selection) (hostfn.Page, error) {
	if r.Kind == "Namespace" && s.Labels.String() != "team=red" {
		return hostfn.Page{Items: []runtime.Object{namespace()}, ResourceVersion: "8"}, nil
	}
	return hostfn.Page{ResourceVersion: "8"}, nil
}

func (cluster) Review(_ context.Context, spec authorizationv1.SubjectAccessReviewSpec) (authorizationv1.SubjectAccessReviewStatus, error) {
	return authorizationv1.SubjectAccessReviewStatus{
		Allowed: spec.User == "ann" && spec.ResourceAttributes.Verb == "get",
		Reason:  "said so",
	}, nil
}

type registry struct{}

func (registry) Digest(context.Context, string, hostfn.ImageAccess) (string, error) {
	return "sha256:1", nil
}

func (registry) Manifest(context.Context, string, hostfn.ImageAccess) (hostfn.ImageManifest, error) {
	return hostfn.ImageManifest{Digest: "sha256:1", Manifest: json.RawMessage(`{"schemaVersion":2}`)}, nil
}

func (registry) Config(context.Context, string, hostfn.ImageAccess) (hostfn.ImageConfigFile, error) {
	return hostfn.ImageConfigFile{Digest: "sha256:1", Config: json.RawMessage(`{"os":"linux"}`)}, nil
}

// signer has signed the one image.
var signer = sync.OnceValue(func() *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	return key
})

func publicKey(tb testing.TB, key *ecdsa.PrivateKey) string {
	tb.Helper()
	der, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		tb.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
}

const imageDigest = "sha256:1"

func (registry) Signatures(context.Context, string, hostfn.ImageAccess) (string, []sign.Signature, error) {
	payload, err := sign.NewPayload(imageDigest, "example.com/a", nil)
	if err != nil {
		return "", nil, err
	}
	s, err := sign.SignBytes(signer(), payload)
	return imageDigest, []sign.Signature{{Payload: payload, Signature: s}}, err
}

// Signed is by everybody, and says by whom.
func (registry) Signed(_ context.Context, _ string, _ hostfn.ImageAccess, by []hostfn.Identity, notes map[string]string) (string, error) {
	type identity struct{ Issuer, Subject, Prefix string } // as it is, not as errors name it
	var plain []identity
	for _, id := range by {
		plain = append(plain, identity(id))
	}
	return fmt.Sprint("sha256:", plain, " ", notes), nil
}

func functions(tb testing.TB) *hostfn.Functions {
	tb.Helper()
	f := hostfn.New(hostfn.Backend{Objects: cluster{}, Access: cluster{}, Images: registry{}, Signers: registry{}})
	tb.Cleanup(f.Close)
	return f
}

const mutating = `{"protocolVersion":"v1","mutating":true,"executionMode":"kubewarden-wapc","rules":[{"apiGroups":[""],"apiVersions":["v1"],"resources":["pods"],"operations":["CREATE","DELETE"]}],"annotations":{"io.kubewarden.policy.title":"labeller","io.kubewarden.policy.version":"1.2.3"}}`

func TestAPolicyOverWaPC(t *testing.T) {
	l := load(t, section(wapcGuest(t), "io.kubewarden.metadata", mutating), nil, "settings: {label: blue}")
	r := creating()
	if err := apply(t, l, r); err != nil {
		t.Fatal(err)
	}
	if got := labelOf(t, r); got != "blue" {
		t.Errorf("label %q", got)
	}
	if r.Annotations()["policy/seen"] != "pods" {
		t.Errorf("annotations %v", r.Annotations())
	}
	s := l.Status()[0]
	if !s.Ready || s.Version != "1.2.3" || len(s.Points) != 1 || s.Points[0] != "admission.mutate" || s.Calls != 1 {
		t.Errorf("status %+v", s)
	}
	// The metadata's rules are the match: an update is none of the policy's business.
	r = creating()
	r.Operation = admission.Update
	if err := apply(t, l, r); err != nil || labelOf(t, r) != "" {
		t.Errorf("label %q, %v", labelOf(t, r), err)
	}
	// A delete has no object to mutate.
	r = creating()
	r.Operation, r.OldObject, r.Object = admission.Delete, r.Object, nil
	if err := apply(t, l, r); err == nil || !strings.Contains(err.Error(), "a DELETE has no object to mutate") {
		t.Errorf("error %v", err)
	}
}

// TestTheEntrysRulesDecide: as with the policy objects of Kubewarden, and not only where the
// metadata's rules agree. A policy bound to pods and services let the Service pass.
func TestTheEntrysRulesDecide(t *testing.T) {
	for more, want := range map[string]string{
		"": "", "match: {rules: [{resources: [pods, services], apiGroups: ['']}]}": "denied the request",
		"match: {rules: [{resources: [pods]}]}": "",
	} {
		l := load(t, section(wapcGuest(t), "io.kubewarden.metadata", strings.Replace(mutating, `"mutating":true`, `"mutating":false`, 1)), functions(t), "settings: {answer: {accepted: false, message: no}}\n"+more)
		r := admissiontest.Creating("services", &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "default"}})
		if err := apply(t, l, r); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", more, err, want)
		}
		if err := apply(t, l, creating()); err == nil || !strings.Contains(err.Error(), "denied the request") {
			t.Errorf("%q: the pod passed: %v", more, err)
		}
	}
}

func TestAnswersOfAPolicy(t *testing.T) {
	for name, c := range map[string]struct {
		settings string
		more     string
		code     int32
		message  string
		warnings []string
	}{
		"accepted":            {settings: `{answer: {accepted: true, warnings: [look out]}}`, warnings: []string{"look out"}},
		"rejected":            {settings: `{answer: {accepted: false, message: no latest, code: 418}}`, code: 418, message: "no latest"},
		"rejected, no code":   {settings: `{answer: {accepted: false, message: no latest}}`, code: 403, message: "no latest"},
		"mutation refused":    {settings: `{label: blue}`, code: 500, message: "it is configured not to mutate"},
		"nothing mutated":     {settings: `{answer: {accepted: true, mutated_object: null}}`},
		"evaluation error":    {settings: `{fail: out of cheese}`, code: 500, message: "out of cheese"},
		"failed open":         {settings: `{fail: out of cheese}`, more: "failurePolicy: Ignore"},
		"no answer":           {settings: `{answer: {}}`, code: 500, message: "has no field accepted"},
		"answer of nonsense":  {settings: `{answer: [1]}`, code: 500, message: "cannot be read"},
		"mutated to nonsense": {settings: `{answer: {accepted: true, mutated_object: 7}}`, more: "points: [admission.mutate]", code: 500, message: "is no object"},
		"renamed":             {settings: `{answer: {accepted: true, mutated_object: {apiVersion: v1, kind: Pod, metadata: {name: other, namespace: default}}}}`, more: "points: [admission.mutate]", code: 500, message: "changed metadata.name"},
		"warned only":         {settings: `{answer: {accepted: false, message: no latest}}`, more: "mode: Warn", warnings: []string{`plugin "policy" would refuse this: pods "web" is forbidden: plugin "policy" denied the request: no latest`}},
		"flood of calls":      {settings: `{flood: true}`, code: 500, message: "host more than 64 times"},
	} {
		t.Run(name, func(t *testing.T) {
			r := creating()
			err := apply(t, load(t, wapcGuest(t), nil, "settings: "+c.settings+"\n"+c.more), r)
			if c.code == 0 {
				if err != nil {
					t.Fatal(err)
				}
			} else {
				var status apierrors.APIStatus
				if !errors.As(err, &status) || status.Status().Code != c.code || !strings.Contains(err.Error(), c.message) {
					t.Fatalf("error %v, want %d %q", err, c.code, c.message)
				}
			}
			if !reflect.DeepEqual(r.Warnings(), c.warnings) && len(r.Warnings())+len(c.warnings) > 0 {
				t.Errorf("warnings %q", r.Warnings())
			}
		})
	}
}

func TestSettingsThatAPolicyRefuses(t *testing.T) {
	for name, wasm := range map[string][]byte{"wapc": wapcGuest(t), "wasi": guest(t, "wasi")} {
		t.Run(name, func(t *testing.T) {
			_, err := tryLoad(t, wasm, nil, "settings: {refuse: label is missing}")
			if err == nil || !strings.Contains(err.Error(), "the policy refuses its settings: label is missing") {
				t.Errorf("error %v", err)
			}
		})
	}
	for metadata, want := range map[string]string{
		`{"policyType":"raw","executionMode":"kubewarden-wapc"}`: "no decision point",
		`{"protocolVersion":"v2"}`:                               "only v1",
		`{"rules":[{"operations":["FOO"]}]}`:                     `unknown operation "FOO"`,
	} {
		if _, err := tryLoad(t, section(wapcGuest(t), "io.kubewarden.metadata", metadata), nil, ""); err == nil || !strings.Contains(err.Error(),
			want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	if _, err := tryLoad(t, wapcGuest(t), nil, "entrypoint: x"); err == nil || !strings.Contains(err.Error(), "entrypoint") {
		t.Errorf("error %v", err)
	}
}

// hostCalls are the calls that both ways of running a policy have, with what they
// are answered under a grant, and without.
var hostCalls = []struct{ name, call, grant, want, refused string }{
	{"log", `{namespace: tracing, operation: log, payload: {level: INFO, message: hello}}`, "", "null", ""},
	{"get", `{namespace: kubernetes, operation: get_resource, payload: {api_version: v1, kind: Namespace, name: default, disable_cache: false}}`, "read: [{resources: [namespaces]}]", `"team":"blue"`, "the capability kubernetes/get_resource is missing: plugin \"policy\" may not read namespaces"},
	{"get a field", `{namespace: kubernetes, operation: get_resource, payload: {api_version: v1, kind: Namespace, name: default, field_masks: [metadata.labels.team]}}`, "read: [{resources: [namespaces]}]", `{"apiVersion":"v1","kind":"Namespace","metadata":{"labels":{"team":"blue"}}}`, "kubernetes/get_resource"},
	{"get what is not there", `{namespace: kubernetes, operation: get_resource, payload: {api_version: v1, kind: Namespace, name: gone}}`, "read: [{resources: [namespaces]}]", `error: cannot find v1/Namespace named "gone"`, "kubernetes/get_resource"},
	{"list", `{namespace: kubernetes, operation: list_resources_all, payload: {api_version: v1, kind: Namespace, label_selector: team=blue}}`, "read: [{resources: [namespaces]}]", `"items":[{"kind":"Namespace"`, "kubernetes/list_resources_all"},
	{"list nothing", `{namespace: kubernetes, operation: list_resources_by_namespace, payload: {api_version: v1, kind: Pod, namespace: x}}`, "read: [{resources: [pods]}]", `"kind":"PodList"`, "kubernetes/list_resources_by_namespace"},
	{"can i", `{namespace: kubernetes, operation: can_i, payload: {subject_access_review: {user: ann, groups: [], resource_attributes: {verb: get, resource: pods, namespace: x}}, disable_cache: true}}`, "capabilities: [kubernetes/can_i]", `"allowed":true`, "the capability kubernetes/can_i is missing"},
	{"dns", `{namespace: net, operation: v1/dns_lookup_host, payload: localhost}`, "capabilities: [net/*]", `"127.0.0.1"`, "the capability net/v1/dns_lookup_host is missing"},
	{"certificate", `{namespace: crypto, operation: v1/is_certificate_trusted, payload: {cert: {encoding: Pem, data: [65]}, cert_chain: null, not_after: null}}`, "capabilities: ['*']", "expected one certificate in PEM, found 0", "the capability crypto/v1/is_certificate_trusted is missing"},
	{"digest", `{namespace: oci, operation: v1/manifest_digest, payload: "example.com/a:1"}`, "capabilities: [oci/v1/*]", `{"digest":"sha256:1"}`, "the capability oci/v1/manifest_digest is missing"},
	{"manifest", `{namespace: oci, operation: v1/oci_manifest, payload: "example.com/a:1"}`, "images: {registries: [example.com]}", `{"schemaVersion":2}`, "the capability oci/v1/oci_manifest is missing"},
	{"config", `{namespace: oci, operation: v1/oci_manifest_config, payload: "example.com/a:1"}`, "capabilities: [oci/*]", `{"config":{"os":"linux"},"digest":"sha256:1","manifest":{"schemaVersion":2}}`, "the capability oci/v1/oci_manifest_config is missing"},
	{"signature", `{namespace: oci, operation: v2/verify, payload: {type: SigstorePubKeyVerify, image: "example.com/a:1", pub_keys: [KEY]}}`, "capabilities: [oci/v2/verify]", `{"digest":"sha256:1","is_trusted":true}`, "the capability oci/v2/verify is missing"},
	{"signature by another key", `{namespace: oci, operation: v1/verify, payload: {image: "example.com/a:1", pub_keys: [OTHER]}}`, "capabilities: ['*']", `error: signature of example.com/a:1: none counts`, "the capability oci/v1/verify is missing"},
	{"signature without a key", `{namespace: oci, operation: v2/verify, payload: {type: SigstoreKeylessVerify, image: "example.com/a:1", keyless: [{issuer: i, subject: s}], annotations: {a: b}}}`, "capabilities: ['*']", `{"digest":"sha256:[{i s }] map[a:b]","is_trusted":true}`, "the capability oci/v2/verify is missing"},
	{"signature by the begin of a name", `{namespace: oci, operation: v2/verify, payload: {type: SigstoreKeylessPrefixVerify, image: "example.com/a:1", keyless_prefix: [{issuer: i, url_prefix: "https://a/b"}]}}`, "capabilities: ['*']", `{"digest":"sha256:[{i  https://a/b/}] map[]","is_trusted":true}`, "the capability oci/v2/verify is missing"},
	{"signature by GitHub's actions", `{namespace: oci, operation: v2/verify, payload: {type: SigstoreGithubActionsVerify, image: "example.com/a:1", owner: o, repo: r}}`, "capabilities: ['*']", `{"digest":"sha256:[{https://token.actions.githubusercontent.com  https://github.com/o/r/}] map[]","is_trusted":true}`, "the capability oci/v2/verify is missing"},
	{"signature by any repository's actions", `{namespace: oci, operation: v1/verify, payload: {image: "example.com/a:1", owner: o}}`, "capabilities: ['*']", `{"digest":"sha256:[{https://token.actions.githubusercontent.com  https://github.com/o/}] map[]","is_trusted":true}`, "the capability oci/v1/verify is missing"},
	{"signature by a path at GitHub", `{namespace: oci, operation: v2/verify, payload: {image: "example.com/a:1", owner: o, repo: ../p}}`, "capabilities: ['*']", `error: the owner and the repository at GitHub are names`, "the capability oci/v2/verify is missing"},
	{"signature by nobody's name", `{namespace: oci, operation: v2/verify, payload: {image: "example.com/a:1", keyless: [{issuer: i}]}}`, "capabilities: ['*']", `error: signer 1: an issuer and a subject are needed`, "the capability oci/v2/verify is missing"},
	{"signature by a certificate", `{namespace: oci, operation: v2/verify, payload: {type: SigstoreCertificateVerify, image: "example.com/a:1"}}`, "capabilities: ['*']", `cannot be checked here: those by public keys`, "the capability oci/v2/verify is missing"},
	{"another registry", `{namespace: oci, operation: v1/oci_manifest, payload: "example.org/a:1"}`, "images: {registries: [example.com]}", "error: the capability oci/v1/oci_manifest is missing: plugin \"policy\" may not", "is missing"},
	{"unknown", `{namespace: foo, operation: bar, payload: {}}`, "capabilities: ['*']", "error: unknown operation: foo/bar", "unknown operation"},
	{"nonsense", `{namespace: kubernetes, operation: get_resource, payload: [1]}`, "read: [{resources: [namespaces]}]", "error: the payload cannot be read", "cannot be read"},
}

func TestHostCalls(t *testing.T) {
	for abi, wasm := range map[string][]byte{"wapc": wapcGuest(t), "wasi": guest(t, "wasi")} {
		for _, c := range hostCalls {
			t.Run(abi+"/"+c.name, func(t *testing.T) {
				other, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
				if err != nil {
					t.Fatal(err)
				}
				call := strings.NewReplacer("KEY", strconv.Quote(publicKey(t, signer())), "OTHER", strconv.Quote(publicKey(t, other))).Replace(c.call)
				ask := func(grants string) string {
					r := creating()
					if err := apply(t, load(t, wasm, functions(t), "grants: {"+grants+"}\nsettings: {calls: ["+call+"]}"), r); err != nil {
						t.Fatal(err)
					}
					return strings.Join(r.Warnings(), "\n")
				}
				if got := ask(c.grant); !strings.Contains(got, c.want) {
					t.Errorf("answered %s, want %s", got, c.want)
				}
				if got := ask(""); !strings.Contains(got, c.refused) {
					t.Errorf("without a grant: %s, want %s", got, c.refused)
				}
			})
		}
	}
}

func TestAPolicyThatIsACommand(t *testing.T) {
	l := load(t, guest(t, "wasi"), nil, "settings: {}")
	for range 3 { // each time in a fresh instance
		if err := apply(t, l, creating()); err != nil {
			t.Fatal(err)
		}
	}
	l = load(t, guest(t, "wasi"), nil, "settings: {answer: {accepted: false, message: nope}}")
	if err := apply(t, l, creating()); err == nil || !strings.Contains(err.Error(), "nope") {
		t.Errorf("error %v", err)
	}
	l = load(t, guest(t, "wasi"), nil, "settings: {exit: 3}")
	if err := apply(t, l, creating()); err == nil || !strings.Contains(err.Error(), "it printed: called as [policy.wasm validate]") {
		t.Errorf("error %v", err)
	}
}

// TestThePanicOfAPolicyIsInTheError and in the status, not only in a log.
func TestThePanicOfAPolicyIsInTheError(t *testing.T) {
	l := load(t, wapcGuest(t), functions(t), "settings: {panic: out of cheese}")
	if err := apply(t, l, creating()); err == nil || !strings.Contains(err.Error(), "; it printed: panic: out of cheese") {
		t.Errorf("error %v", err)
	}
	if s := l.Status()[0]; !strings.Contains(s.LastFailure, "panic: out of cheese") {
		t.Errorf("the status says %q", s.LastFailure)
	}
}

// Guests that do not keep to the protocol end by themselves, and nothing else does.
func TestHostileWaPC(t *testing.T) {
	const head = `(module
		(import "wapc" "__guest_request" (func $request (param i32 i32)))
		(import "wapc" "__guest_response" (func $response (param i32 i32)))
		(import "wapc" "__guest_error" (func $error (param i32 i32)))
		(import "wapc" "__host_call" (func $call (param i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
		(import "wapc" "__host_response" (func $reply (param i32)))
		(memory (export "memory") 1)
		(data (i32.const 64) "\"v1\"") (data (i32.const 80) "{\"valid\":true}")
		(func (export "__guest_call") (param $op i32) (param $n i32) (result i32)
			(if (i32.eq (local.get $op) (i32.const 16)) (then (call $response (i32.const 64) (i32.const 4)) (return (i32.const 1))))
			(if (i32.eq (local.get $op) (i32.const 17)) (then (call $response (i32.const 80) (i32.const 14)) (return (i32.const 1))))
			(call $run) (i32.const 1))`
	for name, c := range map[string]struct{ run, want string }{
		"request outside":            {`(call $request (i32.const 0x7fffffff) (i32.const -1))`, "bad pointer"},
		"response outside":           {`(call $response (i32.const 65000) (i32.const 1000))`, "bad pointer"},
		"response that wraps around": {`(call $response (i32.const -16) (i32.const 32))`, "bad pointer"},
		"huge response":              {`(call $response (i32.const 0) (i32.const -1))`, "output size"},
		"huge error":                 {`(call $error (i32.const 65500) (i32.const -1))`, "bad pointer"},
		"names outside":              {`(drop (call $call (i32.const -1) (i32.const 9) (i32.const -1) (i32.const 9) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)))`, "bad pointer"},
		"huge names":                 {`(drop (call $call (i32.const 0) (i32.const -1) (i32.const 0) (i32.const -1) (i32.const 0) (i32.const -1) (i32.const 0) (i32.const 0)))`, "gave no answer"},
		"huge payload":               {`(drop (call $call (i32.const 0) (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 0) (i32.const -1)))`, "bad pointer"},
		"reply outside":              {`(drop (call $call (i32.const 0) (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 0) (i32.const 1))) (call $reply (i32.const -1))`, "bad pointer"},
		"garbage in upper halves":    {`(call $response (i32.wrap_i64 (i64.const 0x1234567800000040)) (i32.const 4))`, "cannot be read"},
		"flood of calls":             {`(loop $l (drop (call $call (i32.const 0) (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 0) (i32.const 1))) (br $l))`, "host calls"},
		"endless":                    {`(loop $l (br $l))`, "fuel"},
		"flood of requests":          {`(loop $l (call $request (i32.const 0) (i32.const 1024)) (br $l))`, "fuel"},
	} {
		t.Run(name, func(t *testing.T) {
			l := load(t, assemble(t, head+"(func $run "+c.run+"))"), nil, "limits: {startFuel: 3000000, fuel: 3000000}")
			if err := apply(t, l, creating()); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}
