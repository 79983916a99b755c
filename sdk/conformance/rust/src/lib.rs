// SPDX-License-Identifier: Apache-2.0

//! The conformance guest in Rust: it does what the guests in other languages do.
use std::cell::RefCell;
use wasmplane::*;

thread_local! { static SETTINGS: RefCell<Json> = RefCell::new(Json::Null); }

fn key() -> String {
    SETTINGS.with(|s| s.borrow().get("key").str().into())
}

fn configure(s: &Json) -> Result<(), String> {
    if !s.get("refuse").str().is_empty() {
        return Err(s.get("refuse").str().into());
    }
    SETTINGS.with(|all| all.replace(s.clone()));
    Ok(())
}

fn mutate(input: &Input, out: &mut Decision) {
    if input.get("whole").exists() {
        return out.set_object(Json::object([("kind", "Pod".into()), ("was", input.get("whole").into())]));
    }
    out.add("/echo", input.root());
    out.add(&format!("/metadata/labels/{}", token(&key())), SETTINGS.with(|s| s.borrow().to_string()));
    out.replace("/spec/replicas", input.get("spec.replicas").int() + 1);
    out.remove("/spec/paused");
    out.warn("careful \"now\"\n");
    out.audit("key", &key());
}

fn validate(input: &Input, out: &mut Decision) {
    match input.get("operation").str() {
        "CREATE" => {
            out.deny_field("metadata.name", &format!("not {}", input.at(0).str()));
            out.code(422);
        }
        "DELETE" => {
            out.deny("in use");
            out.reason("Conflict");
        }
        "CONNECT" => fail("cannot tell"),
        _ => {}
    }
}

fn convert(input: &Input, out: &mut Decision) {
    if !input.at(0).exists() {
        return out.deny("no hostPort");
    }
    out.move_to("/spec/hostPort", "/spec/address");
    out.add("/spec/as", input.get("desiredAPIVersion").str());
}

fn validate_custom(input: &Input, out: &mut Decision) {
    if input.at(0).int() > 9 {
        out.cause("spec.port", "too \"high\"");
        out.cause("spec.name", "missing");
    }
}

fn authorize(input: &Input) -> Verdict {
    match (input.at(0).str(), input.at(1).str()) {
        ("root", _) => Verdict::Allow("root may".into()),
        (user, "closed") => Verdict::Deny(format!("closed to {}", user)),
        _ => Verdict::NoOpinion,
    }
}

fn filter(input: &Input) -> Fit {
    match input.at(0).str() {
        name if name.starts_with("bad") => Fit::Unfit("node(s) were bad".into()),
        name if name.starts_with("worst") => Fit::Never("node(s) were worst".into()),
        _ => Fit::Fits,
    }
}

fn pre_enqueue(input: &Input) -> Result<(), String> {
    let gate = input.at(0).get("gate");
    if gate.exists() { Err(format!("waits for {}", gate.str())) } else { Ok(()) }
}

fn pre_filter(input: &Input, out: &mut Selection) {
    match input.at(0).str() {
        "none" => out.refuse("no node for none"),
        "never" => out.never("never runs"),
        "skip" => out.skip(),
        "state" => out.keep(Json::object([("zone", "a".into())])),
        "narrow" => out.only([input.get("nodes").at(0).str()]),
        "nowhere" => out.only([]),
        _ => {}
    }
}

fn post_filter(input: &Input, out: &mut Nomination) {
    if input.at(0).str() == "owner" {
        out.reclaim("a", &[("milliCPU", 64000), ("example.com/gpu", 8)]);
        return out.reclaim_below("b \"c\"", -100);
    }
    if input.at(0).str() != "urgent" {
        return out.explain("nothing to evict");
    }
    out.nominate(input.at(1).at(0).str());
    out.evict("default", "victim", "u1");
}

fn pre_score(input: &Input, out: &mut Preparation) {
    match input.at(0).len() {
        1 => out.skip(),
        n => out.keep(n as i64),
    }
}

fn normalize(input: &Input, scores: &mut [i64]) {
    scores.iter_mut().for_each(|s| *s *= input.get("state").int());
}

fn refuse(node: &'static str, reason: &'static str) -> impl Fn(&Input) -> Result<(), String> {
    move |input| if input.at(0).str() == node { Err(reason.into()) } else { Ok(()) }
}

fn told(input: &Input) {
    if input.at(0).str() == "broken" {
        fail("it broke");
    }
}

fn permit(input: &Input) -> Permission {
    match input.at(0).str() {
        "hold" if input.at(1).float() < 5.0 => Permission::Wait(2.5, "hold on".into()),
        "no" => Permission::Reject("no".into()),
        _ => Permission::Proceed,
    }
}

fn bind(input: &Input, out: &mut Binding) {
    match input.at(0).str() {
        "plain" => out.bind(),
        "noted" => out.annotate("example.com/by", "me \"x\""),
        "refused" => out.refuse("not there"),
        _ => {}
    }
}

fn rate(input: &Input) -> i64 {
    let pods = input.at(0).int();
    match pods {
        7 => host_call("test.echo", b"{\"n\":3000}").and_then(|r| parse(&r)).map_or(0, |v| v.get("text").str().len() as i64 / 100),
        8 if host_call("test.none", b"").is_err() => 99,
        _ => 3 * pods,
    }
}

fn judge(pod: &[i64], node: &[i64]) -> Judgement {
    let room = node[1] - node[0];
    if room <= 0 {
        Judgement::Never(1)
    } else if pod[0] > room {
        Judgement::Unfit(0)
    } else {
        Judgement::Fits(room)
    }
}

fn plan(input: &Input, out: &mut Plan) -> Result<(), String> {
    let (name, primary) = (input.get("name").str(), input.get("primary"));
    if primary.is_null() {
        out.delete("v1", "Service", input.get("namespace").str(), name);
        return Ok(());
    }
    if name == "db" {
        let scale = Target { api_version: "apps/v1", kind: "Deployment", name: "db", subresource: "scale", ..Target::default() };
        out.patch(scale, Patch::new().test("/spec/replicas", 3i64).replace("/spec/replicas", 0i64));
        out.delete_target(Target { api_version: "v1", kind: "Service", name: "old", uid: "u-1", resource_version: "7", propagation: "Foreground", ..Target::default() });
        return Ok(());
    }
    if name == "broken" {
        return Err(format!("broken {:?}", name));
    }
    out.apply(Json::object([
        ("apiVersion", "v1".into()),
        ("kind", "Service".into()),
        ("metadata", Json::object([("name", name.into())])),
        ("spec", primary.get("spec").into()),
    ]));
    out.status(Json::object([("seen", true.into())]));
    out.condition("Ready", "True", "Made", "made it");
    out.event("Normal", "Made", &format!("made {}", name));
    out.requeue(30);
    Ok(())
}

fn admit(input: &Input) -> (String, String) {
    if input.at(0).bool() { ("HostNetwork".into(), "no".into()) } else { Default::default() }
}

fn watch(group: &'static str, resource: &'static str, kind: &'static str, selector: &'static str) -> Watch {
    Watch { group, version: "v1", resource, kind, selector }
}

fn plugin() -> Plugin {
    Plugin::new("conformance", "1.2.3")
        .settings(configure)
        .settings_schema(r#"{"required": ["key"]}"#)
        .groups(Groups::by("pod.metadata.namespace").name("red", "a").name("crimson", "a").other("b \"c\""))
        .mutate(Hook::new(mutate).rule_of(&["CREATE"], &[""], &["v1"], &["pods"]))
        .validate(
            Hook::new(validate)
                .fields(&["object.metadata.name", "object.metadata.labels", "operation"])
                .alternatives(&[("@size", &[("Deployment", "spec.replicas"), ("*", "spec.size")])])
                .side_effects(SideEffects::NoneOnDryRun),
        )
        .convert(Hook::new(convert).rule(&[], &["example.com"], &["endpoints"]).fields(&["object.spec.hostPort", "desiredAPIVersion"]))
        .validate_custom(Hook::new(validate_custom).fields(&["object.spec.port"]))
        .authorize(Hook::new(authorize).fields(&["user", "resourceAttributes.namespace"]).pure())
        .pre_enqueue(Hook::new(pre_enqueue).fields(&["pod.metadata.labels"]).events(&[Event::PodChanged]))
        .queue_sort(Hook::new(|i: &Input| 10 * i.at(0).int()).fields(&["pod.spec.priority"]))
        .pre_filter(Hook::new(pre_filter).fields(&["pod.metadata.name", "nodes"]))
        .filter(Hook::new(filter).fields(&["node.metadata.name"]).events(&[Event::NodeAdded, Event::PodRemoved]))
        .post_filter(Hook::new(post_filter).fields(&["pod.metadata.name", "failed[*].node"]).pure())
        .pre_score(Hook::new(pre_score).fields(&["nodes"]))
        .normalize(Hook::new(normalize).fields(&["state"]))
        .reserve(Hook::new(refuse("full", "node full is full")).fields(&["nodeName"]))
        .unreserve(Hook::new(told).fields(&["nodeName"]))
        .permit(Hook::new(permit).fields(&["nodeName", "waitedSeconds"]))
        .pre_bind(Hook::new(refuse("unready", "not ready")).fields(&["nodeName"]))
        .bind(Hook::new(bind).fields(&["nodeName"]))
        .post_bind(Hook::new(told).fields(&["nodeName"]))
        .score(Hook::new(rate).fields(&["pods"]))
        .table(Table::new(judge).column(Column::int("pods")).column(Column::int("allocatable.pods")).pod(Column::int("requests.milliCPU")).reason("full").reason("never"))
        .reconcile(watch("apps", "deployments", "Deployment", "app=web"), vec![watch("", "services", "Service", "")], Hook::new(plan))
        .node_admission(Hook::new(admit).fields(&["pod.spec.hostNetwork"]))
}

export!(plugin);
