// SPDX-License-Identifier: Apache-2.0

// Package catalogue publishes what the server serves: discovery in both of its shapes,
// OpenAPI v2 and v3, the group versions that other servers serve, and which kinds are on
// their way out.
//
// It guarantees that its documents are those of one set of resources, made once for
// each set, and that a document that did not change keeps its hash, so that clients
// need not load it again. It serves no resource: what it is asked about objects it
// passes on to the server that has them, or leaves to its caller.
package catalogue

import (
	"sync"

	"github.com/wasmplane/wasmplane/core/aggregator"
	"github.com/wasmplane/wasmplane/core/api"
	"github.com/wasmplane/wasmplane/core/api/openapi"
	"github.com/wasmplane/wasmplane/core/apiserver/answer"
	"github.com/wasmplane/wasmplane/core/registry"
	"github.com/wasmplane/wasmplane/core/run"
)

// Config is what a catalogue is made of.
type Config struct {
	Contract   *api.Contract
	Registries *registry.Set
	// Aggregator knows the group versions that other servers serve; nil = there are none.
	Aggregator *aggregator.Aggregator
	Answers    *answer.Writer
	// Ends are the requests that end when the server stops.
	Ends *run.Ends
}

// Catalogue serves the documents. It is safe for concurrent use.
type Catalogue struct {
	contract   *api.Contract
	openapi    *openapi.Documents
	registries *registry.Set
	aggregator *aggregator.Aggregator
	answers    *answer.Writer
	ends       *run.Ends

	mu           sync.Mutex
	made         *documents
	specs        specs
	merged       mergedSpec
	deprecations deprecations
}

// New makes a catalogue.
func New(cfg Config) *Catalogue {
	return &Catalogue{
		contract: cfg.Contract, openapi: openapi.New(cfg.Contract), registries: cfg.Registries, aggregator: cfg.Aggregator,
		answers: cfg.Answers, ends: cfg.Ends,
	}
}

// Paths lists the groups and group versions that are served below /apis.
func (c *Catalogue) Paths() []string {
	var paths []string
	for _, g := range c.current().groupList {
		paths = append(paths, "/apis/"+g.Name)
		for _, v := range g.Versions {
			paths = append(paths, "/apis/"+v.GroupVersion)
		}
	}
	return paths
}
