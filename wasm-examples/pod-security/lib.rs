// SPDX-License-Identifier: Apache-2.0

//! The pod-security plugin holds pods to the Pod Security Standards, in their newest
//! version: what a namespace's labels name, or the settings where they name nothing.
mod checks;

use checks::{Level, Pod};
use std::cell::RefCell;
use wasmplane::*;

#[derive(Clone, Copy, Default)]
struct Settings {
    enforce: Level,
    warn: Level,
    audit: Level,
    namespace_labels: bool,
}

thread_local! { static SETTINGS: RefCell<Settings> = RefCell::default(); }

const FIELDS: [&str; 4] = ["kind.kind", "namespace", "object.@podSpec", "object.@podMeta.annotations"];

fn plugin() -> Plugin {
    let hook = Hook::new(decide)
        .rule(&["CREATE"], &[""], &["pods"])
        .rule(&["UPDATE"], &[""], &["pods/ephemeralcontainers"])
        .rule(&["CREATE", "UPDATE"], &["", "apps", "batch"], &["replicationcontrollers", "podtemplates", "deployments", "replicasets", "statefulsets", "daemonsets", "jobs", "cronjobs"])
        .fields(&FIELDS);
    let plugin = Plugin::new("pod-security", "1.0.0").settings(configure).validate(hook);
    if SETTINGS.with(|s| s.borrow().namespace_labels) { plugin.needs("objects.get") } else { plugin }
}

fn configure(given: &Json) -> Result<(), String> {
    let level = |key| match given.get(key).str() {
        "" => Ok(Level::Privileged),
        name => Level::named(name).ok_or_else(|| format!("{} is {:?}: privileged, baseline or restricted was expected", key, name)),
    };
    let settings = Settings { enforce: level("enforce")?, warn: level("warn")?, audit: level("audit")?, namespace_labels: given.get("namespaceLabels").bool() };
    SETTINGS.with(|s| s.replace(settings));
    Ok(())
}

/// The levels of a namespace: its labels go before the settings.
fn levels(namespace: &str) -> Settings {
    let mut levels = SETTINGS.with(|s| *s.borrow());
    if !levels.namespace_labels {
        return levels;
    }
    let question = Json::object([("apiVersion", "v1".into()), ("kind", "Namespace".into()), ("name", namespace.into()), ("fields", Json::Array(vec!["metadata.labels".into()]))]);
    let answer = match host_call("objects.get", question.to_string().as_bytes()).and_then(|reply| parse(&reply)) {
        Ok(answer) => answer,
        Err(e) => {
            fail(&format!("cannot read namespace {:?}: {}", namespace, e)); // the failure policy decides
            return levels;
        }
    };
    let labels = answer.get("object").get("metadata").get("labels");
    for (mode, level) in [("enforce", &mut levels.enforce), ("warn", &mut levels.warn), ("audit", &mut levels.audit)] {
        match labels.get(&format!("pod-security.kubernetes.io/{}", mode)).str() {
            "" => {}
            // A level that nobody knows is the strictest, as upstream has it.
            name => *level = Level::named(name).unwrap_or(Level::Restricted),
        }
    }
    levels
}

fn decide(input: &Input, out: &mut Decision) {
    let (levels, pod) = (levels(input.at(1).str()), Pod::new(input.at(2), input.at(3)));
    if !input.at(2).exists() {
        return;
    }
    let violations = |level: Level| pod.violations(level).map(|text| (level, text));
    // A controller is told at once what its pods will be refused for.
    let is_pod = input.at(0).str() == "Pod";
    if let Some((level, text)) = violations(levels.enforce) {
        if is_pod {
            return out.deny(&format!("violates PodSecurity \"{}:latest\": {}", level.name(), text));
        }
        out.warn(&format!("would violate PodSecurity \"{}:latest\": {}", level.name(), text));
    }
    if let Some((level, text)) = violations(levels.warn).filter(|(level, _)| is_pod || *level != levels.enforce) {
        out.warn(&format!("would violate PodSecurity \"{}:latest\": {}", level.name(), text));
    }
    if let Some((level, text)) = violations(levels.audit) {
        out.audit("violations", &format!("would violate PodSecurity \"{}:latest\": {}", level.name(), text));
    }
}

export!(plugin);
