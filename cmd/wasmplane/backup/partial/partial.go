// SPDX-License-Identifier: Apache-2.0

// Package partial brings objects of a backup back into a cluster that runs: those of a
// namespace, or such as are named. They go through the API like everybody's, as new
// objects; what is there stays as it is unless overwriting is asked for.
//
// The backup is read by an API server of its own, over a copy in a temporary folder: it
// knows every version, definition and key that the cluster's own does.
package partial

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/datadir"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/wire"
	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/core/store/etcd"
	"github.com/wasmplane/wasmplane/core/store/etcd/snapshotfile"
)

// Options say what comes back, from where and to where.
type Options struct {
	File string
	// Config is the cluster's: its encryption at rest is needed to read what is encrypted.
	Config *config.Configuration
	// Namespace whose objects come back; "" with Objects = cluster-wide ones.
	Namespace string
	// Objects are KIND/NAME; none = all of Namespace that nobody makes anew.
	Objects []string
	// DryRun asks the cluster, and changes nothing.
	DryRun bool
	// Overwrite replaces what is there.
	Overwrite bool
	Target    *rest.Config
	Report    func(string)
}

// ErrNotAll means that some objects did not come back; the report says which, and why.
var ErrNotAll = errors.New("not everything came back")

// Restore brings objects back.
func Restore(ctx context.Context, o Options) (err error) {
	if _, err := snapshotfile.Check(o.File); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp("", "wasmplane-restore-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	dir := datadir.Dir(tmp)
	if err := etcd.Restore(etcd.RestoreConfig{File: o.File, Dir: dir.Etcd(), Bump: 1, Logger: slog.New(slog.DiscardHandler)}); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	ready := make(chan struct{})
	ended := run.Go("backup", func() error {
		return wire.APIServer(ctx, wire.Options{Config: readerOf(o.Config), Dir: dir, Logger: slog.New(slog.DiscardHandler)},
			func(wire.Info) { close(ready) })
	})
	defer func() {
		stop()
		<-ended
	}()
	select {
	case err := <-ended:
		return fmt.Errorf("read the backup: %w", err)
	case <-ready:
	}
	source, err := client.FromKubeconfig(dir.Kubeconfig(), "restore")
	if err != nil {
		return err
	}
	return o.copy(ctx, source)
}

// readerOf is the configuration of the server that reads the backup. It listens on this
// machine alone, asks nobody, and has no plugins.
func readerOf(c *config.Configuration) *config.Configuration {
	r := config.Default()
	r.Cluster, r.APIServer.Listen, r.Node.Mode = c.Cluster, "127.0.0.1:0", config.NodeMode{}
	r.Store.EncryptionConfigFile = c.Path(c.Store.EncryptionConfigFile)
	r.DNS.Enabled = false
	return r
}

// copy copies what is asked for.
func (o Options) copy(ctx context.Context, source *rest.Config) error {
	from, err := dynamic.NewForConfig(source)
	if err != nil {
		return err
	}
	to, err := dynamic.NewForConfig(o.Target)
	if err != nil {
		return err
	}
	served, err := client.New(source)
	if err != nil {
		return err
	}
	kinds, err := resources(served.Kube.Discovery())
	if err != nil {
		return err
	}
	found, failed, err := o.collect(ctx, from, kinds)
	if err != nil {
		return err
	}
	if o.Namespace != "" && len(found) > 0 {
		if err := o.namespace(ctx, from, to); err != nil {
			return err
		}
	}
	counts := map[string]int{}
	for _, f := range found {
		done, err := o.put(ctx, to, f)
		if err != nil {
			failed++
			o.Report(fmt.Sprintf("error: %s: %v", f, err))
			continue
		}
		counts[done]++
		o.Report(done + " " + f.String())
	}
	o.Report(fmt.Sprintf("%d of the backup's objects: %d created, %d replaced, %d kept as they are, %d failed%s",
		len(found), counts["created"], counts["replaced"], counts["kept"], failed,
		map[bool]string{true: " (dry run: nothing was changed)"}[o.DryRun]))
	if failed > 0 {
		return ErrNotAll
	}
	return nil
}

// kind is one resource that a cluster serves.
type kind struct {
	gvr        schema.GroupVersionResource
	kind       string
	names      []string // by which a user can mean it
	namespaced bool
}

// resources are all that can be listed and made.
func resources(d discovery.DiscoveryInterface) ([]kind, error) {
	lists, err := discovery.ServerPreferredResources(d)
	if err != nil && !discovery.IsGroupDiscoveryFailedError(err) { // those of other servers are not in the backup
		return nil, fmt.Errorf("ask what there is in the backup: %w", err)
	}
	var all []kind
	for _, l := range lists {
		gv, err := schema.ParseGroupVersion(l.GroupVersion)
		if err != nil {
			continue
		}
		for _, r := range l.APIResources {
			if !slices.Contains(r.Verbs, "list") || !slices.Contains(r.Verbs, "create") {
				continue
			}
			names := append([]string{r.Name, r.SingularName, strings.ToLower(r.Kind)}, r.ShortNames...)
			for _, n := range slices.Clone(names) {
				names = append(names, n+"."+gv.Group)
			}
			all = append(all, kind{gv.WithResource(r.Name), r.Kind, names, r.Namespaced})
		}
	}
	slices.SortStableFunc(all, func(a, b kind) int { return cmp.Compare(rank(a.gvr.Resource), rank(b.gvr.Resource)) })
	return all, nil
}

// rank has objects come back before those that refer to them.
func rank(resource string) int {
	order := []string{
		"customresourcedefinitions", "serviceaccounts", "secrets", "configmaps", "roles", "rolebindings",
		"persistentvolumeclaims", "services",
	}
	if i := slices.Index(order, resource); i >= 0 {
		return i
	}
	return len(order)
}

// found is an object of the backup.
type found struct {
	kind
	object *unstructured.Unstructured
}

// String names the object as kubectl does.
func (f found) String() string {
	name := f.gvr.GroupResource().String() + "/" + f.object.GetName()
	if ns := f.object.GetNamespace(); ns != "" {
		name += " -n " + ns
	}
	return name
}

// collect reads what is asked for from the backup. failed counts kinds that cannot be read.
func (o Options) collect(ctx context.Context, from dynamic.Interface, kinds []kind) (all []found, failed int, err error) {
	wanted := map[string]bool{} // and whether it was found
	for _, name := range o.Objects {
		what, which, ok := strings.Cut(name, "/")
		if !ok || which == "" {
			return nil, 0, fmt.Errorf("--object: expected KIND/NAME, found %q", name)
		}
		if !slices.ContainsFunc(kinds, func(k kind) bool { return k.is(what) && k.namespaced == (o.Namespace != "") }) {
			return nil, 0, fmt.Errorf("--object: the backup has no kind %q; a namespaced one needs --namespace, others must not have it", what)
		}
		wanted[name] = false
	}
	for _, k := range kinds {
		if k.namespaced != (o.Namespace != "") || len(wanted) == 0 && transient(k) {
			continue
		}
		if len(wanted) > 0 && !slices.ContainsFunc(o.Objects, func(n string) bool { what, _, _ := strings.Cut(n, "/"); return k.is(what) }) {
			continue
		}
		list, err := from.Resource(k.gvr).Namespace(o.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			failed++
			o.Report(fmt.Sprintf("error: %s cannot be read from the backup: %v", k.gvr.GroupResource(), err))
			continue
		}
		for i := range list.Items {
			object := &list.Items[i]
			if len(wanted) == 0 {
				if madeAnew(k, object) {
					continue
				}
				all = append(all, found{k, object})
				continue
			}
			for _, name := range o.Objects {
				what, which, _ := strings.Cut(name, "/")
				if k.is(what) && which == object.GetName() {
					wanted[name] = true
					all = append(all, found{k, object})
				}
			}
		}
	}
	for _, name := range o.Objects {
		if !wanted[name] && failed == 0 {
			return nil, failed, fmt.Errorf("there is no %s in the backup%s", name,
				map[bool]string{true: " in namespace " + o.Namespace}[o.Namespace != ""])
		}
	}
	if len(all) == 0 && failed == 0 {
		return nil, failed, fmt.Errorf("the backup has nothing in namespace %q that would come back", o.Namespace)
	}
	return all, failed, nil
}

func (k kind) is(name string) bool { return slices.Contains(k.names, strings.ToLower(name)) }

// transient are kinds that say how things were, or that controllers make.
func transient(k kind) bool {
	return slices.Contains([]string{
		"events", "endpoints", "endpointslices", "leases", "controllerrevisions", "podmetrics",
		"csistoragecapacities",
	}, k.gvr.Resource)
}

// madeAnew tells whether somebody makes the object by himself.
func madeAnew(k kind, o *unstructured.Unstructured) bool {
	if metav1.GetControllerOf(o) != nil {
		return true
	}
	switch k.gvr.Resource {
	case "configmaps":
		return o.GetName() == "kube-root-ca.crt"
	case "serviceaccounts":
		return o.GetName() == "default" && len(o.GetLabels()) == 0
	case "secrets":
		kind, _, _ := unstructured.NestedString(o.Object, "type")
		return kind == string(corev1.SecretTypeServiceAccountToken)
	}
	return false
}

// namespace makes the namespace, with the labels that it had, if it is not there.
func (o Options) namespace(ctx context.Context, from, to dynamic.Interface) error {
	namespaces := schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	_, err := to.Resource(namespaces).Get(ctx, o.Namespace, metav1.GetOptions{})
	if err == nil {
		return nil
	}
	if !apierrors.IsNotFound(err) {
		return fmt.Errorf("look for namespace %s: %w", o.Namespace, err)
	}
	ns, err := from.Resource(namespaces).Get(ctx, o.Namespace, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read namespace %s from the backup: %w", o.Namespace, err)
	}
	if o.DryRun {
		return fmt.Errorf("namespace %s is not there, without which the cluster cannot judge what would come back: make it (kubectl create namespace %s), or restore without --dry-run", o.Namespace, o.Namespace)
	}
	clean(ns)
	unstructured.RemoveNestedField(ns.Object, "spec")
	if _, err := to.Resource(namespaces).Create(ctx, ns, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("make namespace %s: %w", o.Namespace, err)
	}
	o.Report("created namespaces/" + o.Namespace)
	return nil
}

// put brings one object back, and says in a word what came of it.
func (o Options) put(ctx context.Context, to dynamic.Interface, f found) (string, error) {
	var dry []string
	if o.DryRun {
		dry = []string{metav1.DryRunAll}
	}
	at := to.Resource(f.gvr).Namespace(f.object.GetNamespace())
	object := f.object.DeepCopy()
	clean(object)
	_, err := at.Create(ctx, object, metav1.CreateOptions{DryRun: dry})
	if err == nil {
		return "created", nil
	}
	if !apierrors.IsAlreadyExists(err) {
		return "", err
	}
	if !o.Overwrite {
		return "kept", nil
	}
	there, err := at.Get(ctx, object.GetName(), metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	object.SetResourceVersion(there.GetResourceVersion())
	// What the cluster has given out stays given out.
	for _, path := range [][]string{{"spec", "clusterIP"}, {"spec", "clusterIPs"}, {"spec", "volumeName"}} {
		if v, ok, _ := unstructured.NestedFieldNoCopy(there.Object, path...); ok {
			if err := unstructured.SetNestedField(object.Object, v, path...); err != nil {
				return "", err
			}
		}
	}
	_, err = at.Update(ctx, object, metav1.UpdateOptions{DryRun: dry})
	return "replaced", err
}

// clean takes from an object what was of its former life.
func clean(o *unstructured.Unstructured) {
	for _, name := range []string{
		"uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "ownerReferences", "selfLink",
		"deletionTimestamp", "deletionGracePeriodSeconds",
	} {
		unstructured.RemoveNestedField(o.Object, "metadata", name)
	}
	unstructured.RemoveNestedField(o.Object, "status")
	notes := o.GetAnnotations()
	for name := range notes {
		if strings.HasPrefix(name, "pv.kubernetes.io/") || strings.HasPrefix(name, "volume.kubernetes.io/") ||
			name == "deployment.kubernetes.io/revision" {
			delete(notes, name)
		}
	}
	if len(notes) == 0 {
		notes = nil
	}
	o.SetAnnotations(notes)
	switch o.GetKind() {
	case "Service":
		if ip, _, _ := unstructured.NestedString(o.Object, "spec", "clusterIP"); ip != corev1.ClusterIPNone {
			unstructured.RemoveNestedField(o.Object, "spec", "clusterIP")
			unstructured.RemoveNestedField(o.Object, "spec", "clusterIPs")
		}
	case "Pod":
		unstructured.RemoveNestedField(o.Object, "spec", "nodeName")
	case "PersistentVolumeClaim":
		unstructured.RemoveNestedField(o.Object, "spec", "volumeName")
	case "Job":
		// Both are made from the uid of then.
		unstructured.RemoveNestedField(o.Object, "spec", "selector")
		for _, label := range []string{"controller-uid", "batch.kubernetes.io/controller-uid"} {
			unstructured.RemoveNestedField(o.Object, "spec", "template", "metadata", "labels", label)
		}
	}
}
