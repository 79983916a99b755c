// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/version"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes"
	"k8s.io/cluster-bootstrap/token/api"

	"github.com/wasmplane/wasmplane/core/auth/jointoken"
	"github.com/wasmplane/wasmplane/core/store"
)

// Bounds of what one server is asked for.
const (
	largest   = 64 << 10        // bytes of a request
	knocking  = 3 * time.Second // how long a machine's port may take to answer
	perMinute = 30              // requests of machines that join
	burst     = 10
)

// Giver is the side of a server.
type Giver struct {
	// Kube reads and deletes tokens, and reads nodes.
	Kube kubernetes.Interface
	// Store is the one in this process, or that of others for a light server; nil = it is an external etcd.
	Store store.Membership
	// Light: this server keeps no part of the store.
	Light bool
	// SignStore signs the certificate (PEM) by which the light server of a name uses the store; nil = it is an external etcd,
	// or this server is a light one.
	SignStore func(name string, csr []byte) ([]byte, error)
	// Cluster, Port of the API and Version are this server's, and those of all others.
	Cluster Cluster
	Port    int
	Version string
	// Self is what this server says of itself.
	Self Server
	// Address is where the other servers are to reach the store of this one; Opened keeps
	// that they do, for the next start.
	Address string
	Opened  func() error
	// Changing tells that the cluster's authority changes just now: a server that came in the
	// middle of it would have keys of the past.
	Changing func(context.Context) (bool, error)
	// Keys reads what is handed over.
	Keys func() (Keys, error)
	// Dial connects to the machine that joins.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	Log  *slog.Logger

	once   sync.Once
	pace   *rate.Limiter
	giving sync.Mutex // one machine at a time: the store takes in one at a time
}

// refusal is a sentence for who asked, with its HTTP status.
type refusal struct {
	code int
	text string
}

// Error implements error.
func (r *refusal) Error() string { return r.text }

func refuse(code int, format string, args ...any) error {
	return &refusal{code, fmt.Sprintf(format, args...)}
}

// ServeHTTP implements http.Handler, for all paths of this package.
func (g *Giver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	out, err := g.route(w, req)
	if err != nil {
		status := &metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Message: err.Error(),
			Code: http.StatusInternalServerError,
		}
		var r *refusal
		switch {
		case errors.As(err, &r):
			status.Code = int32(r.code)
		case errors.Is(err, store.ErrQuorum):
			status.Code = http.StatusConflict
		default:
			g.Log.ErrorContext(req.Context(), "a request about the cluster's servers failed", "path", req.URL.Path, "error", err)
		}
		out = status
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	if status, failed := out.(*metav1.Status); failed {
		w.WriteHeader(int(status.Code))
	}
	_ = json.NewEncoder(w).Encode(out) // who asked may have hung up
}

func (g *Giver) route(w http.ResponseWriter, req *http.Request) (any, error) {
	switch req.Method + " " + req.URL.Path {
	case "GET " + MembersPath:
		return g.offer(req.Context())
	case "DELETE " + MembersPath:
		return g.remove(req)
	case "POST " + OpenPath:
		return g.open(req.Context())
	case "POST " + PreparePath, "POST " + TakePath:
		return g.join(w, req)
	case "POST " + StorePath:
		return g.signAgain(req)
	}
	return nil, refuse(http.StatusNotFound, "there is no %s of %s", req.Method, req.URL.Path)
}

func (g *Giver) offer(ctx context.Context) (Offer, error) {
	o := Offer{Cluster: g.Cluster, Server: g.Self}
	if g.Store == nil {
		return o, nil
	}
	var err error
	if o.Members, err = g.Store.Members(ctx); err != nil {
		return o, err
	}
	o.Light, err = lights(ctx, g.Kube)
	return o, err
}

// open has other servers reach this one's store.
func (g *Giver) open(ctx context.Context) (Offer, error) {
	if g.Store == nil {
		return Offer{Cluster: g.Cluster}, nil // they meet in the external etcd
	}
	g.giving.Lock()
	defer g.giving.Unlock()
	all, err := g.Store.Members(ctx)
	if err != nil {
		return Offer{}, err
	}
	for _, m := range all {
		if (m.Self || g.Light) && m.Peer != "" { // a light server has come by what listens
			return g.offer(ctx)
		}
	}
	if err := g.refuseAsLight(ctx); err != nil {
		return Offer{}, err
	}
	host, _, err := net.SplitHostPort(g.Address)
	if ip := net.ParseIP(host); err != nil || ip == nil || ip.IsLoopback() {
		return Offer{}, refuse(http.StatusConflict, "other servers cannot reach this one at %q: start it with --listen :6443, and with node.address where the machine has no network of its own", g.Address)
	}
	if err := g.Store.Open(ctx, g.Address); err != nil {
		return Offer{}, refuse(http.StatusConflict, "%v", err)
	}
	if err := g.Opened(); err != nil {
		return Offer{}, err
	}
	g.Log.InfoContext(ctx, "the store listens for other servers from now on", "address", g.Address)
	return g.offer(ctx)
}

// remove takes the member out that the query names; with dry-run it only says whether it could.
func (g *Giver) remove(req *http.Request) (any, error) {
	if g.Store == nil {
		return nil, refuse(http.StatusConflict, "the cluster's store is an external etcd, which has members of its own")
	}
	if err := g.refuseAsLight(req.Context()); err != nil {
		return nil, err
	}
	all, err := g.Store.Members(req.Context())
	if err != nil {
		return nil, err
	}
	query := req.URL.Query()
	name := query.Get("name")
	if light, err := g.removeLight(req.Context(), name, query.Has("force"), query.Has("dry-run")); err != nil {
		return nil, err
	} else if light {
		if !query.Has("dry-run") {
			g.Log.WarnContext(req.Context(), "a light server was removed", "server", name, "by", who(req))
		}
		return g.offer(req.Context())
	}
	m, ok := named(all, name)
	if !ok {
		return nil, refuse(http.StatusNotFound, "there is no server %q", name)
	}
	if query.Has("dry-run") {
		return Offer{Cluster: g.Cluster, Members: all}, g.Store.Removable(req.Context(), m.ID)
	}
	if m.Alive && !query.Has("force") {
		return nil, refuse(http.StatusConflict, "server %s lives: run `wasmplane down` on its machine, which takes it out; --force removes it all the same, and it stops", name)
	}
	if err := g.Store.Remove(req.Context(), m.ID); err != nil {
		return nil, err
	}
	g.Log.WarnContext(req.Context(), "a server was removed", "server", name, "member", m.ID, "by", who(req))
	return g.offer(req.Context())
}

// named finds a member by its name, or by its ID where it has none yet.
func named(all []store.Member, name string) (store.Member, bool) {
	for _, m := range all {
		if name != "" && (m.Name == name || m.Name == "" && m.ID == name) {
			return m, true
		}
	}
	return store.Member{}, false
}

func who(req *http.Request) string {
	if u, ok := genericrequest.UserFrom(req.Context()); ok {
		return u.GetName()
	}
	return ""
}

// join answers a machine with a token.
func (g *Giver) join(w http.ResponseWriter, req *http.Request) (any, error) {
	g.once.Do(func() { g.pace = rate.NewLimiter(rate.Every(time.Minute/perMinute), burst) })
	if !g.pace.Allow() {
		w.Header().Set("Retry-After", "5")
		return nil, refuse(http.StatusTooManyRequests, "too many machines ask to join at once: try again in a moment")
	}
	id, ok := strings.CutPrefix(who(req), api.BootstrapUserPrefix)
	if !ok {
		return nil, refuse(http.StatusForbidden, "a server joins by a token: wasmplane token create --server")
	}
	var r Request
	if err := json.NewDecoder(io.LimitReader(req.Body, largest)).Decode(&r); err != nil {
		return nil, refuse(http.StatusBadRequest, "the request cannot be read: %v", err)
	}
	if err := g.refuseAsLight(req.Context()); err != nil {
		return nil, err
	}
	if !g.giving.TryLock() {
		w.Header().Set("Retry-After", "5")
		return nil, refuse(http.StatusTooManyRequests, "another machine is joining just now: try again in a moment")
	}
	defer g.giving.Unlock()
	plan, err := g.check(req.Context(), r)
	if err != nil || req.URL.Path == PreparePath {
		return Offer{Cluster: g.Cluster, Members: plan.members}, err
	}
	return g.give(req.Context(), r, plan, id, req.RemoteAddr)
}

// plan is what has to happen for a machine to come in.
type plan struct {
	members []store.Member
	gone    []store.Member // are replaced by the machine
	// replacesLight: a light server had its name, which is away.
	replacesLight bool
}

// check says what keeps the machine out.
func (g *Giver) check(ctx context.Context, r Request) (plan, error) {
	if problems := validation.IsDNS1123Subdomain(r.Name); len(problems) > 0 || jointoken.Reserved(r.Name) {
		return plan{}, refuse(http.StatusBadRequest, "%q cannot be a server's name %s; choose another one by --node-name", r.Name, problems)
	}
	if err := sameVersion(r.Version, g.Version); err != nil {
		return plan{}, err
	}
	if err := g.Cluster.differs(r.Cluster); err != nil {
		return plan{}, refuse(http.StatusConflict, "%v", err)
	}
	if r.Port != g.Port {
		return plan{}, refuse(http.StatusConflict, "the API listens at port %d on this machine and at %d on the cluster's servers, and pods reach all of them by one port: join with --listen :%d", r.Port, g.Port, g.Port)
	}
	p, err := g.place(ctx, r)
	if err != nil {
		return p, err
	}
	if changing, err := g.changing(ctx); err != nil || changing {
		return p, cmp.Or(err, refuse(http.StatusConflict, "the cluster's authority changes just now (`wasmplane certs rotate-ca --status` on a server): join when that has ended, with a new token"))
	}
	return p, g.checkNode(ctx, r, len(p.gone) > 0 || p.replacesLight)
}

func (g *Giver) changing(ctx context.Context) (bool, error) {
	if g.Changing == nil {
		return false, nil
	}
	return g.Changing(ctx)
}

// sameVersion: servers that share a store are of one minor version, but for the time of an upgrade.
func sameVersion(theirs, ours string) error {
	a, err := version.ParseSemantic(theirs)
	b, err2 := version.ParseSemantic(ours)
	if err != nil || err2 != nil {
		return nil //nolint:nilerr // a build for development says no version; there is nothing to compare
	}
	if a.Major() != b.Major() || a.Minor() != b.Minor() {
		return refuse(http.StatusConflict, "this machine's wasmplane is of Kubernetes %s, the cluster's servers are of %s, and servers share a store: join with the servers' version, and upgrade all of them afterwards", theirs, ours)
	}
	return nil
}

// place looks for the machine's place among the members of the store.
func (g *Giver) place(ctx context.Context, r Request) (p plan, err error) {
	switch {
	case g.Store == nil && r.Light:
		return p, refuse(http.StatusConflict, "the cluster's store is an external etcd, of which no server keeps a part: join without --light, and with store.endpoints in this machine's configuration")
	case g.Store == nil && r.Address != "":
		return p, refuse(http.StatusConflict, "the cluster's store is an external etcd: name it in this machine's configuration too (store.endpoints, with its certificates)")
	case g.Store == nil:
		return p, nil
	case r.Light:
		if err := r.checkLight(); err != nil {
			return p, err
		}
	case r.Address == "":
		return p, refuse(http.StatusConflict, "this machine's configuration names an external etcd (store.endpoints), and the cluster's servers keep the store themselves: leave the field out")
	}
	if p.members, err = g.Store.Members(ctx); err != nil {
		return p, err
	}
	for _, m := range p.members {
		switch mine := m.Name == r.Name || m.Peer == "https://"+r.Address; { // a light one has no address
		case m.Self && m.Peer == "":
			return p, refuse(http.StatusConflict, "the servers' stores do not listen for others yet: make the token by `wasmplane token create --server`, which has them do so")
		case mine && m.Alive:
			return p, refuse(http.StatusConflict, "there is a server %s in the cluster already, and it runs: choose another name by --node-name, or another machine", m.Name)
		case mine:
			p.gone = append(p.gone, m)
		}
	}
	for _, m := range p.gone {
		if err := g.Store.Removable(ctx, m.ID); err != nil {
			return p, fmt.Errorf("%w: server %s, which this machine replaces, cannot be taken out", err, m.Name)
		}
	}
	if p.replacesLight, err = g.placeOfLight(ctx, r); err != nil || r.Light {
		return p, err
	}
	return p, g.knock(ctx, r)
}

// placeOfLight tells whether a light server of the machine's name is there, which it takes the place of.
func (g *Giver) placeOfLight(ctx context.Context, r Request) (replaces bool, err error) {
	all, err := lights(ctx, g.Kube)
	if err != nil {
		return false, err
	}
	for _, l := range all {
		if l.Name == r.Name && l.Alive {
			return false, refuse(http.StatusConflict, "there is a server %s in the cluster already, and it runs: choose another name by --node-name, or another machine", l.Name)
		}
		replaces = replaces || l.Name == r.Name
	}
	return replaces, nil
}

// knock tries whether this server reaches the machine's store: a member that is added and
// that nobody reaches would be waited for in vain.
func (g *Giver) knock(ctx context.Context, r Request) error {
	if r.Nonce == "" || len(r.Nonce) > 64 {
		return refuse(http.StatusBadRequest, "the request has no nonce")
	}
	ctx, cancel := context.WithTimeout(ctx, knocking)
	defer cancel()
	said, err := g.listen(ctx, r)
	if err != nil {
		return refuse(http.StatusConflict, "the cluster's servers cannot reach this machine's store at %s: %v; open the port for them (store.peerPort), or name another address of the machine by node.address", r.Address, err)
	}
	if said != r.Nonce {
		return refuse(http.StatusConflict, "at %s, where this machine says that its store will be, another program answers", r.Address)
	}
	return nil
}

func (g *Giver) listen(ctx context.Context, r Request) (string, error) {
	conn, err := g.Dial(ctx, "tcp", r.Address)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return "", err
	}
	said := make([]byte, len(r.Nonce))
	_, err = io.ReadFull(conn, said)
	return string(said), err
}

// checkNode keeps the names of other machines' nodes.
func (g *Giver) checkNode(ctx context.Context, r Request, replaces bool) error {
	if !r.Node || replaces {
		return nil
	}
	_, err := g.Kube.CoreV1().Nodes().Get(ctx, r.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at node %s: %w", r.Name, err)
	}
	return refuse(http.StatusConflict, "there is a node %s in the cluster already: choose another name by --node-name, or, if that machine is gone, remove it first on a server: wasmplane node remove %s", r.Name, r.Name)
}

// give hands the keys over. The token is used up first: of two machines that come with
// it at once, one is refused.
func (g *Giver) give(ctx context.Context, r Request, p plan, id, from string) (Sealed, error) {
	keys, err := g.Keys()
	if err != nil {
		return Sealed{}, err
	}
	token, err := g.use(ctx, id)
	if err != nil {
		return Sealed{}, err
	}
	var sealed Sealed
	if r.Light {
		keys, err = g.lightKeys(ctx, r, p, keys)
	}
	if err == nil {
		sealed, err = Seal(r, jointoken.DigestOf(token), keys)
	}
	if err == nil {
		err = g.admit(ctx, r, p)
	}
	if err != nil {
		return Sealed{}, errors.Join(err, g.giveBack(ctx, token))
	}
	g.Log.WarnContext(ctx, "the cluster's keys were handed over to a machine that joins as a server", "server", r.Name, "token", id,
		"light", r.Light, "address", r.Address, "from", from)
	return sealed, nil
}

func (g *Giver) use(ctx context.Context, id string) (*corev1.Secret, error) {
	secrets := g.Kube.CoreV1().Secrets(metav1.NamespaceSystem)
	token, err := secrets.Get(ctx, jointoken.SecretName(id), metav1.GetOptions{})
	if err == nil && jointoken.DigestOf(token) == "" {
		return nil, refuse(http.StatusForbidden, "the token %s.*** was not made by `wasmplane token create --server`", id)
	}
	if err == nil {
		err = secrets.Delete(ctx, token.Name,
			metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &token.UID, ResourceVersion: &token.ResourceVersion}})
	}
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil, refuse(http.StatusUnauthorized, "the token %s.*** was used already: make a new one on a server: wasmplane token create --server", id)
	}
	if err != nil {
		return nil, fmt.Errorf("use the token up: %w", err)
	}
	return token, nil
}

// giveBack undoes use, for a hand-over that came to nothing.
func (g *Giver) giveBack(ctx context.Context, token *corev1.Secret) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), knocking)
	defer cancel()
	again := token.DeepCopy()
	again.ObjectMeta = metav1.ObjectMeta{Namespace: token.Namespace, Name: token.Name}
	if _, err := g.Kube.CoreV1().Secrets(token.Namespace).Create(ctx, again, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("the token is used up all the same: %w; make a new one", err)
	}
	return nil
}

// admit makes room among the members, where the machine takes part in the store.
func (g *Giver) admit(ctx context.Context, r Request, p plan) error {
	if g.Store == nil {
		return nil
	}
	for _, m := range p.gone {
		if err := g.Store.Remove(ctx, m.ID); err != nil {
			return err
		}
		g.Log.WarnContext(ctx, "a server was removed for the one that takes its place", "server", m.Name, "member", m.ID)
	}
	if r.Light {
		return Enlist(ctx, g.Kube, r.Name, net.JoinHostPort(r.Host, strconv.Itoa(r.Port)))
	}
	if p.replacesLight {
		if _, err := g.removeLight(ctx, r.Name, true, false); err != nil {
			return err
		}
	}
	return g.Store.Add(ctx, r.Address)
}
