// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/auth/removal"
)

// newLightWorld is a world whose machine is to be a light server.
func newLightWorld(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	all := maps.Clone(keys)
	all["etcd-ca.crt"], all[etcdKey] = []byte("e"), []byte("the key of the stores' authority")
	w.Keys = func() (Keys, error) { return all, nil }
	w.SignStore = func(name string, csr []byte) ([]byte, error) {
		if string(csr) != "asked" {
			return nil, errors.New("the request for a certificate cannot be read")
		}
		return []byte("signed for " + name), nil
	}
	w.ask.Light, w.ask.Address, w.ask.Nonce, w.ask.Host, w.ask.CSR = true, "", "", "192.0.2.9", []byte("asked")
	return w
}

// answers has the API say that servers answer at these hosts.
func (w *world) answers(t *testing.T, hosts ...string) {
	t.Helper()
	slices := w.Kube.DiscoveryV1().EndpointSlices("default")
	_ = slices.Delete(t.Context(), "kubernetes", metav1.DeleteOptions{}) // the first time there is none
	if _, err := slices.Create(t.Context(), &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, Endpoints: []discoveryv1.Endpoint{{Addresses: hosts}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (w *world) offered(t *testing.T) Offer {
	t.Helper()
	code, answer := w.call(t, "admin", http.MethodGet, MembersPath, nil)
	var offer Offer
	if err := json.Unmarshal(answer, &offer); err != nil || code != http.StatusOK {
		t.Fatalf("%d %s", code, answer)
	}
	return offer
}

// A light server gets what it needs and nothing more, no place among the members, and is one of the servers.
func TestALightServerHasNoPlaceInTheStore(t *testing.T) {
	w := newLightWorld(t)
	if code, answer := w.join(t, PreparePath); code != http.StatusOK || len(w.offered(t).Light) > 0 {
		t.Fatalf("prepare: %d %s", code, answer)
	}
	code, answer := w.join(t, TakePath)
	var sealed Sealed
	if err := json.Unmarshal(answer, &sealed); err != nil || code != http.StatusOK {
		t.Fatalf("take: %d %s", code, answer)
	}
	got, err := Open(w.ask, w.own, w.token.Digest(), sealed)
	if err != nil || string(got[StoreCertificateFile]) != "signed for b" || len(got["etcd-ca.crt"]) == 0 || got["ca.key"] == nil {
		t.Errorf("it was given %q, %v", slices.Sorted(maps.Keys(got)), err)
	}
	if _, has := got[etcdKey]; has {
		t.Error("it has the key of the stores' authority")
	}
	other := w.ask
	other.CSR = []byte("another's")
	if _, err := Open(other, w.own, w.token.Digest(), sealed); err == nil {
		t.Error("the answer counts for another certificate")
	}
	if len(w.store.added)+len(w.store.removed) > 0 {
		t.Errorf("added %q, removed %q", w.store.added, w.store.removed)
	}
	want := Light{Name: "b", Address: "192.0.2.9:6443"}
	if found := w.offered(t).Light; !slices.Equal(found, []Light{want}) {
		t.Errorf("there are %+v", found)
	}
	w.answers(t, "192.0.2.1", "192.0.2.9")
	if want.Alive = true; !slices.Equal(w.offered(t).Light, []Light{want}) {
		t.Errorf("there are %+v", w.offered(t).Light)
	}
	// It says itself where it is, after its address has changed.
	if err := Enlist(t.Context(), w.Kube, "b", "192.0.2.10:6443"); err != nil || w.offered(t).Light[0].Address != "192.0.2.10:6443" {
		t.Errorf("after a change of address %+v, %v", w.offered(t).Light, err)
	}
}

// What is wrong is said before anything is done.
func TestALightServerThatDoesNotFitIsRefused(t *testing.T) {
	for want, change := range map[string]func(*world){
		"there is a server a in the cluster already": func(w *world) { w.ask.Name = "a" },
		"cannot reach this machine at":               func(w *world) { w.ask.Host = "127.0.0.1" },
		"a light server asks for a certificate":      func(w *world) { w.ask.CSR = nil },
		"cannot be read":                             func(w *world) { w.ask.CSR = []byte("?") },
		"do not listen for others yet":               func(w *world) { w.store.members[0].Peer = "" },
		"is an external etcd, of which no server":    func(w *world) { w.Giver.Store = nil },
		"ask one that keeps it, a (192.0.2.1:6443)":  func(w *world) { w.Giver.Light, w.Self.Name = true, "d" },
	} {
		w := newLightWorld(t)
		change(w)
		if code, answer := w.join(t, TakePath); code < 400 || !strings.Contains(string(answer), want) {
			t.Errorf("%s: %d %s", want, code, answer)
		}
		w.Giver.Store, w.Giver.Light = w.store, false
		if found := w.offered(t).Light; len(found) > 0 {
			t.Errorf("%s: there is %+v all the same", want, found)
		}
	}
}

// A light server that is taken out is shut out, and its name is free for another one, also while it is away only.
func TestALightServerIsTakenOutAndReplaced(t *testing.T) {
	w := newLightWorld(t)
	w.answers(t, "192.0.2.1", "192.0.2.9")
	if err := Enlist(t.Context(), w.Kube, "b", "192.0.2.9:6443"); err != nil {
		t.Fatal(err)
	}
	if code, answer := w.join(t, TakePath); code != http.StatusConflict ||
		!strings.Contains(string(answer), "a server b in the cluster already, and it runs") {
		t.Errorf("a second one of the name: %d %s", code, answer)
	}
	for query, want := range map[string]int{"?name=b": http.StatusConflict, "?name=b&dry-run=true": http.StatusOK} {
		if code, answer := w.call(t, "admin", http.MethodDelete, MembersPath+query, nil); code != want {
			t.Errorf("%s: %d %s", query, code, answer)
		}
	}
	request := StoreRequest{Name: "b", CSR: []byte("asked")}
	if code, answer := w.call(t, "admin", http.MethodPost, StorePath, request); code != http.StatusOK || !bytes.Contains(answer, []byte("certificate")) {
		t.Errorf("signed again: %d %s", code, answer)
	}
	w.answers(t, "192.0.2.1")
	if code, answer := w.join(t, TakePath); code != http.StatusOK {
		t.Fatalf("in the place of one that is away: %d %s", code, answer)
	}
	if record, err := w.Kube.CoreV1().ConfigMaps("kube-system").Get(t.Context(), removal.ConfigMap, metav1.GetOptions{}); err != nil || record.Data["b"] == "" {
		t.Errorf("the earlier one is not shut out: %v", err)
	}
	if code, answer := w.call(t, "admin", http.MethodDelete, MembersPath+"?name=b", nil); code != http.StatusOK ||
		len(w.offered(t).Light) > 0 {
		t.Errorf("taken out: %d %s, %+v", code, answer, w.offered(t).Light)
	}
	if code, answer := w.call(t, "admin", http.MethodPost, StorePath, request); code != http.StatusNotFound {
		t.Errorf("signed again for one that is out: %d %s", code, answer)
	}
	if len(w.store.added)+len(w.store.removed) > 0 {
		t.Errorf("added %q, removed %q", w.store.added, w.store.removed)
	}
}
