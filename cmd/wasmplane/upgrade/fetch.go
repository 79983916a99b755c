// SPDX-License-Identifier: Apache-2.0

package upgrade

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/wasmplane/wasmplane/plugins/sign"
)

// Source is where the new binary comes from, and by what it is known.
type Source struct {
	// File is the binary, or a release's archive.
	File string
	// SHA256 of File, in hexadecimal digits; "" = what SHA256SUMS beside it says.
	SHA256 string
	// Key is the file of the public key of who makes releases; with it, FILE.sig has to be
	// its signature. "" = the digest alone counts.
	Key string

	// copy of File that nobody else writes to; "" = File is read itself.
	copy string
}

// keep copies File into a folder of ours: between being verified and being run, who may write to the
// place from which it comes must not put another one there.
func (s *Source) keep(folder string) (remove func(), err error) {
	from, err := os.Open(s.File)
	if err != nil {
		return nil, err
	}
	defer func() { _ = from.Close() }()
	to, err := os.CreateTemp(folder, ".upgrade-*")
	if err != nil {
		return nil, fmt.Errorf("copy %s: %w", s.File, err)
	}
	remove = func() { _ = os.Remove(to.Name()) }
	n, err := io.Copy(to, io.LimitReader(from, most))
	if err == nil && n == most {
		err = fmt.Errorf("it is larger than %d bytes", int64(most))
	}
	if err = errors.Join(err, to.Close()); err != nil {
		remove()
		return nil, fmt.Errorf("copy %s: %w", s.File, err)
	}
	s.copy = to.Name()
	return remove, nil
}

// content is the file that is read.
func (s Source) content() string { return cmp.Or(s.copy, s.File) }

// most bounds what a binary may have, in bytes.
const most = 2 << 30

// verify fails where the file is not what the operator means.
func (s Source) verify() error {
	got, err := digest(s.content())
	if err != nil {
		return err
	}
	if s.Key != "" {
		if err := s.verifySignature(); err != nil {
			return err
		}
	}
	want := strings.ToLower(s.SHA256)
	if want == "" {
		if want, err = s.listed(); err != nil {
			return err
		}
	}
	if want == "" && s.Key == "" {
		return fmt.Errorf("nothing says that %s is what it should be: put the release's SHA256SUMS beside it, or give --sha256, or --key with %s.sig beside it", s.File, filepath.Base(s.File))
	}
	if want != "" && want != got {
		return fmt.Errorf("%s is damaged, or another file: its SHA-256 is %s, expected %s", s.File, got, want)
	}
	return nil
}

func (s Source) verifySignature() error {
	key, err := os.ReadFile(s.Key)
	if err != nil {
		return fmt.Errorf("--key: %w", err)
	}
	keys, err := sign.ParsePublicKeys(key)
	if err != nil {
		return fmt.Errorf("--key: %w", err)
	}
	signature, err := os.ReadFile(s.File + ".sig")
	if err != nil {
		return fmt.Errorf("--key: read the signature of the file: %w", err)
	}
	content, err := os.ReadFile(s.content())
	if err != nil {
		return err
	}
	return sign.VerifyFile(s.File, content, signature, keys)
}

// listed is what SHA256SUMS beside the file says of it; "" = nothing does.
func (s Source) listed() (string, error) {
	sums := filepath.Join(filepath.Dir(s.File), "SHA256SUMS")
	text, err := os.ReadFile(sums)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(text)) {
		if sum, name, ok := strings.Cut(strings.TrimSpace(line), "  "); ok && strings.TrimPrefix(name, "*") == filepath.Base(s.File) {
			return strings.ToLower(sum), nil
		}
	}
	return "", fmt.Errorf("%s does not list %s: it is of another release", sums, filepath.Base(s.File))
}

func digest(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	h := sha256.New()
	if _, err := io.Copy(h, io.LimitReader(f, most)); err != nil {
		return "", fmt.Errorf("read %s: %w", file, err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// unpack writes the source's binary to a file, executable and on the disk.
func (s Source) unpack(to string) (err error) {
	f, err := os.Open(s.content())
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	head := make([]byte, 4)
	if _, err := io.ReadFull(f, head); err != nil {
		return fmt.Errorf("read %s: %w", s.File, err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	var from io.Reader = f
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		if from, err = inArchive(f); err != nil {
			return fmt.Errorf("%s: %w", s.File, err)
		}
	case !bytes.Equal(head, []byte("\x7fELF")):
		return fmt.Errorf("%s is neither a binary of Linux nor a release's archive (wasmplane-VERSION-linux-ARCH.tar.gz)", s.File)
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o755) //nolint:gosec // it is a program
	if err != nil {
		return fmt.Errorf("write the new binary: %w", err)
	}
	n, err := io.Copy(out, io.LimitReader(from, most))
	if err == nil && n == most {
		err = fmt.Errorf("it is larger than %d bytes", int64(most))
	}
	if err = errors.Join(err, out.Chmod(0o755), out.Sync(), out.Close()); err != nil { //nolint:gosec // see above
		return fmt.Errorf("write the new binary: %w", err)
	}
	return nil
}

// inArchive is the binary in an archive, which has one folder with all files.
func inArchive(r io.Reader) (io.Reader, error) {
	z, err := gzip.NewReader(r)
	if err != nil {
		return nil, err
	}
	t := tar.NewReader(io.LimitReader(z, 2*most))
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil, errors.New("there is no wasmplane in the archive")
		}
		if err != nil {
			return nil, err
		}
		if h.Typeflag == tar.TypeReg && path.Base(h.Name) == "wasmplane" && strings.Count(path.Clean(h.Name), "/") <= 1 {
			return t, nil
		}
	}
}

// release is what a binary says that it is.
type release struct{ version, kubernetes string }

var versionLine = regexp.MustCompile(`(?m)^wasmplane (\S+) \(Kubernetes (v\S+?),`)

// ask runs a binary to learn what it is.
func ask(ctx context.Context, binary string) (release, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, "version")
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return release{}, fmt.Errorf("the new binary does not run here: %w: %s", err, bytes.TrimSpace(out))
	}
	m := versionLine.FindSubmatch(out)
	if m == nil {
		return release{}, fmt.Errorf("the new binary is no wasmplane: asked for its version it prints %.200q", out)
	}
	return release{string(m[1]), string(m[2])}, nil
}
