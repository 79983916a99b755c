// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/check"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/datadir"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/members"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/shell"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/standalone"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/support"
	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/core/join"
)

func (a *app) support() *cobra.Command {
	var s settings
	var output string
	c := &cobra.Command{
		Use:   "support",
		Short: "Write one archive of what somebody needs who helps with this machine's cluster, without secrets",
		Long: `Write an archive (tar.gz) of what somebody needs who helps: versions, configuration,
status, certificates (no keys), the ends of logs, objects, metrics, what check finds, and
what is known of the kernel, cgroups and the network. It changes nothing, and works with
the server down too; INDEX.txt says what each file is, and what could not be had.

Secrets and ConfigMaps are not in it, nor keys, logs of pods, values of variables and
annotations, and arguments of containers. Texts are searched for what looks like a secret,
and for the values of the cluster's Secrets. Look through it before you hand it on: names
of objects, addresses and images are in it.`,
		Example: `  wasmplane support
  wasmplane support --output /tmp/for-help.tar.gz`,
		Args: shell.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			dir, err := s.Dir()
			if err != nil {
				return err
			}
			if _, err := os.Stat(string(dir)); err != nil {
				return fmt.Errorf("the data directory: %w; name the cluster's with --data-dir", err)
			}
			if s.file == "" {
				s.file = configOf(dir)
			}
			cfg, err := a.load(c.Flags(), &s)
			return a.writeSupport(c.Context(), dir, s.file, output, cfg, err)
		},
	}
	s.Access = a.DataDir(c.Flags())
	c.Flags().StringVar(&s.file, "config", "", "configuration `FILE` that the cluster is started with (default: that of the process that runs)")
	c.Flags().StringVar(&output, "output", "", "`FILE` to write (default: wasmplane-support-CLUSTER-TIME.tar.gz in this folder)")
	return c
}

// configOf is the configuration file of the process that has the directory; "" = not known.
func configOf(dir datadir.Dir) string {
	pid, err := dir.Owner()
	if err != nil || pid == 0 {
		return ""
	}
	of := func(name string) string { return filepath.Join("/proc", strconv.Itoa(pid), name) }
	line, err := os.ReadFile(of("cmdline"))
	if err != nil {
		return ""
	}
	words, file := strings.Split(string(line), "\x00"), ""
	for i, word := range words {
		if value, ok := strings.CutPrefix(word, "--config="); ok {
			file = value
		} else if word == "--config" && i+1 < len(words) {
			file = words[i+1]
		}
	}
	if folder, err := os.Readlink(of("cwd")); err == nil && file != "" && !filepath.IsAbs(file) {
		file = filepath.Join(folder, file)
	}
	return file
}

// writeSupport writes the archive. wrong is what the configuration's problem is, if it has one.
func (a *app) writeSupport(ctx context.Context, dir datadir.Dir, configFile, output string, cfg *config.Configuration, wrong error) error {
	now := time.Now()
	cluster := "wasmplane"
	if state, err := dir.ReadState(); err == nil && state.Cluster != "" {
		cluster = state.Cluster
	}
	name := fmt.Sprintf("wasmplane-support-%s-%s", cluster, now.UTC().Format("20060102T150405Z"))
	if output == "" {
		output = name + ".tar.gz"
	}
	// Nobody else's to read, and never over another file.
	f, err := os.OpenFile(output, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("write the archive: %w; choose another --output", err)
	}
	result, err := support.Write(ctx, f, support.Options{
		Dir: dir, Folder: name, ConfigFile: configFile, Client: func() (*rest.Config, error) { return clientOf(dir) },
		Own: commandFiles(dir, cfg, wrong), Now: now,
	})
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(output))
	}
	fmt.Fprintf(a.Out, "%s has %d files; INDEX.txt says what each is.\n", output, result.Files)
	if len(result.Missing) > 0 {
		fmt.Fprintf(a.Out, "%d are not in it, or not whole; the index has the reasons. The first: %s\n", len(result.Missing), result.Missing[0])
	}
	fmt.Fprintln(a.Out, "Look through it before you hand it on: names of objects, addresses and images are in it.")
	return nil
}

// clientOf reaches the API as the administrator, or on a worker as its node.
func clientOf(dir datadir.Dir) (*rest.Config, error) {
	if m, err := join.Read(dir.Member()); err == nil {
		return standalone.Member(dir, m), nil
	}
	return client.FromKubeconfig(dir.Kubeconfig(), "support")
}

// commandFiles are what other commands print.
func commandFiles(dir datadir.Dir, cfg *config.Configuration, wrong error) []support.File {
	checked := func(cis bool) func(context.Context, io.Writer) error {
		return func(ctx context.Context, w io.Writer) error {
			if wrong != nil {
				return wrong
			}
			if err := check.Run(ctx, w, cfg, string(dir), cis); !errors.Is(err, check.ErrLacking) {
				return err
			}
			return nil
		}
	}
	return []support.File{
		{Name: "versions.txt", About: "the version of this binary", Write: func(_ context.Context, w io.Writer) error {
			_, err := fmt.Fprintln(w, versions())
			return err
		}},
		{Name: "status.txt", About: "what `wasmplane status` prints", Write: func(ctx context.Context, w io.Writer) error {
			var quiet *shell.ExitError
			if err := showStatus(ctx, w, dir); !errors.As(err, &quiet) {
				return err
			}
			return nil
		}},
		{Name: "certs.txt", About: "what `wasmplane certs list` prints", Write: func(_ context.Context, w io.Writer) error {
			return members.ListCerts(w, dir)
		}},
		{Name: "check.txt", About: "what `wasmplane check` prints: what this machine lacks", Write: checked(false)},
		{Name: "check-cis.txt", About: "what `wasmplane check --cis` prints", Write: checked(true)},
	}
}
