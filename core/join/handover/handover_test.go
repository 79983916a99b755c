// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"bytes"
	"context"
	"crypto/ecdh"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/wasmplane/wasmplane/core/auth/jointoken"
	"github.com/wasmplane/wasmplane/core/store"
)

// membership is a store whose members are as the test says.
type membership struct {
	members        []store.Member
	added, removed []string
	full           error // what Add says
	opened         string
}

func (m *membership) Members(context.Context) ([]store.Member, error) { return m.members, nil }

func (m *membership) Open(_ context.Context, address string) error {
	m.opened, m.members[0].Peer = address, "https://"+address
	return nil
}

func (m *membership) Add(_ context.Context, address string) error {
	if m.full == nil {
		m.added = append(m.added, address)
	}
	return m.full
}

func (m *membership) Removable(_ context.Context, id string) error {
	if id == "last" {
		return store.ErrQuorum
	}
	return nil
}

func (m *membership) Remove(_ context.Context, id string) error {
	m.removed = append(m.removed, id)
	return nil
}

var keys = Keys{
	"ca.crt": []byte("c"), "ca.key": []byte("the authority's key"), "front-proxy-ca.crt": []byte("f"),
	"front-proxy-ca.key": []byte("k"), "sa.key": []byte("s"),
}

// world is a server with a store, a token, and a machine that joins.
type world struct {
	*Giver
	store *membership
	token jointoken.Token
	log   bytes.Buffer
	own   *ecdh.PrivateKey
	ask   Request
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{store: &membership{members: []store.Member{
		{ID: "1", Name: "a", Peer: "https://192.0.2.1:2380", Self: true, Alive: true, Leader: true}, {ID: "2", Name: "gone", Peer: "https://192.0.2.2:2380"},
	}}}
	kube := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker"}})
	var err error
	if w.token, err = jointoken.Create(t.Context(), kube, jointoken.ServersGroup, jointoken.DefaultServerLife, ""); err != nil {
		t.Fatal(err)
	}
	// The API keeps what is given as text as bytes.
	secret, err := kube.CoreV1().Secrets("kube-system").Get(t.Context(), jointoken.SecretName(w.token.ID), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	secret.Data = map[string][]byte{}
	for name, value := range secret.StringData {
		secret.Data[name] = []byte(value)
	}
	if _, err := kube.CoreV1().Secrets("kube-system").Update(t.Context(), secret, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if w.own, err = ecdh.X25519().GenerateKey(rand.Reader); err != nil {
		t.Fatal(err)
	}
	w.ask = Request{
		Name: "b", Machine: "m", Address: "192.0.2.9:2380", Nonce: "nonce", Port: 6443, Version: "v1.37.0", Node: true,
		Key: w.own.PublicKey().Bytes(),
	}
	w.Giver = &Giver{
		Kube: kube, Store: w.store, Cluster: Cluster{Name: "c", Domain: "d", PodCIDR: "10.1.0.0/16", ServiceCIDR: "10.2.0.0/16"}, Port: 6443,
		Version: "v1.37.1",
		Address: "192.0.2.1:2380", Opened: func() error { return nil }, Keys: func() (Keys, error) { return keys, nil },
		Log: slog.New(slog.NewTextHandler(&w.log, nil)),
		Dial: func(context.Context, string, string) (net.Conn, error) {
			near, far := net.Pipe()
			go func() {
				_, _ = io.WriteString(far, "nonce")
				_ = far.Close()
			}()
			return near, nil
		},
	}
	return w
}

// call is a request as the API server lets it in, by a token or by an administrator.
func (w *world) call(t *testing.T, as, method, path string, in any) (code int, answer []byte) {
	t.Helper()
	body, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	req := httptest.NewRequestWithContext(genericrequest.WithUser(t.Context(), &user.DefaultInfo{Name: as}), method, path,
		bytes.NewReader(body))
	rec := httptest.NewRecorder()
	w.ServeHTTP(rec, req)
	return rec.Code, rec.Body.Bytes()
}

func (w *world) join(t *testing.T, path string) (int, []byte) {
	t.Helper()
	return w.call(t, "system:bootstrap:"+w.token.ID, http.MethodPost, path, w.ask)
}

// A machine with a token gets the keys, once, sealed for it alone, and a place in the store.
func TestKeysAreHandedOverOnce(t *testing.T) {
	w := newWorld(t)
	code, answer := w.join(t, PreparePath)
	var offer Offer
	if err := json.Unmarshal(answer, &offer); err != nil || code != http.StatusOK || offer.Cluster != w.Cluster || len(offer.Members) != 2 ||
		len(w.store.added) != 0 {
		t.Fatalf("prepare: %d %s, added %q", code, answer, w.store.added)
	}
	code, answer = w.join(t, TakePath)
	var sealed Sealed
	if err := json.Unmarshal(answer, &sealed); err != nil || code != http.StatusOK {
		t.Fatalf("take: %d %s", code, answer)
	}
	if bytes.Contains(answer, keys["ca.key"]) || strings.Contains(w.log.String(), string(keys["ca.key"])) {
		t.Error("the keys are to be seen")
	}
	got, err := Open(w.ask, w.own, w.token.Digest(), sealed)
	if err != nil || !maps.EqualFunc(got, keys, bytes.Equal) {
		t.Errorf("opened: %q, %v", got, err)
	}
	if !slices.Equal(w.store.added, []string{"192.0.2.9:2380"}) || len(w.store.removed) != 0 {
		t.Errorf("added %q, removed %q", w.store.added, w.store.removed)
	}
	if !strings.Contains(w.log.String(), "the cluster's keys were handed over") || !strings.Contains(w.log.String(), "token="+w.token.ID) ||
		strings.Contains(w.log.String(), w.token.Secret) {
		t.Errorf("the log: %s", &w.log)
	}
	if code, answer = w.join(t, TakePath); code != http.StatusUnauthorized || !strings.Contains(string(answer), "was used already") {
		t.Errorf("a second time: %d %s", code, answer)
	}

	// Who has other secrets, or asked as another machine, opens nothing.
	stranger, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	other := w.ask
	other.Name = "x"
	for what, open := range map[string]func() (Keys, error){
		"another key":     func() (Keys, error) { return Open(w.ask, stranger, w.token.Digest(), sealed) },
		"another token":   func() (Keys, error) { return Open(w.ask, w.own, "other", sealed) },
		"another machine": func() (Keys, error) { return Open(other, w.own, w.token.Digest(), sealed) },
		"a bent answer": func() (Keys, error) {
			bent := Sealed{sealed.Key, bytes.Clone(sealed.Data)}
			bent.Data[len(bent.Data)/2] ^= 1
			return Open(w.ask, w.own, w.token.Digest(), bent)
		},
		"no key at all": func() (Keys, error) { return Open(w.ask, w.own, w.token.Digest(), Sealed{Data: sealed.Data}) },
	} {
		if got, err := open(); err == nil {
			t.Errorf("%s opened %q", what, got)
		}
	}
}

// What is wrong is said, and neither the token nor the store has changed.
func TestAMachineThatDoesNotFitIsRefused(t *testing.T) {
	for want, change := range map[string]func(*world){
		"there is a server a in the cluster already":  func(w *world) { w.ask.Name = "a" },
		"there is a node worker in the cluster":       func(w *world) { w.ask.Name = "worker" },
		`\"kubernetes\" cannot be a server's name`:    func(w *world) { w.ask.Name = "kubernetes" },
		`cannot be a server's name [`:                 func(w *world) { w.ask.Name = "B_" },
		"is of Kubernetes v1.36.0":                    func(w *world) { w.ask.Version = "v1.36.0" },
		"join with --listen :6443":                    func(w *world) { w.ask.Port = 7443 },
		`cluster.serviceCIDR is \"10.3.0.0/16\"`:      func(w *world) { w.ask.Cluster.ServiceCIDR = "10.3.0.0/16" },
		`cluster.name is \"other\"`:                   func(w *world) { w.ask.Cluster.Name = "other" },
		"names an external etcd (store.endpoints)":    func(w *world) { w.ask.Address = "" },
		"name it in this machine's configuration too": func(w *world) { w.Giver.Store = nil },
		"do not listen for others yet":                func(w *world) { w.store.members[0].Peer = "" },
		"cannot be taken out":                         func(w *world) { w.store.members[1].ID, w.ask.Name = "last", "gone" },
		"the request has no nonce":                    func(w *world) { w.ask.Nonce = "" },
		"another program answers":                     func(w *world) { w.ask.Nonce = "other" },
		"cannot reach this machine's store at 192.0.2.9:2380: no route": func(w *world) {
			w.Dial = func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("no route") }
		},
		"the cluster's authority changes just now": func(w *world) {
			w.Changing = func(context.Context) (bool, error) { return true, nil }
		},
		"another server is joining": func(w *world) { w.store.full = errors.New("another server is joining") },
	} {
		w := newWorld(t)
		change(w)
		code, answer := w.join(t, TakePath)
		if code < 400 || !strings.Contains(string(answer), want) {
			t.Errorf("%s: %d %s", want, code, answer)
		}
		if len(w.store.added)+len(w.store.removed) > 0 {
			t.Errorf("%s: added %q, removed %q", want, w.store.added, w.store.removed)
		}
		if s, err := w.Kube.CoreV1().Secrets("kube-system").Get(t.Context(), jointoken.SecretName(w.token.ID),
			metav1.GetOptions{}); err != nil || jointoken.DigestOf(s) != w.token.Digest() {
			t.Errorf("%s: the token is used up: %v", want, err)
		}
		if strings.Contains(w.log.String(), "handed over") {
			t.Errorf("%s: the log says %s", want, &w.log)
		}
	}
}

// A server that is gone is replaced by a machine that comes under its name.
func TestAServerThatIsGoneIsReplaced(t *testing.T) {
	w := newWorld(t)
	w.ask.Name = "gone"
	if code, answer := w.join(t, TakePath); code != http.StatusOK {
		t.Fatalf("%d %s", code, answer)
	}
	if !slices.Equal(w.store.removed, []string{"2"}) || !slices.Equal(w.store.added, []string{"192.0.2.9:2380"}) {
		t.Errorf("removed %q, added %q", w.store.removed, w.store.added)
	}
}

// Who has no token gets no keys, whatever else it may, and those who try often have to wait.
func TestOnlyTokensJoinAndNotTooOften(t *testing.T) {
	w := newWorld(t)
	if code, answer := w.call(t, "kubernetes-admin", http.MethodPost, TakePath, w.ask); code != http.StatusForbidden {
		t.Errorf("an administrator: %d %s", code, answer)
	}
	last := 0
	for n := 0; last != http.StatusTooManyRequests; n++ { // some come back to it on a slow machine
		if last, _ = w.join(t, PreparePath); n > 100*burst {
			t.Fatalf("after %d requests: %d", n, last)
		}
	}
}

// Opening, listing and removing are an administrator's.
func TestAnAdministratorOpensAndRemoves(t *testing.T) {
	w := newWorld(t)
	w.store.members[0].Peer = ""
	if code, answer := w.call(t, "admin", http.MethodPost, OpenPath, nil); code != http.StatusOK || w.store.opened != "192.0.2.1:2380" {
		t.Errorf("open: %d %s, opened %q", code, answer, w.store.opened)
	}
	for path, want := range map[string]int{
		MembersPath + "?name=nobody": http.StatusNotFound, MembersPath + "?name=a": http.StatusConflict,
		MembersPath + "?name=a&dry-run=true": http.StatusOK,
		MembersPath + "?name=gone":           http.StatusOK, MembersPath + "?name=": http.StatusNotFound,
	} {
		if code, answer := w.call(t, "admin", http.MethodDelete, path, nil); code != want {
			t.Errorf("%s: %d %s, want %d", path, code, answer, want)
		}
	}
	if !slices.Equal(w.store.removed, []string{"2"}) {
		t.Errorf("removed %q", w.store.removed)
	}
	w = newWorld(t)
	w.store.members[0].Peer, w.Address = "", ""
	if code, answer := w.call(t, "admin", http.MethodPost, OpenPath, nil); code != http.StatusConflict || !strings.Contains(string(answer), "--listen :6443") {
		t.Errorf("open at loopback: %d %s", code, answer)
	}
	if code, _ := w.call(t, "admin", http.MethodGet, "/servers/join/other", nil); code != http.StatusNotFound {
		t.Errorf("an unknown path: %d", code)
	}
}
