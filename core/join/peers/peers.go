// SPDX-License-Identifier: Apache-2.0

// Package peers asks each server of a cluster by itself, not whichever answers: whether it is
// ready, of which version it is, how it sees the others, and what its clock says. It changes
// nothing, and a server that does not answer costs a few seconds.
package peers

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/wasmplane/wasmplane/core/join"
	"github.com/wasmplane/wasmplane/core/join/handover"
)

const (
	// patience with one server.
	patience = 5 * time.Second
	// largest answer that is read, in bytes.
	largest = 1 << 20
	// most servers that are asked: a cluster has five.
	most = 32
)

// Peer is one server, as it answers for itself.
type Peer struct {
	// Address of its API, HOST:PORT.
	Address string
	// Offer has its versions and how it sees the others; empty where Err is not nil.
	handover.Offer
	// Ahead is by how much its clock is ahead of this machine's, to a second.
	Ahead time.Duration
	// Err says why it is not ready.
	Err error
}

// Called is what people call the server.
func (p Peer) Called() string {
	return cmp.Or(p.Server.Name, p.Address)
}

// Addresses are where the servers of a cluster say that they are, HOST:PORT.
func Addresses(ctx context.Context, kube kubernetes.Interface) (out []string, err error) {
	// Nodes may list them, and get none.
	found, err := kube.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).List(ctx,
		metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, "kubernetes").String()})
	if err != nil {
		return nil, fmt.Errorf("ask where the servers are: %w", err)
	}
	if len(found.Items) != 1 || len(found.Items[0].Ports) == 0 || found.Items[0].Ports[0].Port == nil {
		return nil, errors.New("the Service kubernetes does not say where the servers are: they write that a moment after their start")
	}
	slice := &found.Items[0]
	for _, e := range slice.Endpoints {
		for _, a := range e.Addresses {
			out = append(out, net.JoinHostPort(a, strconv.Itoa(int(*slice.Ports[0].Port))))
		}
	}
	return out[:min(len(out), most)], nil
}

// Ask asks the servers at these addresses, all at once, by a client like the given one.
func Ask(ctx context.Context, cfg *rest.Config, addresses ...string) []Peer {
	out := make([]Peer, len(addresses))
	var all sync.WaitGroup
	for i, address := range addresses {
		all.Go(func() { out[i] = one(ctx, cfg, address) })
	}
	all.Wait()
	return out
}

// Own asks the server that the client reaches, by whichever address that is.
func Own(ctx context.Context, cfg *rest.Config) Peer {
	return ask(ctx, cfg, strings.TrimSuffix(cfg.Host, "/"))
}

func one(ctx context.Context, cfg *rest.Config, address string) Peer {
	c := join.ToServer(cfg, address)
	p := ask(ctx, c, c.Host)
	p.Address = address
	return p
}

func ask(ctx context.Context, cfg *rest.Config, url string) (p Peer) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return Peer{Err: err}
	}
	defer client.CloseIdleConnections()
	begin := time.Now()
	_, date, err := get(ctx, client, url+"/readyz")
	if !date.IsZero() {
		p.Ahead = ahead(date, begin, time.Now())
	}
	if err != nil {
		p.Err = err
		return p
	}
	about, _, err := get(ctx, client, url+handover.MembersPath)
	if err == nil {
		err = json.Unmarshal(about, &p.Offer)
	}
	p.Err = err
	return p
}

// ahead compares an answer's date, which has no fractions, with the time in which it was given.
func ahead(date, begin, end time.Time) time.Duration {
	const half = time.Second / 2
	return date.Add(half).Sub(begin.Add(end.Sub(begin) / 2)).Round(time.Second)
}

func get(ctx context.Context, client *http.Client, url string) (body []byte, date time.Time, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, date, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, date, err
	}
	defer func() { err = errors.Join(err, resp.Body.Close()) }()
	date, _ = http.ParseTime(resp.Header.Get("Date")) // zero: it says none
	body, err = io.ReadAll(io.LimitReader(resp.Body, largest))
	if err != nil {
		return nil, date, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, date, fmt.Errorf("GET %s: %s: %s", req.URL.Path, resp.Status, strings.TrimSpace(string(body[:min(len(body), 300)])))
	}
	return body, date, nil
}
