// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/signal"
	"time"

	discoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// extensionGroup is what the extension server serves.
var extensionGroup = metav1.GroupVersion{Group: "flavors.example.com", Version: "v1"}

// serveExtension is an API server of its own: extension SERVICE-DNS-NAME. It
// serves one kind, Flavor, believes whom the cluster's front proxy names, and
// nobody else. It finds out who that is as every extension server does, from the
// cluster, by KUBECONFIG.
func serveExtension() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	cert, caPEM, err := selfSigned(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	front, err := frontProxy(ctx)
	if err != nil {
		log.Fatal(err)
	}
	server := &http.Server{
		Handler: extension(), ReadHeaderTimeout: 10 * time.Second,
		TLSConfig: &tls.Config{
			MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequireAndVerifyClientCert,
			ClientCAs: front,
		},
	}
	go func() {
		<-ctx.Done()
		_ = server.Close()
	}()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("extension server at %s, authority %s\n", l.Addr(), base64.StdEncoding.EncodeToString(caPEM))
	if err := server.ServeTLS(l, "", ""); err != http.ErrServerClosed {
		log.Fatal(err)
	}
}

func frontProxy(ctx context.Context) (*x509.CertPool, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return nil, err
	}
	set, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	m, err := set.CoreV1().ConfigMaps("kube-system").Get(ctx, "extension-apiserver-authentication", metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM([]byte(m.Data["requestheader-client-ca-file"])) {
		return nil, fmt.Errorf("kube-system/extension-apiserver-authentication names no front proxy's authority: %v", m.Data)
	}
	return pool, nil
}

func selfSigned(name string) (tls.Certificate, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}

func extension() http.Handler {
	mux := http.NewServeMux()
	root := "/apis/" + extensionGroup.String()
	verbs := metav1.Verbs{"get", "list", "watch"}
	list := metav1.APIResourceList{
		TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: extensionGroup.String(),
		APIResources: []metav1.APIResource{{Name: "flavors", SingularName: "flavor", Kind: "Flavor", Verbs: verbs, ShortNames: []string{"flv"}}},
	}
	all := discoveryv2.APIGroupDiscoveryList{
		TypeMeta: metav1.TypeMeta{Kind: "APIGroupDiscoveryList", APIVersion: "apidiscovery.k8s.io/v2"},
		Items: []discoveryv2.APIGroupDiscovery{{
			ObjectMeta: metav1.ObjectMeta{Name: extensionGroup.Group},
			Versions: []discoveryv2.APIVersionDiscovery{{Version: extensionGroup.Version, Resources: []discoveryv2.APIResourceDiscovery{{
				Resource: "flavors", SingularResource: "flavor", Scope: discoveryv2.ScopeCluster, Verbs: verbs, ShortNames: []string{"flv"},
				ResponseKind: &metav1.GroupVersionKind{Group: extensionGroup.Group, Version: extensionGroup.Version, Kind: "Flavor"},
			}}}},
		}},
	}
	say := func(contentType string, v any) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", contentType)
			_ = json.NewEncoder(w).Encode(v) // the client may be gone
		}
	}
	mux.HandleFunc("GET /apis", say("application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList", all))
	mux.HandleFunc("GET "+root, say("application/json", list))
	mux.HandleFunc("GET "+root+"/flavors", flavors)
	mux.HandleFunc("GET "+root+"/flavors/asker", func(w http.ResponseWriter, r *http.Request) {
		say("application/json", flavor("asker", map[string]any{
			"user": r.Header["X-Remote-User"], "groups": r.Header["X-Remote-Group"], "authorization": r.Header["Authorization"],
		}))(w, r)
	})
	mux.HandleFunc("GET "+root+"/flavors/elsewhere", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "https://127.0.0.1:1/secret", http.StatusFound)
	})
	mux.HandleFunc("GET /openapi/v2", say("application/json", map[string]any{
		"swagger": "2.0", "info": map[string]any{"title": "flavors", "version": "1"},
		"paths": map[string]any{root + "/flavors": map[string]any{"get": map[string]any{
			"operationId": "listFlavors",
			"responses":   map[string]any{"200": map[string]any{"description": "OK"}},
		}}},
	}))
	v3 := "/openapi/v3" + root
	mux.HandleFunc("GET /openapi/v3",
		say("application/json", map[string]any{"paths": map[string]any{root[1:]: map[string]any{"serverRelativeURL": v3 + "?hash=1"}}}))
	mux.HandleFunc("GET "+v3,
		say("application/json", map[string]any{
			"openapi": "3.0.0", "info": map[string]any{"title": "flavors", "version": "1"},
			"paths": map[string]any{},
		}))
	return mux
}

func flavor(name string, spec map[string]any) map[string]any {
	return map[string]any{
		"apiVersion": extensionGroup.String(), "kind": "Flavor", "spec": spec,
		"metadata": map[string]any{"name": name, "uid": name, "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z"},
	}
}

// flavors lists them, or tells of each, and of one more a moment later: a watch
// has to deliver what is said while it lasts.
func flavors(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	out := json.NewEncoder(w)
	if r.URL.Query().Get("watch") == "" {
		_ = out.Encode(map[string]any{
			"apiVersion": extensionGroup.String(), "kind": "FlavorList", "metadata": map[string]any{"resourceVersion": "1"},
			"items": []any{flavor("vanilla", nil), flavor("salt", nil)},
		})
		return
	}
	_ = out.Encode(map[string]any{"type": "ADDED", "object": flavor("umami", nil)})
	_ = http.NewResponseController(w).Flush()
	<-r.Context().Done() // the event has to arrive although this never ends
}
