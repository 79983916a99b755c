// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/wasmplane/wasmplane/core/store/etcd/snapshotfile"
)

// registry is where an API server keeps its objects, ours and upstream's.
const registry = "/registry/"

// stored are the kinds that the scheduler looks at, by where a store keeps them. The nodes come first: without them
// the rest is not needed.
var stored = []string{
	"minions", "pods", "namespaces", "services/specs", "controllers", "replicasets", "statefulsets", "poddisruptionbudgets",
	"priorityclasses", "podgroups",
}

// encrypted begins a value that was encrypted at rest.
var encrypted = []byte("k8s:enc:")

// backup reads the cluster from an etcd snapshot, as `wasmplane backup` and `etcdctl snapshot save` write it.
func (o *options) backup() error {
	kinds := stored
	if o.nodesOnly {
		kinds = stored[:1]
	}
	var prefixes []string
	for _, kind := range kinds {
		prefixes = append(prefixes, registry+kind+"/")
	}
	decode := scheme.Codecs.UniversalDeserializer()
	err := snapshotfile.Contents(o.fromBackup, prefixes, func(key string, value []byte) error {
		if bytes.HasPrefix(value, encrypted) {
			return fmt.Errorf("%s is encrypted at rest: restore the backup into a cluster with the keys, and use --live", key)
		}
		object, _, err := decode.Decode(value, nil, nil)
		switch {
		case runtime.IsNotRegisteredError(err) && !strings.HasPrefix(key, registry+"minions/") && !strings.HasPrefix(key, registry+"pods/"):
			return nil // of a version that this one does not know
		case err != nil:
			return fmt.Errorf("read %s of the backup: %w", key, err)
		}
		o.Cluster = append(o.Cluster, object)
		return nil
	})
	if err != nil {
		return fmt.Errorf("--from-backup: %w", err)
	}
	if len(o.Cluster) == 0 {
		return errors.New("--from-backup: " + o.fromBackup + " holds no nodes and no pods below " + registry)
	}
	o.From = "the backup"
	return nil
}
