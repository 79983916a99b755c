// SPDX-License-Identifier: Apache-2.0

package clients

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/wasmplane/wasmplane/test/internal/harness"
)

// Stock Helm and HelmCharts of the API work on the same releases: what one has installed the other
// sees, upgrades, rolls back, and takes away.
func TestHelmCharts(t *testing.T) {
	helm := program(t, "helm", "helm.sh/helm/v4/cmd/helm")
	chart, err := filepath.Abs(filepath.Join("testdata", "shop"))
	if err != nil {
		t.Fatal(err)
	}
	c := start(t)
	h := c.tool(helm)
	patience := "--timeout=" + harness.Patience.String()
	in := func(args ...string) []string { return append([]string{"-n", "market"}, args...) }
	c.kubectl("create", "namespace", "market")
	c.kubectl("create", "serviceaccount", "installer", "-n", "market")
	c.kubectl("create", "clusterrolebinding", "installer", "--clusterrole=cluster-admin", "--serviceaccount=market:installer")
	h.run("package", chart, "-d", c.Dir)
	archives, err := filepath.Glob(filepath.Join(c.Dir, "shop-*.tgz"))
	if err != nil || len(archives) != 1 {
		t.Fatalf("helm package made %v (%v)", archives, err)
	}
	c.kubectl("create", "configmap", "archive", "-n", "market", "--from-file=chart.tgz="+archives[0])
	object := func(name, values string) {
		t.Helper()
		c.apply(fmt.Sprintf(`apiVersion: charts.wasmplane.dev/v1
kind: HelmChart
metadata: {name: %s, namespace: market}
spec:
  chartFrom: {kind: ConfigMap, name: archive}
  serviceAccountName: installer
  values: {%s}
`, name, values))
	}
	ready := func(name, want string) {
		t.Helper()
		c.prints(want, in("get", "helmchart", name, "-o", "jsonpath={.status.revision} {.status.conditions[0].status} {.status.conditions[0].reason}")...)
	}
	history := func(name, want string) {
		t.Helper()
		var revisions []struct {
			Revision            int
			Status, Description string
		}
		if err := json.Unmarshal([]byte(h.run(in("history", name, "-o", "json")...)), &revisions); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, r := range revisions {
			got = append(got, fmt.Sprintf("%d %s %s", r.Revision, r.Status, r.Description))
		}
		if strings.Join(got, "; ") != want {
			t.Errorf("helm history %s: %s; want %s", name, strings.Join(got, "; "), want)
		}
	}

	// What the object has installed.
	object("shop", "size: small")
	ready("shop", "1 True Deployed")
	h.says([]string{"shop", "deployed", "shop-"}, in("list")...)
	h.says([]string{"shop sells in size small."}, in("status", "shop")...)
	h.says([]string{"size: small"}, in("get", "values", "shop")...)
	h.says([]string{"kind: Deployment"}, in("get", "manifest", "shop")...)
	h.says([]string{"pre-install"}, in("get", "hooks", "shop")...)
	h.says([]string{"Succeeded"}, in("test", "shop", patience)...)
	history("shop", "1 deployed Install complete")

	// The object upgrades, and helm rolls back, which stays until the object changes.
	object("shop", "size: large")
	ready("shop", "2 True Deployed")
	h.run(in("rollback", "shop", "1", "--wait", patience)...)
	history("shop", "1 superseded Install complete; 2 superseded Upgrade complete; 3 deployed Rollback to 1")
	c.kubectl("annotate", "helmchart", "shop", "-n", "market", "looked=at")
	ready("shop", "2 True ChangedByHelm")
	c.prints("small", in("get", "configmap/shop-settings", "-o", "jsonpath={.data.size}")...)
	object("shop", "size: large, replicas: 1")
	ready("shop", "4 True Deployed")

	// A failure goes back, and helm sees both.
	object("shop", "size: enormous")
	harness.Eventually(t, "the upgrade has failed", func() error {
		out, err := c.try(in("get", "helmchart", "shop", "-o", "jsonpath={.status.conditions[0].message}")...)
		if err != nil || !strings.Contains(out, `Unsupported value: "enormous"`) || !strings.Contains(out, "revision 6 brought back") {
			return fmt.Errorf("%s (%w)", out, err)
		}
		return nil
	})
	h.says([]string{"failed", "Rollback to 4"}, in("history", "shop")...)

	// Helm takes away what the object has installed, and the object what helm has.
	c.kubectl("patch", "helmchart", "shop", "-n", "market", "--type=merge", "-p", `{"spec":{"suspend":true}}`)
	h.says([]string{`release "shop" uninstalled`}, in("uninstall", "shop", "--wait", patience)...)
	c.kubectl("delete", "helmchart", "shop", "-n", "market", patience)
	h.run(in("install", "other", chart, "--set", "size=small", "--wait", patience)...)
	object("other", "size: large")
	ready("other", "2 True Deployed")
	history("other", "1 superseded Install complete; 2 deployed Upgrade complete")
	c.kubectl("delete", "helmchart", "other", "-n", "market", patience)
	if out := h.run(in("list", "-q")...); strings.TrimSpace(out) != "" {
		t.Errorf("releases that are left: %s", out)
	}
	c.prints("", in("get", "deployments,statefulsets,services,sizes", "-o", "name")...)
}
