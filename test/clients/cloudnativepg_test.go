// SPDX-License-Identifier: Apache-2.0

package clients

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1"

	"github.com/wasmplane/wasmplane/test/internal/harness"
)

const (
	operatorModule = "github.com/cloudnative-pg/cloudnative-pg"
	operatorImage  = "ghcr.io/cloudnative-pg/cloudnative-pg:"
)

const postgresCluster = `
apiVersion: postgresql.cnpg.io/v1
kind: Cluster
metadata: {name: orders}
spec:
  instances: 2
  imageName: %s
  storage: {size: 1Gi}
  postgresql: {synchronous: {method: any, number: 1, dataDurability: preferred}}
`

// TestCloudNativePG: the operator of PostgreSQL, by its project's manifests, in an image of its published
// module, makes a cluster of two instances on claims of the default class, and another instance
// the primary when the first one is gone.
func TestCloudNativePG(t *testing.T) {
	version := postgresVersion(t)
	operand := "example.com/postgresql:" + version
	c := startHere(t)
	manifest := c.operator()
	c.importHere(debianImage(t, postgresSpec(operand, version, 26)))
	c.apply(manifest)
	c.kubectl("-n", "cnpg-system", "rollout", "status", "deployment/cnpg-controller-manager", "--timeout", harness.Patience.String())
	wanted := fmt.Sprintf(postgresCluster, operand)
	harness.Eventually(t, "the operator's webhooks answer", func() error {
		_, err := c.try("create", "--dry-run=server", "-f", c.file("cluster.yaml", wanted))
		return err
	})
	wrong := c.file("wrong.yaml", strings.Replace(wanted, "number: 1", "number: 2", 1))
	if _, err := c.try("create", "-f", wrong); err == nil || !strings.Contains(err.Error(), "synchronous") {
		t.Errorf("more synchronous replicas than there are: %v", err)
	}
	c.kubectl("apply", "-f", c.file("cluster.yaml", wanted))
	const state = "jsonpath={.status.phase}: {.status.readyInstances} ready, {.status.currentPrimary} is the primary"
	healthy := func(primary string) {
		t.Helper()
		for range 2 { // the second instance is a copy of the first
			if _, err := c.try("wait", "--for=jsonpath={.status.readyInstances}=2", "cluster/orders", "--timeout=115s"); err == nil {
				break
			}
		}
		c.prints("Cluster in healthy state: 2 ready, "+primary+" is the primary", "get", "cluster", "orders", "-o", state)
	}
	healthy("orders-1")
	c.prints("local local", "get", "pvc", "-l", "cnpg.io/cluster=orders", "-o", "jsonpath={.items[*].spec.storageClassName}")

	// An application's rights, by the Secret that the operator made, through the Service that it keeps.
	query := func(text string) (string, error) {
		uri := c.kubectl("get", "secret", "orders-app", "-o", "go-template={{.data.uri | base64decode}}")
		return c.try("exec", "orders-2", "-c", "postgres", "--", "psql", "-qAt", uri, "-c", text)
	}
	if _, err := query("CREATE TABLE orders (what text); INSERT INTO orders VALUES ('a book')"); err != nil {
		t.Fatal(err)
	}
	c.prints("streaming quorum", "exec", "orders-1", "-c", "postgres", "--", "psql", "-qAtF", " ", "-c", replication)

	c.kubectl("delete", "pod", "orders-1", "--grace-period=0", "--force")
	c.prints("orders-2", "get", "cluster", "orders", "-o", "jsonpath={.status.currentPrimary}")
	harness.Eventually(t, "the Service follows the primary", func() error {
		_, err := query("INSERT INTO orders VALUES ('a second book')")
		return err
	})
	healthy("orders-2")
	if out, err := query("SELECT count(DISTINCT what) FROM orders"); err != nil || strings.TrimSpace(out) != "2" {
		t.Errorf("after the failover there are %q orders (%v)", out, err)
	}

	// With the Cluster its pods, Services and claims go.
	c.kubectl("delete", "cluster", "orders", "--timeout", harness.Patience.String())
	c.prints("", "get", "pods,pvc,services", "-l", "cnpg.io/cluster=orders", "-o", "name")
}

// operator imports the operator's image, and answers its manifest, whose images need not be pulled.
func (c *cluster) operator() string {
	c.t.Helper()
	program := program(c.t, "cloudnativepg", operatorModule+"/cmd/manager", "-ldflags", "-s -w") // and the module is there
	out, err := exec.Command("go", "list", "-C", "cloudnativepg", "-m", "-f", "{{.Dir}} {{.Version}}", operatorModule).Output()
	if err != nil {
		c.t.Fatal(err)
	}
	dir, version, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
	version = strings.TrimPrefix(version, "v")
	at := "/operator/manager_" + runtime.GOARCH
	c.importHere(debianImage(c.t, spec{
		Names: []string{operatorImage + version},
		Top: []file{
			{Path: at, Mode: 0o755, From: program},
			{Path: "/manager", Link: at},
			{Path: "/tmp", Mode: os.ModeDir | os.ModeSticky | 0o777},
		},
		Config: v1.Config{Entrypoint: []string{"/manager"}, WorkingDir: "/", User: "65532:65532"},
	}))
	manifest, err := os.ReadFile(filepath.Join(dir, "releases", "cnpg-"+version+".yaml"))
	if err != nil {
		c.t.Fatal(err)
	}
	return strings.ReplaceAll(string(manifest), "imagePullPolicy: Always", "imagePullPolicy: IfNotPresent")
}

func (c *cluster) file(name, text string) string {
	c.t.Helper()
	path := filepath.Join(c.Dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		c.t.Fatal(err)
	}
	return path
}
