// SPDX-License-Identifier: Apache-2.0

package members

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/progress"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/shell"
	"github.com/wasmplane/wasmplane/core/join/handover"
	"github.com/wasmplane/wasmplane/core/join/succession"
	"github.com/wasmplane/wasmplane/core/pki"
	"github.com/wasmplane/wasmplane/core/pki/cabundle"
)

// rotation is one run of the command.
type rotation struct {
	Shell
	driver   *succession.Driver
	patience time.Duration
	keepOld  bool
	// ownCert and ownKey are files of the authority that is to follow; "" = one is made.
	ownCert, ownKey string
	selfSigned      bool
}

func (s Shell) certsRotate() *cobra.Command {
	r := rotation{Shell: s}
	var status bool
	var without []string
	c := &cobra.Command{
		Use: "rotate-ca", Args: cobra.NoArgs,
		Short: "Change the cluster's certificate authority, in steps, while everything runs",
		Long: `Change the cluster's certificate authority, and that of authenticating proxies, in
steps, while everything runs: the new one is trusted everywhere besides the old one;
then it signs, and every certificate is made again; then the old one is dropped. Each
step waits for all servers and joined workers. Run it on a server, as root. A run that
was interrupted, or that gave up on a machine, is carried on with by the next one.

What follows by itself: all servers and workers, kube-root-ca.crt in every namespace,
token Secrets, the kubeconfigs in the data directory, and the user's own that up wrote
this cluster's context into. What does not: copies of a kubeconfig, certificates that
were signed on request for people and programs (kubectl certificate approve), and
kubelets with a kubeconfig of their own. They are refused once the old authority is
dropped: with --keep-old it stays trusted until the command runs again without it.

--cert and --key take an authority of your own: a root, or an intermediate followed by
the certificates above it up to the root. Without them one is made here; where the
present one was supplied, that has to be said by --self-signed.
Service account tokens stay good. Tokens for joining from before are refused.`,
	}
	access := s.Access(c.Flags())
	c.Flags().BoolVar(&status, "status", false, "print how far the change has come, and change nothing")
	c.Flags().BoolVar(&r.keepOld, "keep-old", false, "stop before the old authority is dropped")
	c.Flags().StringVar(&r.ownCert, "cert", "", "`FILE` (PEM) with the certificate of an authority of your own that is to follow, and those above it up to the root")
	c.Flags().StringVar(&r.ownKey, "key", "", "`FILE` (PEM) with its key: RSA (2048 bits or more) or ECDSA, not encrypted")
	c.Flags().BoolVar(&r.selfSigned, "self-signed", false, "make a new authority, although the present one was supplied")
	c.Flags().DurationVar(&r.patience, "patience", 5*time.Minute, "`TIME` after which it gives up waiting in one step")
	c.Flags().StringSliceVar(&without, "without", nil, "`NAME` of a machine not to wait for; it has to join anew afterwards")
	c.RunE = func(c *cobra.Command, _ []string) (err error) {
		if r.driver, err = s.driver(access, without); err != nil {
			return err
		}
		if err := r.readOwn(); err != nil {
			return err
		}
		if status {
			return r.status(c.Context())
		}
		return r.run(c.Context())
	}
	return c
}

// readOwn reads the authority that is to follow, where one is given.
func (r rotation) readOwn() error {
	if (r.ownCert == "") != (r.ownKey == "") || r.ownCert != "" && r.selfSigned {
		return errors.New("give --cert and --key together for an authority of your own, or neither for one that is made here")
	}
	if r.ownCert == "" {
		return nil
	}
	var given pki.Given
	for file, to := range map[string]*[]byte{r.ownCert: &given.Cert, r.ownKey: &given.Key} {
		var err error
		if *to, err = os.ReadFile(file); err != nil {
			return fmt.Errorf("read the authority that is to follow: %w", err)
		}
	}
	r.driver.Given = &given
	return nil
}

// begin begins the change.
func (r rotation) begin(ctx context.Context) error {
	if r.driver.Given == nil && !r.selfSigned && r.driver.Authority.Supplied() {
		return errors.New("the present authority was supplied, not made by wasmplane: name the one that is to follow by --cert FILE --key FILE, or have one made by --self-signed")
	}
	return r.driver.Begin(ctx)
}

// carriesOn says why a change that is underway is not the one that was asked for.
func (r rotation) carriesOn(w succession.World) error {
	if r.driver.Given == nil {
		return nil
	}
	certs, err := cabundle.Parse(r.driver.Given.Cert)
	if err != nil {
		return fmt.Errorf("%s: %w", r.ownCert, err)
	}
	if pin := cabundle.Pin(certs[0]); pin != w.To {
		return fmt.Errorf("a change to the authority %s is underway, and %s is %s: end that one first, by the command without --cert and --key", w.To, r.ownCert, pin)
	}
	return nil
}

func (s Shell) driver(access *shell.Access, without []string) (*succession.Driver, error) {
	dir, err := access.Dir()
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(filepath.Join(dir.PKI(), "ca.key")); err != nil {
		return nil, fmt.Errorf("this machine has no keys of the cluster: change the authority on a server, as root (%w)", err)
	}
	authority, err := pki.Open(pki.Config{Dir: dir.PKI()})
	if err != nil {
		return nil, err
	}
	return &succession.Driver{
		Kube:      func() (kubernetes.Interface, error) { return s.client(access) },
		Authority: authority, Without: without, Now: time.Now,
		Members: func(ctx context.Context, kube kubernetes.Interface) (all []succession.Member, err error) {
			found, err := askServers(ctx, kube, "GET", handover.MembersPath, nil)
			for _, m := range found.Members {
				if m.Peer != "" { // one that is alone has no address for others
					all = append(all, succession.Member{Name: m.Name, Host: succession.HostOf(m.Peer), Alive: m.Alive})
				}
			}
			for _, l := range found.Light {
				host, _, err := net.SplitHostPort(l.Address)
				if err != nil {
					return nil, fmt.Errorf("where the light server %s is: %w", l.Name, err)
				}
				all = append(all, succession.Member{Name: l.Name, Host: host, Alive: l.Alive})
			}
			return all, err
		},
	}, nil
}

// what each phase is, for people.
var what = map[succession.Phase]string{
	succession.Offered:   "the servers take the new authority",
	succession.Published: "everybody trusts both",
	succession.Promoted:  "the new authority signs",
	succession.Announced: "all certificates are signed by it",
	succession.Dropped:   "the old authority is dropped",
}

func (r rotation) run(ctx context.Context) error {
	begun := false
	for {
		w, err := r.driver.Look(ctx)
		if err != nil {
			return err
		}
		if w.State.Phase == "" {
			if begun {
				fmt.Fprintln(r.Out, "\nThe cluster has a new authority. Kubeconfigs that were copied elsewhere are to be copied again, and tokens for joining made anew.")
				return nil
			}
			if err := r.begin(ctx); err != nil {
				return err
			}
			begun = true
			continue
		}
		if err := r.carriesOn(w); err != nil {
			return err
		}
		begun = true
		next, err := r.await(ctx, w.State.Phase)
		if err != nil {
			return err
		}
		if next == succession.Dropped && r.keepOld {
			fmt.Fprintln(r.Out, "\nThe old authority is trusted still. Copy kubeconfigs to where they are used, have certificates signed again that were signed on request, and run the command without --keep-old.")
			return nil
		}
		if w, err = r.driver.Look(ctx); err != nil {
			return err
		}
		if err := r.driver.Enter(ctx, w, next); err != nil {
			return err
		}
	}
}

// await waits until a phase is over, and answers which one follows.
func (r rotation) await(ctx context.Context, phase succession.Phase) (succession.Phase, error) {
	fmt.Fprintf(r.Out, "%s...\n", what[phase])
	gaveUp := time.NewTimer(r.patience)
	defer gaveUp.Stop()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		w, err := r.driver.Look(ctx)
		if err == nil && w.State.Phase != phase {
			return "", errors.New("another one drives the change of the authority at the same time; run the command again when that has ended")
		}
		next, wait := succession.Next(w)
		if err == nil && wait.Over() {
			return next, nil
		}
		select {
		case <-ctx.Done():
			return "", errors.New("interrupted; the cluster goes on as it is, run the command again to carry on")
		case <-gaveUp.C:
			return "", errors.Join(err, waited(phase, wait, r.patience, w.Now))
		case <-tick.C:
		}
	}
}

// waited says for what it was waited in vain.
func waited(phase succession.Phase, wait succession.Wait, patience time.Duration, now time.Time) error {
	lines := []string{fmt.Sprintf("after %s not all have followed (%s); nothing is broken, and the next run carries on:", progress.Short(patience), what[phase])}
	for _, m := range wait.Machines {
		lines = append(lines, "  "+about(m, now))
	}
	if wait.Namespaces > 0 {
		lines = append(lines, fmt.Sprintf("  %d namespaces have an earlier kube-root-ca.crt: do the controllers run (wasmplane status)?", wait.Namespaces))
	}
	if len(wait.Machines) > 0 {
		lines = append(lines, fmt.Sprintf("  --without %s goes on without them; they have to join anew afterwards", wait.Machines[0].Name))
	}
	return errors.New(strings.Join(lines, "\n"))
}

// about is a machine that has not followed, and what to do about it.
func about(m succession.Machine, now time.Time) string {
	kind := "worker"
	if m.Server {
		kind = "server"
	}
	switch {
	case !m.Alive && !m.Silent.IsZero():
		return fmt.Sprintf("%s %s does not answer since %s (%s): start it, or, if it is gone, wasmplane node remove %s", kind, m.Name, m.Silent.UTC().Format(time.RFC3339), progress.Short(now.Sub(m.Silent)), m.Name)
	case !m.Alive:
		return fmt.Sprintf("%s %s does not answer: start it, or, if it is gone, wasmplane node remove %s", kind, m.Name, m.Name)
	case m.Report == nil:
		return fmt.Sprintf("%s %s runs, and does not follow: is it of an earlier version, or a kubelet with a kubeconfig of its own? Its log says more", kind, m.Name)
	}
	return fmt.Sprintf("%s %s runs, and has not come as far: its log says why", kind, m.Name)
}

func (r rotation) status(ctx context.Context) error {
	w, err := r.driver.Look(ctx)
	if err != nil {
		return err
	}
	if w.State.Phase == "" {
		fmt.Fprintf(r.Out, "no change of the authority is underway; it is %s\n", r.driver.Authority.Trusts())
		return nil
	}
	fmt.Fprintf(r.Out, "%s, since %s\nfrom %s\nto   %s\n\n", what[w.State.Phase], w.State.Since.UTC().Format(time.RFC3339), w.From, w.To)
	_, wait := succession.Next(w)
	behind := map[string]bool{}
	for _, m := range wait.Machines {
		behind[m.Name] = true
	}
	t := tabwriter.NewWriter(r.Out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "MACHINE\tFOLLOWED")
	for _, m := range w.Machines {
		text := "yes"
		if behind[m.Name] {
			text = about(m, w.Now)
		}
		fmt.Fprintf(t, "%s\t%s\n", m.Name, text)
	}
	return t.Flush()
}
