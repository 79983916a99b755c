// SPDX-License-Identifier: Apache-2.0

package credential_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	configv1 "k8s.io/kubelet/config/v1"
	api "k8s.io/kubelet/pkg/apis/credentialprovider/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/credential"
)

// The test's own binary is the program: what it does is in its environment.
const (
	modeKey = "CREDENTIAL_TEST_MODE"
	logKey  = "CREDENTIAL_TEST_LOG"
)

func TestMain(m *testing.M) {
	if mode := os.Getenv(modeKey); mode != "" {
		provide(mode)
		return
	}
	os.Exit(m.Run())
}

// provide is the program. It writes down each request, and answers by its mode.
func provide(mode string) {
	var r api.CredentialProviderRequest
	if err := json.NewDecoder(bufio.NewReader(os.Stdin)).Decode(&r); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	f, err := os.OpenFile(os.Getenv(logKey), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600) //nolint:gosec // the test's own
	if err != nil {
		os.Exit(3)
	}
	line, _ := json.Marshal(r) //nolint:errcheck // it was decoded
	fmt.Fprintln(f, string(line))
	_ = f.Close()
	switch mode {
	case "hang":
		never := make(chan os.Signal, 1)
		signal.Notify(never, syscall.SIGUSR1)
		<-never
	case "fail":
		fmt.Fprintln(os.Stderr, "my password is 12345")
		os.Exit(7)
	case "flood":
		for {
			if _, err := os.Stdout.WriteString(strings.Repeat("x", 1<<16)); err != nil {
				os.Exit(1)
			}
		}
	default:
		fmt.Println(mode)
	}
}

func answer(of api.PluginCacheKeyType, seconds string, auth string) string {
	return fmt.Sprintf(`{"apiVersion":"credentialprovider.kubelet.k8s.io/v1","kind":"CredentialProviderResponse","cacheKeyType":%q,%s"auth":{%s}}`,
		of, seconds, auth)
}

// world has programs in a folder, and what they were asked.
type world struct {
	*testing.T
	dir, log string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	dir := t.TempDir()
	return &world{t, dir, filepath.Join(dir, "log")}
}

// provider is one whose program does as mode says.
func (w *world) provider(program, mode string, images ...string) configv1.CredentialProvider {
	w.Helper()
	self, err := os.Executable()
	if err != nil {
		w.Fatal(err)
	}
	if err := os.Symlink(self, filepath.Join(w.dir, program)); err != nil && !os.IsExist(err) {
		w.Fatal(err)
	}
	return configv1.CredentialProvider{
		Name: program, MatchImages: images, APIVersion: "credentialprovider.kubelet.k8s.io/v1",
		DefaultCacheDuration: &metav1.Duration{Duration: time.Hour},
		Env:                  []configv1.ExecEnvVar{{Name: modeKey, Value: mode}, {Name: logKey, Value: w.log}},
	}
}

func (w *world) asked() (out []api.CredentialProviderRequest) {
	w.Helper()
	data, err := os.ReadFile(w.log)
	if err != nil && !os.IsNotExist(err) {
		w.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		var r api.CredentialProviderRequest
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			w.Fatal(err)
		}
		out = append(out, r)
	}
	return out
}

// users that are tried for an image, in their order, and the error's words.
func users(t *testing.T, m *credential.Manager, p *corev1.Pod, image string) string {
	t.Helper()
	ring, err := m.For(t.Context(), p, image)
	var out []string
	if ring != nil {
		for _, a := range ring.Lookup(image) {
			out = append(out, a.GetUsername()+":"+a.GetPassword())
		}
	}
	if err != nil {
		out = append(out, err.Error())
	}
	return strings.Join(out, " ")
}

// TestProvidersOpenARegistry that wants to know who asks: an image is pulled with what a
// program answers, and with nothing else.
func TestProvidersOpenARegistry(t *testing.T) {
	images := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "anna" || password != "s3cr3t" {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		images.ServeHTTP(w, r)
	}))
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	img, err := random.Image(100, 1)
	if err != nil {
		t.Fatal(err)
	}
	ref, err := name.ParseReference(host+"/team/app:1", name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, img, remote.WithAuth(&authn.Basic{Username: "anna", Password: "s3cr3t"})); err != nil {
		t.Fatal(err)
	}
	if _, err := remote.Image(ref); err == nil {
		t.Fatal("the registry is open to everybody")
	}
	w := newWorld(t)
	m := credential.New(credential.Config{BinDir: w.dir, Providers: []configv1.CredentialProvider{
		w.provider("one", answer(api.RegistryPluginCacheKeyType, "", fmt.Sprintf(`%q:{"username":"anna","password":"s3cr3t"}`, host)),
			host+"/team"),
	}})
	ring, err := m.For(t.Context(), &corev1.Pod{}, host+"/team/app:1")
	if err != nil || len(ring.Lookup(host+"/team/app:1")) != 1 {
		t.Fatalf("%v, %v", ring, err)
	}
	auth := ring.Lookup(host + "/team/app:1")[0]
	if _, err := remote.Image(ref, remote.WithAuth(&authn.Basic{Username: auth.GetUsername(), Password: auth.GetPassword()})); err != nil {
		t.Error(err)
	}
	if got := w.asked(); len(got) != 1 || got[0].Image != host+"/team/app" || got[0].Kind != "CredentialProviderRequest" {
		t.Errorf("the program was asked %+v", got)
	}
}

// TestAnswersAreKept by their key's type and duration, those of several programs in the order of the file.
func TestAnswersAreKept(t *testing.T) {
	for of, want := range map[api.PluginCacheKeyType]int{
		api.ImagePluginCacheKeyType: 3, api.RegistryPluginCacheKeyType: 2, api.GlobalPluginCacheKeyType: 1,
	} {
		w := newWorld(t)
		m := credential.New(credential.Config{BinDir: w.dir, Providers: []configv1.CredentialProvider{
			w.provider("p", answer(of, "", `"*.example.com":{"username":"a","password":"b"}`), "*.example.com"),
		}})
		for _, image := range []string{"x.example.com/one:1", "x.example.com/one:2", "x.example.com/two", "y.example.com/one"} {
			if got := users(t, m, &corev1.Pod{}, image); got != "a:b" {
				t.Errorf("%s, %s: %q", of, image, got)
			}
		}
		if got := w.asked(); len(got) != want {
			t.Errorf("%s: the program ran %d times, want %d", of, len(got), want)
		}
	}
	w := newWorld(t)
	first := w.provider("first", answer(api.GlobalPluginCacheKeyType, `"cacheDuration":"0s",`,
		`"example.com":{"username":"first","password":""}`), "example.com")
	second := w.provider("second", answer(api.GlobalPluginCacheKeyType, "", `"example.com":{"username":"second","password":""}`),
		"example.com")
	other := w.provider("other", "fail", "example.org", "example.com:5000", "example.com/b")
	m := credential.New(credential.Config{BinDir: w.dir, Providers: []configv1.CredentialProvider{other, first, second}})
	for range 2 {
		if got := users(t, m, &corev1.Pod{}, "example.com/a"); got != "first: second:" {
			t.Errorf("%q", got)
		}
	}
	if got := w.asked(); len(got) != 3 {
		t.Errorf("programs ran %d times; the first keeps nothing, and the others do not match", len(got))
	}
}

// TestProgramsThatFail are named, without what they wrote, and keep up no others.
func TestProgramsThatFail(t *testing.T) {
	for mode, want := range map[string]string{
		"fail": "a:b credential provider p: exit status 7; the node's log has what it wrote", "flood": "it answers with more than 1048576 bytes",
		"gibberish": "no JSON", "{}": `expected CredentialProviderResponse of "credentialprovider.kubelet.k8s.io/v1"`,
		answer("Everything", "", ""): `cacheKeyType "Everything": expected Image, Registry or Global`,
	} {
		w := newWorld(t)
		good := w.provider("good", answer(api.ImagePluginCacheKeyType, "", `"example.com":{"username":"a","password":"b"}`), "example.com")
		bad := w.provider("p", mode, "example.com")
		m := credential.New(credential.Config{BinDir: w.dir, Providers: []configv1.CredentialProvider{bad, good}})
		got := users(t, m, &corev1.Pod{}, "example.com/a")
		if !strings.HasPrefix(got, "a:b ") || !strings.Contains(got, want) || strings.Contains(got, "12345") {
			t.Errorf("%s: %q", mode, got)
		}
	}
}

// TestAProgramThatHangs is ended with its time.
func TestAProgramThatHangs(t *testing.T) {
	w := newWorld(t)
	m := credential.New(credential.Config{
		BinDir: w.dir, Timeout: 50 * time.Millisecond, Providers: []configv1.CredentialProvider{w.provider("p", "hang", "example.com")},
	})
	if got := users(t, m, &corev1.Pod{}, "example.com/a"); got != "credential provider p: it has not answered within 50ms" {
		t.Errorf("%q", got)
	}
}

// TestServiceAccountsAskForThemselves: the program gets a token that is bound to the pod, and
// annotations; what it answers is for this account alone.
func TestServiceAccountsAskForThemselves(t *testing.T) {
	account := func(name string, notes map[string]string) *corev1.ServiceAccount {
		return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Annotations: notes}}
	}
	client := fake.NewClientset(account("a", map[string]string{"team": "x", "other": "y"}),
		account("b", map[string]string{"team": "z"}), account("none", nil))
	tokens := 0
	client.PrependReactor("create", "serviceaccounts", func(a clienttesting.Action) (bool, runtime.Object, error) {
		r := a.(clienttesting.CreateActionImpl).Object.(*authenticationv1.TokenRequest)
		if r.Spec.BoundObjectRef.Name == "" || strings.Join(r.Spec.Audiences, ",") != "registry" {
			t.Errorf("a token was asked for: %+v", r.Spec)
		}
		tokens++
		r.Status = authenticationv1.TokenRequestStatus{
			Token: fmt.Sprintf("token-%s-%d", r.Spec.BoundObjectRef.Name, tokens), ExpirationTimestamp: metav1.NewTime(time.Now().Add(time.Hour)),
		}
		return true, r, nil
	})
	pod := func(name, account string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)}}
		p.Spec.ServiceAccountName = account
		return p
	}
	for kind, want := range map[configv1.ServiceAccountTokenCacheType]int{
		configv1.ServiceAccountServiceAccountTokenCacheType: 2, configv1.TokenServiceAccountTokenCacheType: 3,
	} {
		w := newWorld(t)
		p := w.provider("p", answer(api.RegistryPluginCacheKeyType, "", `"example.com":{"username":"a","password":"b"}`), "example.com")
		p.TokenAttributes = &configv1.ServiceAccountTokenAttributes{
			ServiceAccountTokenAudience: "registry", CacheType: kind, RequireServiceAccount: new(true), RequiredServiceAccountAnnotationKeys: []string{"team"},
		}
		m := credential.New(credential.Config{BinDir: w.dir, Client: client, Providers: []configv1.CredentialProvider{p}})
		for i, account := range []string{"a", "a", "b"} {
			if got := users(t, m, pod(fmt.Sprint("pod-", i), account), "example.com/a"); got != "a:b" {
				t.Errorf("%s: %q", kind, got)
			}
		}
		if got := users(t, m, pod("free", ""), "example.com/a"); got != "" {
			t.Errorf("a pod without an account gets %q", got)
		}
		if got := users(t, m, pod("plain", "none"), "example.com/a"); !strings.Contains(got, "has no annotation team") {
			t.Errorf("an account without the annotation gets %q", got)
		}
		got := w.asked()
		if len(got) != want {
			t.Fatalf("%s: the program ran %d times, want %d", kind, len(got), want)
		}
		r := got[0]
		if !strings.HasPrefix(r.ServiceAccountToken, "token-pod-0-") || len(r.ServiceAccountAnnotations) != 1 ||
			r.ServiceAccountAnnotations["team"] != "x" {
			t.Errorf("%s: it was asked %+v", kind, r)
		}
	}
}

// TestAFileThatIsWrong says where.
func TestAFileThatIsWrong(t *testing.T) {
	w := newWorld(t)
	w.provider("p", "x")
	const head, p = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\n", "\n  matchImages: [\"*.example.com\"]\n" +
		"  defaultCacheDuration: 10m\n  apiVersion: credentialprovider.kubelet.k8s.io/v1\n"
	for text, want := range map[string]string{
		head + "providers:\n- name: p" + p:       "",
		"":                                       ":1: expected a CredentialProviderConfig",
		head:                                     "expected at least one",
		"apiVersion: v2\nkind: X":                "expected CredentialProviderConfig of kubelet.config.k8s.io/v1, found X of v2",
		head + "providers:\n- name: ../p" + p:    `:4: providers[0].name: expected the name of a program`,
		head + "providers:\n- name: q" + p:       "expected a program of this name in " + w.dir,
		head + "providers:\n- name: p\n  nam: q": `unknown field "nam"`,
		head + "providers:\n- name: p":           "providers[0].matchImages: expected at least one pattern",
		head + "providers:\n- {name: p, matchImages: [x]}":                           "providers[0].defaultCacheDuration: expected a duration",
		head + "providers:\n- {name: p, matchImages: [x], defaultCacheDuration: 1s}": "providers[0].apiVersion: expected credentialprovider.kubelet.k8s.io/v1",
		head + "providers:\n- name: p" + p + "- name: p" + p:                         `:8: providers[1].name: there is another provider "p"`,
		head + "providers:\n- name: p" + p + "  tokenAttributes: {}":                 ":8: providers[0].tokenAttributes.serviceAccountTokenAudience: expected an audience",
	} {
		file := filepath.Join(w.dir, "config.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := credential.Read(file, w.dir)
		switch {
		case want == "" && (err != nil || len(got) != 1 || got[0].DefaultCacheDuration.Duration != 10*time.Minute):
			t.Errorf("%v, %v", got, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// TestPatterns of images are upstream's.
func TestPatterns(t *testing.T) {
	for _, c := range []struct {
		pattern, image string
		want           bool
	}{
		{"example.com", "example.com/a/b:1", true},
		{"*.example.com", "x.example.com/a", true},
		{"*.example.com", "x.y.example.com/a", false},
		{"app*.example.com", "app1.example.com/a", true},
		{"example.*", "example.org/a", true},
		{"example.com/a", "example.com/a/b", true},
		{"example.com/b", "example.com/a/b", false},
		{"example.com:5000", "example.com:5000/a", true},
		{"example.com", "example.com:5000/a", false},
		{"example.com:5000", "example.com/a", false},
		{"docker.io/library", "nginx", true},
	} {
		w := newWorld(t)
		m := credential.New(credential.Config{BinDir: w.dir, Providers: []configv1.CredentialProvider{w.provider("p", "fail", c.pattern)}})
		users(t, m, &corev1.Pod{}, c.image)
		if got := len(w.asked()) == 1; got != c.want {
			t.Errorf("%s for %s: %v", c.pattern, c.image, got)
		}
	}
}
