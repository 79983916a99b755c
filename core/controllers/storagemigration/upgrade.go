// SPDX-License-Identifier: Apache-2.0

package storagemigration

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	migrationv1 "k8s.io/api/storagemigration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/wasmplane/wasmplane/core/run"
)

const (
	// Record is the ConfigMap in kube-system that keeps, for each resource, the hash of the version in which all of its objects are stored.
	Record = "wasmplane-storage-versions"
	// Label marks the migrations of an upgrade; its value is "upgrade".
	Label = "wasmplane.dev/migration"

	look = 5 * time.Second
)

// Upgrade has the objects of resources rewritten whose storage version is another one since the last time, once
// all servers store in the same.
type Upgrade struct {
	Kube kubernetes.Interface
	// Waits says which servers are of another version, or do not answer; "" = none.
	Waits func(context.Context) (string, error)
	// Started is when this process did: a cluster that is younger has nothing to migrate.
	Started time.Time
	Log     *slog.Logger

	waited string
	failed map[string]bool
}

// Run works until all is stored in the present versions, and then waits for ctx.
func (u *Upgrade) Run(ctx context.Context) error {
	for {
		done, err := u.step(ctx)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // it was told to end
		case err != nil:
			u.Log.WarnContext(ctx, "whether objects are to be stored in another version is not known yet; it is asked again", "error", err)
		case done:
			<-ctx.Done()
			return nil
		}
		if !run.Sleep(ctx, look) {
			return nil
		}
	}
}

func (u *Upgrade) step(ctx context.Context) (done bool, err error) {
	now, err := hashes(u.Kube.Discovery())
	if err != nil {
		return false, err
	}
	record, err := u.Kube.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, Record, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return u.begin(ctx, now)
	}
	if err != nil {
		return false, fmt.Errorf("read in which versions objects are stored: %w", err)
	}
	var due []schema.GroupResource
	for gr, hash := range now {
		if record.Data[gr.String()] != hash {
			due = append(due, gr)
		}
	}
	if len(due) == 0 {
		return true, u.clear(ctx, nil)
	}
	slices.SortFunc(due, func(a, b schema.GroupResource) int { return strings.Compare(a.String(), b.String()) })
	waits, err := u.Waits(ctx)
	if err != nil {
		return false, err
	}
	if waits != "" {
		if u.waited != waits {
			u.Log.InfoContext(ctx, "objects are stored in another version once all servers have been upgraded", "waitsFor", waits, "resources",
				len(due))
		}
		u.waited = waits
		return false, nil
	}
	wanted := map[string]bool{}
	for _, gr := range due {
		wanted[migrationName(gr, now[gr])] = true
		if err := u.migrate(ctx, gr, now[gr]); err != nil {
			return false, err
		}
	}
	return false, u.clear(ctx, wanted)
}

// begin writes the first record: of a cluster that this process has made everything is of its versions.
func (u *Upgrade) begin(ctx context.Context, now map[schema.GroupResource]string) (done bool, err error) {
	system, err := u.Kube.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		return false, fmt.Errorf("ask how old the cluster is: %w", err)
	}
	young := !system.CreationTimestamp.Time.Before(u.Started.Truncate(time.Second))
	data := map[string]string{}
	if young {
		for gr, hash := range now {
			data[gr.String()] = hash
		}
	}
	return young, u.write(ctx, data)
}

// write adds to the record.
func (u *Upgrade) write(ctx context.Context, data map[string]string) error {
	api := u.Kube.CoreV1().ConfigMaps(metav1.NamespaceSystem)
	const doing = "record in which versions objects are stored"
	_, err := api.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: Record}, Data: data}, metav1.CreateOptions{})
	if err == nil {
		return nil
	}
	if !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf(doing+": %w", err)
	}
	patch, err := json.Marshal(map[string]any{"data": data})
	if err != nil {
		return err
	}
	if _, err = api.Patch(ctx, Record, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf(doing+": %w", err)
	}
	return nil
}

// migrate brings one resource a step on.
func (u *Upgrade) migrate(ctx context.Context, gr schema.GroupResource, hash string) error {
	api := u.Kube.StoragemigrationV1().StorageVersionMigrations()
	name := migrationName(gr, hash)
	m, err := api.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = api.Create(ctx, &migrationv1.StorageVersionMigration{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{Label: "upgrade"}},
			Spec:       migrationv1.StorageVersionMigrationSpec{Resource: metav1.GroupResource(gr)},
		}, metav1.CreateOptions{})
		if err == nil {
			u.Log.InfoContext(ctx, "objects are stored in another version from now on, and written anew", "resource", gr)
		}
		if apierrors.IsAlreadyExists(err) {
			err = nil // another server was faster
		}
	}
	if err != nil {
		return fmt.Errorf("have the objects of %s written anew: %w", gr, err)
	}
	switch c := meta.FindStatusCondition(m.Status.Conditions, string(migrationv1.MigrationFailed)); {
	case meta.IsStatusConditionTrue(m.Status.Conditions, string(migrationv1.MigrationSucceeded)):
		return u.write(ctx, map[string]string{gr.String(): hash})
	case c != nil && c.Status == metav1.ConditionTrue && !u.failed[name]:
		if u.failed == nil {
			u.failed = map[string]bool{}
		}
		u.failed[name] = true
		u.Log.ErrorContext(ctx, "the objects of a resource could not be written in their new version; mend what the message says, and delete the migration, which is then made again",
			"resource", gr, "migration", name, "error", c.Message)
	}
	return nil
}

// clear deletes migrations of upgrades that are not wanted: those that are done, and those of another version.
func (u *Upgrade) clear(ctx context.Context, wanted map[string]bool) error {
	api := u.Kube.StoragemigrationV1().StorageVersionMigrations()
	all, err := api.List(ctx, metav1.ListOptions{LabelSelector: Label})
	if err != nil {
		return fmt.Errorf("list migrations: %w", err)
	}
	for _, m := range all.Items {
		if wanted[m.Name] {
			continue
		}
		if err := api.Delete(ctx, m.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete the migration %s, which is done: %w", m.Name, err)
		}
	}
	return nil
}

// migrationName is the same on every server.
func migrationName(gr schema.GroupResource, hash string) string {
	sum := sha256.Sum256([]byte(hash))
	return "upgrade-" + gr.String() + "-" + hex.EncodeToString(sum[:4])
}

// hashes are those of the versions in which resources that are built in are stored. Events end by themselves.
func hashes(d discovery.DiscoveryInterface) (map[schema.GroupResource]string, error) {
	const doing = "ask in which versions objects are stored"
	groups, err := d.ServerGroups()
	if err != nil {
		return nil, fmt.Errorf(doing+": %w", err)
	}
	all := map[schema.GroupResource]string{}
	for _, g := range groups.Groups {
		if !builtIn(g.Name) {
			continue
		}
		for _, v := range g.Versions {
			// One by one: what tells of all at once leaves the hashes out.
			l, err := d.ServerResourcesForGroupVersion(v.GroupVersion)
			if err != nil {
				return nil, fmt.Errorf(doing+": %w", err)
			}
			for _, r := range l.APIResources {
				if r.StorageVersionHash != "" && r.Name != "events" && slices.Contains(r.Verbs, "patch") && slices.Contains(r.Verbs, "list") {
					all[schema.GroupResource{Group: g.Name, Resource: r.Name}] = r.StorageVersionHash
				}
			}
		}
	}
	return all, nil
}

// builtIn: the resources of others are theirs to migrate.
func builtIn(group string) bool {
	return scheme.Scheme.IsGroupRegistered(group) || group == "apiextensions.k8s.io" || group == "apiregistration.k8s.io"
}
