// SPDX-License-Identifier: Apache-2.0

package secureserving

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"k8s.io/client-go/util/cert"
)

// Certificate has the certificate of files, which is read again for new connections once
// they have changed, or, without files, one that signs itself for this machine and the
// address that is listened at.
func Certificate(certFile, keyFile string, at net.Addr, log *slog.Logger) (*tls.Config, error) {
	if certFile != "" {
		pair := &filePair{cert: certFile, key: keyFile, log: log}
		if _, err := pair.get(nil); err != nil {
			return nil, fmt.Errorf("the serving certificate of metrics and health: %w", err)
		}
		return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: pair.get}, nil
	}
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	var ips []net.IP
	if a, ok := at.(*net.TCPAddr); ok && !a.IP.IsUnspecified() {
		ips = append(ips, a.IP)
	}
	certPEM, keyPEM, err := cert.GenerateSelfSignedCertKey(host, ips, []string{"localhost"})
	if err != nil {
		return nil, fmt.Errorf("make a certificate for metrics and health: %w", err)
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("make a certificate for metrics and health: %w", err)
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}}, nil
}

// filePair is a certificate with its key in files that somebody else renews.
type filePair struct {
	cert, key string
	log       *slog.Logger

	mu      sync.Mutex
	loaded  *tls.Certificate
	changed [2]time.Time // of the files, as they were read
	tried   [2]time.Time // of the files, as they were last looked at
}

// get is for tls.Config. While files that have changed cannot be read, which may be
// because only one of them is new yet, what was read before serves on.
func (p *filePair) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now, err := p.times()
	if err == nil && p.loaded != nil && now == p.changed {
		return p.loaded, nil
	}
	if err == nil {
		var pair tls.Certificate
		if pair, err = tls.LoadX509KeyPair(p.cert, p.key); err == nil {
			p.loaded, p.changed = &pair, now
			return p.loaded, nil
		}
	}
	if p.loaded == nil {
		return nil, err
	}
	if now != p.tried {
		p.tried = now
		p.log.Warn("a renewed certificate cannot be read; the one before serves on", "file", p.cert, "error", err)
	}
	return p.loaded, nil
}

func (p *filePair) times() (at [2]time.Time, err error) {
	for i, file := range []string{p.cert, p.key} {
		st, err := os.Stat(file)
		if err != nil {
			return at, fmt.Errorf("read the certificate: %w", err)
		}
		at[i] = st.ModTime()
	}
	return at, nil
}
