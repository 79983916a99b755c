// SPDX-License-Identifier: Apache-2.0

// Package hostcheck tells what a Linux machine lacks for real nodes: its tools, file systems, control groups, packet
// filter and rights, each problem with what to do about it. It changes nothing, but for LoadBridgeFilter.
package hostcheck

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/wasmplane/wasmplane/core/kubelet/mounttable"
	"github.com/wasmplane/wasmplane/core/run"
)

// Hierarchy is one mounted cgroup tree: the only one on a v2 host, one per
// controller (and perhaps a v2 tree beside them) on a v1 or hybrid host.
type Hierarchy struct {
	Mount       string
	Controllers []string // empty for v2
	v2          bool
}

var hierarchies struct {
	sync.Mutex
	found []Hierarchy
}

// Hierarchies lists the cgroup trees that this process sees. Once there are some they are not looked for again: they are mounted when a
// machine starts, and the table of mounts has lines for each pod, which it would be read for. The list is shared: nobody may
// change it.
func Hierarchies() ([]Hierarchy, error) {
	hierarchies.Lock()
	defer hierarchies.Unlock()
	if len(hierarchies.found) > 0 {
		return hierarchies.found, nil
	}
	found, err := readHierarchies()
	hierarchies.found = found
	return found, err
}

func readHierarchies() ([]Hierarchy, error) {
	mounts, err := mounttable.Read()
	if err != nil {
		return nil, err
	}
	var hs []Hierarchy
	seen := map[string]bool{}
	for _, m := range mounts {
		if seen[m.Point] {
			continue
		}
		switch m.Type {
		case "cgroup":
			seen[m.Point] = true
			hs = append(hs, Hierarchy{Mount: m.Point, Controllers: strings.Split(m.Options, ",")})
		case "cgroup2":
			seen[m.Point] = true
			hs = append(hs, Hierarchy{Mount: m.Point, v2: true})
		}
	}
	return hs, nil
}

// CgroupV2 tells whether the host has the unified Hierarchy alone.
func CgroupV2() bool {
	var st unix.Statfs_t
	return unix.Statfs("/sys/fs/cgroup", &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC
}

// Problem is something that this machine lacks for real nodes.
type Problem struct {
	// What is missing or wrong, as a sentence.
	What string
	// Fix is what to do about it.
	Fix string
	// Warning: a node runs all the same, with the restriction that What names.
	Warning bool
}

func (p Problem) String() string { return p.What + "; " + p.Fix }

const (
	// minRunc is the oldest runc that was tried with this containerd.
	minRuncMajor, minRuncMinor = 1, 1
	versionTimeout             = 5 * time.Second
	simulated                  = "simulated nodes work without (--nodes simulated:N)"
)

// Check finds out what this machine lacks for real nodes. Problems that are not
// warnings keep a node from starting. It changes nothing.
func Check(ctx context.Context) []Problem {
	f := Discover()
	var ps []Problem
	add := func(p *Problem) {
		if p != nil {
			ps = append(ps, *p)
		}
	}
	if !f.Root {
		add(&Problem{What: "real nodes need root", Fix: "start wasmplane as root (sudo); " + simulated})
	}
	add(checkRunc(ctx, f.Runc))
	if f.NFT == "" {
		add(&Problem{What: "nftables is not installed (no nft on PATH)", Fix: "apt-get install nftables"})
	}
	add(checkRoot(f.Root))
	add(checkFilesystem("overlay", "overlayfs"))
	add(checkCgroups(f))
	if f.Root {
		// These ask the kernel, which tells only root.
		for _, p := range checkLinks() {
			add(&p)
		}
		add(checkNFT(ctx, f.NFT))
	}
	add(checkBridgeFilter())
	if f.Root && !f.SysResource {
		add(&Problem{
			What: "CAP_SYS_RESOURCE is missing, so containers cannot be protected from the OOM killer (their score stays at least ours)",
			Fix:  "give this process the capability if that matters", Warning: true,
		})
	}
	return ps
}

// runcVersion is in the first line of "runc --version": "runc version 1.1.5+ds1".
var runcVersion = regexp.MustCompile(`^runc version (\d+)\.(\d+)\S*`)

func checkRunc(ctx context.Context, path string) *Problem {
	const install = "apt-get install runc"
	if path == "" {
		return &Problem{What: "runc is not installed", Fix: install + "; " + simulated}
	}
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		return &Problem{What: fmt.Sprintf("%s --version fails: %v", path, ExplainExit(err)), Fix: install}
	}
	return judgeRunc(path, string(out))
}

func judgeRunc(path, version string) *Problem {
	m := runcVersion.FindStringSubmatch(version)
	if m == nil {
		first, _, _ := strings.Cut(version, "\n")
		return &Problem{
			What: fmt.Sprintf("%s is not a runc that is known (it says %q)", path, first),
			Fix:  "install runc if containers do not start: apt-get install runc", Warning: true,
		}
	}
	major, _ := strconv.Atoi(m[1]) // digits, by the expression
	minor, _ := strconv.Atoi(m[2])
	if major < minRuncMajor || major == minRuncMajor && minor < minRuncMinor {
		return &Problem{
			What: fmt.Sprintf("%s is %s; at least %d.%d is needed", path, m[0], minRuncMajor, minRuncMinor),
			Fix:  "upgrade runc: apt-get install runc",
		}
	}
	if r := runcRelease.FindStringSubmatch(version); r != nil && affected(r) {
		return &Problem{
			What: fmt.Sprintf("%s is %s, which has CVE-2026-41579", path, m[0]),
			Fix:  "upgrade runc to 1.3.6, 1.4.3, 1.5.0 or a newer release of these", Warning: true,
		}
	}
	return nil
}

// runcRelease is a release of runc's own. Distributions add to its version, and fix
// what is published without changing it.
var runcRelease = regexp.MustCompile(`(?m)^runc version 1\.(\d+)\.(\d+)(?:-rc\.(\d+))?$`)

// affected says whether a release of runc has CVE-2026-41579 (GHSA-xjvp-4fhw-gc47), which is
// fixed in 1.3.6, 1.4.3 and 1.5.0-rc.3.
func affected(release []string) bool {
	minor, _ := strconv.Atoi(release[1]) // digits, by the expression
	patch, _ := strconv.Atoi(release[2])
	candidate, err := strconv.Atoi(release[3])
	switch minor {
	case 3:
		return patch < 6 || patch == 6 && err == nil
	case 4:
		return patch < 3 || patch == 3 && err == nil
	case 5:
		return patch == 0 && err == nil && candidate < 3
	}
	return minor < 3
}

// checkFilesystem wants a file system in the kernel, or as a module that loads.
func checkFilesystem(name, called string) *Problem {
	data, err := os.ReadFile("/proc/filesystems")
	if err == nil {
		for line := range strings.Lines(string(data)) {
			if f := strings.Fields(line); len(f) > 0 && f[len(f)-1] == name {
				return nil
			}
		}
	}
	if moduleThere(name) {
		return nil // mounting loads it
	}
	return &Problem{What: "the kernel has no " + called, Fix: "use a kernel with CONFIG_OVERLAY_FS; " + simulated}
}

// moduleThere looks for a module in the running kernel's folder.
func moduleThere(name string) bool {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return false
	}
	data, err := os.ReadFile("/lib/modules/" + unix.ByteSliceToString(u.Release[:]) + "/modules.dep")
	return err == nil && regexp.MustCompile(`(?m)/`+regexp.QuoteMeta(name)+`\.ko(\.[a-z]+)?:`).Match(data)
}

// checkCgroups wants the controllers that pods' limits need.
func checkCgroups(f *Facts) *Problem {
	have := map[string]bool{}
	if f.CgroupV2 {
		data, err := os.ReadFile("/sys/fs/cgroup/cgroup.controllers")
		if err != nil {
			return &Problem{What: "cgroups cannot be read: " + err.Error(), Fix: "mount cgroup2 at /sys/fs/cgroup"}
		}
		for _, c := range strings.Fields(string(data)) {
			have[c] = true
		}
	} else {
		hs, err := Hierarchies()
		if err != nil {
			return &Problem{What: err.Error(), Fix: "mount cgroup2 at /sys/fs/cgroup"}
		}
		for _, h := range hs {
			for _, c := range h.Controllers {
				have[c] = true
			}
		}
	}
	var missing []string
	for _, c := range []string{"cpu", "memory", "pids"} {
		if !have[c] {
			missing = append(missing, c)
		}
	}
	if len(missing) > 0 {
		return &Problem{
			What: "cgroup controllers are missing: " + strings.Join(missing, ", "),
			Fix:  "enable them at boot (cgroup_enable=memory), or delegate them to this container; " + simulated,
		}
	}
	return nil
}

// checkLinks asks the kernel for a bridge and a veth pair, in a network namespace
// that is thrown away.
func checkLinks() []Problem {
	var ps []Problem
	err := inFreshNetns(func() {
		for _, l := range []netlink.Link{
			&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "wp-check"}},
			&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "wp-check0"}, PeerName: "wp-check1"},
		} {
			if err := netlink.LinkAdd(l); err != nil {
				ps = append(ps, Problem{
					What: fmt.Sprintf("the kernel makes no %s link (%v)", l.Type(), err),
					Fix:  "load it: modprobe " + l.Type() + "; " + simulated,
				})
			}
		}
	})
	if err != nil {
		ps = append(ps, Problem{What: err.Error(), Fix: "run where network namespaces may be made (a privileged container, or the host)"})
	}
	return ps
}

// checkNFT asks nft for the tables, which fails where the kernel has no nftables.
func checkNFT(ctx context.Context, nft string) *Problem {
	if nft == "" {
		return nil // said already
	}
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	if err := exec.CommandContext(ctx, nft, "list", "tables").Run(); err != nil {
		return &Problem{What: fmt.Sprintf("nftables does not work (%v)", ExplainExit(err)), Fix: "load it: modprobe nf_tables"}
	}
	return nil
}

// bridgeFilter are the settings by which packets between pods of one bridge pass nftables.
const bridgeFilter = "/proc/sys/net/bridge/bridge-nf-call-iptables"

// checkBridgeFilter wants packets between pods of one bridge to pass nftables. The module
// for it is loaded when the network is set up, where it is there.
func checkBridgeFilter() *Problem {
	if _, err := os.Stat(bridgeFilter); err == nil || moduleThere("br_netfilter") {
		return nil
	}
	return &Problem{
		What: "the kernel has no br_netfilter, so a pod does not reach a Service's pod on its own node, and pods that a NetworkPolicy selects do not start",
		Fix:  "install the kernel's modules (modprobe br_netfilter), or use a kernel with CONFIG_BRIDGE_NETFILTER", Warning: true,
	}
}

// inFreshNetns runs do in a network namespace of its own, which ends with it.
func inFreshNetns(do func()) error {
	return <-run.Go("a network namespace", func() error {
		// Never unlocked: the thread is spoilt and ends with the goroutine.
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make a network namespace: %w", err)
		}
		do()
		return nil
	})
}

// checkRoot wants a root folder that runc can pivot from. The kernel's pivot_root
// refuses where the current root is no mount point (a plain chroot) or the initial
// ramdisk itself. In a chroot into a mount point containers start, but what is
// executed in them later joins their mount namespace and finds itself outside of the
// chroot, with all files of the machine.
func checkRoot(asRoot bool) *Problem {
	if asRoot {
		outside, err := chrooted()
		if err != nil {
			return &Problem{
				What: "whether this process runs in a chroot cannot be found out: " + err.Error(),
				Fix:  "start it with CAP_SYS_ADMIN and CAP_SYS_CHROOT; " + simulated,
			}
		}
		if outside {
			return inChroot()
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return &Problem{What: "mounts cannot be read: " + err.Error(), Fix: "mount -t proc proc /proc"}
	}
	return judgeRoot(string(mounts))
}

func judgeRoot(mountinfo string) *Problem {
	kind := "" // of what is mounted at the root last
	for line := range strings.Lines(mountinfo) {
		// 22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
		before, after, ok := strings.Cut(line, " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if ok && len(left) > 4 && len(right) > 0 && left[4] == "/" {
			kind = right[0]
		}
	}
	switch kind {
	case "":
		return inChroot()
	case "rootfs":
		return &Problem{
			What: "the root folder of this machine is the initial ramdisk, so runc cannot give containers a root of their own (pivot_root)",
			Fix:  "boot into a mounted root (switch_root); " + simulated,
		}
	}
	return nil
}

func inChroot() *Problem {
	return &Problem{
		What: "this process runs in a chroot, where runc cannot keep containers inside of their own root",
		Fix:  "enter the folder by pivot_root instead (systemd-nspawn -D FOLDER does); " + simulated,
	}
}

// chrooted reports whether the root folder of this process is another than that of
// its mount namespace.
func chrooted() (found bool, err error) {
	err = <-run.Go("look at the root folder", func() (err error) {
		// Never unlocked: the thread is spoilt and ends with the goroutine.
		runtime.LockOSThread()
		if unix.Gettid() == os.Getpid() {
			// The first thread does not end: its folder would be the root from now on, and others take that for the folder of the
			// process (/proc/PID/cwd). Another goroutine has another thread while this one is locked.
			defer runtime.UnlockOSThread()
			found, err = chrooted()
			return err
		}
		found, err = leavesChroot()
		return err
	})
	return found, err
}

// leavesChroot joins this thread's own mount namespace, which leads to the
// namespace's root folder, and reports whether that is another one.
func leavesChroot() (bool, error) {
	own, err := os.Open("/proc/thread-self/ns/mnt")
	if err != nil {
		return false, err
	}
	defer func() { _ = own.Close() }()
	var before, after unix.Stat_t
	if err := unix.Stat("/", &before); err != nil {
		return false, fmt.Errorf("stat /: %w", err)
	}
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return false, fmt.Errorf("unshare the root folder from other threads: %w", err)
	}
	if err := unix.Setns(int(own.Fd()), unix.CLONE_NEWNS); err != nil {
		return false, fmt.Errorf("join the mount namespace: %w", err)
	}
	if err := unix.Stat("/", &after); err != nil {
		return false, fmt.Errorf("stat /: %w", err)
	}
	return before.Dev != after.Dev || before.Ino != after.Ino, nil
}

// ExplainExit adds what a program said to why it failed.
func ExplainExit(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(exit.Stderr) > 0 {
		return fmt.Errorf("%w: %s", err, bytes.TrimSpace(exit.Stderr))
	}
	return err
}

// Facts are what containerd's configuration depends on.
type Facts struct {
	Root        bool   // we are root
	Runc        string // path, empty when missing
	NFT         string // path, empty when missing
	AppArmor    bool   // the kernel has it on, and its parser is there
	SysResource bool   // CAP_SYS_RESOURCE: scores of the OOM killer may be lowered
	CgroupV2    bool   // the unified Hierarchy alone
}

// Discover finds the facts of this machine.
func Discover() *Facts {
	return &Facts{
		Root:        os.Geteuid() == 0,
		Runc:        LookPath("runc"),
		NFT:         LookPath("nft"),
		AppArmor:    appArmor(),
		SysResource: HasCapability(unix.CAP_SYS_RESOURCE),
		CgroupV2:    CgroupV2(),
	}
}

// LookPath finds a program on PATH, or where root's programs are: a PATH of an
// ordinary user often lacks those, and so does a service's. It is empty where there is none.
func LookPath(name string) string {
	if p, err := exec.LookPath(name); err == nil {
		return p
	}
	for _, dir := range []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"} {
		if p, err := exec.LookPath(dir + "/" + name); err == nil {
			return p
		}
	}
	return ""
}

// appArmor asks what containerd's own check asks: the kernel's switch, and the
// program that loads profiles.
func appArmor() bool {
	data, err := os.ReadFile("/sys/module/apparmor/parameters/enabled")
	if err != nil || !strings.HasPrefix(string(data), "Y") {
		return false
	}
	if _, err := os.Stat("/sys/kernel/security/apparmor"); err != nil {
		return false
	}
	return LookPath("apparmor_parser") != ""
}

// HasCapability tells whether this process holds a capability now.
func HasCapability(c int) bool {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return false
	}
	return data[c/32].Effective&(1<<(c%32)) != 0
}

// Fatal answers the problems that keep a node from starting, as one error; nil if
// there are none.
func Fatal(problems []Problem) error {
	var errs []error
	for _, p := range problems {
		if !p.Warning {
			errs = append(errs, errors.New(p.String()))
		}
	}
	return errors.Join(errs...)
}

// BridgeFiltered says why packets between pods of one bridge do not pass nftables; nil: they do.
func BridgeFiltered() error {
	data, err := os.ReadFile(bridgeFilter)
	if err != nil {
		return fmt.Errorf("packets between pods of this node pass no filter, because br_netfilter is not loaded: modprobe br_netfilter (%w)", err)
	}
	if strings.TrimSpace(string(data)) != "1" {
		return errors.New("packets between pods of this node pass no filter: somebody has set the sysctl net.bridge.bridge-nf-call-iptables to 0, set it to 1")
	}
	return nil
}

// LoadBridgeFilter loads br_netfilter unless it is there. Where it cannot be had, Check
// and BridgeFiltered say so.
func LoadBridgeFilter(ctx context.Context) {
	if _, err := os.Stat(bridgeFilter); err == nil {
		return
	}
	if modprobe := LookPath("modprobe"); modprobe != "" {
		_ = exec.CommandContext(ctx, modprobe, "br_netfilter").Run() // what it failed by is seen by the setting that is missing
	}
}
