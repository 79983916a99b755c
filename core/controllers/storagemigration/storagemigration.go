// SPDX-License-Identifier: Apache-2.0

// Package storagemigration rewrites stored objects in the version in which they are stored now, as
// StorageVersionMigrations ask for, and asks for them after an upgrade (Upgrade).
//
// Each object gets a patch that changes nothing: the server then writes it anew where the store has it in
// another version, or encrypted by an earlier key. What was written since a migration began is left out, so
// that one that was interrupted goes on where it was. Migrations run one after the other, at a bounded rate.
package storagemigration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"golang.org/x/time/rate"
	migrationv1 "k8s.io/api/storagemigration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	migrationlisters "k8s.io/client-go/listers/storagemigration/v1"
	"k8s.io/client-go/metadata"

	"github.com/wasmplane/wasmplane/core/controllers"
)

const (
	// perSecond bounds the writes, and pageSize a list.
	perSecond = 50
	pageSize  = 500
	// progress is how often a running migration says how far it has come.
	progress = 10 * time.Second
	// unknown is how long a resource that nobody serves is waited for: its definition may just have been made.
	unknown = time.Minute

	name = "storage-version-migrator-controller"
)

// Upstream's reasons and messages.
const (
	reasonRunning   = "StorageVersionMigrationInProgress"
	reasonSucceeded = "StorageVersionMigrationSucceeded"
	reasonFailed    = "StorageVersionMigrationFailed"
)

// Controller rewrites objects.
type Controller struct {
	client     kubernetes.Interface
	objects    metadata.Interface
	migrations migrationlisters.StorageVersionMigrationLister
	loop       *controllers.Loop[string]
	pace       *rate.Limiter
	written    *controllers.Written
}

// New makes the controller. Migrations run one at a time, whatever the workers.
func New(env controllers.Env, _ int, objects metadata.Interface) (*Controller, error) {
	migrations := env.Informers.Storagemigration().V1().StorageVersionMigrations()
	c := &Controller{
		client: env.Client, objects: objects, migrations: migrations.Lister(), pace: rate.NewLimiter(perSecond, perSecond),
		written: controllers.NewWritten(),
	}
	c.loop = controllers.NewLoop(env, name, 1, c.reconcile)
	c.loop.Watch(migrations.Informer(), controllers.Changes(func(_, current metav1.Object) {
		if m, ok := current.(*migrationv1.StorageVersionMigration); ok && !Ended(m) {
			c.loop.Add(m.Name)
		}
	}))
	return c, nil
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

// Ended tells that a migration has succeeded or failed.
func Ended(m *migrationv1.StorageVersionMigration) bool {
	return meta.IsStatusConditionTrue(m.Status.Conditions, string(migrationv1.MigrationSucceeded)) ||
		meta.IsStatusConditionTrue(m.Status.Conditions, string(migrationv1.MigrationFailed))
}

// failure is a reason for which a migration is not tried again.
type failure struct{ error }

func (c *Controller) reconcile(ctx context.Context, name string) error {
	cached, err := c.migrations.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil || Ended(cached) {
		return err
	}
	if !c.written.Seen(cached) {
		return controllers.ErrStale // it may have ended
	}
	controllers.About(ctx, "StorageVersionMigration", cached)
	r := &round{Controller: c, m: cached.DeepCopy()}
	err = r.migrate(ctx)
	if f, ok := errors.AsType[failure](err); ok {
		r.condition(migrationv1.MigrationFailed, reasonFailed, "migration encountered unhandled error: "+f.Error())
		controllers.Did(ctx, "gave up: "+f.Error(), "StorageVersionMigration", nil)
		return r.write(ctx)
	}
	if err != nil {
		return err
	}
	r.condition(migrationv1.MigrationRunning, reasonRunning, fmt.Sprintf("The migration is running, %d objects verified migrated", r.total))
	r.condition(migrationv1.MigrationSucceeded, reasonSucceeded, "Migration completed")
	controllers.Did(ctx, fmt.Sprintf("had %d objects written anew", r.total), "StorageVersionMigration", nil)
	return r.write(ctx)
}

// round is one try at one migration.
type round struct {
	*Controller
	m     *migrationv1.StorageVersionMigration
	total int
}

func (r *round) migrate(ctx context.Context) error {
	resource, err := r.resource(ctx)
	if err != nil {
		return err
	}
	api := r.objects.Resource(resource)
	if r.m.Status.ResourceVersion == "" {
		first, err := api.List(ctx, metav1.ListOptions{Limit: 1})
		if err != nil {
			return fmt.Errorf("begin the migration of %s: %w", resource.GroupResource(), err)
		}
		r.m.Status.ResourceVersion = first.ResourceVersion
		r.condition(migrationv1.MigrationRunning, reasonRunning, "The migration is running")
		if err := r.write(ctx); err != nil {
			return err
		}
	}
	since, err := strconv.ParseUint(r.m.Status.ResourceVersion, 10, 64)
	if err != nil {
		return failure{fmt.Errorf("the status names the resource version %q: %w", r.m.Status.ResourceVersion, err)}
	}
	return r.walk(ctx, api, since)
}

// resource finds the version by which objects are listed and patched, and whether that can be done.
func (r *round) resource(ctx context.Context) (schema.GroupVersionResource, error) {
	want := schema.GroupResource(r.m.Spec.Resource)
	_, lists, err := r.client.Discovery().ServerGroupsAndResources() // preferred versions come first
	for _, l := range lists {
		gv, parsed := schema.ParseGroupVersion(l.GroupVersion)
		if parsed != nil || gv.Group != want.Group {
			continue
		}
		for _, one := range l.APIResources {
			if one.Name != want.Resource {
				continue
			}
			if !slices.Contains(one.Verbs, "list") || !slices.Contains(one.Verbs, "patch") {
				return schema.GroupVersionResource{}, failure{fmt.Errorf("resource %q can not be listed and patched", want)}
			}
			return gv.WithResource(one.Name), nil
		}
	}
	switch {
	case ctx.Err() != nil:
		return schema.GroupVersionResource{}, ctx.Err()
	case err != nil:
		return schema.GroupVersionResource{}, fmt.Errorf("look for the resource %s: %w", want, err)
	case time.Since(r.m.CreationTimestamp.Time) < unknown:
		r.loop.AddAfter(r.m.Name, unknown/10)
		return schema.GroupVersionResource{}, controllers.ErrNotYet
	}
	return schema.GroupVersionResource{}, failure{errors.New("resource does not exist in discovery")}
}

// walk has every object written that was last written up to a revision.
func (r *round) walk(ctx context.Context, api metadata.Getter, until uint64) error {
	done, told := 0, time.Now()
	options := metav1.ListOptions{Limit: pageSize}
	for {
		page, err := api.List(ctx, options)
		if apierrors.IsResourceExpired(err) { // the list took too long: what is done already is passed over
			return controllers.ErrNotYet
		}
		if err != nil {
			return fmt.Errorf("list %s: %w", r.m.Spec.Resource.Resource, err)
		}
		for i := range page.Items {
			if err := r.rewrite(ctx, api, &page.Items[i], until); err != nil {
				return err
			}
			done++
			if time.Since(told) > progress {
				left := int64(len(page.Items) - i - 1)
				if page.RemainingItemCount != nil {
					left += *page.RemainingItemCount
				}
				r.condition(migrationv1.MigrationRunning, reasonRunning,
					fmt.Sprintf("The migration is running, %d/%d objects not yet migrated", left, int64(done)+left))
				if err := r.write(ctx); err != nil {
					return err
				}
				told = time.Now()
			}
		}
		if options.Continue = page.Continue; options.Continue == "" {
			r.total = done
			return nil
		}
	}
}

func (r *round) rewrite(ctx context.Context, api metadata.Getter, o *metav1.PartialObjectMetadata, until uint64) error {
	at, err := strconv.ParseUint(o.ResourceVersion, 10, 64)
	if err != nil {
		return failure{fmt.Errorf("the resource version of %s is %q: %w", o.Name, o.ResourceVersion, err)}
	}
	if at > until {
		return nil
	}
	if err := r.pace.Wait(ctx); err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]string{"uid": string(o.UID), "resourceVersion": o.ResourceVersion}})
	if err != nil {
		return err
	}
	_, err = metadata.ResourceInterface(api.Namespace(o.Namespace)).Patch(ctx, o.Name, types.MergePatchType, patch,
		metav1.PatchOptions{FieldManager: name})
	switch {
	case err == nil, apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return nil // it is gone, or was written meanwhile
	case apierrors.IsInvalid(err), apierrors.IsForbidden(err), apierrors.IsBadRequest(err), apierrors.IsMethodNotSupported(err):
		return failure{fmt.Errorf("%s: %w", types.NamespacedName{Namespace: o.Namespace, Name: o.Name}, err)}
	}
	return fmt.Errorf("have %s written anew: %w", o.Name, err)
}

func (r *round) condition(kind migrationv1.MigrationConditionType, reason, message string) {
	meta.SetStatusCondition(&r.m.Status.Conditions, metav1.Condition{
		Type: string(kind), Status: metav1.ConditionTrue, Reason: reason, Message: message,
	})
}

func (r *round) write(ctx context.Context) error {
	written, err := r.client.StoragemigrationV1().StorageVersionMigrations().UpdateStatus(ctx, r.m, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return controllers.ErrStale
	}
	if err != nil {
		return fmt.Errorf("write the state of the migration %s: %w", r.m.Name, err)
	}
	r.m = written
	r.written.Record(written)
	return nil
}
