// SPDX-License-Identifier: Apache-2.0

package apiserver_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/wasmplane/wasmplane/core/apiserver/apiservertest"
	"github.com/wasmplane/wasmplane/core/auth/authz"
	"github.com/wasmplane/wasmplane/core/store"
	"github.com/wasmplane/wasmplane/core/store/encryption"
	"github.com/wasmplane/wasmplane/core/store/etcd"
)

// careful lets everybody do everything but delete what cannot be read, which only root may.
func careful(_ context.Context, a authz.Attributes) (authz.Decision, string, error) {
	if a.GetVerb() == "unsafe-delete-ignore-read-errors" && a.GetUser().GetName() != "root" {
		return authz.NoOpinion, "not you", nil
	}
	return authz.Allow, "", nil
}

func unsafely() metav1.DeleteOptions {
	yes := true
	return metav1.DeleteOptions{IgnoreStoreReadErrorWithClusterBreakingPotential: &yes}
}

// A value that is damaged is told by its key, wherever it would be missing, and
// an administrator can get rid of it; nobody else, and of nothing else.
func TestADamagedValueIsToldAndCanBeDeleted(t *testing.T) {
	s := apiservertest.Start(t, apiservertest.Options{Authorizer: rule(careful)})
	jane, root := kubernetes.NewForConfigOrDie(s.Config("jane")), kubernetes.NewForConfigOrDie(s.Config("root"))
	namespace(t, jane, "ns")
	maps := jane.CoreV1().ConfigMaps("ns")
	for _, name := range []string{"bad", "good"} {
		if _, err := maps.Create(t.Context(), configMap(name, "1"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	list, err := maps.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := maps.Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	const key = "/registry/configmaps/ns/bad"
	kv, err := s.Store.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Store.Put(t.Context(), key, []byte("k8s\x00 and then garbage"), kv.ModRevision, 0); err != nil {
		t.Fatal(err)
	}

	event := <-w.ResultChan()
	status, _ := event.Object.(*metav1.Status)
	if event.Type != watch.Error || status == nil || status.Reason != metav1.StatusReasonInternalError || !strings.Contains(status.Message,
		key) {
		t.Errorf("the watch was told %v %+v", event.Type, event.Object)
	}
	namesTheKey(t, key, "object not decodable", func() error { _, err := maps.Get(t.Context(), "bad", metav1.GetOptions{}); return err },
		func() error { _, err := maps.List(t.Context(), metav1.ListOptions{}); return err })
	if _, err := maps.Get(t.Context(), "good", metav1.GetOptions{}); err != nil {
		t.Errorf("another object: %v", err)
	}
	if _, err := maps.Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion}); err == nil {
		t.Error("a watch began that would be without it")
	}

	if err := maps.Delete(t.Context(), "bad", metav1.DeleteOptions{}); !apierrors.IsInternalError(err) || !strings.Contains(err.Error(), key) {
		t.Errorf("an ordinary delete: %v", err)
	}
	if err := maps.Delete(t.Context(), "bad", unsafely()); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `not permitted to do "unsafe-delete-ignore-read-errors", reason: not you`) {
		t.Errorf("an unsafe delete of somebody who may not: %v", err)
	}
	roots := root.CoreV1().ConfigMaps("ns")
	if err := roots.Delete(t.Context(), "good", unsafely()); !apierrors.IsConflict(err) || !strings.Contains(err.Error(),
		"unsafe deletion is not allowed because the object is decodable from storage") {
		t.Errorf("an unsafe delete of a sound object: %v", err)
	}
	if err := roots.Delete(t.Context(), "none", unsafely()); !apierrors.IsNotFound(err) {
		t.Errorf("an unsafe delete of nothing: %v", err)
	}
	if err := roots.DeleteCollection(t.Context(), unsafely(), metav1.ListOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("an unsafe delete of a collection: %v", err)
	}
	grace := unsafely()
	grace.GracePeriodSeconds = new(int64)
	if err := roots.Delete(t.Context(), "bad", grace); !apierrors.IsInvalid(err) {
		t.Errorf("an unsafe delete with a grace period: %v", err)
	}
	dry := unsafely()
	dry.DryRun = []string{metav1.DryRunAll}
	if err := roots.Delete(t.Context(), "bad", dry); err != nil {
		t.Errorf("a dry run: %v", err)
	}
	if _, err := s.Store.Get(t.Context(), key); err != nil {
		t.Fatalf("a dry run has deleted it: %v", err)
	}
	if err := roots.Delete(t.Context(), "bad", unsafely()); err != nil {
		t.Fatal(err)
	}
	if list, err = maps.List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != 1 {
		t.Errorf("afterwards: %v", err)
	}
	if _, err := maps.Create(t.Context(), configMap("bad", "2"), metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
}

// namesTheKey fails where reading one or listing all does not name the key that is corrupt.
func namesTheKey(t *testing.T, key, why string, get, list func() error) {
	t.Helper()
	if err := get(); !apierrors.IsInternalError(err) || !strings.Contains(err.Error(), "StorageError: corrupt object, Code: 7, Key: "+key) ||
		!strings.Contains(err.Error(), why) {
		t.Errorf("get: %v", err)
	}
	err := list()
	if !apierrors.IsStoreReadError(err) || !strings.Contains(err.Error(), key) {
		t.Errorf("list: %v", err)
	}
	if status, ok := err.(apierrors.APIStatus); !ok || len(status.Status().Details.Causes) != 1 ||
		status.Status().Details.Causes[0].Field != key {
		t.Errorf("causes of %#v", err)
	}
}

// A key of encryption at rest that is gone makes its objects unreadable, not
// invisible; when it comes back, so do they.
func TestSecretsOfALostKey(t *testing.T) {
	dir := t.TempDir()
	e, err := etcd.Start(t.Context(), etcd.ServerConfig{Dir: filepath.Join(dir, "etcd"), NoFsync: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	file := filepath.Join(dir, "encryption.yaml")
	use := func(name, secret string) {
		t.Helper()
		text := fmt.Sprintf("apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [secrets]\n  providers:\n  - aesgcm: {keys: [{name: %s, secret: %q}]}\n",
			name, base64.StdEncoding.EncodeToString([]byte(strings.Repeat(secret, 32))))
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	use("one", "1")
	sealed, err := encryption.New(t.Context(),
		encryption.Config{Store: e.Store(), File: file, Resource: func(key string) (schema.GroupResource, bool) {
			return schema.GroupResource{Resource: "secrets"}, strings.HasPrefix(key, "/registry/secrets/")
		}})
	if err != nil {
		t.Fatal(err)
	}
	s := apiservertest.Start(t, apiservertest.Options{Store: sealed, Authorizer: rule(careful)})
	root := kubernetes.NewForConfigOrDie(s.Config("root"))
	namespace(t, root, "ns")
	secrets := root.CoreV1().Secrets("ns")
	create := func(name string) {
		t.Helper()
		if _, err := secrets.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	reload := func() {
		t.Helper()
		if err := sealed.Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	get := func() error { _, err := secrets.Get(t.Context(), "lost", metav1.GetOptions{}); return err }
	list := func() error { _, err := secrets.List(t.Context(), metav1.ListOptions{}); return err }
	create("lost")
	use("two", "2")
	reload()
	// What the cache has read already it goes on to serve; a value that arrives now
	// with the old key is another matter.
	kv, err := e.Store().Get(t.Context(), "/registry/secrets/ns/lost")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Store().Put(t.Context(), kv.Key, kv.Value, kv.ModRevision, 0); err != nil {
		t.Fatal(err)
	}
	namesTheKey(t, kv.Key, "data from the storage is not transformable", get, list)
	use("one", "1")
	reload()
	s.Cache.Reread()
	for deadline := time.Now().Add(time.Minute); get() != nil || list() != nil; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("with the key back: %v, %v", get(), list())
		}
	}
	use("two", "2")
	reload()
	if _, err := e.Store().Put(t.Context(), kv.Key, kv.Value, revisionOf(t, e.Store(), kv.Key), 0); err != nil {
		t.Fatal(err)
	}
	if err := secrets.Delete(t.Context(), "lost", unsafely()); err != nil {
		t.Fatal(err)
	}
	if err := get(); !apierrors.IsNotFound(err) {
		t.Errorf("afterwards: %v", err)
	}
	if err := list(); err != nil {
		t.Error(err)
	}
}

func revisionOf(t *testing.T, s store.Store, key string) int64 {
	t.Helper()
	kv, err := s.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return kv.ModRevision
}
