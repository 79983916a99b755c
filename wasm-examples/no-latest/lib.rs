// SPDX-License-Identifier: Apache-2.0

//! The no-latest plugin refuses containers whose image has no tag, or the tag latest.
use wasmplane::*;

const IMAGES: [&str; 3] = [
    "object.@podSpec.containers[*].image",
    "object.@podSpec.initContainers[*].image",
    "object.@podSpec.ephemeralContainers[*].image",
];

fn plugin() -> Plugin {
    let hook = Hook::new(decide)
        .rule(&["CREATE", "UPDATE"], &["", "apps", "batch"], &["pods", "pods/ephemeralcontainers", "replicationcontrollers", "deployments", "replicasets", "statefulsets", "daemonsets", "jobs", "cronjobs"])
        .fields(&IMAGES);
    Plugin::new("no-latest", "1.0.0").validate(hook)
}

fn decide(input: &Input, out: &mut Decision) {
    for image in IMAGES.iter().flat_map(|field| input.get(field).items()) {
        let name = image.str().rsplit('/').next().unwrap_or("");
        let pinned = name.contains('@') || name.contains(':') && !name.ends_with(":latest");
        if !pinned {
            out.deny(&format!("image {:?} has no fixed tag: name a version, such as {}:1.2.3", image.str(), name.split(':').next().unwrap_or("")));
        }
    }
}

export!(plugin);
