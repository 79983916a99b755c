// SPDX-License-Identifier: Apache-2.0

package linuxhost

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/wasmplane/wasmplane/core/kubelet/diskusage"
	"github.com/wasmplane/wasmplane/core/kubelet/node"
	"github.com/wasmplane/wasmplane/core/kubelet/threshold"
)

// Facts of the machine, read afresh.
func (h *Host) Facts(ctx context.Context) (*node.Facts, error) {
	mem, err := meminfo()
	if err != nil {
		return nil, err
	}
	disk, err := h.FileSystem(ctx)
	if err != nil {
		return nil, err
	}
	size := int64(disk.Usable()) //nolint:gosec // bytes of a disk
	limit := func(signal string, capacity int64) int64 { return h.evict[signal].Of(capacity) }
	evictMemory := limit(threshold.MemoryAvailable, mem["MemTotal"])
	evictDisk := limit(threshold.DiskAvailable, size)
	f := &node.Facts{Pressure: map[corev1.NodeConditionType]string{}}
	f.Capacity = corev1.ResourceList{
		corev1.ResourceCPU:              *resource.NewQuantity(int64(runtime.NumCPU()), resource.DecimalSI),
		corev1.ResourceMemory:           *resource.NewQuantity(mem["MemTotal"], resource.BinarySI),
		corev1.ResourceEphemeralStorage: *resource.NewQuantity(size, resource.BinarySI),
		corev1.ResourcePods:             *resource.NewQuantity(h.cfg.MaxPods, resource.DecimalSI),
	}
	hugePages(f.Capacity)
	f.Allocatable = f.Capacity.DeepCopy()
	less := func(name corev1.ResourceName, by resource.Quantity) {
		q, ok := f.Allocatable[name]
		if !ok {
			return
		}
		q.Sub(by)
		if q.Sign() < 0 {
			q = resource.Quantity{}
		}
		f.Allocatable[name] = q
	}
	for name, q := range h.cfg.Reserved {
		less(name, q)
	}
	less(corev1.ResourceMemory, *resource.NewQuantity(evictMemory, resource.BinarySI))
	less(corev1.ResourceEphemeralStorage, *resource.NewQuantity(evictDisk, resource.BinarySI))
	if avail, ok := mem["MemAvailable"]; ok {
		short(f, corev1.ResourceMemory, resource.BinarySI, evictMemory, avail)
	}
	short(f, corev1.ResourceEphemeralStorage, resource.BinarySI, evictDisk, int64(disk.BytesFree)) //nolint:gosec // bytes of a disk
	//nolint:gosec // counts of inodes
	short(f, node.Inodes, resource.DecimalSI, limit(threshold.InodesFree, int64(disk.Inodes)), int64(disk.InodesFree))
	if used, most, ok := processIDs(); ok {
		short(f, node.PIDs, resource.DecimalSI, limit(threshold.PIDsAvailable, most), most-used)
	}
	f.Addresses = h.addresses()
	f.Info = h.info()
	return f, nil
}

// pressures are the conditions of a node that is short of something, with what it says.
var pressures = map[corev1.ResourceName]struct {
	condition corev1.NodeConditionType
	message   string
}{
	corev1.ResourceMemory:           {corev1.NodeMemoryPressure, "kubelet has insufficient memory available"},
	corev1.ResourceEphemeralStorage: {corev1.NodeDiskPressure, "kubelet has disk pressure"},
	node.Inodes:                     {corev1.NodeDiskPressure, "kubelet has disk pressure"},
	node.PIDs:                       {corev1.NodePIDPressure, "kubelet has insufficient PID available"},
}

// short adds a resource of which there is less than there is to be.
func short(f *node.Facts, name corev1.ResourceName, format resource.Format, threshold, available int64) {
	if available >= threshold {
		return
	}
	p := pressures[name]
	f.Pressure[p.condition] = p.message
	f.Short = append(f.Short, node.Short{
		Resource: name, Threshold: *resource.NewQuantity(threshold, format), Available: *resource.NewQuantity(available, format),
	})
}

// meminfo in bytes.
func meminfo() (map[string]int64, error) {
	file, err := os.Open("/proc/meminfo")
	if err != nil {
		return nil, fmt.Errorf("look at the memory: %w", err)
	}
	defer file.Close()
	out := map[string]int64{}
	for s := bufio.NewScanner(file); s.Scan(); {
		name, rest, _ := strings.Cut(s.Text(), ":")
		fields := strings.Fields(rest)
		if len(fields) == 0 {
			continue
		}
		if n, err := strconv.ParseInt(fields[0], 10, 64); err == nil {
			out[name] = n << 10
		}
	}
	return out, nil
}

func hugePages(list corev1.ResourceList) {
	dirs, err := filepath.Glob("/sys/kernel/mm/hugepages/hugepages-*kB")
	if err != nil {
		return
	}
	for _, d := range dirs {
		kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimPrefix(filepath.Base(d), "hugepages-"), "kB"), 10, 64)
		if err != nil {
			continue
		}
		n, _ := strconv.ParseInt(read(filepath.Join(d, "nr_hugepages")), 10, 64)
		size := resource.NewQuantity(kb<<10, resource.BinarySI)
		list[corev1.ResourceName(corev1.ResourceHugePagesPrefix+size.String())] = *resource.NewQuantity(n*kb<<10, resource.BinarySI)
	}
}

// processIDs are how many the machine uses, and how many it has at most.
func processIDs() (used, most int64, ok bool) {
	// 0.52 0.58 0.59 3/467 12345: the fourth has the number of threads.
	fields := strings.Fields(read("/proc/loadavg"))
	if len(fields) < 4 {
		return 0, 0, false
	}
	_, total, _ := strings.Cut(fields[3], "/")
	used, err1 := strconv.ParseInt(total, 10, 64)
	most, err2 := strconv.ParseInt(read("/proc/sys/kernel/pid_max"), 10, 64)
	return used, most, err1 == nil && err2 == nil && most > 0
}

func read(file string) string {
	data, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

func (h *Host) addresses() []corev1.NodeAddress {
	ips := h.cfg.NodeIPs
	if len(ips) == 0 {
		if ip, err := utilnet.ChooseHostInterface(); err == nil {
			ips = []string{ip.String()}
		} else {
			ips = []string{net.IPv4(127, 0, 0, 1).String()} // a machine without a network
		}
	}
	var out []corev1.NodeAddress
	for _, ip := range ips {
		out = append(out, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip})
	}
	return append(out, corev1.NodeAddress{Type: corev1.NodeHostName, Address: h.cfg.NodeName})
}

func (h *Host) info() corev1.NodeSystemInfo {
	i := corev1.NodeSystemInfo{
		MachineID: read("/etc/machine-id"), SystemUUID: read("/sys/class/dmi/id/product_uuid"), BootID: read("/proc/sys/kernel/random/boot_id"),
		KernelVersion: read("/proc/sys/kernel/osrelease"), OSImage: osImage(), OperatingSystem: runtime.GOOS, Architecture: runtime.GOARCH,
		KubeletVersion: h.cfg.Version,
	}
	if i.SystemUUID == "" {
		i.SystemUUID = i.MachineID
	}
	return i
}

func osImage() string {
	for line := range strings.Lines(read("/etc/os-release")) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "PRETTY_NAME="); ok {
			return strings.Trim(v, `"`)
		}
	}
	return "Linux"
}

// Disk tells how full the file system is on which pods and images are.
func (h *Host) Disk(ctx context.Context) (used, total uint64, err error) {
	fs, err := h.FileSystem(ctx)
	return fs.BytesUsed, fs.Usable(), err
}

// FileSystem on which pods and images are.
func (h *Host) FileSystem(context.Context) (diskusage.FileSystem, error) {
	return diskusage.FileSystemOf(h.cfg.RootDir)
}
