// SPDX-License-Identifier: Apache-2.0

package members

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	nodeutil "k8s.io/component-helpers/node/util"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/datadir"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/standalone"
	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/core/join"
)

// ErrNotWell means that what is asked for does not work as it should; what was printed says why.
var ErrNotWell = errors.New("the node is not well")

// Status prints how the worker of a data directory is, whose process is pid (0 = none).
func Status(ctx context.Context, w io.Writer, dir datadir.Dir, m join.Member, pid int) (err error) {
	fmt.Fprintf(w, "cluster:       %s\ndata:          %s\nnode:          %s, joined by %s\n", m.Cluster, dir, m.Node, m.Server)
	if ends, err := join.Ends(dir.Member()); err == nil {
		fmt.Fprintf(w, "certificate:   renewed by itself, ends %s\n", ends.Format(time.DateOnly))
	}
	if wrong := join.Clock(ctx, dir.Member(), m, time.Now); wrong != nil {
		fmt.Fprintf(w, "clock:         %v\n", wrong)
		err = ErrNotWell
	}
	if pid == 0 {
		fmt.Fprintln(w, "agent:         not running; start it with: wasmplane agent --data-dir", dir)
		return ErrNotWell
	}
	fmt.Fprintf(w, "agent:         process %d\n", pid)
	cfg := standalone.Member(dir, m)
	set, failed := client.New(cfg)
	if failed != nil {
		return failed
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	n, failed := set.Kube.CoreV1().Nodes().Get(ctx, m.Node, metav1.GetOptions{})
	if failed != nil {
		fmt.Fprintf(w, "servers:       %v\n", failed)
		return ErrNotWell
	}
	fmt.Fprintln(w, "servers:       reached")
	if text, _ := standalone.WorkerClock(ctx, dir, m, cfg, set.Kube); text != "" && err == nil { //nolint:errcheck // of a server that cannot be asked nothing is known
		fmt.Fprintf(w, "clock:         %s\n", text)
		err = ErrNotWell
	}
	defer func() {
		if e := Servers(ctx, w, set.Kube, cfg); e != nil && err == nil {
			err = e
		}
	}()
	_, ready := nodeutil.GetNodeCondition(&n.Status, corev1.NodeReady)
	if ready == nil {
		return ErrNotWell
	}
	fmt.Fprintf(w, "ready:         %s, %s\n", ready.Status, ready.Message)
	if ready.Status != corev1.ConditionTrue {
		return ErrNotWell
	}
	return err
}
