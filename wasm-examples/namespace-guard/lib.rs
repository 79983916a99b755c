// SPDX-License-Identifier: Apache-2.0

//! The namespace-guard plugin keeps people out of namespaces, whatever RBAC says.
use std::cell::RefCell;
use wasmplane::*;

#[derive(Default)]
struct Rule {
    namespaces: Vec<String>,
    users: Vec<String>,
    groups: Vec<String>,
    reason: String,
}

thread_local! { static RULES: RefCell<Vec<Rule>> = RefCell::default(); }

fn plugin() -> Plugin {
    let hook = Hook::new(decide).fields(&["user", "groups", "resourceAttributes.namespace"]);
    Plugin::new("namespace-guard", "1.0.0").settings(configure).authorize(hook)
}

fn configure(settings: &Json) -> Result<(), String> {
    let strings = |v: &Json| v.items().iter().map(|s| s.str().to_string()).collect::<Vec<_>>();
    let rule = |r: &Json| Rule { namespaces: strings(r.get("namespaces")), users: strings(r.get("users")), groups: strings(r.get("groups")), reason: r.get("reason").str().into() };
    let rules: Vec<Rule> = settings.get("deny").items().iter().map(rule).collect();
    if rules.iter().any(|r| r.namespaces.is_empty() || r.users.is_empty() && r.groups.is_empty()) {
        return Err("each rule of deny needs namespaces, and users or groups".into());
    }
    RULES.with(|all| all.replace(rules));
    Ok(())
}

fn decide(input: &Input) -> Verdict {
    let (user, namespace) = (input.at(0).str(), input.at(2).str());
    let applies = |r: &Rule| {
        r.namespaces.iter().any(|n| n == namespace)
            && (r.users.iter().any(|u| u == user) || input.at(1).items().any(|g| r.groups.iter().any(|x| x == g.str())))
    };
    RULES.with(|rules| match rules.borrow().iter().find(|r| applies(r)) {
        Some(r) if r.reason.is_empty() => Verdict::Deny(format!("{} may not enter namespace {}", user, namespace)),
        Some(r) => Verdict::Deny(r.reason.clone()),
        None => Verdict::NoOpinion,
    })
}

export!(plugin);
