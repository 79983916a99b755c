// SPDX-License-Identifier: Apache-2.0

// Command objectstore is somebody else's store with the interface of Amazon S3, for the story
// of backups: in memory, over TLS, with one bucket, for requests that its one key has signed.
// It is a module of its own, so that nothing of it is a dependency of ours.
package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log"
	"math/big"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"github.com/rclone/gofakes3/signature"
)

func main() {
	if len(os.Args) != 5 {
		log.Fatal("usage: objectstore BUCKET ACCESS-KEY SECRET-KEY CA-FILE")
	}
	if err := serve(os.Args[1], os.Args[2], os.Args[3], os.Args[4]); err != nil {
		log.Fatal(err)
	}
}

func serve(bucket, access, secret, file string) error {
	backend := s3mem.New()
	if err := backend.CreateBucket(bucket); err != nil {
		return err
	}
	store := gofakes3.New(backend)
	signature.ReloadKeys(map[string]string{access: secret})
	certificate, err := certificate(file)
	if err != nil {
		return err
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{certificate}})
	if err != nil {
		return err
	}
	fmt.Printf("objects at https://%s\n", l.Addr())
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Println(r.Method, r.URL.Path)
		if code := signature.V4SignVerify(r); code != signature.ErrNone {
			refusal := signature.GetAPIError(code)
			w.WriteHeader(refusal.HTTPStatusCode)
			_, _ = w.Write(signature.EncodeAPIErrorToResponse(refusal))
			return
		}
		store.Server().ServeHTTP(w, r)
	})}
	return server.Serve(l)
}

// certificate signs itself, and is its own authority in file.
func certificate(file string) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	about := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, about, about, key.Public(), key)
	pemBytes := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, errors.Join(err, os.WriteFile(file, pemBytes, 0o600))
}
