// SPDX-License-Identifier: Apache-2.0

package authz

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/wasmplane/wasmplane/core/dial"
	"github.com/wasmplane/wasmplane/core/dial/dialtest"
)

// TestAWebhookThatDecidesIsAskedByThePolicy: its answers are bounded, it leads nobody
// elsewhere, and it is not the metadata service. What failed allows nothing.
func TestAWebhookThatDecidesIsAskedByThePolicy(t *testing.T) {
	s := dialtest.New(t)
	for place, want := range s.Hostile() {
		file := filepath.Join(t.TempDir(), "authz.yaml")
		text := fmt.Sprintf(`apiVersion: apiserver.config.k8s.io/v1
kind: AuthorizationConfiguration
authorizers:
- type: Webhook
  name: hook.example.com
  webhook: {timeout: 30s, subjectAccessReviewVersion: v1, failurePolicy: NoOpinion,
    connectionInfo: {type: KubeConfigFile, kubeConfigFile: %s}}
`, s.Kubeconfig(t, place))
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		entries, err := LoadFile(file, dial.Operator(nil))
		if err != nil {
			t.Fatal(err)
		}
		d, _, err := entries[0].Webhook.Authorize(t.Context(), authorizer.AttributesRecord{
			User: &user.DefaultInfo{Name: "ann"}, Verb: "get",
			ResourceRequest: true,
		})
		if d == Allow || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v", place, d, err)
		}
	}
	if n := s.Reached.Load(); n != 0 {
		t.Errorf("a redirect was followed %d times", n)
	}
	<-s.Let
}
