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
    out.add("/echo", input.root());
    out.add(&format!("/metadata/labels/{}", token(&key())), SETTINGS.with(|s| s.borrow().to_string()));
    out.replace("/spec/replicas", input.get("spec.replicas").int() + 1);
    out.remove("/spec/paused");
    out.warn("careful \"now\"\n");
    out.audit("key", &key());
}

fn validate(input: &Input, out: &mut Decision) {
    if input.get("operation").str() == "CREATE" {
        out.deny_field("metadata.name", &format!("not {}", input.at(0).str()));
        out.code(422);
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

fn filter(input: &Input) -> String {
    if input.at(0).str().starts_with("bad") { "node(s) were bad".into() } else { String::new() }
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
        .mutate(Hook::new(mutate).rule_of(&["CREATE"], &[""], &["v1"], &["pods"]))
        .validate(Hook::new(validate).fields(&["object.metadata.name", "object.metadata.labels", "operation"]))
        .convert(Hook::new(convert).rule(&[], &["example.com"], &["endpoints"]).fields(&["object.spec.hostPort", "desiredAPIVersion"]))
        .validate_custom(Hook::new(validate_custom).fields(&["object.spec.port"]))
        .authorize(Hook::new(authorize).fields(&["user", "resourceAttributes.namespace"]))
        .filter(Hook::new(filter).fields(&["node.metadata.name"]))
        .score(Hook::new(rate).fields(&["pods"]))
        .table(Table::new(judge).column(Column::int("pods")).column(Column::int("allocatable.pods")).pod(Column::int("requests.milliCPU")).reason("full").reason("never"))
        .reconcile(watch("apps", "deployments", "Deployment", "app=web"), vec![watch("", "services", "Service", "")], Hook::new(plan))
        .node_admission(Hook::new(admit).fields(&["pod.spec.hostNetwork"]))
}

export!(plugin);
