//! The image-policy plugin: see the package's documentation. It reads what it asked for.
use wasmplane::*;

const FIELDS: [&str; 5] = [
    "object.spec.containers[*].image",
    "object.spec.initContainers[*].image",
    "object.spec.containers[*].securityContext.privileged",
    "object.spec.initContainers[*].securityContext.privileged",
    "object.metadata.labels",
];

fn plugin() -> Plugin {
    let validate = Hook::new(|input: &Input, out: &mut Decision| {
        judge(input, out);
    });
    let mutate = Hook::new(|input: &Input, out: &mut Decision| {
        if judge(input, out) && !input.at(4).get("checked").exists() {
            out.add("/metadata/labels/checked", "yes");
        }
    });
    Plugin::new("image-policy", "1.0.0")
        .validate(validate.rule(&["CREATE"], &[""], &["pods"]).fields(&FIELDS[..4]))
        .mutate(mutate.rule(&["CREATE"], &[""], &["pods"]).fields(&FIELDS))
}

fn judge(input: &Input, out: &mut Decision) -> bool {
    for image in input.at(0).items().chain(input.at(1).items()) {
        if !pinned(image.str()) {
            out.deny(&["image ", image.str(), " has no fixed tag"].concat());
            return false;
        }
    }
    if input.at(2).items().chain(input.at(3).items()).any(|right| right.bool()) {
        out.deny("a container is privileged");
        return false;
    }
    true
}

fn pinned(image: &str) -> bool {
    let name = image.rsplit('/').next().unwrap_or("");
    name.contains('@') || name.contains(':') && !name.ends_with(":latest")
}

export!(plugin);
