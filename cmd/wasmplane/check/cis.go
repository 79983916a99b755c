// SPDX-License-Identifier: Apache-2.0

package check

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"k8s.io/client-go/rest"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/datadir"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/hardened"
	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/core/config"
)

// Benchmark is the one whose numbers are used.
const Benchmark = "CIS Kubernetes Benchmark 1.11"

// state of one recommendation.
type state string

const (
	meets  state = "meets"
	lacks  state = "lacks"
	byHand state = "by hand" // nobody can tell from here
)

// verdict on one recommendation: what was found, and what to do where it is lacking.
type verdict struct {
	state     state
	found, do string
}

func met(format string, args ...any) verdict { return verdict{meets, fmt.Sprintf(format, args...), ""} }

func lacking(do, format string, args ...any) verdict {
	return verdict{lacks, fmt.Sprintf(format, args...), do}
}

func manual(do, format string, args ...any) verdict {
	return verdict{byHand, fmt.Sprintf(format, args...), do}
}

// recommendation is a line of the benchmark.
type recommendation struct {
	id, title string
	look      func(context.Context, *subject) verdict
}

// always is for what no configuration changes.
func always(why string) func(context.Context, *subject) verdict {
	return func(context.Context, *subject) verdict { return met("%s", why) }
}

// subject is the cluster: its configuration with what the profile fills in, its
// files, and, while it runs, its API.
type subject struct {
	config *config.Configuration
	dir    datadir.Dir
	kube   *client.Set  // nil = it does not run
	nobody *rest.Config // the same server, without credentials
}

func open(c *config.Configuration, dir datadir.Dir) (*subject, error) {
	filled, err := hardened.Filled(c, dir)
	if err != nil {
		return nil, err
	}
	s := &subject{config: filled, dir: dir}
	return s, s.connect()
}

// report prints a line for each recommendation, and answers whether none that can be
// decided here is lacking.
func (s *subject) report(ctx context.Context, w io.Writer) (ok bool) {
	fmt.Fprintf(w, "%s, of the data directory %s, profile %s\n\n", Benchmark, s.dir, profileOf(s.config))
	count := map[state]int{}
	for _, r := range slices.Concat(files(), apiServer(), controlPlane(), workers(), policies()) {
		v := r.look(ctx, s)
		count[v.state]++
		fmt.Fprintf(w, "%-7s %-7s %s: %s\n", r.id, v.state, r.title, v.found)
		if v.do != "" {
			fmt.Fprintf(w, "%16sdo: %s\n", "", v.do)
		}
	}
	fmt.Fprintf(w, "\n%d met, %d lacking, %d to be looked at by hand\n", count[meets], count[lacks], count[byHand])
	if s.kube == nil {
		fmt.Fprintln(w, "The cluster does not run: only its configuration and its files were looked at.")
	}
	return count[lacks] == 0
}

func profileOf(c *config.Configuration) string {
	if c.Profile == "" {
		return "none"
	}
	return c.Profile
}

// connect finds the cluster's API, where it runs.
func (s *subject) connect() error {
	if !s.dir.Exists() {
		return nil
	}
	if pid, err := s.dir.Owner(); err != nil || pid == 0 {
		return err
	}
	var err error
	if s.kube, err = client.Open(s.dir.Kubeconfig(), "check"); err != nil {
		return err
	}
	s.nobody = rest.AnonymousClientConfig(s.kube.Config)
	return nil
}

// profile is what to do about most of what is lacking.
const profile = "profile: hardened in the configuration, or "

var errNotAsked = errors.New("the cluster does not run")

func list(names []string) string {
	const most = 5
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}
