// SPDX-License-Identifier: Apache-2.0

package join

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/certificate"
	"k8s.io/client-go/util/certificate/csr"
	"k8s.io/client-go/util/keyutil"

	"github.com/wasmplane/wasmplane/core/auth/jointoken"
	"github.com/wasmplane/wasmplane/core/join/succession"
	"github.com/wasmplane/wasmplane/core/pki"
	"github.com/wasmplane/wasmplane/core/pki/cabundle"
	"github.com/wasmplane/wasmplane/core/run/atomicfile"
)

// signing bounds how long a first certificate may take.
const signing = 2 * time.Minute

func subject(node string) pkix.Name {
	id := pki.Node(node)
	return pkix.Name{CommonName: id.User, Organization: id.Groups}
}

// certificate asks for the node's first certificate. One that an interrupted join has
// left is used: the cluster gives out no second one once the node is registered.
func (c *Config) certificate(ctx context.Context, invited kubernetes.Interface, ca *x509.Certificate) error {
	if has, err := (pairFile{ClientFile(c.Dir)}).Current(); err == nil && has.Leaf.Subject.CommonName == subject(c.Node).CommonName &&
		has.Leaf.CheckSignatureFrom(ca) == nil && c.Now().Before(has.Leaf.NotAfter) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, signing)
	defer cancel()
	signed, secret, err := request(ctx, invited, &x509.CertificateRequest{Subject: subject(c.Node)},
		certificatesv1.KubeAPIServerClientKubeletSignerName, certificate.DefaultKubeletClientGetUsages, "node-csr-")
	switch {
	case err != nil && strings.Contains(err.Error(), jointoken.ReasonNameTaken):
		return taken(c.Node)
	case err != nil && ctx.Err() != nil:
		return fmt.Errorf("%w within %s: do the controllers run (`wasmplane status` on a server)?", err, signing)
	case err != nil:
		return err
	}
	_, err = (pairFile{ClientFile(c.Dir)}).Update(signed, secret)
	return err
}

// request has the cluster sign a certificate for a new key; both in PEM. prefix begins the
// request's name, which is the key's digest; "" = the server chooses one.
func request(ctx context.Context, kube kubernetes.Interface, template *x509.CertificateRequest, signer string,
	usages func(any) []certificatesv1.KeyUsage, prefix string,
) (signed, secret []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("generate a key: %w", err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		return nil, nil, fmt.Errorf("make a certificate request: %w", err)
	}
	if secret, err = keyutil.MarshalPrivateKeyToPEM(key); err != nil {
		return nil, nil, fmt.Errorf("encode a key: %w", err)
	}
	name := ""
	if prefix != "" {
		sum := sha256.Sum256(der)
		name = prefix + hex.EncodeToString(sum[:16])
	}
	name, uid, err := csr.RequestCertificateWithContext(ctx, kube, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
		name, signer, nil, usages(key), key)
	if err != nil {
		return nil, nil, fmt.Errorf("ask for a certificate: %w", err)
	}
	signed, err = csr.WaitForCertificate(ctx, kube, name, uid)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, nil, fmt.Errorf("the certificate request %s was not signed (an administrator can look at it: kubectl describe csr %s)", name, name)
	case err != nil:
		return nil, nil, fmt.Errorf("ask for a certificate: %w", err)
	}
	return signed, secret, nil
}

// pairFile keeps a certificate and its key in one file, which is replaced at once.
type pairFile struct{ path string }

// Current implements certificate.Store.
func (p pairFile) Current() (*tls.Certificate, error) {
	data, err := os.ReadFile(p.path)
	if errors.Is(err, fs.ErrNotExist) {
		none := certificate.NoCertKeyError("there is no certificate yet in " + p.path)
		return nil, &none
	}
	if err != nil {
		return nil, fmt.Errorf("read a certificate: %w", err)
	}
	return parsePair(data)
}

// Update implements certificate.Store.
func (p pairFile) Update(cert, key []byte) (*tls.Certificate, error) {
	data := append(append([]byte{}, cert...), key...)
	pair, err := parsePair(data)
	if err != nil {
		return nil, err
	}
	if err := atomicfile.Write(p.path, data, 0o600); err != nil {
		return nil, err
	}
	return pair, nil
}

func parsePair(data []byte) (*tls.Certificate, error) {
	pair, err := tls.X509KeyPair(data, data)
	if err != nil {
		return nil, fmt.Errorf("read a certificate with its key: %w", err)
	}
	return &pair, nil
}

// Ends is when the client certificate ends.
func Ends(dir string) (time.Time, error) {
	pair, err := (pairFile{ClientFile(dir)}).Current()
	if err != nil {
		return time.Time{}, err
	}
	return pair.Leaf.NotAfter, nil
}

// Ended tells, in a sentence, of a client certificate that does not hold now: because the clock
// is wrong, where the server's says so, or because it was not renewed. nil while it holds.
func Ended(ctx context.Context, dir string, now func() time.Time) error {
	pair, err := (pairFile{ClientFile(dir)}).Current()
	if err != nil {
		return err
	}
	begins, ends := pair.Leaf.NotBefore, pair.Leaf.NotAfter
	if at := now(); at.Before(ends) && !at.Before(begins) {
		return nil
	}
	m, err := Read(dir)
	if err != nil {
		return err
	}
	if err := Clock(ctx, dir, m, now); err != nil {
		return err
	}
	if now().Before(begins) {
		return fmt.Errorf("the certificate of node %s holds from %s on, and this machine's clock says %s: set the clock (`timedatectl set-ntp true`), and run the command again",
			m.Node, begins.UTC().Format(time.RFC3339), now().UTC().Format(time.RFC3339))
	}
	return fmt.Errorf("the certificate of node %s ended on %s, while this machine was off, so that it cannot renew it: check the clock; then, on a server, `wasmplane node remove %s` and `wasmplane token create`, and here `wasmplane down --purge` and the command that the token came with",
		m.Node, ends.Format(time.DateOnly), m.Node)
}

// Renewal is a certificate that is made again, with a new key, in the last third of its
// life, and when another authority signs, by the cluster's signers.
type Renewal struct {
	config  certificate.Config
	file    pairFile
	caFile  string // the authority that signs comes first
	kube    kubernetes.Interface
	log     *slog.Logger
	manager atomic.Pointer[certificate.Manager]
}

// RenewClient keeps the node's client certificate. Who reads ClientFile, as client-go
// does by itself, goes on with the new one.
func RenewClient(dir string, m Member, kube kubernetes.Interface, log *slog.Logger) (*Renewal, error) {
	return renewal(dir, certificate.Config{
		Name: "kubelet client", SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
		GetUsages:        certificate.DefaultKubeletClientGetUsages,
		Template:         &x509.CertificateRequest{Subject: subject(m.Node)},
		CertificateStore: pairFile{ClientFile(dir)},
	}, pairFile{ClientFile(dir)}, kube, log)
}

// RenewServing keeps the certificate of the kubelet's server, for the node's name and
// address. The first one comes once the node has registered with them.
func RenewServing(dir string, node string, addresses []netip.Addr, kube kubernetes.Interface,
	log *slog.Logger,
) (*Renewal, error) {
	var ips []net.IP
	for _, a := range addresses {
		ips = append(ips, a.AsSlice())
	}
	return renewal(dir, certificate.Config{
		Name: "kubelet serving", SignerName: certificatesv1.KubeletServingSignerName, GetUsages: certificate.DefaultKubeletServingGetUsages,
		// A template that is a function: another address of the machine makes another certificate.
		GetTemplate: func() *x509.CertificateRequest {
			return &x509.CertificateRequest{Subject: subject(node), DNSNames: []string{node}, IPAddresses: ips}
		},
		CertificateStore: pairFile{ServingFile(dir)},
	}, pairFile{ServingFile(dir)}, kube, log)
}

func renewal(dir string, c certificate.Config, file pairFile, kube kubernetes.Interface, log *slog.Logger) (*Renewal, error) {
	c.ClientsetFn = func(*tls.Certificate) (kubernetes.Interface, error) { return kube, nil }
	r := &Renewal{config: c, file: file, caFile: caFile(dir), kube: kube, log: log}
	return r, r.use(&c)
}

// use makes the manager of what the file holds now. It works from Start on.
func (r *Renewal) use(c *certificate.Config) error {
	manager, err := certificate.NewManager(c)
	if err != nil {
		return fmt.Errorf("renew the certificate of the %s: %w", c.Name, err)
	}
	r.manager.Store(&manager)
	return nil
}

// lookForAuthority is how often it is looked whether another authority signs.
const lookForAuthority = 2 * time.Second

// Run renews until ctx ends.
func (r *Renewal) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := r.until(ctx); err != nil {
			return err
		}
		if ctx.Err() != nil {
			break
		}
		if err := r.signAgain(ctx); err != nil && ctx.Err() == nil {
			r.log.ErrorContext(ctx, "the new authority did not sign yet; it is asked again", "certificate", r.config.Name, "error", err)
		}
	}
	return nil //nolint:nilerr // it was told to end
}

// until renews until ctx ends, or another authority signs.
func (r *Renewal) until(ctx context.Context) error {
	own, stop := context.WithCancel(ctx)
	defer stop()
	c := r.config
	c.Ctx = &own
	if err := r.use(&c); err != nil {
		return err
	}
	manager := *r.manager.Load()
	manager.Start()
	defer manager.Stop()
	tick := time.NewTicker(lookForAuthority)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if r.outdated() {
				return nil
			}
		}
	}
}

// outdated tells that another authority signs than the one that signed what there is.
func (r *Renewal) outdated() bool {
	has, err := r.file.Current()
	if err != nil {
		return false // the manager asks for the first one
	}
	ca, err := cabundle.Read(r.caFile)
	return err == nil && has.Leaf.CheckSignatureFrom(ca[0]) != nil
}

func (r *Renewal) signAgain(ctx context.Context) error {
	template := r.config.Template
	if r.config.GetTemplate != nil {
		template = r.config.GetTemplate()
	}
	ctx, cancel := context.WithTimeout(ctx, signing)
	defer cancel()
	signed, key, err := request(ctx, r.kube, template, r.config.SignerName, r.config.GetUsages, "")
	if err != nil {
		return err
	}
	_, err = r.file.Update(signed, key)
	return err
}

// GetCertificate is for tls.Config.
func (r *Renewal) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if c := (*r.manager.Load()).Current(); c != nil {
		return c, nil
	}
	return nil, errors.New("the kubelet's serving certificate has not been signed yet; it is in a moment")
}

// FollowAuthority follows a change of the cluster's authority on a worker.
func FollowAuthority(dir string, m Member, kube kubernetes.Interface, log *slog.Logger) func(context.Context) error {
	w := &succession.Worker{
		Kube: kube, Node: m.Node, CAFile: caFile(dir), Certificates: []string{ClientFile(dir), ServingFile(dir)}, Log: log,
		Signs: func(pin string) error {
			if m.Pin == pin {
				return nil
			}
			m.Pin = pin
			return m.write(dir)
		},
	}
	return w.Run
}
