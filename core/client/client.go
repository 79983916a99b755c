// SPDX-License-Identifier: Apache-2.0

// Package client is how every component reaches the API: a rest.Config with the
// component's own identity, and the typed, dynamic and metadata clients over it.
//
// Components in the server's process use an in-memory transport to the server's
// own handler chain: the same authorization, admission and audit as over the
// wire, without TLS, and watches whose objects are decoded once for all of them. client-go's own rate limit is off everywhere: the server
// decides what is too much.
package client

import (
	"fmt"
	"path/filepath"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// UserAgent that components send, before the component's name.
const UserAgent = "wasmplane"

// Set is one identity's clients.
type Set struct {
	Config   *rest.Config
	Kube     kubernetes.Interface
	Dynamic  dynamic.Interface
	Metadata metadata.Interface
}

// New makes the clients of a configuration. Typed clients speak protobuf; the
// dynamic one, whose objects may be custom resources, JSON. None takes a state of the past for an answer.
//
// Of a server in the process, the typed client's watches hand out objects that the components of the process share:
// nobody changes what they refer to. Each watch has a struct of its own, so that a transform may
// empty its fields; what it changes in a map, a slice or behind a pointer it copies first.
func New(cfg *rest.Config) (*Set, error) {
	cfg = Newest(cfg)
	typed := rest.CopyConfig(cfg)
	typed.ContentType = runtime.ContentTypeProtobuf
	typed.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	kube, err := newKube(typed)
	if err != nil {
		return nil, fmt.Errorf("make the typed client: %w", err)
	}
	dyn, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("make the dynamic client: %w", err)
	}
	md, err := metadata.NewForConfig(metadata.ConfigFor(cfg))
	if err != nil {
		return nil, fmt.Errorf("make the metadata client: %w", err)
	}
	return &Set{Config: cfg, Kube: kube, Dynamic: dyn, Metadata: md}, nil
}

// FromKubeconfig reads a kubeconfig file for a component; a list of files, as
// $KUBECONFIG may be, is read as kubectl does.
func FromKubeconfig(path, component string) (*rest.Config, error) {
	rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: path}
	if list := filepath.SplitList(path); len(list) > 1 {
		rules = &clientcmd.ClientConfigLoadingRules{Precedence: list}
	}
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig %s: %w", path, err)
	}
	return unlimited(cfg, component), nil
}

// Open makes the clients of a kubeconfig for a component; see FromKubeconfig.
func Open(path, component string) (*Set, error) {
	cfg, err := FromKubeconfig(path, component)
	if err != nil {
		return nil, err
	}
	return New(cfg)
}

func unlimited(cfg *rest.Config, component string) *rest.Config {
	cfg.QPS = -1
	cfg.UserAgent = UserAgent + "/" + component
	// Warnings are for people at a terminal; a component would repeat them for ever.
	cfg.WarningHandler = rest.NoWarnings{}
	return cfg
}
