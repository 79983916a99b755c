// SPDX-License-Identifier: Apache-2.0

package imagegate_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/sigstore/sigstore/pkg/signature"
	"github.com/sigstore/sigstore/pkg/signature/payload"
	"go.yaml.in/yaml/v3"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	k8stypes "k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/matching"
	"github.com/wasmplane/wasmplane/core/dial"
	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/plugins/apiobject"
	"github.com/wasmplane/wasmplane/plugins/policies/kyverno/imagegate"
	"github.com/wasmplane/wasmplane/plugins/rights"
)

// world is a registry and the policies of a cluster.
type world struct {
	t       *testing.T
	host    string
	serve   http.Handler // the registry
	objects []*unstructured.Unstructured
	may     func(authorizationv1.SubjectAccessReviewSpec) bool
	secrets map[string]map[string][]byte
	gate    *imagegate.Gate
	key     *ecdsa.PrivateKey
	tenants dial.Policy
}

// State implements latest.Objects: whatever is asked about may have changed.
func (*world) State(schema.GroupVersionKind) (any, error) { return new(int), nil }

func (w *world) List(_ context.Context, kind schema.GroupVersionKind, _ string, _ labels.Selector) (out []runtime.Object, err error) {
	for _, o := range w.objects {
		if o.GroupVersionKind() == kind {
			out = append(out, o)
		}
	}
	return out, nil
}

func (w *world) Review(_ context.Context, s authorizationv1.SubjectAccessReviewSpec) (authorizationv1.SubjectAccessReviewStatus, error) {
	return authorizationv1.SubjectAccessReviewStatus{Allowed: w.may == nil || w.may(s)}, nil
}

type namespaces struct{}

func (namespaces) Get(name string) (*corev1.Namespace, error) {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, nil
}

func (namespaces) List(labels.Selector) ([]*corev1.Namespace, error) { return nil, nil }

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{
		t: t, serve: registry.New(registry.WithReferrersSupport(true), registry.Logger(log.New(io.Discard, "", 0))),
		secrets: map[string]map[string][]byte{}, tenants: dial.Public(nil, nil),
	}
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { w.serve.ServeHTTP(rw, r) }))
	t.Cleanup(server.Close)
	w.host = strings.TrimPrefix(server.URL, "http://")
	var err error
	if w.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	w.fresh()
	return w
}

// fresh makes a gate that remembers nothing.
func (w *world) fresh() {
	by := func(p dial.Policy) http.RoundTripper { return p.Guard(&http.Transport{DisableKeepAlives: true}) }
	w.gate = imagegate.New(imagegate.Config{
		Objects: w, Namespaces: matching.Namespaces{Lister: namespaces{}}, Rights: rights.New(w),
		Secrets: func(_ context.Context, namespace, name string) (map[string][]byte, error) {
			return w.secrets[namespace+"/"+name], nil
		},
		Operators: by(dial.Operator(nil)), Tenants: by(w.tenants),
	})
}

// push puts an image into the registry.
func (w *world) push(tag string) name.Digest {
	w.t.Helper()
	image, err := random.Image(64, 1)
	if err != nil {
		w.t.Fatal(err)
	}
	image, err = mutate.ConfigFile(image, &v1.ConfigFile{OS: "linux", Architecture: "amd64", Config: v1.Config{User: "nobody"}})
	if err != nil {
		w.t.Fatal(err)
	}
	ref, err := name.ParseReference(w.host + "/" + tag)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := remote.Write(ref, image); err != nil {
		w.t.Fatal(err)
	}
	d, err := image.Digest()
	if err != nil {
		w.t.Fatal(err)
	}
	return ref.Context().Digest(d.String())
}

// attach puts a layer beside an image, as cosign does.
func (w *world) attach(d name.Digest, suffix string, media types.MediaType, content []byte, notes map[string]string) {
	w.t.Helper()
	image, err := mutate.Append(mutate.MediaType(empty.Image, types.OCIManifestSchema1),
		mutate.Addendum{Layer: static.NewLayer(content, media), Annotations: notes, MediaType: media})
	if err != nil {
		w.t.Fatal(err)
	}
	if err := remote.Write(d.Context().Tag(strings.Replace(d.DigestStr(), ":", "-", 1)+suffix), image); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) signature(k *ecdsa.PrivateKey, text []byte) []byte {
	w.t.Helper()
	s, err := signature.LoadECDSASigner(k, crypto.SHA256)
	if err != nil {
		w.t.Fatal(err)
	}
	sig, err := s.SignMessage(bytes.NewReader(text))
	if err != nil {
		w.t.Fatal(err)
	}
	return sig
}

// sign signs an image by what Sigstore's own library writes.
func (w *world) sign(k *ecdsa.PrivateKey, d, about name.Digest) {
	w.t.Helper()
	text, err := payload.Cosign{Image: about}.MarshalJSON()
	if err != nil {
		w.t.Fatal(err)
	}
	w.attach(d, ".sig", "application/vnd.dev.cosign.simplesigning.v1+json", text,
		map[string]string{"dev.cosignproject.cosign/signature": base64.StdEncoding.EncodeToString(w.signature(k, text))})
}

// attest says something of an image.
func (w *world) attest(d name.Digest, kind, predicate string) {
	w.t.Helper()
	body := fmt.Sprintf(`{"_type":"https://in-toto.io/Statement/v1","subject":[{"name":"app","digest":{"sha256":%q}}],"predicateType":%q,"predicate":%s}`,
		strings.TrimPrefix(d.DigestStr(), "sha256:"), kind, predicate)
	const media = "application/vnd.in-toto+json"
	sig := w.signature(w.key, fmt.Appendf(nil, "DSSEv1 %d %s %d %s", len(media), media, len(body), body))
	text, err := json.Marshal(map[string]any{"payloadType": media, "payload": []byte(body), "signatures": []any{map[string]any{"sig": sig}}})
	if err != nil {
		w.t.Fatal(err)
	}
	w.attach(d, ".att", "application/vnd.dsse.envelope.v1+json", text, nil)
}

func (w *world) public() string {
	w.t.Helper()
	der, err := x509.MarshalPKIXPublicKey(w.key.Public())
	if err != nil {
		w.t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
}

// policy puts a policy into force. more are fields of its spec.
func (w *world) policy(more string) {
	w.t.Helper()
	w.objects = nil
	w.add("ImageValidatingPolicy", "signed", more)
}

func (w *world) add(kind, name, more string) {
	w.t.Helper()
	text := strings.NewReplacer("HOST", w.host, "KEY", "        "+strings.ReplaceAll(strings.TrimSpace(w.public()), "\n", "\n            ")).Replace(`
apiVersion: policies.kyverno.io/v1
kind: ` + kind + `
metadata: {name: ` + name + `}
spec:
  matchConstraints:
    resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [pods]}]
  attestors:
  - name: team
    cosign:
      ctlog: {insecureIgnoreTlog: true}
      key:
        data: |
    KEY
` + more)
	var tree map[string]any
	if err := yaml.Unmarshal([]byte(text), &tree); err != nil {
		w.t.Fatal(err, text)
	}
	raw, err := json.Marshal(tree)
	if err != nil {
		w.t.Fatal(err)
	}
	o := &unstructured.Unstructured{}
	if err := o.UnmarshalJSON(raw); err != nil {
		w.t.Fatal(err)
	}
	o.SetUID(k8stypes.UID(text))
	o.SetAnnotations(map[string]string{apiobject.WriterAnnotation: `{"username":"ann"}`})
	w.objects = append(w.objects, o)
}

// try creates a pod, or a Deployment of one. It answers the image that came of it.
func (w *world) try(kind, image string) (string, *admission.Request, error) {
	w.t.Helper()
	pod := map[string]any{"containers": []any{map[string]any{"name": "c", "image": image}}}
	tree := map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": "p", "namespace": "red"}, "spec": pod}
	r := &admission.Request{
		Operation: admission.Create, Kind: schema.GroupVersionKind{Version: "v1", Kind: "Pod"},
		Resource: schema.GroupVersionResource{Version: "v1", Resource: "pods"}, Namespace: "red", Name: "p", User: &user.DefaultInfo{Name: "eve"},
	}
	path := []string{"spec", "containers"}
	if kind == "Deployment" {
		tree["apiVersion"], tree["kind"], tree["spec"] = "apps/v1", kind, map[string]any{"template": map[string]any{"spec": pod}}
		r.Kind, r.Resource = schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: kind},
			schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
		path = []string{"spec", "template", "spec", "containers"}
	}
	r.Object = object.FromTree(object.Unstructured{GVK: r.Kind}, tree)
	if err := w.gate.Mutate(w.t.Context(), r); err != nil {
		return "", r, err
	}
	after, err := r.Object.Tree()
	if err != nil {
		w.t.Fatal(err)
	}
	list, _, _ := unstructured.NestedSlice(after, path...)
	out, _, _ := unstructured.NestedString(list[0].(map[string]any), "image")
	return out, r, w.gate.Validate(w.t.Context(), r)
}

func (w *world) wants(what string, err error, want ...string) {
	w.t.Helper()
	if len(want) == 0 && err != nil || len(want) > 0 && err == nil {
		w.t.Errorf("%s: %v, expected %q", what, err, want)
		return
	}
	for _, text := range want {
		if !strings.Contains(err.Error(), text) {
			w.t.Errorf("%s: %v, expected %q", what, err, text)
		}
	}
}

const bySignature = `
  matchImageReferences: [{glob: "HOST/*"}]
  validations: [{expression: "images.containers.map(i, verifyImageSignatures(i, [attestors.team])).all(n, n > 0)", message: not signed by the team}]
`

func TestSignedImagesAreAdmittedByTheirDigest(t *testing.T) {
	w := newWorld(t)
	w.policy(bySignature)
	good, bad := w.push("good:1"), w.push("bad:1")
	w.sign(w.key, good, good)
	for _, kind := range []string{"Pod", "Deployment"} {
		image, _, err := w.try(kind, w.host+"/good:1")
		w.wants(kind, err)
		if want := w.host + "/good:1@" + good.DigestStr(); image != want {
			t.Errorf("%s: %s, expected %s", kind, image, want)
		}
		_, _, err = w.try(kind, w.host+"/bad:1")
		w.wants(kind, err, "ImageValidatingPolicy 'signed' denied request: not signed by the team: image "+
			w.host+"/bad:1@"+bad.DigestStr()+", attestor team: there is no signature")
	}
	other, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	w.sign(other, bad, bad)
	w.fresh()
	_, _, err = w.try("Pod", w.host+"/bad:1")
	w.wants("by another key", err, "attestor team: no signature counts: it was made by another key")
	w.sign(w.key, bad, good)
	w.fresh()
	_, _, err = w.try("Pod", w.host+"/bad:1")
	w.wants("a signature of another image", err, "it is for the manifest "+good.DigestStr())
	_, _, err = w.try("Pod", "example.com/else:1") // nobody is asked
	w.wants("an image that the policy is not about", err)
}

// TestATagThatMovesChangesNothing: what is verified is what the object names, a digest.
func TestATagThatMovesChangesNothing(t *testing.T) {
	w := newWorld(t)
	w.policy(bySignature)
	good := w.push("app:1")
	w.sign(w.key, good, good)
	inner := w.serve
	moved := false
	w.serve = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		inner.ServeHTTP(rw, r)
		if strings.HasSuffix(r.URL.Path, "/app/manifests/1") && r.Method != http.MethodPut && !moved {
			moved = true
			w.push("app:1") // to what nobody signed
		}
	})
	image, _, err := w.try("Pod", w.host+"/app:1")
	w.wants("a tag that moves", err)
	if !moved || image != w.host+"/app:1@"+good.DigestStr() {
		t.Errorf("moved: %v, image %s", moved, image)
	}
	w.fresh()
	_, _, err = w.try("Pod", w.host+"/app:1")
	w.wants("after it has moved", err, "there is no signature")
}

func TestAttestations(t *testing.T) {
	w := newWorld(t)
	const kind = "https://example.com/scan/v1"
	w.policy(`
  matchImageReferences: [{glob: "HOST/*"}]
  attestations: [{name: scan, intoto: {type: ` + kind + `}}]
  validations:
  - {expression: "images.containers.all(i, verifyAttestationSignatures(i, attestations.scan, [attestors.team]) > 0)", message: not scanned}
  - {expression: "images.containers.all(i, extractPayload(i, attestations.scan).findings == 0)", message: it has findings}
  - {expression: "images.containers.all(i, getImageData(i).config.config.User == 'nobody')", message: not nobody}
`)
	d := w.push("app:1")
	_, _, err := w.try("Pod", w.host+"/app:1")
	w.wants("without", err, "not scanned: image ", "attestor team: attestation scan: there is no attestation of type "+kind)
	for predicate, want := range map[string][]string{`{"findings":0}`: nil, `{"findings":2}`: {"it has findings"}} {
		w.attest(d, kind, predicate)
		w.fresh()
		_, _, err := w.try("Pod", w.host+"/app:1")
		w.wants(predicate, err, want...)
	}
	w.attest(d, "https://example.com/other", `{"findings":0}`)
	w.fresh()
	_, _, err = w.try("Pod", w.host+"/app:1")
	w.wants("of another type", err, "one is of type https://example.com/other")
}

func TestWhatIsConfigured(t *testing.T) {
	w := newWorld(t)
	d := w.push("app:1")
	w.sign(w.key, d, d)
	w.push("bad:1")
	const always = "\n  matchImageReferences: [{glob: \"HOST/*\"}]\n  validations: [{expression: \"true\"}]\n"
	for _, c := range []struct {
		name, spec, image string
		want              []string
	}{
		{"nothing verified", always, "app:1", []string{"was not verified by any policy (spec.validationConfigurations.required)"}},
		{"not required", always + "  validationConfigurations: {required: false}", "bad:1", nil},
		{"no digest", always + "  validationConfigurations: {mutateDigest: false, required: false}", "app:1", []string{"has no digest"}},
		{"nothing", always + "  validationConfigurations: {mutateDigest: false, verifyDigest: false, required: false}", "app:1", nil},
		{"a tag is verified", bySignature + "  validationConfigurations: {mutateDigest: false, verifyDigest: false}", "app:1", nil},
		{"failed, and tried", strings.Replace(bySignature, ".all(n, n > 0)", ".all(n, n >= 0)", 1), "bad:1", []string{"failed the verification of its signatures and attestations: image ", "there is no signature"}},
		{"no such image", bySignature, "none:1", []string{"failurePolicy is Fail: image " + w.host + "/none:1: its registry has no such image"}},
		{"no such image, ignored", bySignature + "  failurePolicy: Ignore\n  validationConfigurations: {verifyDigest: false, required: false}", "none:1", nil},
		{"a condition", bySignature + "  matchConditions: [{name: a, expression: \"object.metadata.name != 'p'\"}]", "bad:1", nil},
		{"own images", `
  matchImageReferences: [{expression: "ref.startsWith('HOST') && image(ref).repository() == 'bad'"}]
  images: [{name: mine, expression: "[object.spec.containers[0].image]"}]
  validations: [{expression: "images.mine.all(i, verifyImageSignatures(i, [attestors.team]) > 0)", message: mine}]
`, "bad:1", []string{"denied request: mine"}},
	} {
		w.policy(c.spec)
		w.fresh()
		_, _, err := w.try("Pod", w.host+"/"+c.image)
		if c.name == "own images" && err != nil { // its registry is not named by a glob
			c.want = []string{"its registry may not be connected to: it is at a private address"}
		}
		w.wants(c.name, err, c.want...)
	}
	w.policy(bySignature + "  validationActions: [Warn, Audit]")
	_, r, err := w.try("Pod", w.host+"/bad:1")
	w.wants("it warns", err)
	if len(r.Warnings()) != 1 || len(r.Annotations()) != 1 {
		t.Errorf("warnings %q, annotations %q", r.Warnings(), r.Annotations())
	}
	// What one policy requires another one verifies.
	w.policy(always)
	w.add("ImageValidatingPolicy", "verifies", bySignature)
	_, _, err = w.try("Pod", w.host+"/app:1")
	w.wants("by another policy", err)
}

// TestHostileRegistries: what a registry answers costs no more than is allowed, and is told to nobody.
func TestHostileRegistries(t *testing.T) {
	w := newWorld(t)
	w.policy(bySignature + "  webhookConfiguration: {timeoutSeconds: 1}")
	inner := w.serve
	secret := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { _, _ = rw.Write([]byte("s3cr3t")) }))
	defer secret.Close()
	end := make(chan struct{})
	defer close(end)
	manifests := func(answer http.HandlerFunc) http.Handler {
		return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if strings.Contains(r.URL.Path, "/manifests/") {
				answer(rw, r)
				return
			}
			inner.ServeHTTP(rw, r)
		})
	}
	for what, c := range map[string]struct {
		answer http.HandlerFunc
		want   string
	}{
		"endless": {func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set("Content-Type", string(types.OCIManifestSchema1))
			for r.Method == http.MethodGet && r.Context().Err() == nil {
				if _, err := rw.Write(make([]byte, 1<<16)); err != nil {
					return
				}
			}
		}, "could not be evaluated"},
		"silent": {func(_ http.ResponseWriter, r *http.Request) {
			select {
			case <-end:
			case <-r.Context().Done():
			}
		}, "did not answer in time"},
		"no manifest": {func(rw http.ResponseWriter, _ *http.Request) { _, _ = rw.Write([]byte("s3cr3t")) }, "could not be evaluated"},
		"denies":      {func(rw http.ResponseWriter, _ *http.Request) { http.Error(rw, "s3cr3t", http.StatusForbidden) }, "wants other credentials"},
		"redirects to metadata": {func(rw http.ResponseWriter, r *http.Request) {
			http.Redirect(rw, r, "http://169.254.169.254/latest", http.StatusFound)
		}, "could not be evaluated"},
		"breaks": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "cannot be reached"},
	} {
		w.serve = manifests(c.answer)
		w.fresh()
		began := time.Now()
		_, _, err := w.try("Pod", w.host+"/app:1")
		w.wants(what, err, c.want)
		if err != nil && (strings.Contains(err.Error(), "s3cr3t") || strings.Contains(err.Error(), "169.254")) ||
			time.Since(began) > 30*time.Second {
			t.Errorf("%s: %v, after %s", what, err, time.Since(began))
		}
	}
	w.serve = inner
	// A registry that only a pod names is not connected to at a private address.
	w.policy(strings.Replace(bySignature, `[{glob: "HOST/*"}]`, `[{glob: "*"}]`, 1))
	_, _, err := w.try("Pod", w.host+"/app:1")
	w.wants("a private address", err, "its registry may not be connected to: it is at a private address")
	// One layer more than is read.
	w.policy(bySignature)
	d := w.push("many:1")
	image := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	for i := range 65 {
		if image, err = mutate.Append(image, mutate.Addendum{Layer: static.NewLayer(fmt.Append(nil, i),
			"application/vnd.dev.cosign.simplesigning.v1+json")}); err != nil {
			t.Fatal(err)
		}
	}
	if err := remote.Write(d.Context().Tag(strings.Replace(d.DigestStr(), ":", "-", 1)+".sig"), image); err != nil {
		t.Fatal(err)
	}
	_, _, err = w.try("Pod", w.host+"/many:1")
	w.wants("many signatures", err, "more than 64")
}

// TestAPolicyMayDoWhatItsWriterMay.
func TestAPolicyMayDoWhatItsWriterMay(t *testing.T) {
	w := newWorld(t)
	d := w.push("app:1")
	w.sign(w.key, d, d)
	inner := w.serve
	w.serve = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "ann" || password != "s3cr3t" {
			rw.Header().Set("WWW-Authenticate", `Basic realm="here"`)
			http.Error(rw, "", http.StatusUnauthorized)
			return
		}
		inner.ServeHTTP(rw, r)
	})
	w.secrets["kyverno/pull"] = map[string][]byte{".dockerconfigjson": fmt.Appendf(nil,
		`{"auths":{%q:{"username":"ann","password":"s3cr3t"}}}`, w.host)}
	w.policy(bySignature)
	_, _, err := w.try("Pod", w.host+"/app:1")
	w.wants("without credentials", err, "wants other credentials (spec.credentials.secrets)")
	w.policy(bySignature + "  credentials: {secrets: [pull]}")
	_, _, err = w.try("Pod", w.host+"/app:1")
	w.wants("with credentials", err)
	for what, denied := range map[string]string{"Secrets": "secrets", "pods": "pods"} {
		w.may = func(s authorizationv1.SubjectAccessReviewSpec) bool {
			return s.ResourceAttributes.Resource != denied && s.ResourceAttributes.Verb != rights.Verb
		}
		w.fresh()
		_, _, err := w.try("Pod", w.host+"/app:1")
		w.wants("a writer who may not "+what, err, `"ann" may not `)
	}
}

// No spelling gets an unsigned image past a policy.
func TestNoSpellingGetsPast(t *testing.T) {
	w := newWorld(t)
	w.serve = http.NotFoundHandler()
	w.policy(strings.Replace(bySignature, `[{glob: "HOST/*"}]`, `[{glob: "registry.example.invalid/*"}]`, 1))
	for _, image := range []string{"registry.example.invalid/app:1", "Registry.Example.INVALID/app:1", "registry.example.invalid:443/app:1"} {
		_, _, err := w.try("Pod", image)
		w.wants(image, err, "denied request")
	}
	_, _, err := w.try("Pod", "elsewhere.example.invalid/app:1")
	w.wants("another registry", err)
}

// A policy's name and password are not sent to a registry that whoever makes a pod has chosen.
func TestCredentialsAreNotForRegistriesOfPods(t *testing.T) {
	w := newWorld(t)
	d := w.push("app:1")
	w.sign(w.key, d, d)
	inner, sent := w.serve, atomic.Int64{}
	w.serve = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if _, password, _ := r.BasicAuth(); password != "s3cr3t" {
			rw.Header().Set("WWW-Authenticate", `Basic realm="here"`)
			http.Error(rw, "", http.StatusUnauthorized)
			return
		}
		sent.Add(1)
		inner.ServeHTTP(rw, r)
	})
	w.tenants = dial.Operator(nil) // the registry of the test is at a private address
	w.secrets["kyverno/pull"] = map[string][]byte{"username": []byte("ann"), "password": []byte("s3cr3t")}
	w.fresh()
	w.policy(strings.Replace(bySignature, `[{glob: "HOST/*"}]`, `[{glob: "*"}]`, 1) + "  credentials: {secrets: [pull]}")
	_, _, err := w.try("Pod", w.host+"/app:1")
	w.wants("a registry of the pod's", err, "wants other credentials")
	if n := sent.Load(); n > 0 {
		t.Errorf("the password was sent %d times", n)
	}
	w.policy(bySignature + "  credentials: {secrets: [pull]}")
	_, _, err = w.try("Pod", w.host+"/app:1")
	w.wants("a registry of the policy's", err)
}

func TestABrokenPolicyStandsInTheWay(t *testing.T) {
	w := newWorld(t)
	w.policy(bySignature + "  unknown: true")
	_, _, err := w.try("Pod", w.host+"/app:1")
	w.wants("a field", err, `the field "unknown" is not known here`)
	w.policy(bySignature)
	w.objects[0].SetAnnotations(nil)
	_, _, err = w.try("Pod", w.host+"/app:1")
	w.wants("nobody's", err, "nobody knows who wrote the policy")
	w.policy(bySignature)
	w.objects = append(w.objects, w.exception())
	_, _, err = w.try("Pod", w.host+"/app:1")
	w.wants("an exception", err)
}

func (w *world) exception() *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "policies.kyverno.io/v1", "kind": "PolicyException",
		"metadata": map[string]any{"name": "e", "namespace": "red", "uid": "e", "annotations": map[string]any{apiobject.WriterAnnotation: `{"username":"ann"}`}},
		"spec": map[string]any{
			"policyRefs":      []any{map[string]any{"kind": "ImageValidatingPolicy", "name": "signed"}},
			"matchConditions": []any{map[string]any{"name": "a", "expression": "object.metadata.name == 'p'"}},
		},
	}}
}
