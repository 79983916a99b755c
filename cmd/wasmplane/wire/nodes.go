package wire

import (
	"context"
	"errors"
	"io"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/datadir"
	"github.com/wasmplane/wasmplane/core/apiserver"
	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/core/pki"
	"github.com/wasmplane/wasmplane/core/run"
	"log/slog"
)

func requireHost(context.Context) error  { return nil }
func CheckHost(context.Context) []string { return nil }

// addNodes adds the nodes that this process runs, and says in words which.
func (s *server) addNodes(g *run.Group, mode config.NodeMode) (string, error) {
	if mode.Simulated > 0 {
		return s.addSimulated(g, mode.Simulated)
	}
	return "no nodes", nil
}

func (s *server) kubeletClient(*pki.Pair) *apiserver.KubeletClient { return nil }
func (s *server) bootstrap(ctx context.Context, done chan struct{}) error {
	close(done)
	<-ctx.Done()
	return nil
}
func Kubelet(ctx context.Context, o Options, ready func(Info)) error { return errors.New("x") }
func Proxy(ctx context.Context, o Options, ready func(Info)) error   { return errors.New("x") }
func Down(ctx context.Context, d datadir.Dir, purge bool, l *slog.Logger, note func(string)) error {
	return nil
}
func ImportImages(ctx context.Context, d datadir.Dir, f string) ([]string, error) { return nil, nil }

type Image struct {
	Name, ID string
	Size     int64
}

func ListImages(ctx context.Context, d datadir.Dir) ([]Image, error) { return nil, nil }
func Journey(ctx context.Context, kubeconfig, kind, ns, name string, all bool) (any, error) {
	return nil, nil
}
func RenderJourney(w io.Writer, j any) error { return nil }
