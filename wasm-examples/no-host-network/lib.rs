// SPDX-License-Identifier: Apache-2.0

//! The no-host-network plugin keeps a node from running pods that share its
//! network, unless they are the cluster's own.
use wasmplane::*;

fn plugin() -> Plugin {
    let hook = Hook::new(admit).fields(&["pod.spec.hostNetwork", "pod.metadata.namespace", "node.metadata.name"]);
    Plugin::new("no-host-network", "1.0.0").node_admission(hook)
}

fn admit(input: &Input) -> (String, String) {
    if !input.at(0).bool() || input.at(1).str() == "kube-system" {
        return Default::default();
    }
    ("HostNetworkForbidden".into(), format!("node {} runs no pods of namespace {} in its own network", input.at(2).str(), input.at(1).str()))
}

export!(plugin);
