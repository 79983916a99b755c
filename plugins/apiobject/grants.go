// SPDX-License-Identifier: Apache-2.0

package apiobject

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/rights"
)

// standEvery is how often it is looked at what plugins may do.
const standEvery = time.Minute

// stood is what a plugin was found to be granted, of which state of its object, and when.
type stood struct {
	of      string
	at      time.Time
	granted *rights.Standing
}

// grants are what a plugin may do on behalf of its writer now; nil where others say so. They
// are looked at again when the object changes, and every minute, as rights change too.
func (c *Controller) grants(ctx context.Context, o *unstructured.Unstructured, points []string, now time.Time) *rights.Standing {
	if c.cfg.Rights == nil {
		return nil
	}
	name := nameOf(o)
	of := fmt.Sprint(o.GetUID(), o.GetGeneration(), o.GetAnnotations()[WriterAnnotation], points)
	if last, known := c.stood[name]; known && last.of == of && now.Sub(last.at) < standEvery {
		return last.granted
	}
	e, ok := c.entryOf(o)
	if !ok {
		return nil
	}
	if len(e.Points) > 0 {
		points = e.Points
	}
	s := stood{of, now, c.cfg.Rights.Standing(ctx, &e, points)}
	c.stood[name] = s
	return s.granted
}

// entryOf is what an object stands for: an entry of the file, or its own.
func (c *Controller) entryOf(o *unstructured.Unstructured) (manifest.Entry, bool) {
	if mirrored(o) {
		return c.cfg.Loader.Entry(o.GetName())
	}
	e, err := c.cfg.Rules.Entry(o)
	return e, err == nil
}
