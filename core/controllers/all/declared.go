// SPDX-License-Identifier: Apache-2.0

package all

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/scheme"
)

// Declaration is what a controller declares of itself before it runs.
type Declaration struct {
	Name string
	// Account in kube-system as which it works; empty = the process's own.
	Account string
	// Informers are the resources whose shared informers it listens to. Informers of its own are
	// among the rights of its account only.
	Informers []schema.GroupResource
}

// Declared builds the controllers that the configuration chooses, each with informers of its own, and
// says what they asked for. None of them runs, and no server is asked: Config.Clients may lead nowhere.
func Declared(ctx context.Context, cfg Config) ([]Declaration, error) {
	m, err := New(cfg)
	if err != nil {
		return nil, err
	}
	own, err := cfg.Clients("")
	if err != nil {
		return nil, fmt.Errorf("controllers: own clients: %w", err)
	}
	over, end := context.WithCancel(ctx)
	end()
	var out []Declaration
	for _, e := range m.enabled {
		b := &builder{Config: m.cfg, own: own, factory: informers.NewSharedInformerFactory(own.Kube, 0)}
		r, err := b.build(e)
		if err == nil && r != nil && !isNil(r) {
			// What was built ends as it would after a term of leadership.
			err = r.Run(over)
		}
		b.shutdownEvents()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", e.name, err)
		}
		if r == nil || isNil(r) {
			continue // the configuration gives it nothing to do
		}
		d := Declaration{Name: e.name, Account: e.account}
		b.factory.StartWithContext(over)
		for t := range b.factory.WaitForCacheSync(over.Done()) {
			if gr, ok := resourceOf(t); ok {
				d.Informers = append(d.Informers, gr)
			}
		}
		b.factory.Shutdown()
		slices.SortFunc(d.Informers, func(a, b schema.GroupResource) int { return cmp.Compare(a.String(), b.String()) })
		out = append(out, d)
	}
	return out, nil
}

// isNil: a build function answers a nil pointer of its own type where there is nothing to do.
func isNil(r runner) bool {
	v := reflect.ValueOf(r)
	return v.Kind() == reflect.Pointer && v.IsNil()
}

func resourceOf(t reflect.Type) (schema.GroupResource, bool) {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	for kind, of := range scheme.Scheme.AllKnownTypes() {
		if of == t {
			resource, _ := meta.UnsafeGuessKindToResource(kind)
			return resource.GroupResource(), true
		}
	}
	return schema.GroupResource{}, false
}
