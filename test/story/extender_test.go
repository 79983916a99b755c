// SPDX-License-Identifier: Apache-2.0

package story

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"os"

	extenderv1 "k8s.io/kube-scheduler/extender/v1"
)

// serveExtender is a scheduler extender: extender RESERVED BEST. It keeps all pods from the node RESERVED and rates the
// node BEST highest.
func serveExtender() {
	reserved, best := os.Args[1], os.Args[2]
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var args extenderv1.ExtenderArgs
		if err := json.NewDecoder(r.Body).Decode(&args); err != nil || args.NodeNames == nil {
			log.Printf("not a question about nodes: %v", err)
			http.Error(w, "expected the names of nodes", http.StatusBadRequest)
			return
		}
		filtered := extenderv1.ExtenderFilterResult{NodeNames: &[]string{}, FailedNodes: extenderv1.FailedNodesMap{}}
		rated := extenderv1.HostPriorityList{}
		for _, node := range *args.NodeNames {
			if node == reserved {
				filtered.FailedNodes[node] = "node(s) were reserved for the night"
			} else {
				*filtered.NodeNames = append(*filtered.NodeNames, node)
			}
			if node == best {
				rated = append(rated, extenderv1.HostPriority{Host: node, Score: extenderv1.MaxExtenderPriority})
			}
		}
		var answer any = filtered
		if r.URL.Path == "/night/prioritize" {
			answer = rated
		}
		_ = json.NewEncoder(w).Encode(answer)
	}))
	defer s.Close()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	fmt.Printf("serving at %s with %s\n", s.URL, base64.StdEncoding.EncodeToString(ca))
	select {}
}
