// SPDX-License-Identifier: Apache-2.0

package client

import (
	"net/http"

	appsapi "k8s.io/api/apps/v1"
	batchapi "k8s.io/api/batch/v1"
	coordinationapi "k8s.io/api/coordination/v1"
	coreapi "k8s.io/api/core/v1"
	discoveryapi "k8s.io/api/discovery/v1"
	resourceapi "k8s.io/api/resource/v1"
	storageapi "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	appsv1 "k8s.io/client-go/kubernetes/typed/apps/v1"
	batchv1 "k8s.io/client-go/kubernetes/typed/batch/v1"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	discoveryv1 "k8s.io/client-go/kubernetes/typed/discovery/v1"
	resourcev1 "k8s.io/client-go/kubernetes/typed/resource/v1"
	storagev1 "k8s.io/client-go/kubernetes/typed/storage/v1"
	"k8s.io/client-go/rest"

	"github.com/wasmplane/wasmplane/core/lent"
)

// borrowingKube is a typed client of a server in the process, whose watches of the groups that several components
// watch hand out borrowed objects (package lent).
type borrowingKube struct {
	*kubernetes.Clientset
	core         *corev1.CoreV1Client
	apps         *appsv1.AppsV1Client
	batch        *batchv1.BatchV1Client
	coordination *coordinationv1.CoordinationV1Client
	discovery    *discoveryv1.DiscoveryV1Client
	resource     *resourcev1.ResourceV1Client
	storage      *storagev1.StorageV1Client
}

// CoreV1 implements kubernetes.Interface.
func (k *borrowingKube) CoreV1() corev1.CoreV1Interface { return k.core }

// AppsV1 implements kubernetes.Interface.
func (k *borrowingKube) AppsV1() appsv1.AppsV1Interface { return k.apps }

// BatchV1 implements kubernetes.Interface.
func (k *borrowingKube) BatchV1() batchv1.BatchV1Interface { return k.batch }

// CoordinationV1 implements kubernetes.Interface.
func (k *borrowingKube) CoordinationV1() coordinationv1.CoordinationV1Interface {
	return k.coordination
}

// DiscoveryV1 implements kubernetes.Interface.
func (k *borrowingKube) DiscoveryV1() discoveryv1.DiscoveryV1Interface { return k.discovery }

// ResourceV1 implements kubernetes.Interface.
func (k *borrowingKube) ResourceV1() resourcev1.ResourceV1Interface { return k.resource }

// StorageV1 implements kubernetes.Interface.
func (k *borrowingKube) StorageV1() storagev1.StorageV1Interface { return k.storage }

// newKube makes the typed client of a configuration, which accepts protobuf.
func newKube(cfg *rest.Config) (kubernetes.Interface, error) {
	kube, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	memory := inMemory(cfg.Transport)
	general, ok := kube.CoreV1().RESTClient().(*rest.RESTClient)
	if memory == nil || !ok {
		return kube, nil
	}
	serializer, err := newBorrowing(rest.CodecFactoryForGeneratedClient(scheme.Scheme, scheme.Codecs).WithoutConversion(), &memory.loans)
	if err != nil {
		return nil, err
	}
	groups := &groups{cfg: cfg, connection: general.Client, serializer: serializer}
	out := &borrowingKube{
		Clientset:    kube,
		core:         corev1.New(groups.client("/api", coreapi.SchemeGroupVersion)),
		apps:         appsv1.New(groups.client("/apis", appsapi.SchemeGroupVersion)),
		batch:        batchv1.New(groups.client("/apis", batchapi.SchemeGroupVersion)),
		coordination: coordinationv1.New(groups.client("/apis", coordinationapi.SchemeGroupVersion)),
		discovery:    discoveryv1.New(groups.client("/apis", discoveryapi.SchemeGroupVersion)),
		resource:     resourcev1.New(groups.client("/apis", resourceapi.SchemeGroupVersion)),
		storage:      storagev1.New(groups.client("/apis", storageapi.SchemeGroupVersion)),
	}
	return out, groups.failed
}

// inMemory is the transport within the process that rt leads to; nil where it leads out of it.
func inMemory(rt http.RoundTripper) *transport {
	for rt != nil {
		if t, ok := rt.(*transport); ok {
			return t
		}
		wrapper, ok := rt.(utilnet.RoundTripperWrapper)
		if !ok {
			return nil
		}
		rt = wrapper.WrappedRoundTripper()
	}
	return nil
}

// groups makes the clients of API groups, until one fails.
type groups struct {
	cfg        *rest.Config
	connection *http.Client
	serializer runtime.NegotiatedSerializer
	failed     error
}

func (g *groups) client(path string, version schema.GroupVersion) rest.Interface {
	cfg := rest.CopyConfig(g.cfg)
	cfg.GroupVersion, cfg.APIPath, cfg.NegotiatedSerializer = &version, path, g.serializer
	cfg.AcceptContentTypes = lent.MediaType + "," + cfg.AcceptContentTypes
	c, err := rest.RESTClientForConfigAndClient(cfg, g.connection)
	if err != nil {
		g.failed = err
	}
	return c
}
