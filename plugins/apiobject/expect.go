// SPDX-License-Identifier: Apache-2.0

package apiobject

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/loader"
	"github.com/wasmplane/wasmplane/plugins/manifest"
)

// expectTimeout bounds the list of a server that starts.
const expectTimeout = 30 * time.Second

// Expect has requests wait for what the Plugins guard, from the first one on: it is called
// before the server answers anybody, and Run loads them later. Where the Plugins cannot be
// read nobody knows what they guard: everything in the reach of plugins waits until Run has
// read them, and the error says why.
func (c *Controller) Expect(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, expectTimeout)
	defer cancel()
	list, err := c.cfg.Client.Resource(c.cfg.resource()).List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return nil // a new cluster
	}
	if err != nil {
		c.cfg.Loader.Expect(c.cfg.origin(), []manifest.Entry{c.unread()})
		return fmt.Errorf("list %s, to know what they guard: until that can be done, what plugins may see is refused, but for system:masters: %w", c.cfg.resource().Resource, err)
	}
	var objects []*unstructured.Unstructured
	for i := range list.Items {
		objects = append(objects, &list.Items[i])
	}
	c.cfg.Loader.Expect(c.cfg.origin(), c.entries(objects))
	return nil
}

// unread stands for Plugins that could not be read. No object has such a name.
func (c *Controller) unread() manifest.Entry {
	return manifest.Entry{
		Name: ":" + c.cfg.resource().Resource, FromAPI: true, Mode: manifest.Enforce, FailurePolicy: manifest.Fail,
		Guards: []string{string(abi.AdmissionValidate)},
	}
}

// entries are what objects ask to have loaded. One that is no entry any more leaves in force
// what it was before, and what it is to guard closed where nothing is.
func (c *Controller) entries(objects []*unstructured.Unstructured) []manifest.Entry {
	c.refused = map[string]error{}
	last := map[string]bool{}
	for _, s := range c.cfg.Loader.Status() {
		last[s.Name] = s.Origin == c.cfg.origin()
	}
	var entries []manifest.Entry
	for _, o := range objects {
		if o.GetDeletionTimestamp() != nil || mirrored(o) {
			continue
		}
		name := nameOf(o)
		e, err := c.cfg.Rules.Entry(o)
		if err != nil {
			c.refused[name] = err
			switch {
			case last[name]:
				e, _ = c.cfg.Loader.Entry(name)
			case c.cfg.Rules.Taken != nil && c.cfg.Rules.Taken(name):
				continue // the file's plugin is asked in its place
			default:
				e = refusedEntry(o, e, err)
			}
		}
		e.Guards = guards(o, &e)
		entries = append(entries, e)
	}
	return entries
}

// refusedEntry is an entry that is not to be loaded, as far as it could be read: what it was
// to guard is decided by its failure policy.
func refusedEntry(o *unstructured.Unstructured, e manifest.Entry, why error) manifest.Entry {
	if e.Mode == "" || e.Group != nil { // it could not be read, or guards as a whole
		e = manifest.Entry{Mode: manifest.Enforce, FailurePolicy: manifest.Fail, Points: []string{string(abi.AdmissionValidate)}, Match: e.Match}
	}
	e.Name, e.Namespace, e.FromAPI, e.Writer, e.Refused, e.Candidate = nameOf(o), o.GetNamespace(), true, writerOf(o), why, nil
	return e
}

// guards are the points at which requests wait until a plugin has been loaded: those that it
// names, else those at which it was when it was loaded last, else those that are likely. One that
// names none and was never tried guards nothing yet: nobody knows what its module is for.
func guards(o *unstructured.Unstructured, e *manifest.Entry) []string {
	before := readStatus(o)
	switch {
	case len(e.Points) > 0:
		return e.Points
	case len(before.Points) > 0:
		return before.Points
	case len(before.Conditions) > 0:
		return e.LikelyPoints()
	}
	return nil
}

var _ Loader = (*loader.Loader)(nil)
