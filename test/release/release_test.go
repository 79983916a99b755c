// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"compress/gzip"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"debug/buildinfo"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/layout"

	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/plugins/sign"
)

// built is a folder as make build leaves it; the binary is this test's own, which has
// modules like any other.
func built(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{
		"bin/wasmplane": content, "bin/helpers/cni": content,
		"sdk/javascript/runtime/LICENSES": []byte("\nQuickJS-ng\n"),
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func output(t *testing.T, command ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), command[0], command[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", command, err, out)
	}
	return string(out)
}

// make1 makes a release and returns its folder.
func make1(t *testing.T, more ...string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "out")
	args := append([]string{
		"-version", "v1.2.3-rc.1", "-commit", strings.Repeat("c", 40), "-time", "1700000000", "-root", "../..", "-out", out,
		"-modules", strings.TrimSpace(output(t, "go", "env", "GOMODCACHE")),
	}, more...)
	if err := run(t.Context(), append(args, "amd64="+built(t), "arm64="+built(t)), io.Discard); err != nil {
		t.Fatal(err)
	}
	return out
}

var shared string // a release, for tests that only look

func TestMain(m *testing.M) {
	status := m.Run()
	if shared != "" {
		_ = os.RemoveAll(filepath.Dir(shared))
	}
	os.Exit(status)
}

// made is the release that tests share.
func made(t *testing.T) string {
	t.Helper()
	if shared == "" {
		dir, err := os.MkdirTemp("", "wasmplane-release-") //nolint:usetesting // it outlives the test that makes it
		if err != nil {
			t.Fatal(err)
		}
		out := filepath.Join(dir, "out")
		if err := os.Rename(make1(t), out); err != nil {
			t.Fatal(err)
		}
		shared = out
	}
	return shared
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func names(t *testing.T, dir string) (out []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func TestTwoReleasesAreTheSameBytes(t *testing.T) {
	a, b := made(t), make1(t)
	made := names(t, a)
	want := []string{
		"SHA256SUMS", "wasmplane-v1.2.3-rc.1-image.tar",
		"wasmplane-v1.2.3-rc.1-linux-amd64.spdx.json", "wasmplane-v1.2.3-rc.1-linux-amd64.tar.gz",
		"wasmplane-v1.2.3-rc.1-linux-arm64.spdx.json", "wasmplane-v1.2.3-rc.1-linux-arm64.tar.gz",
		"wasmplane_1.2.3~rc.1_amd64.deb", "wasmplane_1.2.3~rc.1_arm64.deb",
	}
	if !slices.Equal(made, want) {
		t.Fatalf("made %q, expected %q", made, want)
	}
	for _, n := range made {
		if string(read(t, filepath.Join(a, n))) != string(read(t, filepath.Join(b, n))) {
			t.Errorf("%s differs between two runs", n)
		}
	}
	if out := output(t, "sh", "-c", "cd '"+a+"' && sha256sum --check SHA256SUMS"); strings.Count(out, ": OK\n") != len(made)-1 {
		t.Error(out)
	}
}

func TestTheArchiveIsWhole(t *testing.T) {
	out := made(t)
	f, err := os.Open(filepath.Join(out, "wasmplane-v1.2.3-rc.1-linux-amd64.tar.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]int64{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Gid != 0 || h.ModTime.Unix() != 1700000000 {
			t.Errorf("%s is of %d:%d and of %v", h.Name, h.Uid, h.Gid, h.ModTime)
		}
		found[strings.TrimPrefix(h.Name, "wasmplane-v1.2.3-rc.1-linux-amd64/")] = h.Mode
	}
	for name, mode := range map[string]int64{
		"wasmplane": 0o755, "LICENSE": 0o644, "NOTICE": 0o644, "THIRD-PARTY-LICENSES": 0o644, "README.md": 0o644, "CHANGELOG.md": 0o644,
		"wasmplane.service": 0o644, "config.yaml": 0o644, "configs/single.yaml": 0o644, "configs/ha.yaml": 0o644, "wasmplane.spdx.json": 0o644,
	} {
		if found[name] != mode {
			t.Errorf("%s has mode %o, expected %o", name, found[name], mode)
		}
	}
}

func TestDpkgReadsThePackage(t *testing.T) {
	deb := filepath.Join(made(t), "wasmplane_1.2.3~rc.1_arm64.deb")
	for field, want := range map[string]string{"Package": "wasmplane", "Version": "1.2.3~rc.1", "Architecture": "arm64"} {
		if got := strings.TrimSpace(output(t, "dpkg-deb", "--field", deb, field)); got != want {
			t.Errorf("%s is %q, expected %q", field, got, want)
		}
	}
	for _, need := range []string{"runc", "nftables", "iproute2"} {
		if d := output(t, "dpkg-deb", "--field", deb, "Depends"); !strings.Contains(d, need) {
			t.Errorf("the package depends on %s, not on %s", d, need)
		}
	}
	if d := strings.TrimSpace(output(t, "dpkg-deb", "--field", deb, "Suggests")); d != "e2fsprogs, nfs-common" {
		t.Errorf("the package suggests %q, expected what volumes of some kinds need", d)
	}
	dir := t.TempDir()
	output(t, "dpkg-deb", "--raw-extract", deb, dir)
	if got := string(read(t, filepath.Join(dir, "DEBIAN/conffiles"))); got != "/etc/wasmplane/config.yaml\n" {
		t.Errorf("conffiles are %q", got)
	}
	for _, script := range []string{"postinst", "prerm", "postrm"} {
		output(t, "sh", "-n", filepath.Join(dir, "DEBIAN", script))
		info, err := os.Stat(filepath.Join(dir, "DEBIAN", script))
		if err != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("%s: %v, %v", script, info, err)
		}
	}
	output(t, "sh", "-c", "cd '"+dir+"' && md5sum --check --quiet DEBIAN/md5sums")
	unit := string(read(t, filepath.Join(dir, "usr/lib/systemd/system/wasmplane.service")))
	for _, path := range []string{"usr/bin/wasmplane", "etc/wasmplane/config.yaml"} {
		if _, err := os.Stat(filepath.Join(dir, path)); err != nil || !strings.Contains(unit, "/"+path) {
			t.Errorf("the unit does not start /%s, or the package has none (%v)", path, err)
		}
	}
	c, err := config.LoadFile(filepath.Join(dir, "etc/wasmplane/config.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Complete(); err != nil {
		t.Error(err)
	}
}

// TestVersionsGrow: dpkg takes what is built later, or released, for newer.
func TestVersionsGrow(t *testing.T) {
	var versions []string
	for _, v := range []string{"0e4ac1f-dirty", "v0.1.0-rc.1", "v0.1.0-rc.1-4-g0e4ac1f", "v0.1.0", "v0.1.0-4-g0e4ac1f-dirty", "v0.2.0"} {
		r := release{version: v}
		versions = append(versions, r.debianVersion())
	}
	for i, v := range versions[1:] {
		if err := exec.CommandContext(t.Context(), "dpkg", "--compare-versions", versions[i], "lt", v).Run(); err != nil {
			t.Errorf("%s is not older than %s: %v", versions[i], v, err)
		}
	}
}

func TestTheDocumentListsEveryModule(t *testing.T) {
	out := made(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	info, err := buildinfo.ReadFile(self)
	if err != nil || len(info.Deps) < 5 {
		t.Fatal(len(info.Deps), err)
	}
	var d spdxDocument
	if err := json.Unmarshal(read(t, filepath.Join(out, "wasmplane-v1.2.3-rc.1-linux-amd64.spdx.json")), &d); err != nil {
		t.Fatal(err)
	}
	has, ids := map[string]bool{}, map[string]bool{}
	for _, p := range d.Packages {
		has[p.Name+"@"+p.VersionInfo] = true
		if ids[p.SPDXID] {
			t.Errorf("%s is there twice", p.SPDXID)
		}
		ids[p.SPDXID] = true
	}
	for _, m := range info.Deps {
		if !has[m.Path+"@"+m.Version] {
			t.Errorf("%s@%s is not listed", m.Path, m.Version)
		}
	}
	if d.SPDXVersion != "SPDX-2.3" || len(d.Relationships) != len(d.Packages) {
		t.Errorf("version %s, %d packages, %d relationships", d.SPDXVersion, len(d.Packages), len(d.Relationships))
	}
	dir := t.TempDir()
	output(t, "dpkg-deb", "--raw-extract", filepath.Join(out, "wasmplane_1.2.3~rc.1_amd64.deb"), dir)
	licenses := string(read(t, filepath.Join(dir, "usr/share/doc/wasmplane/THIRD-PARTY-LICENSES")))
	for _, m := range info.Deps {
		if ours := strings.HasPrefix(m.Path, info.Main.Path); !ours && !strings.Contains(licenses, "\n"+m.Path+"@"+m.Version+" (") {
			t.Errorf("the license of %s is missing", m.Path)
		}
	}
	if !strings.HasSuffix(licenses, "\nQuickJS-ng\n") {
		t.Error("the license of the JavaScript engine is missing")
	}
}

func TestTheImageIsForBothArchitectures(t *testing.T) {
	dir := t.TempDir()
	output(t, "tar", "-xf", filepath.Join(made(t), "wasmplane-v1.2.3-rc.1-image.tar"), "-C", dir)
	p, err := layout.FromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	top, err := p.ImageIndex()
	if err != nil {
		t.Fatal(err)
	}
	m, err := top.IndexManifest()
	if err != nil || len(m.Manifests) != 1 {
		t.Fatal(m, err)
	}
	index, err := top.ImageIndex(m.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	if m, err = index.IndexManifest(); err != nil {
		t.Fatal(err)
	}
	var archs []string
	for _, d := range m.Manifests {
		img, err := index.Image(d.Digest)
		if err != nil {
			t.Fatal(err)
		}
		c, err := img.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		if c.Architecture != d.Platform.Architecture || c.Config.User != user || c.Config.Entrypoint[0] != "/usr/bin/wasmplane" {
			t.Errorf("the image for %s: %+v", d.Platform, c)
		}
		archs = append(archs, c.Architecture)
		layers, err := img.Layers()
		if err != nil || len(layers) != 1 {
			t.Fatal(layers, err)
		}
		if diff, err := layers[0].DiffID(); err != nil || diff != c.RootFS.DiffIDs[0] {
			t.Errorf("the layer is %v, %v; the configuration says %v", diff, err, c.RootFS.DiffIDs)
		}
	}
	if !slices.Equal(archs, []string{"amd64", "arm64"}) {
		t.Errorf("architectures %v", archs)
	}
}

func TestEveryFileIsSigned(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "key.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	out, signed := make1(t, "-key", file), 0
	for _, n := range names(t, out) {
		if strings.HasSuffix(n, ".sig") {
			continue
		}
		signed++
		content, signature := read(t, filepath.Join(out, n)), read(t, filepath.Join(out, n+".sig"))
		keys := []crypto.PublicKey{key.Public()}
		if err := sign.VerifyFile(n, content, signature, keys); err != nil {
			t.Error(err)
		}
		if err := sign.VerifyFile(n, append(content, '!'), signature, keys); err == nil {
			t.Errorf("%s verifies though it was changed", n)
		}
	}
	if signed != 8 {
		t.Errorf("%d files are signed, expected 8", signed)
	}
}
