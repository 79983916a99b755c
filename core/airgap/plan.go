// SPDX-License-Identifier: Apache-2.0

package airgap

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// block is the unit of a tar file.
const block = 512

// plan is where everything of an archive is.
type plan struct {
	list *List
	// text is the list as it stands in the archive, signature what is beside it, empty = not signed.
	text, signature []byte
	head            []byte  // the archive up to its first file
	at              []int64 // of each file's header
	total           int64   // bytes of the archive
	// besides is what has to fit on the disk besides it, in bytes.
	besides int64
}

func newPlan(l *List, text, signature []byte) (*plan, error) {
	p := &plan{list: l, text: text, signature: signature}
	for _, f := range []struct {
		name    string
		content []byte
	}{{listName, text}, {signatureName, signature}} {
		h, err := header(f.name, int64(len(f.content)))
		if err != nil {
			return nil, err
		}
		p.head = append(append(append(p.head, h...), f.content...), make([]byte, padding(int64(len(f.content))))...)
	}
	p.total = int64(len(p.head))
	for _, f := range l.Files {
		p.at = append(p.at, p.total)
		p.total += block + f.Size + padding(f.Size)
	}
	p.total += 2 * block
	return p, nil
}

// content is where a file's content begins.
func (p *plan) content(i int) int64 { return p.at[i] + block }

// padding fills a content up to whole blocks.
func padding(size int64) int64 { return (block - size%block) % block }

// header is the only one that a file of this name and size can have: no time, no owner.
func header(name string, size int64) ([]byte, error) {
	h := tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o644, Format: tar.FormatUSTAR}
	if name == Program {
		h.Mode = 0o755
	}
	var b bytes.Buffer
	if err := tar.NewWriter(&b).WriteHeader(&h); err != nil {
		return nil, fmt.Errorf("put %s into an archive: %w", name, err)
	}
	return b.Bytes(), nil
}

// readHead reads an archive's list and signature from its beginning.
func readHead(r io.Reader) (*plan, error) {
	text, err := readMember(r, listName, mostList)
	if err != nil {
		return nil, err
	}
	signature, err := readMember(r, signatureName, mostSignature)
	if err != nil {
		return nil, err
	}
	l, err := decode(text)
	if err != nil {
		return nil, err
	}
	return newPlan(l, text, signature)
}

// readMember reads a member whose size only its header says.
func readMember(r io.Reader, name string, most int64) ([]byte, error) {
	got := make([]byte, block)
	n, err := io.ReadFull(r, got)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, err
	}
	h, err := tar.NewReader(bytes.NewReader(got[:n])).Next()
	if err != nil || h.Name != name {
		return nil, fmt.Errorf("it is no archive of `wasmplane airgap create`: those begin with %s and %s, uncompressed", listName, signatureName)
	}
	if h.Size > most {
		return nil, fmt.Errorf("its %s has %d bytes: at most %d are read", name, h.Size, most)
	}
	if want, err := header(name, h.Size); err != nil || !bytes.Equal(want, got) {
		return nil, fmt.Errorf("its %s was packed by another program: `wasmplane airgap create` makes archives", name)
	}
	content := make([]byte, h.Size+padding(h.Size))
	if _, err := io.ReadFull(r, content); err != nil {
		return nil, fmt.Errorf("it ends within its %s: copy it again (%w)", name, err)
	}
	if !zero(content[h.Size:]) {
		return nil, fmt.Errorf("there is something behind its %s: it is damaged, or was changed", name)
	}
	return content[:h.Size], nil
}

func zero(b []byte) bool { return len(bytes.Trim(b, "\x00")) == 0 }
