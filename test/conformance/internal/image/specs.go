// SPDX-License-Identifier: Apache-2.0

package image

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1"
)

// Programs are the files that the images are made of.
type Programs struct {
	Agnhost, Nameserver, NoNewPrivs, SampleAPIServer, Etcd, Pause, Busybox string
	// What only tests beside the conformance suite run.
	ResourceConsumer, ConsumeCPU, DevicePlugin, Conntrack string
	// What the CSI tests deploy.
	Registrar, LivenessProbe, HostPath, Attacher, Provisioner, Resizer, Snapshotter string
	// Kubernetes is the folder of the module k8s.io/kubernetes, which has small
	// files of the images.
	Kubernetes string
	// Applets are what busybox can do.
	Applets []string
}

// e2e is where most of the suite's images have their names.
const e2e = "registry.k8s.io/e2e-test-images/"

// storage is where the images of CSI have their names.
const storage = "registry.k8s.io/sig-storage/"

// tools is what the suite's own base image has beside busybox: what tests look at
// networks and processes with. It says of itself what it is, Debian's base-files.
var tools = []string{
	"base-files", "libc-bin", "bash", "bind9-dnsutils", "curl", "netcat-openbsd", "iproute2", "iperf", "util-linux",
	"socat",
}

// Specs are the images that tests run, for those of the wanted names that the
// suite gives. No conformance test runs another; other tests run servers of storage
// and the drivers of clouds, which are not made here.
func Specs(p Programs, wanted []string) ([]Spec, error) {
	named := func(image string) []string {
		var names []string
		for _, w := range wanted {
			if repo, _, ok := strings.Cut(w, ":"); ok && repo == image {
				names = append(names, w)
			}
		}
		return names
	}
	agnhost := agnhostFiles(p)
	small, rest := system(), busybox(p)
	large := append(system(), File{Path: "/bin/nc", Link: "nc.openbsd"}, File{Path: "/usr/local/bin/iperf", Link: "/usr/bin/iperf"})
	specs := []Spec{
		{Names: named(e2e + "agnhost"), Packages: tools, Base: large, Rest: rest, Top: agnhost, Config: v1.Config{Entrypoint: []string{"/agnhost"}, Cmd: []string{"pause"}}},
		{Names: named(e2e + "nonroot"), Packages: tools, Base: large, Rest: rest, Top: agnhost, Config: v1.Config{Entrypoint: []string{"/agnhost"}, Cmd: []string{"pause"}, User: "1234"}},
		{Names: named(e2e + "busybox"), Base: small, Rest: rest, Config: v1.Config{Cmd: []string{"sh"}}},
		{Names: named(e2e + "ipc-utils"), Packages: tools, Base: large, Rest: rest, Config: v1.Config{Cmd: []string{"sh"}}},
		{Names: named(e2e + "glibc-dns-testing"), Packages: tools, Base: large, Rest: rest, Config: v1.Config{Cmd: []string{"bash"}}},
		{
			Names: named(e2e + "nonewprivs"), Base: small, Rest: rest,
			Top: []File{{Path: "/usr/local/bin/nnp", Mode: os.ModeSetuid | 0o755, From: p.NoNewPrivs}}, Config: v1.Config{Cmd: []string{"nnp"}},
		},
		{
			Names: named(e2e + "nginx"), Packages: []string{"base-files", "libc6", "nginx-light"}, Base: append(nginxFiles(), small...), Rest: rest,
			Config: v1.Config{
				Entrypoint: []string{"/docker-entrypoint.sh"}, Cmd: []string{"nginx", "-g", "daemon off;"}, StopSignal: "SIGQUIT",
				ExposedPorts: map[string]struct{}{"80/tcp": {}},
			},
		},
		{
			Names: named(e2e + "sample-apiserver"), Base: small, Rest: rest,
			Top: []File{{Path: "/sample-apiserver", Mode: 0o755, From: p.SampleAPIServer}}, Config: v1.Config{Entrypoint: []string{"/sample-apiserver"}},
		},
		{
			Names: named(e2e + "resource-consumer"), Packages: []string{"base-files", "stress"}, Base: small, Rest: rest,
			Top: []File{
				{Path: "/consumer", Mode: 0o755, From: p.ResourceConsumer},
				{Path: "/consume-cpu", Mode: 0o755, From: p.ConsumeCPU},
			},
			Config: v1.Config{Entrypoint: []string{"/consumer"}, ExposedPorts: map[string]struct{}{"8080/tcp": {}}},
		},
		{
			Names: named(e2e + "sample-device-plugin"), Base: small, Rest: rest,
			Top:    []File{{Path: "/sampledeviceplugin", Mode: 0o755, From: p.DevicePlugin}},
			Config: v1.Config{Entrypoint: []string{"/sampledeviceplugin", "-alsologtostderr"}},
		},
		{
			Names: named(e2e + "regression-issue-74839"), Base: small, Rest: rest,
			Top:    []File{{Path: "/regression-issue-74839", Mode: 0o755, From: p.Conntrack}},
			Config: v1.Config{Entrypoint: []string{"/regression-issue-74839"}},
		},
		{
			Names: named("registry.k8s.io/etcd"), Top: []File{
				{Path: "/usr/local/bin/etcd", Mode: 0o755, From: p.Etcd},
				{Path: "/tmp", Mode: os.ModeDir | os.ModeSticky | 0o777},
			},
			Config: v1.Config{Cmd: []string{"etcd"}},
		},
		{Names: named("registry.k8s.io/pause"), Top: []File{{Path: "/pause", Mode: 0o755, From: p.Pause}}, Config: v1.Config{Entrypoint: []string{"/pause"}, User: "65535:65535"}},
	}
	// What tests look at the node's rules and connections with.
	specs = append(specs, Spec{
		Names: named("registry.k8s.io/build-image/distroless-iptables"), Packages: []string{"base-files", "libc6", "iptables", "conntrack"}, Base: small, Rest: rest,
		Config: v1.Config{Cmd: []string{"sh"}},
	})
	for _, pet := range []string{"nautilus", "kitten"} {
		html := filepath.Join(p.Kubernetes, "test", "images", pet, "html")
		specs = append(specs, Spec{
			Names: named(e2e + pet), Packages: tools, Base: large, Rest: rest,
			Top: append([]File{
				{Path: "/" + pet + ".jpg", Mode: 0o644, From: filepath.Join(html, pet+".jpg")},
				{Path: "/data.json", Mode: 0o644, From: filepath.Join(html, "data.json")},
			}, agnhost...),
			Config: v1.Config{Entrypoint: []string{"/agnhost"}, Cmd: []string{"test-webserver"}, WorkingDir: "/"},
		})
	}
	for _, s := range []struct{ repo, from string }{
		{"csi-attacher", p.Attacher},
		{"csi-provisioner", p.Provisioner},
		{"csi-resizer", p.Resizer},
		{"csi-snapshotter", p.Snapshotter},
		{"csi-node-driver-registrar", p.Registrar},
		{"livenessprobe", p.LivenessProbe},
	} {
		specs = append(specs, Spec{
			Names: named(storage + s.repo), Top: []File{{Path: "/" + s.repo, Mode: 0o755, From: s.from}},
			Config: v1.Config{Entrypoint: []string{"/" + s.repo}},
		})
	}
	// Tests run shells in it.
	specs = append(specs, Spec{
		Names: named(storage + "hostpathplugin"), Base: small, Rest: rest,
		Top: []File{{Path: "/hostpathplugin", Mode: 0o755, From: p.HostPath}}, Config: v1.Config{Entrypoint: []string{"/hostpathplugin"}},
	})
	for _, s := range specs {
		if len(s.Names) == 0 {
			return nil, fmt.Errorf("the suite no longer asks for an image that is made here (entrypoint %v): compare with its -list-images", append(s.Config.Entrypoint, s.Config.Cmd...))
		}
	}
	return specs, nil
}

func agnhostFiles(p Programs) []File {
	porter := filepath.Join(p.Kubernetes, "test", "images", "agnhost", "porter")
	return []File{
		{Path: "/agnhost", Mode: 0o755, From: p.Agnhost},
		{Path: "/agnhost-2", Link: "agnhost"},
		{Path: "/coredns", Mode: 0o755, From: p.Nameserver},
		{Path: "/localhost.crt", Mode: 0o644, From: filepath.Join(porter, "localhost.crt")},
		{Path: "/localhost.key", Mode: 0o644, From: filepath.Join(porter, "localhost.key")},
		{Path: "/uploads", Mode: os.ModeDir | 0o755},
	}
}

// system is what every base has beside its packages.
func system() []File {
	return []File{
		{Path: "/tmp", Mode: os.ModeDir | os.ModeSticky | 0o777},
		{Path: "/var/tmp", Mode: os.ModeDir | os.ModeSticky | 0o777},
		{Path: "/root", Mode: os.ModeDir | 0o700},
		{Path: "/home/user-defined-in-image", Mode: os.ModeDir | 0o755, UID: 1000},
		{Path: "/etc/passwd", Mode: 0o644, Content: []byte("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\nwww-data:x:33:33:www-data:/var/www:/bin/false\nuser-defined-in-image:x:1000:1000::/home/user-defined-in-image:/bin/sh\n")},
		{Path: "/etc/group", Mode: 0o644, Content: []byte("root:x:0:\nnogroup:x:65534:\nwww-data:x:33:\nuser-defined-in-image:x:1000:\ngroup-defined-in-image:x:50000:user-defined-in-image\n")},
		{Path: "/bin/sh", Link: "busybox"},
		{Path: "/etc/nsswitch.conf", Mode: 0o644, Content: []byte("passwd: files\ngroup: files\nhosts: files dns\n")},
	}
}

// busybox is the program, under the names of all that it can do.
func busybox(p Programs) []File {
	files := []File{{Path: "/bin/busybox", Mode: 0o755, From: p.Busybox}}
	for _, a := range p.Applets {
		files = append(files, File{Path: "/bin/" + a, Link: "busybox"})
	}
	return files
}

// nginxFiles give Debian's nginx the places of the image that the suite knows.
func nginxFiles() []File {
	const config = `worker_processes auto;
pid /run/nginx.pid;
error_log /dev/stderr notice;
events { worker_connections 1024; }
http {
  include /etc/nginx/mime.types;
  default_type application/octet-stream;
  access_log /dev/stdout;
  sendfile on;
  keepalive_timeout 65;
  include /etc/nginx/conf.d/*.conf;
}
`
	const site = `server {
  listen 80;
  listen [::]:80;
  server_name localhost;
  location / {
    root /usr/share/nginx/html;
    index index.html index.htm;
  }
  error_page 500 502 503 504 /50x.html;
  location = /50x.html { root /usr/share/nginx/html; }
}
`
	const page = "<!DOCTYPE html>\n<html>\n<head>\n<title>Welcome to nginx!</title>\n</head>\n<body>\n<h1>Welcome to nginx!</h1>\n<p><em>Thank you for using nginx.</em></p>\n</body>\n</html>\n"
	return []File{
		{Path: "/etc/nginx/nginx.conf", Mode: 0o644, Content: []byte(config)},
		{Path: "/etc/nginx/conf.d/default.conf", Mode: 0o644, Content: []byte(site)},
		{Path: "/usr/share/nginx/html/index.html", Mode: 0o644, Content: []byte(page)},
		{Path: "/usr/share/nginx/html/50x.html", Mode: 0o644, Content: []byte("<!DOCTYPE html>\n<html><body><h1>An error occurred.</h1></body></html>\n")},
		{Path: "/docker-entrypoint.sh", Mode: 0o755, Content: []byte("#!/bin/sh\nset -e\nexec \"$@\"\n")},
		{Path: "/var/log/nginx", Mode: os.ModeDir | 0o755, UID: 33},
		{Path: "/var/lib/nginx", Mode: os.ModeDir | 0o755},
		{Path: "/run", Mode: os.ModeDir | 0o755},
	}
}
