// SPDX-License-Identifier: Apache-2.0

package pinning

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"k8s.io/utils/cpuset"

	"github.com/wasmplane/wasmplane/core/run/atomicfile"
)

// format of the file.
const format = 1

// saved is the file's content. What was decided by other policies or on another machine does not hold.
type saved struct {
	Format       int
	CPUs, Memory bool
	Reserved     string
	Given        []Given
}

func (m *Manager) file() string { return filepath.Join(m.cfg.RootDir, "pinned.json") }

// save writes down who has what. Lock held.
func (m *Manager) save() error {
	data, err := json.Marshal(saved{format, m.cfg.CPUs, m.cfg.Memory, m.cfg.Reserved.String(), m.given})
	if err == nil {
		err = atomicfile.Write(m.file(), data, 0o600)
	}
	if err != nil {
		return fmt.Errorf("write down who has which CPUs: %w", err)
	}
	return nil
}

func (m *Manager) load() error {
	data, err := os.ReadFile(m.file())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read who has which CPUs: %w", err)
	}
	const then = "drain the node, and delete the file"
	var s saved
	if err := json.Unmarshal(data, &s); err != nil {
		return fmt.Errorf("%s: %w: it is damaged; %s", m.file(), err, then)
	}
	if s.Format != format {
		return fmt.Errorf("%s: expected format %d, found %d: another version has written it; %s", m.file(), format, s.Format, then)
	}
	if len(s.Given) > 0 && (s.CPUs != m.cfg.CPUs || s.Memory != m.cfg.Memory || s.Reserved != m.cfg.Reserved.String()) {
		return fmt.Errorf("%s: pods have CPUs or memory by other policies, or other reserved CPUs (%q), than the configuration has now; %s",
			m.file(), s.Reserved, then)
	}
	for _, g := range s.Given {
		set, err := cpuset.Parse(g.CPUs)
		if err != nil || !set.IsSubsetOf(m.assignable()) {
			return fmt.Errorf("%s: container %s of pod %s has CPUs %q, which this machine does not have to give; %s", m.file(),
				g.Container, g.Pod, g.CPUs, then)
		}
	}
	m.given = s.Given
	return nil
}
