// SPDX-License-Identifier: Apache-2.0

package members

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/component-base/version"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/datadir"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/machine"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/process"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/progress"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/standalone"
	"github.com/wasmplane/wasmplane/core/auth/jointoken"
	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/core/join"
)

// invitation is what the flags of join say.
type invitation struct{ token, file, pin string }

// Join is the command of that name.
func (s Shell) Join() *cobra.Command {
	var by invitation
	var further, light bool
	c := &cobra.Command{
		Use:   "join [SERVER]",
		Short: "Make this machine a worker of a cluster, or a further server, and run it",
		Long: `Make this machine a worker of the cluster that SERVER belongs to, and run it:
kubelet, service proxy and DNS in one process. It stays in the foreground; Ctrl-C
leaves pods running. A machine that has joined needs no token any more: run
wasmplane agent, or the same command, to carry on, and wasmplane down to leave.

With --server, or join.asServer in the configuration, it becomes a further server
instead: it is given the cluster's keys, keeps the store together with the others, and
does all that they do. That takes a token of wasmplane token create --server;
wasmplane up carries on. Have three, or five: more than half must answer.
With --light too, or join.light, it keeps no part of the store, and uses that of the
others: it answers requests, schedules and controls as they do, has no vote, and
the cluster writes on without it.

The token is read from a file, from the standard input (--token-file -) or from
the variable WASMPLANE_TOKEN; --token shows it to everybody who lists processes.`,
		Example: `  wasmplane join 192.0.2.1 --token-file token
  wasmplane join 192.0.2.1 --server --token-file token
  wasmplane join 192.0.2.1 --server --light --token-file token
  echo "$TOKEN" | wasmplane join server1.example.com:6443 --token-file -`,
		Args: cobra.MaximumNArgs(1),
	}
	work := s.Work(c.Flags())
	c.Flags().StringVar(&by.token, "token", "", "`TOKEN` that `wasmplane token create` printed; better in a file")
	c.Flags().StringVar(&by.file, "token-file", "", "`FILE` that holds the token; - is the standard input")
	c.Flags().StringVar(&by.pin, "pin", "", "`PIN` of the cluster's authority (sha256:...), for a token without")
	c.Flags().String("node-name", "", "`NAME` of the node (default: the host's name)")
	c.Flags().BoolVar(&further, "server", false, "become a further server, by a token of token create --server (join.asServer)")
	c.Flags().BoolVar(&light, "light", false, "with --server: keep no part of the store, and use that of the other servers (join.light)")
	c.Flags().String("listen", "", "with --server: `HOST:PORT` of the API (default: the server's port, at all addresses)")
	c.RunE = func(c *cobra.Command, args []string) error {
		cfg, dir, release, err := work.Take(c.Flags())
		if err != nil {
			return err
		}
		defer release()
		server := cfg.Join.Server
		if len(args) == 1 {
			server = args[0]
		}
		if !c.Flags().Changed("server") {
			further = cfg.Join.AsServer
		}
		if c.Flags().Changed("light") {
			if light && !further {
				return errors.New("--light is for servers: add --server")
			}
			cfg.Join.Light = light
		}
		if further {
			if err := s.joinServer(c.Context(), cfg, dir, server, by); err != nil {
				return err
			}
			return work.Up(c.Context(), cfg, dir)
		}
		if err := s.join(c.Context(), cfg, dir, server, by); err != nil {
			return err
		}
		return s.agent(c.Context(), work, cfg, dir)
	}
	return c
}

// Agent is the command of that name.
func (s Shell) Agent() *cobra.Command {
	c := &cobra.Command{
		Use: "agent", Short: "Run this machine, which has joined a cluster, as its worker", Args: cobra.NoArgs,
		Long: `Run this machine, which has joined a cluster, as its worker: kubelet, service
proxy and DNS in one process, with the certificate that it has. Pods that run go on.`,
	}
	work := s.Work(c.Flags())
	c.RunE = func(c *cobra.Command, _ []string) error {
		cfg, dir, release, err := work.Take(c.Flags())
		if err != nil {
			return err
		}
		defer release()
		return s.agent(c.Context(), work, cfg, dir)
	}
	return c
}

// agent runs a member in the foreground.
func (s Shell) agent(ctx context.Context, work Foreground, cfg *config.Configuration, dir datadir.Dir) error {
	m, err := join.Read(dir.Member())
	if err != nil {
		return err
	}
	begin := time.Now()
	return work.Run(ctx, cfg, dir, fmt.Sprintf("node %s of cluster %q", m.Node, m.Cluster),
		func(ctx context.Context, o process.Options, ready func(process.Info)) error {
			return standalone.Agent(ctx, o, func(i process.Info) {
				fmt.Fprintf(s.Out, "\nReady in %s: node %s of cluster %s.\n\nCtrl-C stops it and leaves pods running; `wasmplane agent` carries on, `wasmplane down` leaves the cluster.\n", progress.Short(time.Since(begin)), m.Node, m.Cluster)
				ready(i)
			})
		}, "The agent has stopped. Pods keep running; `wasmplane agent` carries on, `wasmplane down` leaves the cluster.")
}

// join makes the machine a member, unless it is one.
func (s Shell) join(ctx context.Context, cfg *config.Configuration, dir datadir.Dir, server string, by invitation) error {
	switch m, err := join.Read(dir.Member()); {
	case err == nil:
		fmt.Fprintf(s.Out, "This machine has joined already, as node %s of cluster %s.\n", m.Node, m.Cluster)
		return nil
	case !errors.Is(err, join.ErrNotJoined):
		return err
	}
	if err := notMine(dir); err != nil {
		return err
	}
	if server == "" {
		return errors.New("name a server of the cluster: wasmplane join SERVER --token-file FILE; on a server, `wasmplane token create` prints the whole command")
	}
	token, err := s.invited(cfg, by)
	if err != nil {
		return err
	}
	// Whatever can fail on this machine fails before the cluster hears of it.
	if cfg.Node.CRIEndpoint == "" {
		if err := machine.RequireHost(ctx, cfg); err != nil {
			return err
		}
	}
	id, err := dir.Identity()
	if err != nil {
		return err
	}
	m, err := join.Join(ctx, join.Config{
		Names: namesOf(cfg), Dir: dir.Member(), Server: server, Token: token, Node: cfg.Node.Name, Machine: id, Version: version.Get().GitVersion,
		Report: func(step string) { fmt.Fprintln(s.Out, " ", step) },
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(s.Out, "This machine is node %s of cluster %s now.\n", m.Node, m.Cluster)
	return nil
}

// invited reads the token.
func (s Shell) invited(cfg *config.Configuration, by invitation) (jointoken.Token, error) {
	text := by.token
	if file := cmp.Or(by.file, cfg.Path(cfg.Join.TokenFile)); text == "" && file != "" {
		var err error
		if text, err = s.readToken(file); err != nil {
			return jointoken.Token{}, err
		}
	}
	if text == "" {
		return jointoken.Token{}, errors.New("a machine joins by a token: on a server run `wasmplane token create`, and name a file that holds it by --token-file (- reads it from the standard input)")
	}
	token, err := jointoken.Parse(text)
	if err != nil {
		return token, err
	}
	pin := cmp.Or(by.pin, cfg.Join.Pin)
	if pin != "" && token.Pin != "" && pin != token.Pin {
		return token, errors.New("the pin and the token are of different clusters")
	}
	token.Pin = cmp.Or(token.Pin, pin)
	return token, nil
}

func (s Shell) readToken(file string) (string, error) {
	if file != "-" {
		data, err := os.ReadFile(file)
		if err != nil {
			return "", fmt.Errorf("read the token: %w", err)
		}
		return strings.TrimSpace(string(data)), nil
	}
	lines := bufio.NewScanner(s.In)
	if !lines.Scan() {
		return "", errors.New("the standard input ended before a token came")
	}
	return strings.TrimSpace(lines.Text()), nil
}

// Leave takes the machine of a data directory out of the cluster that it joined; of one
// that has not joined it does nothing. A cluster that cannot be reached keeps the node,
// and the error says what to do about it.
func Leave(ctx context.Context, dir datadir.Dir, report func(string)) error {
	m, err := join.Read(dir.Member())
	if errors.Is(err, join.ErrNotJoined) {
		return nil
	}
	if err != nil {
		return err
	}
	set, err := client.New(standalone.Member(dir, m))
	if err != nil {
		return err
	}
	report("taking node " + m.Node + " out of cluster " + m.Cluster)
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if err := join.Leave(ctx, m, set.Kube); err != nil {
		return err
	}
	if err := os.RemoveAll(dir.Member()); err != nil {
		return fmt.Errorf("remove what this machine knows of the cluster: %w", err)
	}
	return nil
}
