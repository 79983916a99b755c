// SPDX-License-Identifier: Apache-2.0

//! What hooks answer.

use crate::json::{int, string, Json};
use alloc::{string::String, vec::Vec};

/// What an admission hook decides: nothing, so far, lets the request through.
#[derive(Default)]
pub struct Decision {
    denied: bool,
    message: String,
    field: String,
    code: i64,
    causes: Vec<Json>,
    reason: String,
    object: Option<Json>,
    patch: Patch,
    warnings: Vec<String>,
    audit: Vec<(String, String)>,
}

impl Decision {
    /// Refuses the request.
    pub fn deny(&mut self, message: &str) {
        self.denied = true;
        self.message = String::from(message);
    }

    /// Refuses the request because of a field, such as `spec.containers[0].image`.
    pub fn deny_field(&mut self, field: &str, message: &str) {
        self.deny(message);
        self.field = String::from(field);
    }

    /// Refuses the request because of a field, beside what else is wrong: a user
    /// learns of everything at once.
    pub fn cause(&mut self, field: &str, message: &str) {
        self.denied = true;
        self.causes.push(Json::object([("field", field.into()), ("message", message.into())]));
    }

    /// Sets the HTTP status of a refusal; 403 otherwise.
    pub fn code(&mut self, code: u16) {
        self.code = code as i64;
    }

    /// Shows a warning to the user.
    pub fn warn(&mut self, text: &str) {
        self.warnings.push(String::from(text));
    }

    /// Adds an annotation to the audit record.
    pub fn audit(&mut self, key: &str, value: &str) {
        self.audit.push((String::from(key), String::from(value)));
    }

    /// Sets the refusal's `metav1.StatusReason`: `Invalid`, `Conflict`, ...
    pub fn reason(&mut self, reason: &str) {
        self.reason = String::from(reason);
    }

    /// Makes the object be as given, in the place of a patch; only a mutating hook that
    /// named no fields may.
    pub fn set_object(&mut self, object: impl Into<Json>) {
        self.object = Some(object.into());
    }

    /// Puts a value at a path of the object (`/metadata/labels/team`). What is
    /// missing on the way is made; `/spec/containers/[name=web]` finds an item by key. Slashes
    /// in keys are written `~1`.
    pub fn add(&mut self, path: &str, value: impl Into<Json>) {
        self.patch.change("add", path, Some(value.into()));
    }

    /// Replaces a value that is there.
    pub fn replace(&mut self, path: &str, value: impl Into<Json>) {
        self.patch.change("replace", path, Some(value.into()));
    }

    /// Removes a value that is there.
    pub fn remove(&mut self, path: &str) {
        self.patch.change("remove", path, None);
    }

    /// Takes a value from one path to another.
    pub fn move_to(&mut self, from: &str, path: &str) {
        self.patch.moved(from, path);
    }

    /// Makes the whole patch fail where another value is there.
    pub fn test(&mut self, path: &str, value: impl Into<Json>) {
        self.patch.change("test", path, Some(value.into()));
    }

    pub(crate) fn encode(&mut self) -> Vec<u8> {
        if !self.denied && self.patch.ops.is_empty() && self.object.is_none() && self.warnings.is_empty() && self.audit.is_empty() {
            return Vec::new();
        }
        let mut out = Vec::with_capacity(64 + self.message.len() + self.patch.ops.len());
        out.extend_from_slice(if self.denied { b"{\"allowed\":false" } else { b"{\"allowed\":true" });
        if self.denied {
            out.extend_from_slice(b",\"message\":");
            string(&mut out, &self.message);
            if !self.field.is_empty() {
                out.extend_from_slice(b",\"field\":");
                string(&mut out, &self.field);
            }
            if self.code != 0 {
                out.extend_from_slice(b",\"code\":");
                int(&mut out, self.code);
            }
            if !self.causes.is_empty() {
                out.extend_from_slice(b",\"causes\":");
                Json::Array(core::mem::take(&mut self.causes)).write(&mut out);
            }
            if !self.reason.is_empty() {
                out.extend_from_slice(b",\"reason\":");
                string(&mut out, &self.reason);
            }
        } else {
            if !self.patch.ops.is_empty() {
                out.extend_from_slice(b",\"patch\":[");
                out.extend_from_slice(&self.patch.ops);
                out.push(b']');
            }
            if let Some(object) = &self.object {
                out.extend_from_slice(b",\"object\":");
                object.write(&mut out);
            }
        }
        if !self.warnings.is_empty() {
            out.extend_from_slice(b",\"warnings\":");
            Json::Array(self.warnings.drain(..).map(Json::Str).collect()).write(&mut out);
        }
        if !self.audit.is_empty() {
            out.extend_from_slice(b",\"auditAnnotations\":");
            Json::Object(self.audit.drain(..).map(|(k, v)| (k, Json::Str(v))).collect()).write(&mut out);
        }
        out.push(b'}');
        out
    }
}

/// Changes to an object, in their order, in a plan: a JSON patch of RFC 6902, which the API server applies.
#[derive(Default)]
pub struct Patch {
    ops: Vec<u8>,
}

impl Patch {
    /// A patch that changes nothing, so far.
    pub fn new() -> Patch {
        Patch::default()
    }

    /// Puts a value at a path.
    pub fn add(mut self, path: &str, value: impl Into<Json>) -> Patch {
        self.change("add", path, Some(value.into()));
        self
    }

    /// Replaces a value that is there.
    pub fn replace(mut self, path: &str, value: impl Into<Json>) -> Patch {
        self.change("replace", path, Some(value.into()));
        self
    }

    /// Removes a value that is there.
    pub fn remove(mut self, path: &str) -> Patch {
        self.change("remove", path, None);
        self
    }

    /// Takes a value from one path to another.
    pub fn move_to(mut self, from: &str, path: &str) -> Patch {
        self.moved(from, path);
        self
    }

    /// Makes the whole patch fail where another value is there.
    pub fn test(mut self, path: &str, value: impl Into<Json>) -> Patch {
        self.change("test", path, Some(value.into()));
        self
    }

    fn change(&mut self, op: &str, path: &str, value: Option<Json>) {
        let out = &mut self.ops;
        if !out.is_empty() {
            out.push(b',');
        }
        out.extend_from_slice(b"{\"op\":");
        string(out, op);
        out.extend_from_slice(b",\"path\":");
        string(out, path);
        if let Some(v) = value {
            out.extend_from_slice(b",\"value\":");
            v.write(out);
        }
        out.push(b'}');
    }

    fn moved(&mut self, from: &str, path: &str) {
        self.change("move", path, None);
        self.ops.pop();
        self.ops.extend_from_slice(b",\"from\":");
        string(&mut self.ops, from);
        self.ops.push(b'}');
    }
}

/// Names an object of a plan. Without a namespace it is in the primary's; with a uid, an object of
/// the same name that is another one is left alone.
#[derive(Clone, Copy, Default)]
pub struct Target<'a> {
    /// Group and version: `apps/v1`.
    pub api_version: &'a str,
    /// Kind.
    pub kind: &'a str,
    /// Namespace, or "".
    pub namespace: &'a str,
    /// Name.
    pub name: &'a str,
    /// Identity, or "".
    pub uid: &'a str,
    /// Of a patch: `status`, `scale`, or "" for the object.
    pub subresource: &'a str,
    /// Of a deletion: in another state the object is not deleted, and the host calls again.
    pub resource_version: &'a str,
    /// Of a deletion: `Background` (the default), `Foreground` or `Orphan`.
    pub propagation: &'a str,
}

impl Target<'_> {
    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"apiVersion\":");
        string(out, self.api_version);
        let parts = [
            ("kind", self.kind),
            ("namespace", self.namespace),
            ("name", self.name),
            ("uid", self.uid),
            ("subresource", self.subresource),
            ("resourceVersion", self.resource_version),
            ("propagationPolicy", self.propagation),
        ];
        for (key, value) in parts {
            if !value.is_empty() {
                out.push(b',');
                string(out, key);
                out.push(b':');
                string(out, value);
            }
        }
    }
}

/// An authorizer's answer.
pub enum Verdict {
    /// Allowed, for a reason.
    Allow(String),
    /// Denied, for a reason.
    Deny(String),
    /// Others decide.
    NoOpinion,
}

impl Verdict {
    pub(crate) fn encode(self) -> Vec<u8> {
        let (decision, reason) = match self {
            Verdict::Allow(r) => ("allow", r),
            Verdict::Deny(r) => ("deny", r),
            Verdict::NoOpinion => return Vec::new(),
        };
        let mut out = Vec::new();
        Json::object([("decision", decision.into()), ("reason", reason.into())]).write(&mut out);
        out
    }
}

/// What is thought of one row of a node table.
pub enum Judgement {
    /// The pod may run there, with a score from 0 to 100.
    Fits(i64),
    /// Not now, for a reason by its index.
    Unfit(u8),
    /// Not there, whatever pods leave the node, for a reason by its index.
    Never(u8),
}

impl Judgement {
    #[inline] // else it is a call for each node
    pub(crate) fn byte(self) -> u8 {
        match self {
            Judgement::Fits(score) => 1 + score.max(0).min(100) as u8,
            Judgement::Unfit(reason) => 128 + (reason & 63),
            Judgement::Never(reason) => 192 + (reason & 63),
        }
    }
}

/// What a reconciler wants. It says what there should be, not what to change: it
/// is carried out again and again.
#[derive(Default)]
pub struct Plan {
    apply: Vec<Json>,
    patches: Vec<u8>,
    deletes: Vec<u8>,
    conditions: Vec<Json>,
    events: Vec<Json>,
    status: Option<Json>,
    requeue: i64,
}

impl Plan {
    /// Makes an object be as given (server-side apply). It belongs to the primary, and goes with it.
    pub fn apply(&mut self, object: Json) {
        self.apply.push(object);
    }

    /// Changes an object that is not the plugin's to apply as a whole.
    pub fn patch(&mut self, target: Target, patch: Patch) {
        let out = next(&mut self.patches);
        target.write(out);
        out.extend_from_slice(b",\"patch\":[");
        out.extend_from_slice(&patch.ops);
        out.extend_from_slice(b"]}");
    }

    /// Removes an object.
    pub fn delete(&mut self, api_version: &str, kind: &str, namespace: &str, name: &str) {
        self.delete_target(Target { api_version, kind, namespace, name, ..Target::default() });
    }

    /// Removes an object, with the uid and resource version where they are given.
    pub fn delete_target(&mut self, target: Target) {
        let out = next(&mut self.deletes);
        target.write(out);
        out.push(b'}');
    }

    /// Sets fields of the primary's status.
    pub fn status(&mut self, status: Json) {
        self.status = Some(status);
    }

    /// Sets a condition of the primary: `True`, `False` or `Unknown`.
    pub fn condition(&mut self, kind: &str, status: &str, reason: &str, message: &str) {
        self.conditions.push(Json::object([
            ("type", kind.into()),
            ("status", status.into()),
            ("reason", reason.into()),
            ("message", message.into()),
        ]));
    }

    /// Records an event on the primary: `Normal` or `Warning`.
    pub fn event(&mut self, kind: &str, reason: &str, message: &str) {
        self.events.push(Json::object([("type", kind.into()), ("reason", reason.into()), ("message", message.into())]));
    }

    /// Asks to be called again after some seconds, though nothing changed.
    pub fn requeue(&mut self, seconds: i64) {
        self.requeue = seconds;
    }

    pub(crate) fn encode(self) -> Vec<u8> {
        let mut out = Vec::from(&b"{\"apply\":"[..]);
        Json::Array(self.apply).write(&mut out);
        for (key, list) in [("patch", &self.patches), ("delete", &self.deletes)] {
            if key == "patch" && list.is_empty() {
                continue;
            }
            out.push(b',');
            string(&mut out, key);
            out.extend_from_slice(b":[");
            out.extend_from_slice(list);
            out.push(b']');
        }
        for (key, list) in [("conditions", self.conditions), ("events", self.events)] {
            out.push(b',');
            string(&mut out, key);
            out.push(b':');
            Json::Array(list).write(&mut out);
        }
        if let Some(status) = self.status {
            out.extend_from_slice(b",\"status\":");
            status.write(&mut out);
        }
        out.extend_from_slice(b",\"requeueSeconds\":");
        int(&mut out, self.requeue);
        out.push(b'}');
        out
    }
}

/// A list, ready for its next item.
fn next(list: &mut Vec<u8>) -> &mut Vec<u8> {
    if !list.is_empty() {
        list.push(b',');
    }
    list
}
