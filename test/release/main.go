// SPDX-License-Identifier: Apache-2.0

// Command release makes the files of a release from binaries that were built before: an
// archive and a Debian package for each architecture, an OCI image for all of them, an SPDX
// document and the licenses of everything in a binary, and a list of checksums, which is
// signed where there is a key.
//
// The same binaries, version and time make the same bytes, wherever and whenever the command runs:
// nothing of the machine's names, users, clocks or folders gets into a file.
package main

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/wasmplane/wasmplane/plugins/sign"
)

// release is what one run makes.
type release struct {
	version string    // v1.2.3, or what git describe says
	commit  string    // 40 hexadecimal digits
	time    time.Time // of the commit: every file's
	root    string    // the tree
	out     string    // where the files go
	modules string    // the module cache, where licenses are found
}

// build is what was built for one architecture.
type build struct {
	arch    string
	binary  string
	helpers []string // programs that are embedded in the binary
	engine  string   // the licenses of the JavaScript engine, which is embedded too
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("release", flag.ContinueOnError)
	var r release
	var seconds int64
	var key string
	flags.StringVar(&r.version, "version", "", "`VERSION` of the release")
	flags.StringVar(&r.commit, "commit", "", "`COMMIT` that was built")
	flags.Int64Var(&seconds, "time", 0, "the commit's time, in `SECONDS` since 1970")
	flags.StringVar(&r.root, "root", ".", "`FOLDER` of the tree")
	flags.StringVar(&r.out, "out", "", "`FOLDER` for the files")
	flags.StringVar(&r.modules, "modules", "", "`FOLDER` of the module cache")
	flags.StringVar(&key, "key", "", "`FILE` of the private key that signs (password: $COSIGN_PASSWORD); none: nothing is signed")
	flags.Usage = func() {
		fmt.Fprintln(flags.Output(), "usage: release [flags] ARCH=FOLDER...\n\nEach FOLDER has bin/wasmplane and bin/helpers of one architecture.")
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return err
	}
	if r.version == "" || seconds == 0 || r.out == "" || flags.NArg() == 0 {
		return fmt.Errorf("-version, -time, -out and at least one ARCH=FOLDER are needed")
	}
	r.time = time.Unix(seconds, 0).UTC()
	var builds []build
	for _, a := range flags.Args() {
		arch, dir, ok := strings.Cut(a, "=")
		if !ok {
			return fmt.Errorf("found %q, expected ARCH=FOLDER", a)
		}
		helpers, err := filepath.Glob(filepath.Join(dir, "bin/helpers/[cw]*"))
		if err != nil {
			return err
		}
		builds = append(builds, build{
			arch: arch, binary: filepath.Join(dir, "bin/wasmplane"), helpers: helpers,
			engine: filepath.Join(dir, "sdk/javascript/runtime/LICENSES"),
		})
	}
	if err := r.make(ctx, builds); err != nil {
		return err
	}
	if key != "" {
		text, err := os.ReadFile(key)
		if err != nil {
			return fmt.Errorf("-key: %w", err)
		}
		if err := r.sign(text, []byte(os.Getenv("COSIGN_PASSWORD"))); err != nil {
			return err
		}
	} else {
		fmt.Fprintln(stdout, "nothing is signed: no key was given (make release KEY=FILE; wasmplane plugin keygen makes one)")
	}
	sums, err := os.ReadFile(filepath.Join(r.out, sumsFile))
	if err != nil {
		return err
	}
	_, err = stdout.Write(sums)
	return err
}

// sumsFile lists the digests of all others, in the form of sha256sum.
const sumsFile = "SHA256SUMS"

func (r *release) make(ctx context.Context, builds []build) error {
	if err := os.MkdirAll(r.out, 0o755); err != nil {
		return err
	}
	var images []platform
	for _, b := range builds {
		if err := ctx.Err(); err != nil {
			return err
		}
		img, err := r.architecture(b)
		if err != nil {
			return fmt.Errorf("%s: %w", b.arch, err)
		}
		images = append(images, img)
	}
	if err := r.image(images); err != nil {
		return fmt.Errorf("image: %w", err)
	}
	return r.sums()
}

// architecture makes the files of one architecture, and the content of its image.
func (r *release) architecture(b build) (platform, error) {
	bom, err := r.inventory(b)
	if err != nil {
		return platform{}, err
	}
	licenses, err := r.licenses(bom)
	if err != nil {
		return platform{}, err
	}
	engine, err := os.ReadFile(b.engine)
	if err != nil {
		return platform{}, fmt.Errorf("the licenses of the JavaScript engine (make javascript-runtime): %w", err)
	}
	licenses = append(licenses, engine...)
	document, err := bom.spdx(r)
	if err != nil {
		return platform{}, err
	}
	base := "wasmplane-" + r.version + "-linux-" + b.arch
	if err := r.write(base+".spdx.json", document); err != nil {
		return platform{}, err
	}
	content, err := r.contents(b, licenses, document)
	if err != nil {
		return platform{}, err
	}
	if err := r.archive(base, content); err != nil {
		return platform{}, err
	}
	return platform{arch: b.arch, files: content}, r.debian(b.arch, content)
}

func (r *release) write(name string, content []byte) error {
	if err := os.WriteFile(filepath.Join(r.out, name), content, 0o644); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

// files are the names of what was made, without signatures.
func (r *release) files() ([]string, error) {
	entries, err := os.ReadDir(r.out)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if n := e.Name(); n != sumsFile && !strings.HasSuffix(n, ".sig") && !strings.HasSuffix(n, ".pub") {
			names = append(names, n)
		}
	}
	slices.Sort(names)
	return names, nil
}

func (r *release) sums() error {
	names, err := r.files()
	if err != nil {
		return err
	}
	var b strings.Builder
	for _, n := range names {
		f, err := os.Open(filepath.Join(r.out, n))
		if err != nil {
			return err
		}
		h := sha256.New()
		_, err = io.Copy(h, f)
		_ = f.Close()
		if err != nil {
			return fmt.Errorf("read %s: %w", n, err)
		}
		fmt.Fprintf(&b, "%x  %s\n", h.Sum(nil), n)
	}
	return r.write(sumsFile, []byte(b.String()))
}

// sign puts a signature beside each file and beside the list of checksums, as wasmplane
// plugin sign does.
func (r *release) sign(key, password []byte) error {
	signer, err := sign.ParsePrivateKey(key, password)
	if err != nil {
		return fmt.Errorf("-key: %w", err)
	}
	names, err := r.files()
	if err != nil {
		return err
	}
	for _, n := range append(names, sumsFile) {
		content, err := os.ReadFile(filepath.Join(r.out, n))
		if err != nil {
			return err
		}
		signature, err := sign.SignBytes(signer, content)
		if err != nil {
			return fmt.Errorf("sign %s: %w", n, err)
		}
		if err := r.write(n+".sig", []byte(base64.StdEncoding.EncodeToString(signature)+"\n")); err != nil {
			return err
		}
	}
	return nil
}
