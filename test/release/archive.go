// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/md5"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/supervisor"
)

// file is one of a release, with its name in the archive.
type file struct {
	name    string
	mode    int64
	content []byte
}

// samples are the configurations that a release has, by their paths in the tree.
func samples() []string {
	return []string{"configs/single.yaml", "configs/ha.yaml", "configs/plugins.yaml"}
}

// contents are the files of one architecture's archive.
func (r *release) contents(b build, licenses, document []byte) ([]file, error) {
	binary, err := os.ReadFile(b.binary)
	if err != nil {
		return nil, fmt.Errorf("the binary: %w", err)
	}
	files := []file{{"wasmplane", 0o755, binary}, {"THIRD-PARTY-LICENSES", 0o644, licenses}, {"wasmplane.spdx.json", 0o644, document}}
	from := [][2]string{
		{"LICENSE", "LICENSE"},
		{"NOTICE", "NOTICE"},
		{"CHANGELOG.md", "CHANGELOG.md"},
		{"README.md", "packaging/README.md"},
		{"config.yaml", "packaging/config.yaml"},
	}
	for _, s := range samples() {
		from = append(from, [2]string{s, s})
	}
	unit, err := supervisor.PackagedUnit()
	if err != nil {
		return nil, err
	}
	files = append(files, file{"wasmplane.service", 0o644, unit})
	for _, f := range from {
		content, err := os.ReadFile(filepath.Join(r.root, f[1]))
		if err != nil {
			return nil, err
		}
		files = append(files, file{f[0], 0o644, content})
	}
	return files, nil
}

// tarball is a tar of files, gzipped: owned by root, all of one time, each name behind a prefix.
func (r *release) tarball(prefix string, files []file) ([]byte, error) {
	var b bytes.Buffer
	zip, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	t := tar.NewWriter(zip)
	made := map[string]bool{}
	for _, f := range files {
		if err := r.folders(t, made, prefix, path.Dir(f.name)); err != nil {
			return nil, err
		}
		h := &tar.Header{
			Typeflag: tar.TypeReg, Name: prefix + f.name, Mode: f.mode, Size: int64(len(f.content)), ModTime: r.time, Uname: "root",
			Gname: "root", Format: tar.FormatGNU,
		}
		if err := t.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := t.Write(f.content); err != nil {
			return nil, err
		}
	}
	if err := t.Close(); err != nil {
		return nil, err
	}
	err = zip.Close()
	return b.Bytes(), err
}

// folders writes the folders that lead to a file, each once.
func (r *release) folders(t *tar.Writer, made map[string]bool, prefix, dir string) error {
	if made[dir] {
		return nil
	}
	made[dir] = true
	name := prefix // of the folder in which all are
	if dir != "." {
		if err := r.folders(t, made, prefix, path.Dir(dir)); err != nil {
			return err
		}
		name = prefix + dir + "/"
	}
	return t.WriteHeader(&tar.Header{
		Typeflag: tar.TypeDir, Name: name, Mode: 0o755, ModTime: r.time, Uname: "root", Gname: "root",
		Format: tar.FormatGNU,
	})
}

func (r *release) archive(base string, files []file) error {
	b, err := r.tarball(base+"/", files)
	if err != nil {
		return fmt.Errorf("archive: %w", err)
	}
	return r.write(base+".tar.gz", b)
}

// tag is a version, perhaps with a prerelease, perhaps with what git describe says of commits after it.
var tag = regexp.MustCompile(`^v(\d+\.\d+\.\d+)(?:-([a-z].*?))?(?:-(\d+-g.+))?$`)

var notInVersion = regexp.MustCompile(`[^A-Za-z0-9.+~]+`)

// debianVersion is the version as dpkg orders versions: a prerelease is older than its
// release, and what has no tag is older than every release.
func (r *release) debianVersion() string {
	m := tag.FindStringSubmatch(r.version)
	if m == nil {
		return "0~" + r.time.Format("20060102150405") + "." + notInVersion.ReplaceAllString(r.version, ".")
	}
	v := m[1]
	if m[2] != "" {
		v += "~" + notInVersion.ReplaceAllString(m[2], ".")
	}
	if m[3] != "" {
		v += "+" + notInVersion.ReplaceAllString(m[3], ".")
	}
	return v
}

// debian makes the package: the binary, the unit, a configuration that upgrades leave
// alone, and samples.
func (r *release) debian(arch string, content []file) error {
	const doc = "usr/share/doc/wasmplane/"
	places := map[string]string{
		"wasmplane": "usr/bin/wasmplane", "wasmplane.service": "usr/lib/systemd/system/wasmplane.service",
		"config.yaml": "etc/wasmplane/config.yaml",
		"LICENSE":     doc + "copyright", "NOTICE": doc + "NOTICE", "README.md": doc + "README.md", "CHANGELOG.md": doc + "CHANGELOG.md",
		"THIRD-PARTY-LICENSES": doc + "THIRD-PARTY-LICENSES", "wasmplane.spdx.json": doc + "wasmplane.spdx.json",
	}
	var data []file
	var sums strings.Builder
	size := 0
	for _, f := range content {
		at, ok := places[f.name]
		if !ok {
			at = doc + "examples/" + path.Base(f.name)
		}
		data = append(data, file{at, f.mode, f.content})
		size += len(f.content)
		fmt.Fprintf(&sums, "%x  %s\n", md5.Sum(f.content), at) // what dpkg --verify compares
	}
	version := r.debianVersion()
	control := []file{
		{"control", 0o644, fmt.Appendf(nil, `Package: wasmplane
Version: %s
Architecture: %s
Maintainer: The wasmplane authors <wasmplane@users.noreply.github.com>
Installed-Size: %d
Depends: runc (>= 1.1), nftables, iproute2, mount, ca-certificates
Suggests: e2fsprogs, nfs-common
Section: admin
Priority: optional
Homepage: https://github.com/wasmplane/wasmplane
Description: Kubernetes-compatible control plane whose policy is WebAssembly
 One binary with API server, scheduler, controllers, kubelet, service proxy and
 DNS, with etcd and containerd in it. Admission, authorization, scheduling and
 reconcile can be handed to sandboxed WebAssembly modules.
`, version, arch, (size+1023)/1024)},
		{"conffiles", 0o644, []byte("/etc/wasmplane/config.yaml\n")},
		{"md5sums", 0o644, []byte(sums.String())},
	}
	for _, script := range []string{"postinst", "prerm", "postrm"} {
		b, err := os.ReadFile(filepath.Join(r.root, "packaging/deb", script))
		if err != nil {
			return err
		}
		control = append(control, file{script, 0o755, b})
	}
	controlTar, err := r.tarball("./", control)
	if err != nil {
		return fmt.Errorf("make the Debian package: %w", err)
	}
	dataTar, err := r.tarball("./", data)
	if err != nil {
		return fmt.Errorf("make the Debian package: %w", err)
	}
	var b bytes.Buffer
	b.WriteString("!<arch>\n")
	r.member(&b, "debian-binary", []byte("2.0\n"))
	r.member(&b, "control.tar.gz", controlTar)
	r.member(&b, "data.tar.gz", dataTar)
	return r.write("wasmplane_"+version+"_"+arch+".deb", b.Bytes())
}

// member writes one file of an ar archive (ar(5), the common format).
func (r *release) member(w io.Writer, name string, content []byte) {
	fmt.Fprintf(w, "%-16s%-12d%-6d%-6d%-8s%-10d`\n", name, r.time.Unix(), 0, 0, "100644", len(content))
	_, _ = w.Write(content) // into memory
	if len(content)%2 == 1 {
		_, _ = w.Write([]byte("\n"))
	}
}
