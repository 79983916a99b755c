// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	typed "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"

	"github.com/wasmplane/wasmplane/core/run"
)

// DefinitionsManager owns the fields of the definitions that a binary brings.
const DefinitionsManager = "wasmplane-bootstrap"

// Definitions installs the custom resource definitions that a binary brings with
// it, and returns once all of them are established: clients may then use what
// they define. It may be called at every start, and by several servers at once:
// what is as it should be is not written, what an older binary installed is
// brought up to date (a schema, a version, a column), and what others added to a
// definition (labels, annotations) stays. ctx bounds the wait.
//
// The client needs the server's own identity, or one that may patch and watch
// customresourcedefinitions:
//
//	own, err := apiextensions.NewForConfig(set.Config)
//	...
//	err = bootstrap.Definitions(ctx, own.CustomResourceDefinitions(), pluginDefinition())
func Definitions(ctx context.Context, client typed.CustomResourceDefinitionInterface,
	definitions ...*apiextensionsv1.CustomResourceDefinition,
) error {
	steps := make([]func(context.Context) error, len(definitions))
	for i, crd := range definitions {
		steps[i] = func(ctx context.Context) error { return install(ctx, client, crd) }
	}
	return together(ctx, steps...)
}

func install(ctx context.Context, client typed.CustomResourceDefinitionInterface, crd *apiextensionsv1.CustomResourceDefinition) error {
	patch, err := definitionPatch(crd)
	if err != nil {
		return fmt.Errorf("definition %s: %w", crd.Name, err)
	}
	force := true
	options := metav1.PatchOptions{FieldManager: DefinitionsManager, Force: &force}
	now, err := client.Patch(ctx, crd.Name, types.ApplyPatchType, patch, options)
	if err != nil {
		return fmt.Errorf("definition %s: %w", crd.Name, err)
	}
	if err := established(ctx, client, now); err != nil {
		return fmt.Errorf("definition %s: %w", crd.Name, err)
	}
	return nil
}

// definitionPatch is what is applied: without the parts that a server fills in.
func definitionPatch(crd *apiextensionsv1.CustomResourceDefinition) ([]byte, error) {
	whole, err := json.Marshal(crd)
	if err != nil {
		return nil, err
	}
	tree := map[string]any{}
	if err := json.Unmarshal(whole, &tree); err != nil {
		return nil, err
	}
	delete(tree, "status")
	if m, ok := tree["metadata"].(map[string]any); ok {
		delete(m, "creationTimestamp")
	}
	tree["apiVersion"], tree["kind"] = apiextensionsv1.SchemeGroupVersion.String(), "CustomResourceDefinition"
	return json.Marshal(tree)
}

// again is the pause before a watch that ended is begun again.
const again = 100 * time.Millisecond

// established waits until the definition is.
func established(ctx context.Context, client typed.CustomResourceDefinitionInterface, now *apiextensionsv1.CustomResourceDefinition) error {
	var failure error
	for {
		if done, err := isEstablished(now); done || err != nil {
			return err
		}
		if ctx.Err() != nil {
			return fmt.Errorf("it was not established in time: %w", errors.Join(context.Cause(ctx), failure))
		}
		now, failure = nextState(ctx, client, now)
		if failure == nil {
			continue
		}
		run.Sleep(ctx, again)
	}
}

// nextState waits for another state of the definition than now.
func nextState(ctx context.Context, client typed.CustomResourceDefinitionInterface,
	now *apiextensionsv1.CustomResourceDefinition,
) (*apiextensionsv1.CustomResourceDefinition, error) {
	w, err := client.Watch(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", now.Name).String()})
	if err != nil {
		return now, err
	}
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return now, nil
		case event, ok := <-w.ResultChan():
			crd, isOne := event.Object.(*apiextensionsv1.CustomResourceDefinition)
			if !ok || !isOne || event.Type == watch.Deleted {
				return now, errors.New("the watch of the definition ended")
			}
			if crd.ResourceVersion != now.ResourceVersion {
				return crd, nil
			}
		}
	}
}

// isEstablished fails where the definition never will be, unless somebody else's goes.
func isEstablished(crd *apiextensionsv1.CustomResourceDefinition) (bool, error) {
	if c := apihelpers.FindCRDCondition(crd, apiextensionsv1.NamesAccepted); c != nil && c.Status == apiextensionsv1.ConditionFalse {
		return false, fmt.Errorf("its names are taken by another definition (%s): rename or delete that one", c.Message)
	}
	return apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established), nil
}

// KeepDefinitions installs definitions that somebody deletes while the server runs: what they
// defined has gone with them, and clients can make it anew. A definition that somebody changes is
// left as it is until the next start: another server may bring a newer one. It returns when ctx ends.
func KeepDefinitions(ctx context.Context, present metadata.Interface, client typed.CustomResourceDefinitionInterface, log *slog.Logger,
	definitions ...*apiextensionsv1.CustomResourceDefinition,
) error {
	gvr := apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions")
	informer := metadatainformer.NewFilteredMetadataInformer(present, gvr, metav1.NamespaceAll, 0, cache.Indexers{}, nil).Informer()
	changed := make(chan struct{}, 1)
	notify := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{DeleteFunc: func(any) { notify() }}); err != nil {
		return fmt.Errorf("follow the definitions: %w", err)
	}
	if err := informer.SetTransform(onlyName); err != nil {
		return fmt.Errorf("follow the definitions: %w", err)
	}
	return run.Parallel(func(ctx context.Context) error {
		informer.RunWithContext(ctx)
		return nil
	}, func(ctx context.Context) error {
		if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
			return nil
		}
		notify() // what was deleted before the informer has listed
		backoff := run.Backoff{First: time.Second, Longest: time.Minute}
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-changed:
			}
			for _, crd := range definitions {
				if _, there, _ := informer.GetStore().GetByKey(crd.Name); there { // an informer's store never fails
					continue
				}
				log.InfoContext(ctx, "a definition of the server's own was deleted and is installed again", "definition", crd.Name)
				if err := install(ctx, client, crd); err != nil && ctx.Err() == nil {
					log.WarnContext(ctx, "a definition cannot be installed again; this is tried again", "definition", crd.Name, "error", err)
					notify()
					backoff.Wait(ctx)
				} else {
					backoff.Reset()
				}
			}
		}
	})(ctx)
}

// onlyName keeps of an object what KeepDefinitions looks at.
func onlyName(o any) (any, error) {
	m, ok := o.(*metav1.PartialObjectMetadata)
	if !ok {
		return o, nil
	}
	return &metav1.PartialObjectMetadata{TypeMeta: m.TypeMeta, ObjectMeta: metav1.ObjectMeta{
		Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion,
	}}, nil
}
