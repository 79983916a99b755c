// SPDX-License-Identifier: Apache-2.0

package customresource_test

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
)

// restClient sends bytes as they are.
func restClient(c *cluster) (*rest.RESTClient, error) {
	cfg := rest.CopyConfig(c.cfg)
	cfg.GroupVersion = &schema.GroupVersion{Version: "v1"}
	cfg.NegotiatedSerializer = serializer.NewCodecFactory(runtime.NewScheme()).WithoutConversion()
	cfg.WarningHandler = rest.NoWarnings{}
	return rest.RESTClientFor(cfg)
}
