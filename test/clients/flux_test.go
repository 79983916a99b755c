// SPDX-License-Identifier: Apache-2.0

//go:build software

package clients

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/wasmplane/wasmplane/test/internal/harness"
)

var (
	sourceController = published{
		name: "source-controller", module: "github.com/fluxcd/source-controller", version: "v1.9.0",
		sum:      "h1:5msg2yyjVYDULZos+2ve8MZzcSqTpusiXmrOeBhc9yY=",
		beside:   map[string]string{"github.com/fluxcd/source-controller/api": ""},
		programs: map[string]string{"source-controller": "."},
	}
	kustomizeController = published{
		name: "kustomize-controller", module: "github.com/fluxcd/kustomize-controller", version: "v1.9.0",
		sum:      "h1:WfM+bQUGUGW2qyrrTgh2bIVSZSPmc3JC7234K8NiTWQ=",
		beside:   map[string]string{"github.com/fluxcd/kustomize-controller/api": ""},
		programs: map[string]string{"kustomize-controller": "."},
	}
)

// What a team keeps in its repository: a definition, an object of it, and the rest of an application.
const (
	shopDefinition = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: shelves.shop.example.org}
spec:
  group: shop.example.org
  names: {kind: Shelf, listKind: ShelfList, plural: shelves, singular: shelf}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties: {spec: {type: object, required: [boards], properties: {boards: {type: integer, minimum: 1}}}}
`
	shopShelf = `
apiVersion: shop.example.org/v1
kind: Shelf
metadata: {name: books, namespace: shop}
spec: {boards: %d}
`
	shopWeb = `
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - name: web
        image: wasmplane.local/toolbox:1
        command: [serve]
        ports: [{name: http, containerPort: 80}]
        readinessProbe: {httpGet: {path: /, port: http}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: http}]}
`
	shopSettings = `
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: shop}
data: {colour: "${colour}"}
`
)

const shopKustomization = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: guest, namespace: default}
---
apiVersion: source.toolkit.fluxcd.io/v1
kind: OCIRepository
metadata: {name: shop, namespace: default}
spec: {interval: 5s, insecure: true, url: "oci://%s/shop", ref: {tag: latest}}
---
apiVersion: kustomize.toolkit.fluxcd.io/v1
kind: Kustomization
metadata: {name: shop, namespace: default}
spec:
  interval: 5s
  retryInterval: 5s
  timeout: 1m
  path: ./
  prune: true
  wait: true
  sourceRef: {kind: OCIRepository, name: shop}
  postBuild: {substitute: {colour: green}}
---
apiVersion: kustomize.toolkit.fluxcd.io/v1
kind: Kustomization
metadata: {name: guest, namespace: default}
spec:
  interval: 5s
  retryInterval: 5s
  path: ./
  prune: true
  serviceAccountName: guest
  dependsOn: [{name: shop}]
  sourceRef: {kind: OCIRepository, name: shop}
`

// TestFlux: Flux's source-controller and kustomize-controller, by their projects' manifests, fetch
// artifacts from a registry, apply them in an order that works and wait for them, undo what others
// change, remove what a newer artifact lacks, keep the old state at an artifact that is invalid, act with an
// account's rights where they are told to, and take everything away in the end.
func TestFlux(t *testing.T) {
	source, kustomize := sourceController.build(t), kustomizeController.build(t)
	c := startHere(t)
	c.importHere(source.image(t, "fluxcd/source-controller:"+source.version, "source-controller",
		"/usr/local/bin/source-controller", "65534:65534"))
	c.importHere(kustomize.fluxImage(t))
	c.toolbox()
	c.explained("flux-system", "shop")
	c.kubectl("create", "namespace", "flux-system")
	c.kustomize(`
namespace: flux-system
resources: [source/crd, source/rbac, source/manager, kustomize/crd, kustomize/rbac, kustomize/manager]
`, map[string]string{"source": filepath.Join(source.files, "config"), "kustomize": filepath.Join(kustomize.files, "config")})
	c.rolledOut("flux-system", "source-controller", "kustomize-controller")

	registry := c.registry()
	files := map[string]string{
		"a-shelf.yaml": fmt.Sprintf(shopShelf, 3), "web.yaml": shopWeb, "z-definition.yaml": shopDefinition, "settings.yaml": shopSettings,
	}
	registry.push("shop", files)
	c.soon("apply", "--server-side", "-f", c.file("shop.yaml", fmt.Sprintf(shopKustomization, registry.address)))
	c.kustomized("True", "Applied revision: latest@sha256:")
	c.prints("2", "-n", "shop", "get", "deployment", "web", "-o", "jsonpath={.status.readyReplicas}")
	c.prints("green", "-n", "shop", "get", "configmap", "settings", "-o", "jsonpath={.data.colour}")
	c.prints("3", "-n", "shop", "get", "shelf", "books", "-o", "jsonpath={.spec.boards}")
	c.prints("False: ReconciliationFailed", "get", "kustomization", "guest", "-o",
		`jsonpath={.status.conditions[?(@.type=="Ready")].status}: {.status.conditions[?(@.type=="Ready")].reason}`)
	if out := c.kubectl("get", "kustomization", "guest", "-o", "jsonpath={.status.conditions}"); !strings.Contains(out,
		"system:serviceaccount:default:guest") {
		t.Errorf("an account without rights: %s", out)
	}
	c.kubectl("delete", "kustomization", "guest", "--timeout", harness.Patience.String())

	// What others do is undone, also by clients whose fields would stay by the rules of server-side apply.
	c.kubectl("-n", "shop", "scale", "deployment", "web", "--replicas=0")
	c.kubectl("-n", "shop", "delete", "service", "web")
	c.kubectl("-n", "shop", "apply", "--server-side", "--force-conflicts", "-f", c.file("mine.yaml",
		"{apiVersion: v1, kind: ConfigMap, metadata: {name: settings, namespace: shop}, data: {colour: red, more: mine}}"))
	c.prints("2", "-n", "shop", "get", "deployment", "web", "-o", "jsonpath={.status.readyReplicas}")
	c.prints("web", "-n", "shop", "get", "service", "web", "-o", "jsonpath={.spec.selector.app}")
	c.prints(`{"colour":"green"}`, "-n", "shop", "get", "configmap", "settings", "-o", "jsonpath={.data}")
	c.prints("kustomize-controller", "-n", "shop", "get", "configmap", "settings", "--show-managed-fields", "-o",
		"jsonpath={.metadata.managedFields[*].manager}")

	delete(files, "settings.yaml")
	files["web.yaml"] = strings.Replace(shopWeb, "replicas: 2", "replicas: 3", 1)
	registry.push("shop", files)
	c.prints("3", "-n", "shop", "get", "deployment", "web", "-o", "jsonpath={.status.readyReplicas}")
	c.prints("", "-n", "shop", "get", "configmap", "settings", "--ignore-not-found", "-o", "name")

	// No object of an artifact is applied of which one is invalid.
	files["web.yaml"] = shopWeb
	files["a-shelf.yaml"] = fmt.Sprintf(shopShelf, 0)
	registry.push("shop", files)
	c.kustomized("False", "Shelf/shop/books dry-run failed (Invalid)")
	c.prints("3/3", "-n", "shop", "get", "deployment", "web", "-o", "jsonpath={.spec.replicas}/{.status.readyReplicas}")
	files["a-shelf.yaml"] = fmt.Sprintf(shopShelf, 5)
	registry.push("shop", files)
	c.kustomized("True", "Applied revision: latest@sha256:")
	c.prints("2/5", "-n", "shop", "get", "deployment/web", "shelf/books", "-o", "jsonpath={.items[0].spec.replicas}/{.items[1].spec.boards}")
	harness.Eventually(t, "events of Flux", func() error {
		out, err := c.try("get", "events", "-o", "jsonpath={range .items[*]}{.source.component} {.reason}: {.message}{\"\\n\"}{end}")
		if err == nil && !strings.Contains(out, "ConfigMap/shop/settings deleted") {
			err = fmt.Errorf("there are only\n%s", out)
		}
		return err
	})

	c.kubectl("delete", "kustomization", "shop", "--timeout", harness.Patience.String())
	c.prints("", "get", "namespace/shop", "crd/shelves.shop.example.org", "--ignore-not-found", "-o", "name")
}

// kustomized waits for the state of the Kustomization, and a part of its message.
func (c *cluster) kustomized(status, message string) {
	c.t.Helper()
	harness.Eventually(c.t, "the Kustomization is Ready="+status+" with "+message, func() error {
		out, err := c.try("get", "kustomization", "shop", "-o",
			`jsonpath={.status.conditions[?(@.type=="Ready")].status} {.status.conditions[?(@.type=="Ready")].message}`)
		if err == nil && (!strings.HasPrefix(out, status+" ") || !strings.Contains(out, message)) {
			err = fmt.Errorf("it is %q", out)
		}
		return err
	})
}

// fluxImage is that of kustomize-controller without the programs for sources that are encrypted or remote.
func (b *built) fluxImage(t *testing.T) string {
	t.Helper()
	const at = "/usr/local/bin/kustomize-controller"
	return debianImage(t, spec{
		Names:    []string{"fluxcd/kustomize-controller:" + b.version},
		Packages: []string{"tini"},
		Top: []file{
			{Path: at, Mode: 0o755, From: b.program("kustomize-controller")},
			{Path: "/sbin/tini", Link: "/usr/bin/tini"},
			{Path: "/tmp", Mode: os.ModeDir | os.ModeSticky | 0o777},
		},
		Config: v1.Config{
			Entrypoint: []string{"/sbin/tini", "--", "kustomize-controller"}, User: "65534:65534",
			Env: []string{"PATH=/usr/local/bin:/usr/bin:/bin", "GNUPGHOME=/tmp"},
		},
	})
}

// registryHere is a registry of artifacts on this machine's address, which pods reach.
type registryHere struct {
	t       *testing.T
	address string
}

func (c *cluster) registry() *registryHere {
	c.t.Helper()
	server := httptest.NewUnstartedServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	_ = server.Listener.Close()
	server.Listener = c.listener()
	server.Start()
	c.t.Cleanup(server.Close)
	return &registryHere{c.t, server.Listener.Addr().String()}
}

// push gives a name to an artifact of files, in the form that Flux's own command has.
func (r *registryHere) push(repository string, files map[string]string) {
	r.t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, path := range slices.Sorted(maps.Keys(files)) {
		if err := w.WriteHeader(&tar.Header{Name: path, Mode: 0o644, Size: int64(len(files[path]))}); err != nil {
			r.t.Fatal(err)
		}
		if _, err := io.WriteString(w, files[path]); err != nil {
			r.t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		r.t.Fatal(err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil },
		tarball.WithMediaType("application/vnd.cncf.flux.content.v1.tar+gzip"))
	if err != nil {
		r.t.Fatal(err)
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), "application/vnd.cncf.flux.config.v1+json")
	if image, err = mutate.AppendLayers(image, layer); err != nil {
		r.t.Fatal(err)
	}
	tag, err := name.NewTag(r.address+"/"+repository+":latest", name.Insecure)
	if err == nil {
		err = remote.Write(tag, image, remote.WithContext(r.t.Context()))
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

// listener is at this node's address, which pods reach.
func (c *cluster) listener() net.Listener {
	c.t.Helper()
	address := c.kubectl("get", "node", "here", "-o", `jsonpath={.status.addresses[?(@.type=="InternalIP")].address}`)
	listener, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		c.t.Fatal(err)
	}
	return listener
}
