// SPDX-License-Identifier: Apache-2.0

package compiler

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Store keeps artifacts between runs. It holds native code that the server maps, so
// each file is authenticated by a key that is not in the store's directory: what was
// damaged, planted there, or put there under another name is not taken.
type Store struct {
	dir string
	key []byte
}

// OpenStore opens the artifacts in a directory, with mode 0700, and the key beside
// it, with mode 0600; both are made where they are missing.
func OpenStore(dir string) (*Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of compiled plugins: %w", err)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return nil, fmt.Errorf("protect the directory of compiled plugins: %w", err)
	}
	key, err := openKey(filepath.Clean(dir) + ".key")
	if err != nil {
		return nil, fmt.Errorf("open the key of the compiled plugins: %w", err)
	}
	return &Store{dir: dir, key: key}, nil
}

// openKey reads the key, or makes one: where there is none, or where others could have
// read or changed it. Processes that begin at once agree on one.
func openKey(path string) ([]byte, error) {
	key, err := readKey(path)
	if key != nil || err != nil {
		return key, err
	}
	fresh := make([]byte, sha256.Size)
	if _, err := rand.Read(fresh); err != nil {
		return nil, err
	}
	tmp, err := writeTemporary(filepath.Dir(path), fresh)
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.Remove(tmp) }()
	if err := os.Link(tmp, path); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	if key, err = readKey(path); key == nil && err == nil {
		err = fmt.Errorf("%s was removed while it was made", path)
	}
	return key, err
}

// readKey reads a key. One that others could use is removed: it is nil then, as where there is none.
func readKey(path string) ([]byte, error) {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o077 != 0 || info.Size() != sha256.Size {
		return nil, os.Remove(path)
	}
	return os.ReadFile(path)
}

// Get reads the artifact of a key; nil where there is none that this server wrote.
func (s *Store) Get(key string) *Artifact {
	b, err := os.ReadFile(s.path(key))
	if err != nil || len(b) < sha256.Size {
		return nil
	}
	content, seal := b[:len(b)-sha256.Size], b[len(b)-sha256.Size:]
	mac := s.mac(key)
	mac.Write(content)
	if !hmac.Equal(mac.Sum(nil), seal) {
		return nil
	}
	var h reply
	r := bytes.NewReader(content)
	if err := readHeader(r, &h); err != nil || h.Metered+h.Code != r.Len() {
		return nil
	}
	rest := content[len(content)-r.Len():]
	return &Artifact{Name: h.Name, Metered: rest[:h.Metered:h.Metered], Code: rest[h.Metered:]}
}

// Put keeps the artifact of a key.
func (s *Store) Put(key string, a *Artifact) error {
	var header bytes.Buffer
	if err := writeHeader(&header, reply{Name: a.Name, Metered: len(a.Metered), Code: len(a.Code)}); err != nil {
		return err
	}
	mac := s.mac(key)
	parts := [][]byte{header.Bytes(), a.Metered, a.Code}
	for _, b := range parts {
		mac.Write(b)
	}
	tmp, err := writeTemporary(s.dir, append(parts, mac.Sum(nil))...)
	if err != nil {
		return err
	}
	if err := os.Rename(tmp, s.path(key)); err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	return nil
}

// Remove forgets the artifact of a key.
func (s *Store) Remove(key string) { _ = os.Remove(s.path(key)) }

// mac authenticates a file under its own key, so that a file under another's name is none.
func (s *Store) mac(key string) hash.Hash {
	mac := hmac.New(sha256.New, s.key)
	_, _ = io.WriteString(mac, key+"\n") // a hash never fails
	return mac
}

func (s *Store) path(key string) string {
	sum := sha256.Sum256([]byte(key))
	return filepath.Join(s.dir, hex.EncodeToString(sum[:]))
}

// writeTemporary writes a file that only its owner can read, and returns its name.
func writeTemporary(dir string, parts ...[]byte) (string, error) {
	tmp, err := os.CreateTemp(dir, ".new-*")
	if err != nil {
		return "", err
	}
	for _, b := range parts {
		if err == nil {
			_, err = tmp.Write(b)
		}
	}
	if err := errors.Join(err, tmp.Close()); err != nil {
		return "", errors.Join(err, os.Remove(tmp.Name()))
	}
	return tmp.Name(), nil
}
