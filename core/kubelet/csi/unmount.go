// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/run"
)

// Unmount implements volume.Plugin. A volume that no other pod uses is unstaged in the
// background.
func (n *Node) Unmount(ctx context.Context, pod types.UID, _, dir string) error {
	n.tokens.Forget(pod)
	have, err := readRecord(dir)
	if err != nil {
		return err
	}
	if have == nil {
		return n.abandon(dir)
	}
	release, err := n.turns.take(ctx, have.id())
	if err != nil {
		return err
	}
	defer release()
	d, err := n.registry.driver(have.Driver)
	if err != nil {
		return fmt.Errorf("the volume stays mounted until its driver takes it down: %w", err)
	}
	_, err = ask(ctx, d, "NodeUnpublishVolume", func(ctx context.Context, c spec.NodeClient) (*spec.NodeUnpublishVolumeResponse, error) {
		return c.NodeUnpublishVolume(ctx, &spec.NodeUnpublishVolumeRequest{VolumeId: have.Handle, TargetPath: n.cfg.seen(targetPath(dir))})
	})
	if err != nil {
		return err
	}
	if err := vacate(have.Driver, dir, targetPath(dir)); err != nil {
		return err
	}
	n.stats.forget(dir)
	n.nudge()
	return nil
}

// abandon removes a directory without a record: nothing was asked for yet, or all was
// taken down already.
func (n *Node) abandon(dir string) error {
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return vacate("unknown", dir, targetPath(dir))
}

// sweep unstages what no pod uses any more, and keeps the node's list of volumes, until
// ctx ends.
func (n *Node) sweep(ctx context.Context) error {
	var tasks run.Tasks
	defer tasks.Wait()
	var busy marks
	wait := time.NewTimer(0)
	defer wait.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-wait.C:
		case <-n.nudged:
		}
		unused, err := n.unused()
		if err == nil {
			err = n.reportInUse(ctx)
		}
		wait.Reset(n.cfg.Look)
		if err != nil && ctx.Err() == nil {
			n.cfg.Logger.WarnContext(ctx, "volumes of CSI drivers cannot be looked through; trying again", "error", err, "retryIn", n.cfg.Again)
			wait.Reset(n.cfg.Again)
		}
		for _, p := range unused {
			if busy.has(p.id()) {
				continue
			}
			busy.put(p.id(), true)
			// Each by itself: a driver that hangs holds up nobody else's volumes.
			tasks.Go("csi: unstage", func() {
				n.unstageUntilDone(ctx, p)
				busy.put(p.id(), false)
				n.nudge()
			})
		}
	}
}

// unstageUntilDone tries until the volume is unstaged, or used again, or its driver has
// gone: when that comes back, the volume is looked at again.
func (n *Node) unstageUntilDone(ctx context.Context, p place) {
	for failed := ""; ; {
		err := n.unstage(ctx, p)
		if err == nil || isMissing(err) || ctx.Err() != nil {
			return
		}
		if err.Error() != failed {
			failed = err.Error()
			n.cfg.Logger.WarnContext(ctx, "a volume that no pod uses cannot be unstaged; trying again", "driver", p.Driver, "volume", p.Handle,
				"error", err, "retryIn", n.cfg.Again)
		}
		if !run.Sleep(ctx, n.cfg.Again) {
			return
		}
	}
}

// unused are the staged volumes of which no pod has a record.
func (n *Node) unused() ([]place, error) {
	stages, err := n.cfg.stages()
	if len(stages) == 0 {
		return nil, err
	}
	pods, podsErr := n.cfg.published()
	if podsErr != nil {
		return nil, errors.Join(err, podsErr) // one that cannot be read may be a user
	}
	used := map[id]bool{}
	for _, p := range pods {
		used[p.id()] = true
	}
	var out []place
	for _, s := range stages {
		if !used[s.id()] {
			out = append(out, s)
		}
	}
	return out, err
}

func (n *Node) unstage(ctx context.Context, p place) error {
	v := p.id()
	release, err := n.turns.take(ctx, v)
	if err != nil {
		return err
	}
	defer release()
	// A pod may have come while the turn was waited for.
	unused, err := n.unused()
	if err != nil {
		return err
	}
	for _, u := range unused {
		if u.dir == p.dir {
			return n.doUnstage(ctx, p)
		}
	}
	return nil
}

func (n *Node) doUnstage(ctx context.Context, p place) error {
	d, err := n.registry.driver(p.Driver)
	if err != nil {
		return err
	}
	n.staged.put(p.id(), false)
	_, err = ask(ctx, d, "NodeUnstageVolume", func(ctx context.Context, c spec.NodeClient) (*spec.NodeUnstageVolumeResponse, error) {
		return c.NodeUnstageVolume(ctx, &spec.NodeUnstageVolumeRequest{VolumeId: p.Handle, StagingTargetPath: n.cfg.seen(stagePath(p.dir))})
	})
	if err != nil {
		return err
	}
	return vacate(p.Driver, p.dir, stagePath(p.dir))
}
