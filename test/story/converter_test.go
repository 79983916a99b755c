// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// serveConverter is a conversion webhook: converter SERVICE-DNS-NAME. Objects of
// version v1 have an address "HOST:PORT", those of v2 a host and a port.
func serveConverter() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	cert, caPEM, err := selfSigned(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	server := &http.Server{
		Handler: http.HandlerFunc(convert), ReadHeaderTimeout: 10 * time.Second,
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{cert}},
	}
	go func() {
		<-ctx.Done()
		_ = server.Close()
	}()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("converter at %s, authority %s\n", l.Addr(), base64.StdEncoding.EncodeToString(caPEM))
	if err := server.ServeTLS(l, "", ""); err != http.ErrServerClosed {
		log.Fatal(err)
	}
}

func convert(w http.ResponseWriter, req *http.Request) {
	review := &apiextensionsv1.ConversionReview{}
	if err := json.NewDecoder(req.Body).Decode(review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	answer := &apiextensionsv1.ConversionResponse{UID: review.Request.UID, Result: metav1.Status{Status: metav1.StatusSuccess}}
	for _, raw := range review.Request.Objects {
		u := &unstructured.Unstructured{}
		if err := u.UnmarshalJSON(raw.Raw); err != nil {
			answer.Result = metav1.Status{Status: metav1.StatusFailure, Message: err.Error()}
			break
		}
		between(u, review.Request.DesiredAPIVersion)
		answer.ConvertedObjects = append(answer.ConvertedObjects, runtime.RawExtension{Object: u})
	}
	review.Request, review.Response = nil, answer
	_ = json.NewEncoder(w).Encode(review) // the server that asked has gone, or reads it
}

func between(u *unstructured.Unstructured, to string) {
	if strings.HasSuffix(to, "/v2") {
		host, port, _ := strings.Cut(fmt.Sprint(u.Object["address"]), ":")
		u.Object["host"], u.Object["port"] = host, port
		delete(u.Object, "address")
	} else {
		u.Object["address"] = fmt.Sprintf("%v:%v", u.Object["host"], u.Object["port"])
		delete(u.Object, "host")
		delete(u.Object, "port")
	}
	u.SetAPIVersion(to)
}
