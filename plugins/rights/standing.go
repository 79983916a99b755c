// SPDX-License-Identifier: Apache-2.0

package rights

import (
	"context"
	"errors"
	"fmt"

	"github.com/wasmplane/wasmplane/plugins/manifest"
)

// Standing is what a plugin may do besides deciding, in words: what its entry asks for and its
// writer has, and what is refused because the writer lacks it.
type Standing struct {
	// Writer on whose behalf it acts; "" = the operator, in the configuration file.
	Writer  string   `json:"writer,omitempty"`
	Read    []string `json:"read,omitempty"`
	Call    []string `json:"call,omitempty"`
	Send    []string `json:"send,omitempty"`
	Refused []string `json:"refused,omitempty"`
}

// Bounds of what is shown.
const (
	mostShown    = 32
	longestShown = 512
)

// Standing holds what an entry asks for at some points against its writer's rights now.
func (c *Checker) Standing(ctx context.Context, e *manifest.Entry, points []string) *Standing {
	s := &Standing{}
	if e.Writer != nil {
		s.Writer = e.Writer.GetName()
	}
	for _, a := range asks(e, points) {
		if err := c.has(ctx, e, a); err != nil {
			show(&s.Refused, a.what+": "+err.Error())
			continue
		}
		show(map[string]*[]string{reads: &s.Read, calls: &s.Call, sends: &s.Send}[a.kind], a.what)
	}
	return s
}

// has is nil where the writer has all that one thing takes. The first right that is
// lacking is named, and the field that asks for it.
func (c *Checker) has(ctx context.Context, e *manifest.Entry, a ask) error {
	if !e.FromAPI {
		return nil
	}
	for _, n := range a.needs {
		err := c.hold(ctx, e, e.Writer, n)
		var lacking *LackingError
		if errors.As(err, &lacking) {
			return fmt.Errorf("%s: %q may not %s", lacking.Field, lacking.Writer, lacking.What)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// show adds a line within the bounds.
func show(list *[]string, line string) {
	switch {
	case len(*list) < mostShown:
		if len(line) > longestShown {
			line = line[:longestShown] + "..."
		}
		*list = append(*list, line)
	case len(*list) == mostShown:
		*list = append(*list, "and more")
	}
}
