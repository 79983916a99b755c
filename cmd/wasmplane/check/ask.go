// SPDX-License-Identifier: Apache-2.0

package check

import (
	"context"
	"encoding/json"
	"fmt"

	"k8s.io/client-go/kubernetes"

	"github.com/wasmplane/wasmplane/core/kubelet/reach"
)

// ask has a node try targets, through the API.
func ask(ctx context.Context, kube kubernetes.Interface, node string, targets []reach.Target) (results []reach.Result, err error) {
	ctx, cancel := context.WithTimeout(ctx, asking)
	defer cancel()
	body, err := json.Marshal(targets)
	if err != nil {
		return nil, err
	}
	answer, err := kube.CoreV1().RESTClient().Post().Resource("nodes").Name(node).SubResource("proxy").Suffix(reach.Path).
		SetHeader("Content-Type", "application/json").MaxRetries(0).Body(body).DoRaw(ctx)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(answer, &results); err != nil {
		return nil, fmt.Errorf("read what the node has tried: %w", err)
	}
	return results, nil
}
