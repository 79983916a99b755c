// SPDX-License-Identifier: Apache-2.0

package reviewserver

import (
	"fmt"
	"strings"
)

// Authorization says which of the two places in the chain are taken, for AuthorizationConfiguration.
type Authorization struct {
	// Before and After: there are authorizers that stand before the cluster's own, or behind them.
	Before, After bool
	// FailOpen: no entry's failure policy is Fail.
	FailOpen bool
}

// AuthorizationConfiguration is the file that an API server takes as
// --authorization-config. kubeconfigs are the paths of the kubeconfig files with which it asks,
// by order. Requests that keep the cluster alive, and break-glass, never wait for a webhook.
func AuthorizationConfiguration(a Authorization, kubeconfigs map[string]string) []byte {
	policy := "Deny"
	if a.FailOpen {
		policy = "NoOpinion"
	}
	hook := func(order string) string {
		return fmt.Sprintf(`  - type: Webhook
    name: wasmplane-%s
    webhook:
      subjectAccessReviewVersion: v1
      matchConditionSubjectAccessReviewVersion: v1
      timeout: 3s
      # Answers are kept for a few seconds, so that a plugin that is replaced decides soon.
      authorizedTTL: 5s
      unauthorizedTTL: 5s
      failurePolicy: %s
      connectionInfo:
        type: KubeConfigFile
        kubeConfigFile: %s
      matchConditions:
        # Break-glass and the cluster's own components are out of reach: a policy cannot lock anybody out for good.
        - expression: "!('system:masters' in request.groups)"
        - expression: "!('system:nodes' in request.groups)"
        - expression: "!(request.user in ['system:apiserver', 'system:kube-scheduler', 'system:kube-controller-manager', 'system:kube-proxy'])"
`, order, policy, kubeconfigs[order])
	}
	var b strings.Builder
	b.WriteString(`# Written by wasmplane webhook. Give it to the API server:
#   --authorization-config=THIS FILE   (instead of --authorization-mode)
apiVersion: apiserver.config.k8s.io/v1
kind: AuthorizationConfiguration
authorizers:
`)
	if a.Before {
		b.WriteString(hook("before"))
	}
	b.WriteString("  - type: Node\n    name: node\n  - type: RBAC\n    name: rbac\n")
	if a.After {
		b.WriteString(hook("after"))
	}
	return []byte(b.String())
}
