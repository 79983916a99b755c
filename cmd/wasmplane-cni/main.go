// SPDX-License-Identifier: Apache-2.0

// Command wasmplane-cni is the CNI plugins of a node's own network in one small
// binary: bridge, host-local, loopback and portmap, called by those names. It is
// apart from the main binary because the pod's path executes it several times, and
// every execution of a large binary costs 6 ms more than one of this.
//
// The plugins take the configuration of the CNI reference plugins of the same
// names and behave as those do, within what a node needs: fields that would ask
// for more (VLANs, spoof checks, masquerading by the bridge, iptables) are refused
// rather than ignored. DEL and CHECK may be repeated, and DEL of what is not there
// succeeds, as the CNI specification demands.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
)

func main() {
	// Entering a network namespace changes one thread; stay on it.
	runtime.LockOSThread()
	name := strings.TrimSuffix(filepath.Base(os.Args[0]), ".exe")
	plugins := map[string]skel.CNIFuncs{
		"bridge":     {Add: addBridge, Check: checkBridge, Del: delBridge, Status: statusBridge},
		"host-local": {Add: addHostLocal, Check: checkHostLocal, Del: delHostLocal},
		"loopback":   {Add: addLoopback, Check: checkLoopback, Del: delLoopback},
		"portmap":    {Add: addPortmap, Check: checkPortmap, Del: delPortmap},
	}
	funcs, ok := plugins[name]
	if !ok {
		_ = types.NewError(types.ErrInvalidEnvironmentVariables, "unknown CNI plugin "+name,
			"call this program as bridge, host-local, loopback or portmap").Print()
		os.Exit(1)
	}
	skel.PluginMainFuncs(funcs, version.All, fmt.Sprintf("wasmplane CNI plugin %s", name))
}
