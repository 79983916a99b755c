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
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/wasmplane/wasmplane/core/kubelet/diskusage"
	"github.com/wasmplane/wasmplane/core/kubelet/evict"
	"github.com/wasmplane/wasmplane/core/kubelet/node"
	"github.com/wasmplane/wasmplane/core/kubelet/reservation"
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
	f := &node.Facts{}
	capacity := h.capacity(mem, disk)
	f.Capacity = capacity.DeepCopy()
	f.Allocatable = h.reserved.Allocatable(capacity, h.keptFree(capacity))
	h.bound(ctx, capacity)
	f.Short, f.Pressure = h.pressure(time.Now(), levels(mem, disk))
	f.Addresses = h.addresses()
	f.Info = h.info()
	return f, nil
}

// capacity of the machine.
func (h *Host) capacity(mem map[string]int64, disk diskusage.FileSystem) corev1.ResourceList {
	out := corev1.ResourceList{
		corev1.ResourceCPU:              *resource.NewQuantity(int64(runtime.NumCPU()), resource.DecimalSI),
		corev1.ResourceMemory:           *resource.NewQuantity(mem["MemTotal"], resource.BinarySI),
		corev1.ResourceEphemeralStorage: *resource.NewQuantity(int64(disk.Usable()), resource.BinarySI), //nolint:gosec // bytes of a disk
		corev1.ResourcePods:             *resource.NewQuantity(h.cfg.MaxPods, resource.DecimalSI),
	}
	hugePages(out)
	return out
}

// keptFree is what evictions keep free of capacity.
func (h *Host) keptFree(capacity corev1.ResourceList) corev1.ResourceList {
	of := func(signal string, name corev1.ResourceName) resource.Quantity {
		all := capacity[name]
		return *resource.NewQuantity(h.rules.Hard[signal].Of(all.Value()), resource.BinarySI)
	}
	return corev1.ResourceList{
		corev1.ResourceMemory:           of(threshold.MemoryAvailable, corev1.ResourceMemory),
		corev1.ResourceEphemeralStorage: of(threshold.DiskAvailable, corev1.ResourceEphemeralStorage),
	}
}

// withPIDs is capacity with the machine's process IDs, which no node says.
func withPIDs(capacity corev1.ResourceList) corev1.ResourceList {
	out := capacity.DeepCopy()
	if _, most, ok := processIDs(); ok {
		out[reservation.PID] = *resource.NewQuantity(most, resource.DecimalSI)
	}
	return out
}

// checkReserved refuses to reserve more than the machine has.
func (h *Host) checkReserved() error {
	mem, err := meminfo()
	if err != nil {
		return err
	}
	disk, err := diskusage.FileSystemOf(h.cfg.RootDir)
	if err != nil {
		return err
	}
	capacity := h.capacity(mem, disk)
	return h.reserved.Check(withPIDs(capacity), h.keptFree(capacity))
}

// pressures are what the conditions of a node that is short of something say.
var pressures = map[corev1.NodeConditionType]string{
	corev1.NodeMemoryPressure: "kubelet has insufficient memory available",
	corev1.NodeDiskPressure:   "kubelet has disk pressure",
	corev1.NodePIDPressure:    "kubelet has insufficient PID available",
}

// levels of what the machine may be short of.
func levels(mem map[string]int64, disk diskusage.FileSystem) []evict.Level {
	var out []evict.Level
	if avail, ok := mem["MemAvailable"]; ok {
		out = append(out, evict.Level{
			Signal: threshold.MemoryAvailable, Resource: corev1.ResourceMemory, Condition: corev1.NodeMemoryPressure,
			Capacity: mem["MemTotal"], Available: avail, Format: resource.BinarySI,
		})
	}
	//nolint:gosec // bytes and inodes of a disk
	out = append(out, evict.Level{
		Signal: threshold.DiskAvailable, Resource: corev1.ResourceEphemeralStorage, Condition: corev1.NodeDiskPressure,
		Capacity: int64(disk.Usable()), Available: int64(disk.BytesFree), Format: resource.BinarySI,
	}, evict.Level{
		Signal: threshold.InodesFree, Resource: node.Inodes, Condition: corev1.NodeDiskPressure,
		Capacity: int64(disk.Inodes), Available: int64(disk.InodesFree), Format: resource.DecimalSI,
	})
	if used, most, ok := processIDs(); ok {
		out = append(out, evict.Level{
			Signal: threshold.PIDsAvailable, Resource: node.PIDs, Condition: corev1.NodePIDPressure,
			Capacity: most, Available: most - used, Format: resource.DecimalSI,
		})
	}
	return out
}

// pressure that the machine is under, by what there was before, too. Whoever asks moves it on.
func (h *Host) pressure(now time.Time, levels []evict.Level) ([]node.Short, map[corev1.NodeConditionType]string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out evict.Outlook
	h.state, out = evict.Next(&h.rules, h.state, now, levels)
	says := map[corev1.NodeConditionType]string{}
	for _, condition := range out.Pressure {
		says[condition] = pressures[condition]
	}
	return out.Short, says
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
	if h.swap.Swap > 0 {
		i.Swap = &corev1.NodeSwapStatus{Capacity: &h.swap.Swap}
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
