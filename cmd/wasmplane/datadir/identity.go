// SPDX-License-Identifier: Apache-2.0

package datadir

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

// Identity names the server that has this directory among those that share a store:
// 32 random hexadecimal digits, made at the first call and kept. Neither a host's name
// nor a path would do, because cloned machines agree in both.
func (d Dir) Identity() (string, error) {
	file := d.join("identity")
	data, err := os.ReadFile(file)
	if err == nil {
		id := strings.TrimSpace(string(data))
		if raw, err := hex.DecodeString(id); err != nil || len(raw) != 16 {
			return "", fmt.Errorf("%s holds %q, expected 32 hexadecimal digits; remove it while the server is stopped, and a new one is made", file, id[:min(len(id), 40)])
		}
		return id, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("read the server's identity: %w", err)
	}
	var random [16]byte
	_, _ = rand.Read(random[:]) // it never fails
	id := hex.EncodeToString(random[:])
	next, err := os.CreateTemp(string(d), "identity.next-")
	if err != nil {
		return "", fmt.Errorf("write the server's identity: %w", err)
	}
	defer func() { _ = os.Remove(next.Name()) }()
	_, err = next.WriteString(id + "\n")
	// A link fails where another process was first, so that all read one identity.
	if err = errors.Join(err, next.Sync(), next.Close()); err == nil {
		err = os.Link(next.Name(), file)
	}
	if errors.Is(err, fs.ErrExist) {
		return d.Identity()
	}
	if err != nil {
		return "", fmt.Errorf("write the server's identity: %w", err)
	}
	return id, nil
}

// IdentityHere is Identity on this boot of this machine alone: a clone that runs, too, has a copy of the directory, and another one.
func (d Dir) IdentityHere() (string, error) {
	id, err := d.Identity()
	if err != nil {
		return "", err
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read which boot of this machine it is, to be told from its clones: %w", err)
	}
	return onBoot(id, boot), nil
}

func onBoot(id string, boot []byte) string {
	sum := sha256.Sum256(append([]byte(id), boot...))
	return hex.EncodeToString(sum[:16])
}

// Holds says whether the holder of a lease, HOST_IDENTITY, is the server that has this directory on this machine.
func (d Dir) Holds(holder string) (bool, error) {
	id, err := d.Identity()
	if err != nil {
		return false, err
	}
	here, err := d.IdentityHere()
	return strings.HasSuffix(holder, "_"+id) || strings.HasSuffix(holder, "_"+here), err
}
