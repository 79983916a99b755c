// SPDX-License-Identifier: Apache-2.0

//! The controls of the Pod Security Standards
//! (https://kubernetes.io/docs/concepts/security/pod-security-standards), and the words in which
//! Kubernetes says what is wrong.
use std::collections::BTreeSet;
use wasmplane::Value;

/// A level of the standards.
#[derive(Clone, Copy, Default, PartialEq)]
pub enum Level {
    /// Everything is allowed.
    #[default]
    Privileged,
    /// Known ways out of a container are not.
    Baseline,
    /// What is thought good practice is required.
    Restricted,
}

impl Level {
    pub fn named(name: &str) -> Option<Level> {
        [Level::Privileged, Level::Baseline, Level::Restricted].into_iter().find(|l| l.name() == name)
    }

    pub fn name(self) -> &'static str {
        match self {
            Level::Privileged => "privileged",
            Level::Baseline => "baseline",
            Level::Restricted => "restricted",
        }
    }
}

/// What is wrong: the control, and the details.
type Violation = Option<(String, String)>;
type Check = fn(&Pod) -> Violation;

/// The controls of the two levels that have any, in the order in which they are told.
const BASELINE: [Check; 12] = [
    app_armor, capabilities, host_namespaces, host_paths, host_ports, host_probes, privileged, proc_mount, se_linux, seccomp, sysctls, host_process,
];
const RESTRICTED: [Check; 15] = [
    app_armor, host_namespaces, host_ports, host_probes, privileged, se_linux, sysctls, host_process,
    privilege_escalation, dropped_capabilities, masked_proc_mount, volumes, non_root, root_user, required_seccomp,
];

/// A pod, or what a controller makes its pods of.
pub struct Pod<'a> {
    spec: Value<'a>,
    annotations: Value<'a>,
    containers: Vec<Value<'a>>,
}

impl<'a> Pod<'a> {
    pub fn new(spec: Value<'a>, annotations: Value<'a>) -> Pod<'a> {
        let containers = ["initContainers", "containers", "ephemeralContainers"].iter().flat_map(|key| spec.get(key).items()).collect();
        Pod { spec, annotations, containers }
    }

    /// What is wrong at a level, in one sentence.
    pub fn violations(&self, level: Level) -> Option<String> {
        let checks: &[Check] = match level {
            Level::Privileged => return None,
            Level::Baseline => &BASELINE,
            Level::Restricted => &RESTRICTED,
        };
        let told: Vec<String> = checks
            .iter()
            .filter_map(|check| check(self))
            .map(|(what, detail)| if detail.is_empty() { what } else { format!("{} ({})", what, detail) })
            .collect();
        if told.is_empty() { None } else { Some(told.join(", ")) }
    }

    fn security(&self) -> Value<'a> {
        self.spec.get("securityContext")
    }

    /// Windows has none of what some controls are about.
    fn windows(&self) -> bool {
        self.spec.get("os").get("name").str() == "windows"
    }

    /// In a user namespace of its own, root is nobody outside.
    fn user_namespace(&self) -> bool {
        let users = self.spec.get("hostUsers");
        users.exists() && !users.is_null() && !users.bool()
    }

    /// The names of the containers of which this is true.
    fn where_container(&self, bad: impl Fn(Value<'a>) -> bool) -> Vec<&'a str> {
        self.containers.iter().filter(|c| bad(**c)).map(|c| c.get("name").str()).collect()
    }
}

fn set(v: Value) -> bool {
    v.exists() && !v.is_null()
}

fn quoted<'a>(list: impl IntoIterator<Item = &'a str>) -> String {
    format!("\"{}\"", list.into_iter().collect::<Vec<_>>().join("\", \""))
}

fn plural<'a>(n: usize, one: &'a str, more: &'a str) -> &'a str {
    if n == 1 { one } else { more }
}

/// container "a", or containers "a", "b".
fn containers(names: &[&str]) -> String {
    format!("{} {}", plural(names.len(), "container", "containers"), quoted(names.iter().copied()))
}

/// Who set something: the pod, containers, or both. None where nobody did.
fn setters(pod: bool, names: &[&str]) -> Option<String> {
    match (pod, names.is_empty()) {
        (false, true) => None,
        (true, true) => Some("pod".into()),
        (false, false) => Some(containers(names)),
        (true, false) => Some(format!("pod and {}", containers(names))),
    }
}

fn refuse(what: &str, detail: String) -> Violation {
    Some((what.into(), detail))
}

fn app_armor(pod: &Pod) -> Violation {
    let bad = |v: Value| set(v) && !matches!(v.get("type").str(), "RuntimeDefault" | "Localhost");
    let mut values = BTreeSet::new();
    let profile = pod.security().get("appArmorProfile");
    if bad(profile) {
        values.insert(profile.get("type").str().to_string());
    }
    let names = pod.where_container(|c| bad(c.get("securityContext").get("appArmorProfile")));
    for c in &pod.containers {
        let v = c.get("securityContext").get("appArmorProfile");
        if bad(v) {
            values.insert(v.get("type").str().to_string());
        }
    }
    let annotations: BTreeSet<String> = pod
        .annotations
        .entries()
        .filter(|(k, v)| k.starts_with("container.apparmor.security.beta.kubernetes.io/") && !(matches!(v.str(), "" | "runtime/default") || v.str().starts_with("localhost/")))
        .map(|(k, v)| format!("{}={:?}", k, v.str()))
        .collect();
    let mut who: Vec<String> = setters(bad(profile), &names).into_iter().collect();
    if !annotations.is_empty() {
        who.push(plural(annotations.len(), "annotation", "annotations").into());
    }
    if who.is_empty() {
        return None;
    }
    let all: Vec<&str> = values.iter().chain(annotations.iter()).map(String::as_str).collect();
    let what = plural(all.len(), "forbidden AppArmor profile", "forbidden AppArmor profiles");
    refuse(what, format!("{} must not set AppArmor profile type to {}", who.join(" and "), quoted(all)))
}

fn added<'a>(c: Value<'a>) -> impl Iterator<Item = &'a str> {
    c.get("securityContext").get("capabilities").get("add").items().map(|v| v.str())
}

const DEFAULT_CAPABILITIES: [&str; 13] = [
    "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
];

fn capabilities(pod: &Pod) -> Violation {
    let bad = |name: &str| !DEFAULT_CAPABILITIES.contains(&name);
    let names = pod.where_container(|c| added(c).any(bad));
    let values: BTreeSet<&str> = pod.containers.iter().flat_map(|c| added(*c)).filter(|name| bad(name)).collect();
    if names.is_empty() {
        return None;
    }
    refuse("non-default capabilities", format!("{} must not include {} in securityContext.capabilities.add", containers(&names), quoted(values)))
}

fn dropped_capabilities(pod: &Pod) -> Violation {
    if pod.windows() {
        return None;
    }
    let mut told = Vec::new();
    let kept = pod.where_container(|c| !c.get("securityContext").get("capabilities").get("drop").items().any(|v| v.str() == "ALL"));
    if !kept.is_empty() {
        told.push(format!("{} must set securityContext.capabilities.drop=[\"ALL\"]", containers(&kept)));
    }
    let bad = |name: &str| name != "NET_BIND_SERVICE";
    let names = pod.where_container(|c| added(c).any(bad));
    if !names.is_empty() {
        let values: BTreeSet<&str> = pod.containers.iter().flat_map(|c| added(*c)).filter(|name| bad(name)).collect();
        told.push(format!("{} must not include {} in securityContext.capabilities.add", containers(&names), quoted(values)));
    }
    if told.is_empty() { None } else { refuse("unrestricted capabilities", told.join("; ")) }
}

fn host_namespaces(pod: &Pod) -> Violation {
    let shared: Vec<String> = ["hostNetwork", "hostPID", "hostIPC"].iter().filter(|key| pod.spec.get(key).bool()).map(|key| format!("{}=true", key)).collect();
    if shared.is_empty() { None } else { refuse("host namespaces", shared.join(", ")) }
}

fn host_paths(pod: &Pod) -> Violation {
    let names: Vec<&str> = pod.spec.get("volumes").items().filter(|v| set(v.get("hostPath"))).map(|v| v.get("name").str()).collect();
    if names.is_empty() {
        return None;
    }
    refuse("hostPath volumes", format!("{} {}", plural(names.len(), "volume", "volumes"), quoted(names.iter().copied())))
}

fn host_ports(pod: &Pod) -> Violation {
    let ports = |c: Value| -> Vec<i64> { c.get("ports").items().map(|p| p.get("hostPort").int()).filter(|port| *port != 0).collect() };
    let names = pod.where_container(|c| !ports(c).is_empty());
    if names.is_empty() {
        return None;
    }
    // As text, which is how Kubernetes sorts them.
    let all: BTreeSet<String> = pod.containers.iter().flat_map(|c| ports(*c)).map(|port| port.to_string()).collect();
    let list = all.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    refuse("hostPort", format!("{} {} {} {}", containers(&names), plural(names.len(), "uses", "use"), plural(all.len(), "hostPort", "hostPorts"), list))
}

fn probe_hosts<'a>(c: Value<'a>) -> Vec<&'a str> {
    let lifecycle = c.get("lifecycle");
    let handlers = [c.get("livenessProbe"), c.get("readinessProbe"), c.get("startupProbe"), lifecycle.get("postStart"), lifecycle.get("preStop")];
    handlers.iter().flat_map(|h| [h.get("httpGet").get("host").str(), h.get("tcpSocket").get("host").str()]).filter(|host| !host.is_empty()).collect()
}

fn host_probes(pod: &Pod) -> Violation {
    let names: BTreeSet<&str> = pod.where_container(|c| !probe_hosts(c).is_empty()).into_iter().collect();
    if names.is_empty() {
        return None;
    }
    let hosts: BTreeSet<&str> = pod.containers.iter().flat_map(|c| probe_hosts(*c)).collect();
    let names: Vec<&str> = names.into_iter().collect();
    let what = plural(hosts.len(), "probe or lifecycle host", "probe or lifecycle hosts");
    refuse("probe or lifecycle host", format!("{} {} {} {}", containers(&names), plural(names.len(), "uses", "use"), what, quoted(hosts)))
}

fn privileged(pod: &Pod) -> Violation {
    let names = pod.where_container(|c| c.get("securityContext").get("privileged").bool());
    if names.is_empty() { None } else { refuse("privileged", format!("{} must not set securityContext.privileged=true", containers(&names))) }
}

fn proc_mount(pod: &Pod) -> Violation {
    if pod.user_namespace() { None } else { masked_proc_mount(pod) }
}

fn masked_proc_mount(pod: &Pod) -> Violation {
    let bad = |c: Value| {
        let v = c.get("securityContext").get("procMount");
        set(v) && v.str() != "Default"
    };
    let names = pod.where_container(bad);
    if names.is_empty() {
        return None;
    }
    let values: BTreeSet<&str> = pod.containers.iter().filter(|c| bad(**c)).map(|c| c.get("securityContext").get("procMount").str()).collect();
    refuse("procMount", format!("{} must not set securityContext.procMount to {}", containers(&names), quoted(values)))
}

fn se_linux(pod: &Pod) -> Violation {
    let wrong_type = |v: Value| !matches!(v.get("type").str(), "" | "container_t" | "container_init_t" | "container_kvm_t" | "container_engine_t");
    let bad = |v: Value| wrong_type(v) || !v.get("user").str().is_empty() || !v.get("role").str().is_empty();
    let all: Vec<Value> = std::iter::once(pod.security()).chain(pod.containers.iter().map(|c| c.get("securityContext"))).map(|v| v.get("seLinuxOptions")).collect();
    let who = setters(bad(all[0]), &pod.where_container(|c| bad(c.get("securityContext").get("seLinuxOptions"))))?;
    let types: BTreeSet<&str> = all.iter().filter(|v| wrong_type(**v)).map(|v| v.get("type").str()).collect();
    let mut told = Vec::new();
    if !types.is_empty() {
        told.push(format!("{} {}", plural(types.len(), "type", "types"), quoted(types)));
    }
    for key in ["user", "role"] {
        if all.iter().any(|v| !v.get(key).str().is_empty()) {
            told.push(format!("{} may not be set", key));
        }
    }
    refuse("seLinuxOptions", format!("{} set forbidden securityContext.seLinuxOptions: {}", who, told.join("; ")))
}

fn wrong_seccomp(v: Value) -> bool {
    set(v) && !matches!(v.get("type").str(), "RuntimeDefault" | "Localhost")
}

fn seccomp(pod: &Pod) -> Violation {
    let of = |v: Value| wrong_seccomp(v.get("seccompProfile"));
    let who = setters(of(pod.security()), &pod.where_container(|c| of(c.get("securityContext"))))?;
    let all = std::iter::once(pod.security()).chain(pod.containers.iter().map(|c| c.get("securityContext")));
    let values: BTreeSet<&str> = all.map(|v| v.get("seccompProfile")).filter(|v| wrong_seccomp(*v)).map(|v| v.get("type").str()).collect();
    refuse("seccompProfile", format!("{} must not set securityContext.seccompProfile.type to {}", who, quoted(values)))
}

fn required_seccomp(pod: &Pod) -> Violation {
    if pod.windows() {
        return None;
    }
    let forbidden = seccomp(pod);
    if forbidden.is_some() {
        return forbidden;
    }
    if set(pod.security().get("seccompProfile")) {
        return None;
    }
    let names = pod.where_container(|c| !set(c.get("securityContext").get("seccompProfile")));
    if names.is_empty() {
        return None;
    }
    refuse("seccompProfile", format!("pod or {} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\"", containers(&names)))
}

const SAFE_SYSCTLS: [&str; 14] = [
    "kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_local_reserved_ports", "net.ipv4.ip_unprivileged_port_start", "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_notsent_lowat",
    "net.ipv4.tcp_rmem", "net.ipv4.tcp_slow_start_after_idle", "net.ipv4.tcp_syncookies", "net.ipv4.tcp_wmem",
];

fn sysctls(pod: &Pod) -> Violation {
    let names: Vec<&str> = pod.security().get("sysctls").items().map(|s| s.get("name").str()).filter(|name| !SAFE_SYSCTLS.contains(name)).collect();
    if names.is_empty() { None } else { refuse("forbidden sysctls", names.join(", ")) }
}

fn host_process(pod: &Pod) -> Violation {
    let bad = |v: Value| v.get("windowsOptions").get("hostProcess").bool();
    let who = setters(bad(pod.security()), &pod.where_container(|c| bad(c.get("securityContext"))))?;
    refuse("hostProcess", format!("{} must not set securityContext.windowsOptions.hostProcess=true", who))
}

fn privilege_escalation(pod: &Pod) -> Violation {
    if pod.windows() {
        return None;
    }
    let refused = |v: Value| set(v) && !v.bool();
    let names = pod.where_container(|c| !refused(c.get("securityContext").get("allowPrivilegeEscalation")));
    if names.is_empty() {
        return None;
    }
    refuse("allowPrivilegeEscalation != false", format!("{} must set securityContext.allowPrivilegeEscalation=false", containers(&names)))
}

const VOLUMES: [&str; 9] = ["configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image", "persistentVolumeClaim", "projected", "secret"];

fn volumes(pod: &Pod) -> Violation {
    let bad = |v: &Value| !VOLUMES.iter().any(|kind| set(v.get(kind)));
    let names: Vec<&str> = pod.spec.get("volumes").items().filter(bad).map(|v| v.get("name").str()).collect();
    if names.is_empty() {
        return None;
    }
    let kind = |v: Value| v.entries().map(|(key, _)| key.to_string()).find(|key| key != "name").unwrap_or_else(|| "unknown".into());
    let kinds: BTreeSet<String> = pod.spec.get("volumes").items().filter(bad).map(kind).collect();
    refuse(
        "restricted volume types",
        format!(
            "{} {} {} {} {}",
            plural(names.len(), "volume", "volumes"),
            quoted(names.iter().copied()),
            plural(names.len(), "uses", "use"),
            plural(kinds.len(), "restricted volume type", "restricted volume types"),
            quoted(kinds.iter().map(String::as_str))
        ),
    )
}

fn non_root(pod: &Pod) -> Violation {
    if pod.user_namespace() {
        return None;
    }
    let of = |v: Value| -> Option<bool> { Some(v.get("runAsNonRoot")).filter(|v| set(*v)).map(|v| v.bool()) };
    let whole = of(pod.security());
    if let Some(who) = setters(whole == Some(false), &pod.where_container(|c| of(c.get("securityContext")) == Some(false))) {
        return refuse("runAsNonRoot != true", format!("{} must not set securityContext.runAsNonRoot=false", who));
    }
    let names = pod.where_container(|c| whole != Some(true) && of(c.get("securityContext")).is_none());
    if names.is_empty() {
        return None;
    }
    refuse("runAsNonRoot != true", format!("pod or {} must set securityContext.runAsNonRoot=true", containers(&names)))
}

fn root_user(pod: &Pod) -> Violation {
    if pod.user_namespace() {
        return None;
    }
    let bad = |v: Value| set(v.get("runAsUser")) && v.get("runAsUser").int() == 0;
    let who = setters(bad(pod.security()), &pod.where_container(|c| bad(c.get("securityContext"))))?;
    refuse("runAsUser=0", format!("{} must not set runAsUser=0", who))
}
