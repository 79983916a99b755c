//! What hooks answer.

use crate::json::{int, string, Json};
use alloc::{string::String, vec, vec::Vec};

/// What an admission hook decides: nothing, so far, lets the request through.
#[derive(Default)]
pub struct Decision {
    denied: bool,
    message: String,
    field: String,
    code: i64,
    causes: Vec<Json>,
    patch: Vec<u8>,
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

    /// Puts a value at a path of the object (`/metadata/labels/team`). What is
    /// missing on the way is made; `/spec/containers/[name=web]` finds an item by key. Slashes
    /// in keys are written `~1`.
    pub fn add(&mut self, path: &str, value: impl Into<Json>) {
        self.change("add", path, None, Some(value.into()));
    }

    /// Replaces a value that is there.
    pub fn replace(&mut self, path: &str, value: impl Into<Json>) {
        self.change("replace", path, None, Some(value.into()));
    }

    /// Removes a value that is there.
    pub fn remove(&mut self, path: &str) {
        self.change("remove", path, None, None);
    }

    /// Takes a value from one path to another.
    pub fn move_to(&mut self, from: &str, path: &str) {
        self.change("move", path, Some(from), None);
    }

    fn change(&mut self, op: &str, path: &str, from: Option<&str>, value: Option<Json>) {
        let out = &mut self.patch;
        if !out.is_empty() {
            out.push(b',');
        }
        out.extend_from_slice(b"{\"op\":");
        string(out, op);
        out.extend_from_slice(b",\"path\":");
        string(out, path);
        if let Some(f) = from {
            out.extend_from_slice(b",\"from\":");
            string(out, f);
        }
        if let Some(v) = value {
            out.extend_from_slice(b",\"value\":");
            v.write(out);
        }
        out.push(b'}');
    }

    pub(crate) fn encode(self) -> Vec<u8> {
        if !self.denied && self.patch.is_empty() && self.warnings.is_empty() && self.audit.is_empty() {
            return Vec::new();
        }
        let mut out = Vec::with_capacity(64 + self.message.len() + self.patch.len());
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
                Json::Array(self.causes).write(&mut out);
            }
        } else if !self.patch.is_empty() {
            out.extend_from_slice(b",\"patch\":[");
            out.extend_from_slice(&self.patch);
            out.push(b']');
        }
        if !self.warnings.is_empty() {
            out.extend_from_slice(b",\"warnings\":");
            Json::Array(self.warnings.into_iter().map(Json::Str).collect()).write(&mut out);
        }
        if !self.audit.is_empty() {
            out.extend_from_slice(b",\"auditAnnotations\":");
            Json::Object(self.audit.into_iter().map(|(k, v)| (k, Json::Str(v))).collect()).write(&mut out);
        }
        out.push(b'}');
        out
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
    delete: Vec<Json>,
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

    /// Removes an object.
    pub fn delete(&mut self, api_version: &str, kind: &str, namespace: &str, name: &str) {
        self.delete.push(Json::object([
            ("apiVersion", api_version.into()),
            ("kind", kind.into()),
            ("namespace", namespace.into()),
            ("name", name.into()),
        ]));
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
        let mut entries = vec![
            (String::from("apply"), Json::Array(self.apply)),
            (String::from("delete"), Json::Array(self.delete)),
            (String::from("conditions"), Json::Array(self.conditions)),
            (String::from("events"), Json::Array(self.events)),
            (String::from("requeueSeconds"), Json::Int(self.requeue)),
        ];
        if let Some(s) = self.status {
            entries.push((String::from("status"), s));
        }
        let mut out = Vec::new();
        Json::Object(entries).write(&mut out);
        out
    }
}
