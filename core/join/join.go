// SPDX-License-Identifier: Apache-2.0

// Package join makes a machine a worker of a cluster, keeps it one, and takes it out
// again. The machine has a token and learns the rest: it proves by the token's pin that the
// server is the cluster's, asks for a certificate by a key that it makes itself
// (certificates.k8s.io, with upstream's signers), and claims its node's name.
//
// What it has learned lies in one folder. A join that fails leaves nothing behind, in the
// folder or in the cluster, and can be run again; one that was killed leaves a folder by
// which the next one goes on. No authority's key and no other machine's credentials ever
// come to a worker.
package join

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"

	"github.com/wasmplane/wasmplane/core/auth/jointoken"
	"github.com/wasmplane/wasmplane/core/bootstrap/clusterinfo"
	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/core/run/atomicfile"
)

// MachineAnnotation of a Node is the identity of the data directory that has its name.
const MachineAnnotation = "wasmplane.dev/machine"

// Config of one join.
type Config struct {
	// Dir holds what the machine learns.
	Dir string
	// Server is who is asked, as Address reads it; Token is what lets us in.
	Server string
	Token  jointoken.Token
	// Node is the name to be had, Machine the identity of this machine's data directory.
	Node, Machine string
	// Names for Member.Names.
	Names string
	// Version of Kubernetes that this machine's kubelet is of, such as v1.37.1.
	Version string
	// Networks that this machine is in; nil: those of its interfaces.
	Networks []netip.Prefix
	// Now is the clock; nil: time.Now. Report is told of each step; it may be nil.
	Now    func() time.Time
	Report func(step string)
}

// Member is what a machine that has joined knows.
type Member struct {
	// Server is the one that it joined by, HOST:PORT.
	Server string `json:"server"`
	Node   string `json:"node"`
	// Machine is the identity of the data directory at the time of joining.
	Machine string `json:"machine"`
	// Cluster, Domain, PodCIDR and ServiceCIDR are the cluster's.
	Cluster     string `json:"cluster"`
	Domain      string `json:"domain"`
	PodCIDR     string `json:"podCIDR"`
	ServiceCIDR string `json:"serviceCIDR"`
	// Pin of the cluster's authority.
	Pin string `json:"pin"`
	// Names is what the names of all that is taken on this machine derive from; "" =
	// Cluster. It tells apart workers that share a machine.
	Names string `json:"names,omitempty"`
}

// ErrNotJoined means that the folder holds no membership.
var ErrNotJoined = errors.New("this machine has not joined a cluster; on a server, `wasmplane token create` prints the command that joins it")

func memberFile(dir string) string { return filepath.Join(dir, "member.json") }
func caFile(dir string) string     { return filepath.Join(dir, "ca.crt") }

// ClientFile is the node's client certificate with its key.
func ClientFile(dir string) string { return filepath.Join(dir, "kubelet-client.pem") }

// ServingFile is the certificate of the kubelet's server with its key.
func ServingFile(dir string) string { return filepath.Join(dir, "kubelet-serving.pem") }

// Read reads what the machine knows; ErrNotJoined where it has not joined.
func Read(dir string) (Member, error) {
	var m Member
	data, err := os.ReadFile(memberFile(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return m, ErrNotJoined
	}
	if err != nil {
		return m, fmt.Errorf("read what this machine knows of its cluster: %w", err)
	}
	if err := json.Unmarshal(data, &m); err != nil {
		return m, fmt.Errorf("%s is damaged: %w; remove this machine's node from the cluster (`wasmplane node remove`), remove the folder %s and join again", memberFile(dir), err, dir)
	}
	return m, nil
}

// Join makes this machine a member. A machine that is one already is left as it is.
func Join(ctx context.Context, c Config) (m Member, err error) {
	c.fill()
	address, err := c.check()
	if err != nil {
		return m, err
	}
	switch there, err := Read(c.Dir); {
	case err == nil && there.Pin != c.Token.Pin:
		return m, fmt.Errorf("this machine is node %s of another cluster, %s; leave that first: wasmplane down --purge", there.Node, there.Cluster)
	case err == nil:
		return there, nil
	case !errors.Is(err, ErrNotJoined):
		return m, err
	}
	// A folder that is there is an interrupted join's. Its certificate may be the only one
	// that the cluster gives out for the name.
	_, missing := os.Stat(c.Dir)
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return m, fmt.Errorf("make the folder of this machine's identity: %w", err)
	}
	defer func() {
		if err != nil && errors.Is(missing, fs.ErrNotExist) {
			err = errors.Join(err, os.RemoveAll(c.Dir))
		}
	}()
	return c.join(ctx, address)
}

func (c *Config) check() (address string, err error) {
	if address, err = Address(c.Server); err != nil {
		return "", err
	}
	if problems := validation.IsDNS1123Subdomain(c.Node); len(problems) > 0 || jointoken.Reserved(c.Node) {
		return "", fmt.Errorf("%q cannot be a node's name %s; choose another one by --node-name", c.Node, problems)
	}
	if c.Token.Pin == "" {
		return "", errors.New("the token does not say of which cluster it is: use it as `wasmplane token create` printed it, or add the pin of the authority by --pin sha256:HEX")
	}
	return address, nil
}

func (c *Config) join(ctx context.Context, address string) (Member, error) {
	c.Report("asking the server at " + address + " who it is")
	ca, err := authority(ctx, address, c.Token.Pin)
	if err != nil {
		return Member{}, err
	}
	if err := checkClock(ctx, address, ca, c.Now); err != nil {
		return Member{}, err
	}
	invited, err := kubernetes.NewForConfig(reach(address, rest.TLSClientConfig{CAData: certificatePEM(ca)}, c.Token.Bearer()))
	if err != nil {
		return Member{}, fmt.Errorf("make the client for joining: %w", err)
	}
	m, err := c.learn(ctx, invited)
	if err != nil {
		return m, err
	}
	m.Server = address
	c.Report("asking for a certificate for node " + c.Node)
	if err := c.certificate(ctx, invited, ca); err != nil {
		return m, err
	}
	if err := atomicfile.Write(caFile(c.Dir), certificatePEM(ca), 0o600); err != nil {
		return m, err
	}
	own, err := kubernetes.NewForConfig(m.Client(c.Dir))
	if err != nil {
		return m, fmt.Errorf("make the node's client: %w", err)
	}
	made, err := claim(ctx, own, c.Node, c.Machine)
	if err != nil {
		return m, err
	}
	if err = m.write(c.Dir); err != nil && made {
		err = errors.Join(err, leave(ctx, own, c.Node))
	}
	return m, err
}

func (m Member) write(dir string) error {
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return fmt.Errorf("encode what this machine knows of its cluster: %w", err)
	}
	return atomicfile.Write(memberFile(dir), append(data, '\n'), 0o600)
}

// reach is the configuration of a client of the server at address, which is known by
// the name that all servers have.
func reach(address string, trust rest.TLSClientConfig, token string) *rest.Config {
	trust.ServerName = ServerName
	return &rest.Config{
		Host: "https://" + address, TLSClientConfig: trust, BearerToken: token,
		QPS: -1, UserAgent: client.UserAgent + "/member", WarningHandler: rest.NoWarnings{},
	}
}

// ToServer is the configuration of a client like the given one, of the server at that address and no other.
func ToServer(cfg *rest.Config, address string) *rest.Config {
	one := rest.CopyConfig(cfg)
	one.Host, one.Dial, one.ServerName = "https://"+address, nil, ServerName
	return one
}

// Client is the configuration of a client with the node's identity, which lies in dir.
// It goes on with the certificate when that is renewed.
func (m Member) Client(dir string) *rest.Config {
	return reach(m.Server, rest.TLSClientConfig{CAFile: caFile(dir), CertFile: ClientFile(dir), KeyFile: ClientFile(dir)}, "")
}

// Refresh is m with the networks that the cluster has now, which may have been given a second
// IP family since; kept in dir. Where no server answers in time it is m.
func (m Member) Refresh(ctx context.Context, dir string, own *rest.Config) (Member, error) {
	kube, err := kubernetes.NewForConfig(own)
	if err != nil {
		return m, fmt.Errorf("make the node's client: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	about, err := kube.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, clusterinfo.ConfigMap, metav1.GetOptions{})
	if err != nil {
		return m, nil // it works with what it knows, and asks again at the next start
	}
	now := m
	now.PodCIDR = grown(m.PodCIDR, about.Data[clusterinfo.PodCIDR])
	now.ServiceCIDR = grown(m.ServiceCIDR, about.Data[clusterinfo.ServiceCIDR])
	if now == m {
		return m, nil
	}
	if err := (&Config{}).checkNetworks(now); err != nil {
		return m, err
	}
	return now, now.write(dir)
}

// Configure is c with what the cluster says in the place of what a file says.
func (m Member) Configure(c *config.Configuration) *config.Configuration {
	own := *c
	own.Cluster.Name, own.Cluster.Domain, own.Cluster.PodCIDR, own.Cluster.ServiceCIDR = cmp.Or(m.Names,
		m.Cluster), m.Domain, m.PodCIDR, m.ServiceCIDR
	own.Node.Name = m.Node
	return &own
}

// learn asks what the cluster is, and whether this machine fits into it.
func (c *Config) learn(ctx context.Context, invited kubernetes.Interface) (Member, error) {
	m := Member{Node: c.Node, Machine: c.Machine, Pin: c.Token.Pin, Names: c.Names}
	about, err := invited.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, clusterinfo.ConfigMap, metav1.GetOptions{})
	switch {
	case apierrors.IsUnauthorized(err):
		return m, fmt.Errorf("the server does not know the token %s.***: it is mistyped, has expired or was revoked; make a new one on a server: wasmplane token create", c.Token.ID)
	case apierrors.IsForbidden(err):
		return m, fmt.Errorf("the token %s.*** is not for workers; make one that is on a server: wasmplane token create (%w)", c.Token.ID, err)
	case apierrors.IsNotFound(err):
		return m, errors.New("the server's version of wasmplane knows nothing of joining; upgrade the servers first")
	case err != nil:
		return m, fmt.Errorf("ask what the cluster is: %w", err)
	}
	m.Cluster, m.Domain = about.Data[clusterinfo.Name], about.Data[clusterinfo.Domain]
	m.PodCIDR, m.ServiceCIDR = about.Data[clusterinfo.PodCIDR], about.Data[clusterinfo.ServiceCIDR]
	if err := c.checkNetworks(m); err != nil {
		return m, err
	}
	theirs, err := invited.Discovery().ServerVersion()
	if err != nil {
		return m, fmt.Errorf("ask for the server's version: %w", err)
	}
	return m, checkVersions(c.Version, theirs.GitVersion)
}

// checkVersions holds upstream's rule (kubernetes.io/releases/version-skew-policy): a
// kubelet is never newer than its server, and at most three minor versions older.
func checkVersions(ours, theirs string) error {
	own, err := version.ParseSemantic(ours)
	server, err2 := version.ParseSemantic(theirs)
	if err != nil || err2 != nil {
		return nil //nolint:nilerr // a build for development says no version; there is nothing to compare
	}
	const oldest = 3
	behind := int(server.Minor()) - int(own.Minor())
	switch {
	case own.Major() != server.Major(), behind < 0:
		return fmt.Errorf("this machine's wasmplane is of Kubernetes %s, newer than the server's %s: upgrade the servers first, or join with the servers' version", ours, theirs)
	case behind > oldest:
		return fmt.Errorf("this machine's wasmplane is of Kubernetes %s, and the server's %s works with kubelets that are at most %d minor versions older: install the servers' version here and join again", ours, theirs, oldest)
	}
	return nil
}

// checkNetworks refuses a machine that is itself in the network of pods or Services:
// what it sends to its neighbours would go to pods instead.
func (c *Config) checkNetworks(m Member) error {
	var own []Network
	for _, p := range c.Networks {
		own = append(own, Network{Prefix: p})
	}
	if c.Networks == nil {
		var err error
		if own, err = Interfaces(); err != nil {
			return err
		}
	}
	for what, text := range map[string]string{"pods": m.PodCIDR, "Services": m.ServiceCIDR} {
		theirs, err := config.ParseNetworks(text)
		if err != nil {
			return fmt.Errorf("the server says that the network of %s is %q: %w", what, text, err)
		}
		if p, at := Overlap(own, theirs); at.IsValid() {
			return fmt.Errorf("this machine is in the network %s, which overlaps the cluster's network of %s, %s: what it sends there would not arrive; give the machine another network, or begin the cluster with others (cluster.podCIDR, cluster.serviceCIDR)", p, what, at)
		}
	}
	return nil
}

// Network is one that this machine is in.
type Network struct {
	netip.Prefix
	// Interface that has an address in it; "" = the caller does not say.
	Interface string
}

// String is the network, with its interface where that is known.
func (n Network) String() string {
	if n.Interface == "" {
		return n.Prefix.String()
	}
	return n.Prefix.String() + " (" + n.Interface + ")"
}

// Overlap finds the first of a machine's networks that overlaps one of theirs; at is not valid where none does.
func Overlap(own []Network, theirs []netip.Prefix) (n Network, at netip.Prefix) {
	for _, n := range own {
		if i := slices.IndexFunc(theirs, n.Overlaps); i >= 0 {
			return n, theirs[i]
		}
	}
	return Network{}, netip.Prefix{}
}

// Interfaces are the networks of this machine, without those of containers.
func Interfaces() ([]Network, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("look at this machine's networks: %w", err)
	}
	var out []Network
	for _, i := range all {
		if strings.HasPrefix(i.Name, "wp") { // bridges of clusters, which an earlier join may have left
			continue
		}
		addrs, err := i.Addrs()
		if err != nil {
			return nil, fmt.Errorf("look at the addresses of %s: %w", i.Name, err)
		}
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil && !p.Addr().IsLoopback() && (p.Addr().Is4() || !p.Addr().IsLinkLocalUnicast()) {
				out = append(out, Network{p.Masked(), i.Name})
			}
		}
	}
	return out, nil
}

// claim makes the Node, which of two machines only one can. made: it was not there.
func claim(ctx context.Context, own kubernetes.Interface, name, machine string) (made bool, err error) {
	nodes := own.CoreV1().Nodes()
	asked := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{MachineAnnotation: machine}}}
	// A server whose clock is a moment behind does not know the certificate yet.
	err = retry.OnError(wait.Backoff{Duration: 500 * time.Millisecond, Steps: 10, Factor: 1.2}, apierrors.IsUnauthorized, func() error {
		_, err := nodes.Create(ctx, asked, metav1.CreateOptions{})
		return err
	})
	if err == nil {
		return true, nil
	}
	if !apierrors.IsAlreadyExists(err) {
		return false, fmt.Errorf("register node %s: %w", name, err)
	}
	has, err := nodes.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return false, fmt.Errorf("look at node %s: %w", name, err)
	}
	if has.Annotations[MachineAnnotation] != machine {
		return false, taken(name)
	}
	return false, nil
}

// other tells whether a node is another machine's. One that a kubelet has registered again
// does not say.
func other(n *corev1.Node, machine string) bool {
	has, ok := n.Annotations[MachineAnnotation]
	return ok && has != machine
}

func taken(name string) error {
	return fmt.Errorf("there is a node %s in the cluster already: choose another name by --node-name, or, if that machine is gone, remove it first on a server: wasmplane node remove %s", name, name)
}

// leave deletes the node. One that is gone already is as good.
func leave(ctx context.Context, own kubernetes.Interface, name string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	if err := own.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("take node %s out of the cluster: %w; do it on a server: wasmplane node remove %s", name, err, name)
	}
	return nil
}

// Refused is what a machine is told whose certificate the cluster does not accept any more.
func Refused(node string) error {
	return fmt.Errorf("the cluster does not accept the certificate of node %s any more: the node was removed on a server (wasmplane node remove). To bring this machine back, run `wasmplane down --purge` here, `wasmplane token create` on a server, and the command that the token comes with", node)
}

// Watch logs when the cluster refuses this machine, until ctx ends.
func Watch(ctx context.Context, m Member, own kubernetes.Interface, log *slog.Logger) error {
	tick := time.NewTicker(time.Minute)
	defer tick.Stop()
	refused := false
	for {
		_, err := own.CoreV1().Nodes().Get(ctx, m.Node, metav1.GetOptions{ResourceVersion: "0"})
		if apierrors.IsUnauthorized(err) && !refused {
			log.ErrorContext(ctx, "this machine is not of the cluster any more", "error", Refused(m.Node))
		}
		refused = apierrors.IsUnauthorized(err)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// Leave takes the machine out of its cluster: no new pods, then no node. What the folder
// holds stays; the caller removes it with the rest of the machine's data.
func Leave(ctx context.Context, m Member, own kubernetes.Interface) error {
	has, err := own.CoreV1().Nodes().Get(ctx, m.Node, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err == nil && other(has, m.Machine) {
		return nil // the name was given to another machine meanwhile
	}
	if apierrors.IsUnauthorized(err) {
		return Refused(m.Node)
	}
	if err != nil {
		return fmt.Errorf("look at node %s: %w", m.Node, err)
	}
	return leave(ctx, own, m.Node)
}
