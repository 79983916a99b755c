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
	"os"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/certificate"
	"k8s.io/client-go/util/certificate/csr"
	"k8s.io/client-go/util/keyutil"

	"github.com/wasmplane/wasmplane/core/auth/jointoken"
	"github.com/wasmplane/wasmplane/core/pki"
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
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("generate a key: %w", err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: subject(c.Node)}, key)
	if err != nil {
		return fmt.Errorf("make a certificate request: %w", err)
	}
	secret, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return fmt.Errorf("encode a key: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, signing)
	defer cancel()
	sum := sha256.Sum256(der)
	name, uid, err := csr.RequestCertificateWithContext(ctx, invited, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
		"node-csr-"+hex.EncodeToString(sum[:16]), certificatesv1.KubeAPIServerClientKubeletSignerName, nil,
		certificate.DefaultKubeletClientGetUsages(key), key)
	if err != nil {
		return fmt.Errorf("ask for a certificate: %w", err)
	}
	signed, err := csr.WaitForCertificate(ctx, invited, name, uid)
	switch {
	case err != nil && strings.Contains(err.Error(), jointoken.ReasonNameTaken):
		return taken(c.Node)
	case err != nil && ctx.Err() != nil:
		return fmt.Errorf("the certificate request %s was not signed within %s: do the controllers run (`wasmplane status` on a server)? An administrator can look at it: kubectl describe csr %s", name, signing, name)
	case err != nil:
		return fmt.Errorf("ask for a certificate: %w", err)
	}
	_, err = (pairFile{ClientFile(c.Dir)}).Update(signed, secret)
	return err
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

// Ended tells, in a sentence, of a client certificate that holds no more; nil while it does.
func Ended(dir string, now time.Time) error {
	ends, err := Ends(dir)
	if err != nil || now.Before(ends) {
		return err
	}
	m, err := Read(dir)
	if err != nil {
		return err
	}
	return fmt.Errorf("the certificate of node %s ended on %s, while this machine was off, so that it cannot renew it: check the clock; then, on a server, `wasmplane node remove %s` and `wasmplane token create`, and here `wasmplane down --purge` and the command that the token came with",
		m.Node, ends.Format(time.DateOnly), m.Node)
}

// Renewal is a certificate that is made again, with a new key, in the last third of its
// life, by the cluster's signers.
type Renewal struct {
	manager certificate.Manager
	stop    context.CancelFunc
}

// RenewClient keeps the node's client certificate. Who reads ClientFile, as client-go
// does by itself, goes on with the new one.
func RenewClient(ctx context.Context, dir string, m Member, kube kubernetes.Interface, log *slog.Logger) (*Renewal, error) {
	return renewal(ctx, certificate.Config{
		Name: "kubelet client", SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
		GetUsages:        certificate.DefaultKubeletClientGetUsages,
		Template:         &x509.CertificateRequest{Subject: subject(m.Node)},
		CertificateStore: pairFile{ClientFile(dir)},
	}, kube, log)
}

// RenewServing keeps the certificate of the kubelet's server, for the node's name and
// address. The first one comes once the node has registered with them.
func RenewServing(ctx context.Context, dir string, node string, address net.IP, kube kubernetes.Interface,
	log *slog.Logger,
) (*Renewal, error) {
	return renewal(ctx, certificate.Config{
		Name: "kubelet serving", SignerName: certificatesv1.KubeletServingSignerName, GetUsages: certificate.DefaultKubeletServingGetUsages,
		// A template that is a function: another address of the machine makes another certificate.
		GetTemplate: func() *x509.CertificateRequest {
			return &x509.CertificateRequest{Subject: subject(node), DNSNames: []string{node}, IPAddresses: []net.IP{address}}
		},
		CertificateStore: pairFile{ServingFile(dir)},
	}, kube, log)
}

func renewal(ctx context.Context, c certificate.Config, kube kubernetes.Interface, log *slog.Logger) (*Renewal, error) {
	ctx, stop := context.WithCancel(ctx)
	c.Ctx = &ctx
	c.ClientsetFn = func(*tls.Certificate) (kubernetes.Interface, error) { return kube, nil }
	manager, err := certificate.NewManager(&c)
	if err != nil {
		stop()
		return nil, fmt.Errorf("renew the certificate of the %s: %w", c.Name, err)
	}
	log.DebugContext(ctx, "a certificate is renewed by itself", "name", c.Name)
	return &Renewal{manager: manager, stop: stop}, nil
}

// Run renews until ctx ends.
func (r *Renewal) Run(ctx context.Context) error {
	defer r.stop()
	r.manager.Start()
	<-ctx.Done()
	r.manager.Stop()
	return nil
}

// GetCertificate is for tls.Config.
func (r *Renewal) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if c := r.manager.Current(); c != nil {
		return c, nil
	}
	return nil, errors.New("the kubelet's serving certificate has not been signed yet; it is in a moment")
}
