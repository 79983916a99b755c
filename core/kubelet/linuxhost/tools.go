// SPDX-License-Identifier: Apache-2.0

package linuxhost

import (
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"
)

// Facts are what containerd's configuration depends on.
type Facts struct {
	Root        bool   // we are root
	Runc        string // path, empty when missing
	NFT         string // path, empty when missing
	AppArmor    bool   // the kernel has it on, and its parser is there
	SysResource bool   // CAP_SYS_RESOURCE: scores of the OOM killer may be lowered
	CgroupV2    bool   // the unified hierarchy alone
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
