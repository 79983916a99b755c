// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"

	"github.com/wasmplane/wasmplane/core/auth/removal"
	"github.com/wasmplane/wasmplane/core/store"
)

// lightServers of kube-system is a ConfigMap with the light servers: their names, and where their APIs are.
const lightServers = "wasmplane-light-servers"

// Light is a server that keeps no part of the store. It has no vote, and nobody waits for it.
type Light struct {
	Name string `json:"name"`
	// Address of its API for others, HOST:PORT.
	Address string `json:"address"`
	// Alive: it is among the servers that answer.
	Alive bool `json:"alive"`
}

// StoreRequest is what a light server sends to have its certificate for the store signed again.
type StoreRequest struct {
	Name string `json:"name"`
	CSR  []byte `json:"csr"`
}

// StoreCertificate is the answer, in PEM.
type StoreCertificate struct {
	Certificate []byte `json:"certificate"`
}

// lights are all light servers, by name.
func lights(ctx context.Context, kube kubernetes.Interface) ([]Light, error) {
	has, err := kube.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, lightServers, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("ask which light servers there are: %w", err)
	}
	slice, err := kube.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("ask which servers answer: %w", err)
	}
	var out []Light
	for name, address := range has.Data {
		host, _, _ := net.SplitHostPort(address)
		out = append(out, Light{Name: name, Address: address, Alive: err == nil && slices.ContainsFunc(slice.Endpoints,
			func(e discoveryv1.Endpoint) bool { return slices.Contains(e.Addresses, host) })})
	}
	slices.SortFunc(out, func(a, b Light) int { return cmp.Compare(a.Name, b.Name) })
	return out, nil
}

// Enlist writes down where the API of a light server is. The server does so itself at each start, because its address may be another
// one since it joined.
func Enlist(ctx context.Context, kube kubernetes.Interface, name, address string) error {
	if err := editLights(ctx, kube, func(all map[string]string) bool {
		changed := all[name] != address
		all[name] = address
		return changed
	}); err != nil {
		return fmt.Errorf("record the light server %s: %w", name, err)
	}
	return nil
}

// strike takes a light server out of the record.
func strike(ctx context.Context, kube kubernetes.Interface, name string) error {
	if err := editLights(ctx, kube, func(all map[string]string) bool {
		_, there := all[name]
		delete(all, name)
		return there
	}); err != nil {
		return fmt.Errorf("take the light server %s out of the record: %w", name, err)
	}
	return nil
}

func editLights(ctx context.Context, kube kubernetes.Interface, edit func(map[string]string) (changed bool)) error {
	maps := kube.CoreV1().ConfigMaps(metav1.NamespaceSystem)
	changed := func(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }
	return retry.OnError(retry.DefaultBackoff, changed, func() error {
		has, err := maps.Get(ctx, lightServers, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			first := map[string]string{}
			if !edit(first) {
				return nil
			}
			_, err = maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: lightServers}, Data: first}, metav1.CreateOptions{})
			return err
		}
		if err != nil {
			return err
		}
		if has.Data == nil {
			has.Data = map[string]string{}
		}
		if !edit(has.Data) {
			return nil
		}
		_, err = maps.Update(ctx, has, metav1.UpdateOptions{})
		return err
	})
}

// refuseAsLight is what a light server says to those who want what only a server with a part of the store can do.
func (g *Giver) refuseAsLight(ctx context.Context) error {
	if !g.Light {
		return nil
	}
	var others []string
	if all, err := g.Store.Members(ctx); err == nil {
		for _, m := range all {
			if host, _, err := net.SplitHostPort(strings.TrimPrefix(m.Peer, "https://")); err == nil && m.Alive {
				others = append(others, fmt.Sprintf("%s (%s)", m.Name, net.JoinHostPort(host, strconv.Itoa(g.Port))))
			}
		}
	}
	return refuse(http.StatusConflict, "server %s is a light one, which keeps no part of the store and neither takes servers in nor out: ask one that keeps it, %s",
		g.Self.Name, cmp.Or(strings.Join(others, " or "), "as soon as one of them answers"))
}

// checkLight says what is wrong with what a light server says of itself.
func (r Request) checkLight() error {
	host, err := netip.ParseAddr(r.Host)
	switch {
	case err != nil || host.IsLoopback() || host.IsUnspecified():
		return refuse(http.StatusBadRequest, "the other servers cannot reach this machine at %q: name its address by node.address", r.Host)
	case r.Address != "" || len(r.CSR) == 0:
		return refuse(http.StatusBadRequest, "a light server asks for a certificate, and has no store that others could reach")
	}
	return nil
}

// removeLight takes the light server of that name out; found tells whether there is one.
func (g *Giver) removeLight(ctx context.Context, name string, force, dryRun bool) (found bool, err error) {
	all, err := lights(ctx, g.Kube)
	if err != nil {
		return false, err
	}
	i := slices.IndexFunc(all, func(l Light) bool { return l.Name == name && name != "" })
	if i < 0 || dryRun {
		return i >= 0, nil
	}
	if all[i].Alive && !force {
		return true, refuse(http.StatusConflict, "server %s lives: run `wasmplane down` on its machine, which takes it out; --force removes it all the same, and it stops", name)
	}
	// What shuts it out comes first.
	if err := removal.Record(ctx, g.Kube, name, time.Now()); err != nil {
		return true, err
	}
	return true, strike(ctx, g.Kube, name)
}

// lightKeys are those of keys that a light server needs, with its certificate. An earlier light server of the name is shut out.
func (g *Giver) lightKeys(ctx context.Context, r Request, p plan, keys Keys) (Keys, error) {
	if p.replacesLight {
		// Certificates begin at whole seconds, and this one's is no earlier than that.
		if err := removal.Record(ctx, g.Kube, r.Name, time.Now().Truncate(time.Second)); err != nil {
			return nil, err
		}
	}
	cert, err := g.SignStore(r.Name, r.CSR)
	if err != nil {
		return nil, refuse(http.StatusBadRequest, "%v", err)
	}
	keys = maps.Clone(keys)
	delete(keys, etcdKey)
	keys[StoreCertificateFile] = cert
	return keys, nil
}

// signAgain renews the certificate of a light server, for administrators, as which light servers come.
func (g *Giver) signAgain(req *http.Request) (any, error) {
	if err := g.refuseAsLight(req.Context()); err != nil {
		return nil, err
	}
	if g.SignStore == nil {
		return nil, refuse(http.StatusConflict, "the cluster's store is an external etcd, whose certificates are its operator's")
	}
	var r StoreRequest
	if err := json.NewDecoder(io.LimitReader(req.Body, largest)).Decode(&r); err != nil {
		return nil, refuse(http.StatusBadRequest, "the request cannot be read: %v", err)
	}
	all, err := lights(req.Context(), g.Kube)
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(all, func(l Light) bool { return l.Name == r.Name }) {
		return nil, refuse(http.StatusNotFound, "there is no light server %q: %v", r.Name, store.ErrRemoved)
	}
	cert, err := g.SignStore(r.Name, r.CSR)
	if err != nil {
		return nil, refuse(http.StatusBadRequest, "%v", err)
	}
	g.Log.InfoContext(req.Context(), "signed the certificate of a light server again", "server", r.Name, "by", who(req))
	return StoreCertificate{cert}, nil
}
