// SPDX-License-Identifier: Apache-2.0

//! The steps of a pod's cycle, and what their hooks answer.

use crate::abi::*;
use crate::json::{int, Json};
use crate::plugin::{Hook, Plugin};
use crate::value::Input;
use alloc::{boxed::Box, string::String, vec::Vec};

/// Whether a pod may run on a node. A filter may answer a string, too: why not, "" where it may.
pub enum Fit {
    /// It may.
    Fits,
    /// Not now.
    Unfit(String),
    /// Not there, whatever pods leave the node: nobody is evicted for it.
    Never(String),
}

impl From<String> for Fit {
    fn from(reason: String) -> Fit {
        if reason.is_empty() {
            Fit::Fits
        } else {
            Fit::Unfit(reason)
        }
    }
}

/// What a hook works out for the later ones of the same cycle.
#[derive(Default)]
pub struct Preparation {
    skip: bool,
    state: Option<Json>,
}

impl Preparation {
    /// Leaves the plugin's filter (after pre_filter) or score (after pre_score) out of this cycle.
    pub fn skip(&mut self) {
        self.skip = true;
    }

    /// Hands a value to the plugin's later hooks of this cycle, which read it as `state`.
    /// What an instance keeps in its own memory another does not see.
    pub fn keep(&mut self, state: impl Into<Json>) {
        self.state = Some(state.into());
    }

    fn entries(self) -> Vec<(String, Json)> {
        let mut out = Vec::new();
        if self.skip {
            out.push((String::from("skip"), true.into()));
        }
        if let Some(state) = self.state {
            out.push((String::from("state"), state));
        }
        out
    }
}

/// What pre_filter answers: nothing, so far, leaves all nodes in.
#[derive(Default)]
pub struct Selection {
    /// For the later hooks of the cycle.
    pub preparation: Preparation,
    nodes: Option<Vec<Json>>,
    reasons: Vec<Json>,
    never: bool,
}

impl Selection {
    /// Narrows the search to nodes by their names.
    pub fn only<'a>(&mut self, nodes: impl IntoIterator<Item = &'a str>) {
        self.nodes.get_or_insert_with(Vec::new).extend(nodes.into_iter().map(Json::from));
    }

    /// Keeps the pod off every node, for now.
    pub fn refuse(&mut self, reason: &str) {
        self.reasons.push(reason.into());
    }

    /// Keeps the pod off every node, whatever pods leave them.
    pub fn never(&mut self, reason: &str) {
        self.never = true;
        self.refuse(reason);
    }

    /// Leaves the plugin's filter out of this cycle.
    pub fn skip(&mut self) {
        self.preparation.skip();
    }

    /// Hands a value to the plugin's later hooks of this cycle, which read it as `state`.
    pub fn keep(&mut self, state: impl Into<Json>) {
        self.preparation.keep(state);
    }

    fn encode(self) -> Vec<u8> {
        if !self.reasons.is_empty() {
            return refused("fits", self.never, self.reasons);
        }
        let mut entries = self.preparation.entries();
        if let Some(nodes) = self.nodes {
            entries.push((String::from("nodes"), Json::Array(nodes)));
        }
        unless_empty(entries)
    }
}

/// What post_filter proposes: nothing, so far.
#[derive(Default)]
pub struct Nomination {
    node: String,
    evict: Vec<Json>,
    reclaim: Vec<Json>,
    reasons: Vec<Json>,
}

impl Nomination {
    /// Names the node on which the pod will fit.
    pub fn nominate(&mut self, node: &str) {
        self.node = String::from(node);
    }

    /// Removes a pod of that node, of lower priority, to make room; `uid` may be empty.
    pub fn evict(&mut self, namespace: &str, name: &str, uid: &str) {
        self.evict.push(Json::object([("namespace", namespace.into()), ("name", name.into()), ("uid", uid.into())]));
    }

    /// Lets those pods of a group make room that have no place in what it keeps: the most important ones keep
    /// theirs, and of a resource that is not named, all. Names: `milliCPU`, `memory`, `ephemeralStorage`, `pods`, or an
    /// extended resource. The host finds out which of them have to go, whole gangs; the pods of a group that is
    /// named first rather stay. It takes the place of `nominate`, for plugins with [`Groups`].
    pub fn reclaim(&mut self, group: &str, keep: &[(&str, i64)]) {
        self.reclaim.push(Json::object([("group", group.into()), ("keep", amounts(keep))]));
    }

    /// Lets the pods of a group make room whose priority is lower.
    pub fn reclaim_below(&mut self, group: &str, priority: i64) {
        self.reclaim.push(Json::object([("group", group.into()), ("below", priority.into())]));
    }

    /// Says why nothing is proposed.
    pub fn explain(&mut self, reason: &str) {
        self.reasons.push(reason.into());
    }

    fn encode(self) -> Vec<u8> {
        let mut entries = Vec::new();
        if !self.node.is_empty() {
            entries.push((String::from("nominated"), self.node.into()));
            entries.push((String::from("evict"), Json::Array(self.evict)));
        }
        if !self.reclaim.is_empty() {
            entries.push((String::from("reclaim"), Json::Array(self.reclaim)));
        }
        if !self.reasons.is_empty() {
            entries.push((String::from("reasons"), Json::Array(self.reasons)));
        }
        unless_empty(entries)
    }
}

fn amounts(list: &[(&str, i64)]) -> Json {
    let plain = |name: &str| ["milliCPU", "memory", "ephemeralStorage", "pods"].contains(&name);
    let entries = |own: bool| list.iter().filter(|(name, _)| plain(name) == own).map(|(name, n)| (String::from(*name), Json::Int(*n))).collect::<Vec<_>>();
    let (mut out, scalar) = (entries(true), entries(false));
    if !scalar.is_empty() {
        out.push((String::from("scalar"), Json::Object(scalar)));
    }
    Json::Object(out)
}

/// Groups tell pods apart by what is written in them. The pods of a group have their usage counted, by the host:
/// pre_filter, queue_sort and post_filter read the fields `group` (its name), `usage` (of the pod's group), `groups` (of all, by
/// name), `others` (of pods in none) and `total` (what the nodes have). A usage has `requested`, `leaving` and `promised`:
/// amounts, as `requests` are.
pub struct Groups {
    of: String,
    names: Vec<(String, Json)>,
    other: String,
}

impl Groups {
    /// By the value of `pod.metadata.namespace`, `pod.metadata.labels["..."]` or `pod.metadata.annotations["..."]`.
    pub fn by(of: &str) -> Groups {
        Groups { of: String::from(of), names: Vec::new(), other: String::new() }
    }

    /// Puts pods with a value into a group; several values may be one group. At most 1024.
    pub fn name(mut self, value: &str, group: &str) -> Groups {
        self.names.push((String::from(value), group.into()));
        self
    }

    /// The group of pods with another value, or none; without it they are in no group.
    pub fn other(mut self, group: &str) -> Groups {
        self.other = String::from(group);
        self
    }

    pub(crate) fn json(&self) -> Json {
        Json::object([("of", self.of.as_str().into()), ("names", Json::Object(self.names.clone())), ("other", self.other.as_str().into())])
    }
}

/// What permit answers.
pub enum Permission {
    /// The pod is bound.
    Proceed,
    /// The pod and its place are held; the hook is asked again within so many seconds, for 15 minutes at most.
    Wait(f64, String),
    /// The place is given up; the pod is tried again later.
    Reject(String),
}

impl Permission {
    fn encode(self) -> Vec<u8> {
        let mut entries = Vec::new();
        let (decision, reason) = match self {
            Permission::Proceed => return Vec::new(),
            Permission::Wait(seconds, reason) => {
                entries.push((String::from("waitSeconds"), Json::Float(seconds)));
                ("wait", reason)
            }
            Permission::Reject(reason) => ("deny", reason),
        };
        entries.push((String::from("decision"), decision.into()));
        entries.push((String::from("reasons"), Json::Array(alloc::vec![reason.into()])));
        unless_empty(entries)
    }
}

/// What bind answers: nothing, so far, leaves the binding to others.
#[derive(Default)]
pub struct Binding {
    bound: bool,
    annotations: Vec<(String, Json)>,
    reasons: Vec<Json>,
}

impl Binding {
    /// Has the pod bound to the node.
    pub fn bind(&mut self) {
        self.bound = true;
    }

    /// Has the pod bound, with an annotation.
    pub fn annotate(&mut self, key: &str, value: &str) {
        self.bound = true;
        self.annotations.push((String::from(key), value.into()));
    }

    /// Gives the place up.
    pub fn refuse(&mut self, reason: &str) {
        self.reasons.push(reason.into());
    }

    fn encode(self) -> Vec<u8> {
        if !self.reasons.is_empty() {
            return refused("allowed", false, self.reasons);
        }
        if !self.bound {
            return Vec::new();
        }
        written(Json::object([("annotations", Json::Object(self.annotations))]))
    }
}

fn written(v: Json) -> Vec<u8> {
    let mut out = Vec::new();
    v.write(&mut out);
    out
}

fn unless_empty(entries: Vec<(String, Json)>) -> Vec<u8> {
    if entries.is_empty() {
        return Vec::new();
    }
    written(Json::Object(entries))
}

fn refused(key: &str, never: bool, reasons: Vec<Json>) -> Vec<u8> {
    let mut entries = alloc::vec![(String::from(key), Json::Bool(false)), (String::from("reasons"), Json::Array(reasons))];
    if never {
        entries.push((String::from("unresolvable"), Json::Bool(true)));
    }
    written(Json::Object(entries))
}

fn gated(result: Result<(), String>) -> Vec<u8> {
    match result {
        Ok(()) => Vec::new(),
        Err(reason) => refused("allowed", false, alloc::vec![reason.into()]),
    }
}

/// A hook of the cycle, whatever it answers.
pub(crate) type Answer = Box<dyn Fn(&Input) -> Vec<u8>>;

/// A step of the cycle at which a plugin takes part.
pub(crate) struct Step {
    pub(crate) op: i32,
    pub(crate) hook: Hook<Answer>,
}

impl Plugin {
    fn step<F>(mut self, op: i32, hook: Hook<F>, wrap: impl FnOnce(F) -> Answer) -> Plugin {
        self.steps.push(Step { op, hook: hook.with(wrap) });
        self
    }

    /// The hook at scheduling.preEnqueue, before a pod is tried: Err says what it waits for.
    pub fn pre_enqueue(self, h: Hook<impl Fn(&Input) -> Result<(), String> + 'static>) -> Plugin {
        self.step(PRE_ENQUEUE, h, |f| Box::new(move |i| gated(f(i))))
    }

    /// The hook at scheduling.queueSort: the highest goes first. A plugin with groups ranks groups: `pod` is the first
    /// one of a group that waits, and the hook is asked again when what the group has changes.
    pub fn queue_sort(self, h: Hook<impl Fn(&Input) -> i64 + 'static>) -> Plugin {
        self.step(QUEUE_SORT, h, |f| Box::new(move |i| number(f(i))))
    }

    /// The hook at scheduling.preFilter, once a cycle before all nodes.
    pub fn pre_filter(self, h: Hook<impl Fn(&Input, &mut Selection) + 'static>) -> Plugin {
        self.step(PRE_FILTER, h, |f| {
            Box::new(move |i| {
                let mut out = Selection::default();
                f(i, &mut out);
                out.encode()
            })
        })
    }

    /// The hook at scheduling.filter: a [`Fit`], or a string, which is "" where the pod fits.
    pub fn filter<R: Into<Fit>>(self, h: Hook<impl Fn(&Input) -> R + 'static>) -> Plugin {
        self.step(FILTER, h, |f| {
            Box::new(move |i| match f(i).into() {
                Fit::Fits => Vec::new(),
                Fit::Unfit(reason) => refused("fits", false, alloc::vec![reason.into()]),
                Fit::Never(reason) => refused("fits", true, alloc::vec![reason.into()]),
            })
        })
    }

    /// The hook at scheduling.postFilter: no node was left.
    pub fn post_filter(self, h: Hook<impl Fn(&Input, &mut Nomination) + 'static>) -> Plugin {
        self.step(POST_FILTER, h, |f| {
            Box::new(move |i| {
                let mut out = Nomination::default();
                f(i, &mut out);
                out.encode()
            })
        })
    }

    /// The hook at scheduling.preScore, once a cycle with the nodes that are left.
    pub fn pre_score(self, h: Hook<impl Fn(&Input, &mut Preparation) + 'static>) -> Plugin {
        self.step(PRE_SCORE, h, |f| {
            Box::new(move |i| {
                let mut out = Preparation::default();
                f(i, &mut out);
                unless_empty(out.entries())
            })
        })
    }

    /// The hook at scheduling.score: 0 to 100.
    pub fn score(self, h: Hook<impl Fn(&Input) -> i64 + 'static>) -> Plugin {
        self.step(SCORE, h, |f| Box::new(move |i| number(f(i))))
    }

    /// The hook at scheduling.normalize: it changes the plugin's scores of all nodes, in the order
    /// of the field `nodes`, to what they are to be among each other, 0 to 100.
    pub fn normalize(self, h: Hook<impl Fn(&Input, &mut [i64]) + 'static>) -> Plugin {
        let mut h = h;
        if !h.fields.is_empty() && !h.fields.contains(&"scores") {
            h.fields.push("scores");
        }
        self.step(NORMALIZE, h, |f| {
            Box::new(move |i| {
                let mut scores: Vec<i64> = i.get("scores").items().map(|s| s.int()).collect();
                f(i, &mut scores);
                written(Json::Array(scores.into_iter().map(|s| Json::Int(s.max(0).min(100))).collect()))
            })
        })
    }

    /// The hook at scheduling.reserve: a node was chosen (`nodeName`). Err gives it up.
    pub fn reserve(self, h: Hook<impl Fn(&Input) -> Result<(), String> + 'static>) -> Plugin {
        self.step(RESERVE, h, |f| Box::new(move |i| gated(f(i))))
    }

    /// The hook at scheduling.unreserve: the choice came to nothing.
    pub fn unreserve(self, h: Hook<impl Fn(&Input) + 'static>) -> Plugin {
        self.step(UNRESERVE, h, |f| Box::new(move |i| told(&f, i)))
    }

    /// The hook at scheduling.permit, before binding.
    pub fn permit(self, h: Hook<impl Fn(&Input) -> Permission + 'static>) -> Plugin {
        self.step(PERMIT, h, |f| Box::new(move |i| f(i).encode()))
    }

    /// The hook at scheduling.preBind, just before binding. Err gives the place up.
    pub fn pre_bind(self, h: Hook<impl Fn(&Input) -> Result<(), String> + 'static>) -> Plugin {
        self.step(PRE_BIND, h, |f| Box::new(move |i| gated(f(i))))
    }

    /// The hook at scheduling.bind.
    pub fn bind(self, h: Hook<impl Fn(&Input, &mut Binding) + 'static>) -> Plugin {
        self.step(BIND, h, |f| {
            Box::new(move |i| {
                let mut out = Binding::default();
                f(i, &mut out);
                out.encode()
            })
        })
    }

    /// The hook at scheduling.postBind: the pod is bound.
    pub fn post_bind(self, h: Hook<impl Fn(&Input) + 'static>) -> Plugin {
        self.step(POST_BIND, h, |f| Box::new(move |i| told(&f, i)))
    }
}

fn told(f: &impl Fn(&Input), input: &Input) -> Vec<u8> {
    f(input);
    Vec::new()
}

fn number(n: i64) -> Vec<u8> {
    let mut out = Vec::new();
    int(&mut out, n);
    out
}
