// SPDX-License-Identifier: Apache-2.0

package endpointslice

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typeddiscovery "k8s.io/client-go/kubernetes/typed/discovery/v1"

	"github.com/wasmplane/wasmplane/core/controllers"
)

// silent is an API that does not answer: requests end with their contexts.
type silent struct {
	typeddiscovery.EndpointSliceInterface
}

func (silent) Create(ctx context.Context, _ *discoveryv1.EndpointSlice, _ metav1.CreateOptions) (*discoveryv1.EndpointSlice, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (silent) Update(ctx context.Context, _ *discoveryv1.EndpointSlice, _ metav1.UpdateOptions) (*discoveryv1.EndpointSlice, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (silent) Delete(ctx context.Context, _ string, _ metav1.DeleteOptions) error {
	<-ctx.Done()
	return ctx.Err()
}

// What the library asks for without a context ends with the controller, so that another may
// lead. A seeded world found that it did not.
func TestWritesEndWithTheRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &writes{by: map[controllers.Key]int{}}
		run, stop := context.WithCancel(t.Context())
		w.end(run)
		slices, slice := countedSlices{silent{}, w}, &discoveryv1.EndpointSlice{}
		ended := make(chan error, 3)
		go func() {
			_, err := slices.Create(context.TODO(), slice, metav1.CreateOptions{})
			ended <- err
		}()
		go func() {
			_, err := slices.Update(context.TODO(), slice, metav1.UpdateOptions{})
			ended <- err
		}()
		go func() { ended <- slices.Delete(context.TODO(), "x", metav1.DeleteOptions{}) }()
		synctest.Wait()
		if len(ended) > 0 {
			t.Fatal("a write ended before the run")
		}
		stop()
		for range 3 {
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Errorf("a write ended with %v", err)
			}
		}
	})
}
