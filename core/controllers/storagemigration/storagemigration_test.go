// SPDX-License-Identifier: Apache-2.0

package storagemigration

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	migrationv1 "k8s.io/api/storagemigration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	fakediscovery "k8s.io/client-go/discovery/fake"
	"k8s.io/client-go/metadata"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/wasmplane/wasmplane/core/controllers/controllertest"
)

var shops = metav1.GroupResource{Group: "example.com", Resource: "shops"}

func serve(c *controllertest.Cluster, lists ...*metav1.APIResourceList) {
	c.Client.Discovery().(*fakediscovery.FakeDiscovery).Resources = lists
}

func shopsServed(hash string, verbs ...string) *metav1.APIResourceList {
	return &metav1.APIResourceList{GroupVersion: "example.com/v2", APIResources: []metav1.APIResource{
		{Name: "shops", Kind: "Shop", Namespaced: true, Verbs: verbs, StorageVersionHash: hash},
	}}
}

func migration(name string) *migrationv1.StorageVersionMigration {
	return &migrationv1.StorageVersionMigration{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.Now()},
		Spec:       migrationv1.StorageVersionMigrationSpec{Resource: shops},
	}
}

// stored are n objects with revisions from 1 on, and a list of the newest revision.
func stored(n int) *metadatafake.FakeMetadataClient {
	s := runtime.NewScheme()
	_ = metav1.AddMetaToScheme(s)
	var objects []runtime.Object
	for i := range n {
		objects = append(objects, &metav1.PartialObjectMetadata{
			TypeMeta:   metav1.TypeMeta{APIVersion: "example.com/v2", Kind: "Shop"},
			ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: fmt.Sprintf("s%04d", i), UID: "u", ResourceVersion: fmt.Sprint(i + 1)},
		})
	}
	return metadatafake.NewSimpleMetadataClient(s, objects...)
}

// versioned gives lists a revision, which the fake does not.
type versioned struct{ metadata.Interface }

func (v versioned) Resource(r schema.GroupVersionResource) metadata.Getter {
	return versionedGetter{v.Interface.Resource(r)}
}

type versionedGetter struct{ metadata.Getter }

func (v versionedGetter) List(ctx context.Context, o metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	l, err := v.Getter.List(ctx, o)
	if err == nil {
		l.ResourceVersion = "150"
	}
	return l, err
}

type patches struct {
	mu    sync.Mutex
	names []string
	at    []time.Time
}

// watch records patches, and answers what fail says.
func (p *patches) watch(f *metadatafake.FakeMetadataClient, fail func(name string) error) {
	f.PrependReactor("patch", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		patch := a.(clienttesting.PatchAction)
		var body struct {
			Metadata map[string]string `json:"metadata"`
		}
		if err := json.Unmarshal(patch.GetPatch(), &body); err != nil || body.Metadata["uid"] != "u" || body.Metadata["resourceVersion"] == "" {
			return true, nil, fmt.Errorf("the patch %s does not say which object it means", patch.GetPatch())
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.names, p.at = append(p.names, patch.GetName()), append(p.at, time.Now())
		if fail != nil {
			if err := fail(patch.GetName()); err != nil {
				return true, nil, err
			}
		}
		return true, &metav1.PartialObjectMetadata{}, nil
	})
}

func start(t *testing.T, c *controllertest.Cluster, objects metadata.Interface) {
	t.Helper()
	r, err := New(c.Env(t), 1, versioned{objects})
	if err != nil {
		t.Fatal(err)
	}
	c.Start(t, r)
}

func state(t *testing.T, c *controllertest.Cluster, name string) *migrationv1.StorageVersionMigration {
	t.Helper()
	m, err := c.Client.StoragemigrationV1().StorageVersionMigrations().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestObjectsAreWrittenAnewAtABoundedRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := controllertest.New(migration("m"))
		serve(c, shopsServed("x", "list", "patch"))
		objects, seen := stored(200), &patches{}
		seen.watch(objects, func(name string) error {
			switch name {
			case "s0003":
				return apierrors.NewNotFound(schema.GroupResource(schema.GroupResource{Resource: "shops"}), name)
			case "s0004":
				return apierrors.NewConflict(schema.GroupResource{Resource: "shops"}, name, nil)
			}
			return nil
		})
		start(t, c, objects)
		time.Sleep(time.Minute)
		synctest.Wait()
		if m := state(t, c, "m"); !meta.IsStatusConditionTrue(m.Status.Conditions, string(migrationv1.MigrationSucceeded)) || m.Status.ResourceVersion != "150" {
			t.Errorf("the migration is %+v", m.Status)
		}
		if len(seen.names) != 150 { // 50 were written after the beginning
			t.Errorf("%d objects were written, want 150", len(seen.names))
		}
		if took := seen.at[len(seen.at)-1].Sub(seen.at[0]); took < 2*time.Second {
			t.Errorf("150 writes took %s, want 50 a second after the first 50", took)
		}
	})
}

// A restart, or an error that passes, goes on with what has not been written since the migration began.
func TestAMigrationGoesOnAfterAnInterruption(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := migration("m")
		m.Status.ResourceVersion = "10"
		c := controllertest.New(m)
		serve(c, shopsServed("x", "list", "patch"))
		objects, seen, busy := stored(200), &patches{}, 3
		seen.watch(objects, func(string) error {
			if busy--; busy >= 0 {
				return apierrors.NewTooManyRequests("busy", 1)
			}
			return nil
		})
		start(t, c, objects)
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := len(seen.names); got != 10+3 {
			t.Errorf("%d patches, want 10 and 3 that the server was too busy for", got)
		}
		if !meta.IsStatusConditionTrue(state(t, c, "m").Status.Conditions, string(migrationv1.MigrationSucceeded)) {
			t.Error("it did not end")
		}
	})
}

func TestWhatCannotBeMigratedIsSaid(t *testing.T) {
	for name, c := range map[string]struct {
		served *metav1.APIResourceList
		fail   error
		want   string
	}{
		"nobody serves it":          {nil, nil, "does not exist"},
		"it cannot be patched":      {shopsServed("x", "list"), nil, "can not be listed and patched"},
		"an object is invalid now":  {shopsServed("x", "list", "patch"), apierrors.NewInvalid(schema.GroupKind{Kind: "Shop"}, "s0000", nil), "a/s0000"},
		"a policy refuses a change": {shopsServed("x", "list", "patch"), apierrors.NewForbidden(schema.GroupResource{}, "s0000", nil), "a/s0000"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cluster := controllertest.New(migration("m"))
				if c.served != nil {
					serve(cluster, c.served)
				}
				objects := stored(3)
				(&patches{}).watch(objects, func(string) error { return c.fail })
				start(t, cluster, objects)
				time.Sleep(5 * time.Minute)
				synctest.Wait()
				found := meta.FindStatusCondition(state(t, cluster, "m").Status.Conditions, string(migrationv1.MigrationFailed))
				if found == nil || !strings.Contains(found.Message, c.want) {
					t.Errorf("the state is %+v, want a failure with %q", found, c.want)
				}
			})
		})
	}
}

func coreServed(hash string) *metav1.APIResourceList {
	verbs := metav1.Verbs{"list", "patch"}
	return &metav1.APIResourceList{GroupVersion: "v1", APIResources: []metav1.APIResource{
		{Name: "secrets", Kind: "Secret", Namespaced: true, Verbs: verbs, StorageVersionHash: hash},
		{Name: "pods", Kind: "Pod", Namespaced: true, Verbs: verbs, StorageVersionHash: "same"},
		{Name: "pods/status", Kind: "Pod", Namespaced: true, Verbs: metav1.Verbs{"patch"}},
		{Name: "events", Kind: "Event", Namespaced: true, Verbs: verbs, StorageVersionHash: "e"},
	}}
}

// upgraded runs an Upgrade in a cluster, and answers which resources were to be migrated.
func upgraded(t *testing.T, c *controllertest.Cluster, waits func() string) (asked func() []string) {
	t.Helper()
	u := &Upgrade{
		Kube: c.Client, Waits: func(context.Context) (string, error) { return waits(), nil }, Started: time.Now(),
		Log: slog.New(slog.DiscardHandler),
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- u.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return func() (names []string) {
		for _, a := range c.Client.Actions() {
			if create, ok := a.(clienttesting.CreateAction); ok && a.Matches("create", "storageversionmigrations") {
				names = append(names, create.GetObject().(*migrationv1.StorageVersionMigration).Spec.Resource.Resource)
			}
		}
		return names
	}
}

func nobody() string { return "" }

func system(age time.Duration) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name:              metav1.NamespaceSystem,
		CreationTimestamp: metav1.NewTime(time.Now().Add(-age)),
	}}
}

func record(t *testing.T, c *controllertest.Cluster) map[string]string {
	t.Helper()
	m, err := c.Client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(t.Context(), Record, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return m.Data
}

func TestAnUpgradeMigratesWhatIsStoredInAnotherVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := controllertest.New(system(time.Hour), &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: Record},
			Data:       map[string]string{"secrets": "old", "pods": "same"},
		})
		serve(c, coreServed("new"), shopsServed("x", "list", "patch"))
		away := "server b is of v1.36.0"
		asked := upgraded(t, c, func() string { return away })
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := asked(); len(got) > 0 {
			t.Fatalf("%v were migrated while a server of the version before could not have read them", got)
		}
		away = ""
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := asked(); len(got) != 1 || got[0] != "secrets" {
			t.Fatalf("%v are migrated, want secrets", got)
		}
		if record(t, c)["secrets"] != "old" {
			t.Error("the record speaks of a migration that is not done")
		}
		all, err := c.Client.StoragemigrationV1().StorageVersionMigrations().List(t.Context(), metav1.ListOptions{})
		if err != nil || len(all.Items) != 1 {
			t.Fatal(all, err)
		}
		m := all.Items[0]
		meta.SetStatusCondition(&m.Status.Conditions, metav1.Condition{
			Type:   string(migrationv1.MigrationSucceeded),
			Status: metav1.ConditionTrue,
		})
		if _, err := c.Client.StoragemigrationV1().StorageVersionMigrations().UpdateStatus(t.Context(), &m, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if record(t, c)["secrets"] != "new" {
			t.Error("the record does not have the new version")
		}
		if all, err = c.Client.StoragemigrationV1().StorageVersionMigrations().List(t.Context(), metav1.ListOptions{}); err != nil ||
			len(all.Items) != 0 {
			t.Errorf("the migration is there still: %v, %v", all, err)
		}
		if got := asked(); len(got) != 1 {
			t.Errorf("it was asked for %d times", len(got))
		}
	})
}

func TestWhichClustersHaveSomethingToMigrate(t *testing.T) {
	for name, c := range map[string]struct {
		age  time.Duration
		want int
	}{
		"one that this process has made": {-time.Second, 0},
		"one from before this record":    {24 * time.Hour, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cluster := controllertest.New(system(c.age))
				serve(cluster, coreServed("new"))
				asked := upgraded(t, cluster, nobody)
				time.Sleep(time.Minute)
				synctest.Wait()
				if got := asked(); len(got) != c.want {
					t.Errorf("%v are migrated, want %d resources", got, c.want)
				}
				if has := record(t, cluster); c.want == 0 && has["secrets"] != "new" || c.want > 0 && len(has) > 0 {
					t.Errorf("the record is %v", has)
				}
			})
		})
	}
}
