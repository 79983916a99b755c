// SPDX-License-Identifier: Apache-2.0

package render

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync/atomic"
	"time"

	"github.com/wasmplane/wasmplane/core/run/confine"
)

// Renderer renders in child processes. Its methods are safe for concurrent use; at most two children run
// at a time, of which one at most renders a tenant's chart or reads a tenant's index: those of operators do not wait for all
// tenants.
type Renderer struct {
	limits  Limits
	program string
	slots   chan struct{}
	tenant  chan struct{} // has room for one
	plain   atomic.Bool   // name spaces of its own cannot be had here
}

// children that run at a time.
const children = 2

// ErrUnprepared is why a program cannot render.
var ErrUnprepared = errors.New("this program cannot render charts in a child process: its main has to call render.MaybeRun first")

// New makes a renderer whose children are this program in another role.
func New(l Limits) (*Renderer, error) {
	if !role.Prepared() {
		return nil, ErrUnprepared
	}
	program, err := confine.Program()
	if err != nil {
		return nil, fmt.Errorf("find the program to render charts with: %w", err)
	}
	return &Renderer{limits: l.withDefaults(), program: program, slots: make(chan struct{}, children), tenant: make(chan struct{}, 1)}, nil
}

// TooExpensiveError is a chart that needs more than a limit.
type TooExpensiveError struct{ Text string }

func (e *TooExpensiveError) Error() string { return "the chart is too expensive: " + e.Text }

// Looker answers what templates look up.
type Looker func(ctx context.Context, l Lookup) Answer

// Render renders the archive of a chart.
func (r *Renderer) Render(ctx context.Context, archive []byte, o Order, look Looker) (*Rendered, error) {
	rep, err := r.askFor(ctx, o.Tenant, request{Order: &o}, archive, look)
	if err != nil {
		return nil, err
	}
	if rep.Rendered == nil {
		return nil, errors.New("the child that renders charts gave no answer")
	}
	return rep.Rendered, nil
}

// Objects are those of manifests, each of which is a stream of YAML documents.
func (r *Renderer) Objects(ctx context.Context, manifests []string) ([][]json.RawMessage, error) {
	body, err := json.Marshal(manifests)
	if err != nil {
		return nil, err
	}
	rep, err := r.ask(ctx, request{Texts: true}, body, nil)
	if err != nil {
		return nil, err
	}
	if len(rep.Objects) != len(manifests) {
		return nil, errors.New("the child that reads manifests gave no answer")
	}
	return rep.Objects, nil
}

// Find finds a chart in the index of a repository: the newest version that is as wanted, which may be a
// version, a range, or "" for the newest that is no pre-release. tenant says that the index is one of a tenant's choice.
func (r *Renderer) Find(ctx context.Context, tenant bool, index []byte, name, version string) (Entry, error) {
	rep, err := r.askFor(ctx, tenant, request{Find: name, Version: version}, index, nil)
	if err != nil {
		return Entry{}, err
	}
	if rep.Entry == nil {
		return Entry{}, errors.New("the child that reads indexes gave no answer")
	}
	return *rep.Entry, nil
}

// askFor is ask, where tenants wait for each other first.
func (r *Renderer) askFor(ctx context.Context, tenant bool, q request, body []byte, look Looker) (*reply, error) {
	if tenant {
		select {
		case r.tenant <- struct{}{}:
			defer func() { <-r.tenant }()
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return r.ask(ctx, q, body, look)
}

func (r *Renderer) ask(ctx context.Context, q request, body []byte, look Looker) (*reply, error) {
	select {
	case r.slots <- struct{}{}:
		defer func() { <-r.slots }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	q.Limits = r.limits
	bounded, cancel := context.WithTimeoutCause(ctx, r.limits.Deadline,
		&TooExpensiveError{fmt.Sprintf("it takes longer than %s", r.limits.Deadline)})
	defer cancel()
	if !r.plain.Load() {
		if rep, started, err := r.child(bounded, true, q, body, look); started {
			return rep, err
		}
		r.plain.Store(true)
	}
	rep, _, err := r.child(bounded, false, q, body, look)
	return rep, err
}

// child asks one child.
func (r *Renderer) child(ctx context.Context, private bool, q request, body []byte, look Looker) (rep *reply, started bool, err error) {
	scratch, remove, err := confine.Scratch(private)
	if err != nil {
		return nil, true, err
	}
	defer remove()
	bounds, err := json.Marshal(confine.Bounds{
		Memory: r.limits.Memory, CPU: int64(r.limits.CPU / time.Second), File: 4 << 10, Scratch: scratch, Private: private,
	})
	if err != nil {
		return nil, true, err
	}
	cmd := exec.Command(r.program) //nolint:noctx // confine.Run ends it, and waits for its end
	cmd.Args = []string{"wasmplane-charts"}
	cmd.Env = []string{role.Variable + "=" + string(bounds), "GOMAXPROCS=2"}
	cmd.Dir, cmd.SysProcAttr = "/", confine.Attributes(private)
	end, started, err := confine.Run(ctx, cmd, func(in io.Writer, out io.Reader) (err error) {
		rep, err = r.talk(ctx, in, out, q, body, look)
		return err
	})
	if !started {
		return nil, false, err
	}
	if err != nil {
		return nil, true, r.diagnose(end, err)
	}
	if rep.Error != "" {
		return nil, true, errors.New(rep.Error)
	}
	return rep, true, nil
}

// talk asks, and answers what the child looks up.
func (r *Renderer) talk(ctx context.Context, in io.Writer, out io.Reader, q request, body []byte, look Looker) (*reply, error) {
	head, err := json.Marshal(q)
	if err != nil {
		return nil, err
	}
	for _, frame := range [][]byte{head, body} {
		if len(frame) > inputLimit {
			return nil, &TooExpensiveError{fmt.Sprintf("it has %d bytes, at most %d are allowed", len(frame), inputLimit)}
		}
		if err := writeFrame(in, frame); err != nil {
			return nil, err
		}
	}
	left := r.limits.Looked
	for asked := 0; ; asked++ {
		rep := &reply{}
		if err := readJSON(out, r.limits.Output, rep); err != nil {
			return nil, err
		}
		if rep.Lookup == nil {
			return rep, nil
		}
		if asked >= r.limits.Lookups {
			return nil, &TooExpensiveError{fmt.Sprintf("it looks up more than %d objects or lists", r.limits.Lookups)}
		}
		answer := Answer{Error: "nothing can be looked up here"}
		if look != nil {
			answer = look(ctx, *rep.Lookup)
		}
		if left -= len(answer.Object); left < 0 {
			return nil, &TooExpensiveError{fmt.Sprintf("what it looks up has more than %d bytes", r.limits.Looked)}
		}
		if err := writeJSON(in, answer); err != nil {
			return nil, err
		}
	}
}

// diagnose says why a child ended without an answer.
func (r *Renderer) diagnose(end confine.Ended, failure error) error {
	var known *TooExpensiveError
	var large *tooLargeError
	first, _, _ := strings.Cut(strings.TrimSpace(end.Last), "\n")
	switch {
	case errors.As(failure, &known) || errors.Is(failure, context.Canceled):
		return failure
	case errors.As(failure, &large):
		return &TooExpensiveError{large.Error()}
	case end.State == nil:
		return failure
	case end.OutOfMemory():
		return &TooExpensiveError{fmt.Sprintf("it needs more than %d MiB of memory", r.limits.Memory>>20)}
	case end.OutOfTime(r.limits.CPU):
		return &TooExpensiveError{fmt.Sprintf("it needs more than %s of processor time", r.limits.CPU)}
	}
	return fmt.Errorf("the child that renders charts failed (%s, %w): %s", end.State, failure, first)
}
