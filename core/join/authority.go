// SPDX-License-Identifier: Apache-2.0

package join

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/wasmplane/wasmplane/core/pki/cabundle"
)

// ServerName is a name that every API server's certificate has, whatever the address
// by which it is reached. No node can have a certificate for it.
const ServerName = "kubernetes"

const (
	defaultPort = "6443"
	// patience with a server that does not answer.
	patience = 15 * time.Second
	// skew of clocks that is let pass: certificates are backdated by as much.
	skew = 5 * time.Minute
)

// Address reads what a user calls a server (a host, HOST:PORT or an https URL) and returns HOST:PORT.
func Address(server string) (string, error) {
	text := strings.TrimSpace(server)
	if u, err := url.Parse(text); err == nil && u.Host != "" {
		if u.Scheme != "https" || strings.Trim(u.Path, "/") != "" {
			return "", fmt.Errorf("expected the server as HOST, HOST:PORT or https://HOST:PORT, found %q", server)
		}
		text = u.Host
	}
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		host, port = strings.Trim(text, "[]"), defaultPort
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || host == "" || strings.ContainsAny(host, "/ @") {
		return "", fmt.Errorf("expected the server as HOST, HOST:PORT or https://HOST:PORT, found %q", server)
	}
	return net.JoinHostPort(host, port), nil
}

// errWrongAuthority ends a handshake with a server of another cluster.
var errWrongAuthority = errors.New("the server is not of the token's cluster")

// authority asks the server at address for its certificate chain and returns the
// authority that pin names, once the server's own certificate is proven to be signed by
// it. Nothing is sent that a false server could use. Whether the certificates are of today
// is left to checkClock: this machine's clock may be the one that is wrong.
func authority(ctx context.Context, address, pin string) (*x509.Certificate, error) {
	var found *x509.Certificate
	d := tls.Dialer{NetDialer: &net.Dialer{Timeout: patience}, Config: &tls.Config{
		MinVersion: tls.VersionTLS12, ServerName: ServerName,
		InsecureSkipVerify: true, //nolint:gosec // VerifyConnection verifies, against the pin
		VerifyConnection: func(s tls.ConnectionState) (err error) {
			found, err = pinned(s.PeerCertificates, pin)
			return err
		},
	}}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conn, err := d.DialContext(ctx, "tcp", address)
	switch {
	case errors.Is(err, errWrongAuthority):
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("reach the server at %s: %w; is it running, does it listen at that address (`wasmplane up --listen :6443`), and does no firewall stand between?", address, err)
	}
	return found, conn.Close()
}

func pinned(chain []*x509.Certificate, pin string) (*x509.Certificate, error) {
	var seen []string
	for _, c := range chain {
		if !c.IsCA {
			continue
		}
		if cabundle.Pin(c) != pin {
			seen = append(seen, cabundle.Pin(c))
			continue
		}
		roots := x509.NewCertPool()
		roots.AddCert(c)
		_, err := chain[0].Verify(x509.VerifyOptions{Roots: roots, DNSName: ServerName, CurrentTime: chain[0].NotBefore.Add(time.Second)})
		if err != nil {
			return nil, fmt.Errorf("the server's certificate is not what its authority signed: %w", err)
		}
		return c, nil
	}
	if len(seen) == 0 {
		return nil, fmt.Errorf("%w: it shows no authority of its own, so it is no server of wasmplane", errWrongAuthority)
	}
	return nil, fmt.Errorf("%w: the token is of a cluster with the authority %s, the server's is %s; take the token from a server of the same cluster (`wasmplane token create`; one from before a change of the authority is of no use any more), or check the address", errWrongAuthority, pin, strings.Join(seen, ", "))
}

// checkClock compares this machine's clock with the server's: certificates hold between
// two times, and a clock that is off makes good ones bad.
func checkClock(ctx context.Context, address string, ca *x509.Certificate, now func() time.Time) error {
	pool := x509.NewCertPool()
	pool.AddCert(ca)
	t := &http.Transport{TLSClientConfig: &tls.Config{
		MinVersion: tls.VersionTLS12, ServerName: ServerName, RootCAs: pool,
		// With its own idea of the time, for the case that ours is wrong.
		Time: func() time.Time { return ca.NotBefore.Add(skew + time.Second) }, InsecureSkipVerify: true, //nolint:gosec // VerifyConnection verifies
		VerifyConnection: func(s tls.ConnectionState) error {
			_, err := pinned(s.PeerCertificates, cabundle.Pin(ca))
			return err
		},
	}}
	defer t.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+"/healthz", nil)
	if err != nil {
		return err
	}
	resp, err := t.RoundTrip(req)
	if err != nil {
		return fmt.Errorf("ask the server at %s for the time: %w", address, err)
	}
	_ = resp.Body.Close()
	theirs, err := http.ParseTime(resp.Header.Get("Date"))
	if err != nil {
		return nil // a proxy may have taken it away: certificates will tell
	}
	ours := now()
	if ours.Sub(theirs).Abs() > skew {
		return &clockError{ours, theirs}
	}
	return nil
}

// clockError is a clock that is wrong, or the server's is.
type clockError struct{ ours, theirs time.Time }

func (e *clockError) Error() string {
	off, direction := e.ours.Sub(e.theirs), "ahead of"
	if off < 0 {
		direction = "behind"
	}
	return fmt.Sprintf("this machine's clock is %s %s the server's (it says %s, the server's %s), so that certificates do not hold: set the clock (`timedatectl set-ntp true`), and run the command again",
		off.Abs().Round(time.Second), direction, e.ours.UTC().Format(time.RFC3339), e.theirs.UTC().Format(time.RFC3339))
}

// Clock compares the clock of a machine that has joined with the server's by which it
// joined. A server that cannot be asked is no error.
func Clock(ctx context.Context, dir string, m Member, now func() time.Time) error {
	authorities, err := cabundle.Read(caFile(dir))
	if err != nil {
		return fmt.Errorf("read the cluster's authority: %w", err)
	}
	if err, wrong := errors.AsType[*clockError](checkClock(ctx, m.Server, authorities[0], now)); wrong {
		return err
	}
	return nil
}

func certificatePEM(c *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
}
